"""The Python 3.6 of this machine, if it has one: what the programs that run on nodes are written for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def find_python_3_6() -> str | None:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [*map(str, pyenv.glob("versions/3.6.*/bin/python3.6")), shutil.which("python3.6")]
    for candidate in filter(None, candidates):
        # pyenv puts a python3.6 on PATH that only complains.
        said = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        if said.returncode == 0 and "Python 3.6" in said.stdout + said.stderr:
            return candidate
    return None


PYTHON_3_6 = find_python_3_6()
