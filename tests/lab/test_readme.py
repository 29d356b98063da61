"""The README's tour, typed as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
TOUR = re.search(r"^```console tour\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.lab


def script() -> str:
    """The tour as one shell script that ends at the first command that does not do as the README says."""
    assert TOUR is not None, "README.md has no block `console tour`"
    lines = ["set -u"]
    for line in TOUR[1].splitlines():
        command, _, note = line.removeprefix("$ ").partition(" # ")
        expected = re.search(r"exit (\d+)", note)
        wanted = expected[1] if expected else "0"
        lines += [f"echo '$ {command}'", command, f'code=$?; [ "$code" -eq {wanted} ] || exit 100']
    return "\n".join(lines)


def test_every_command_of_the_tour_does_as_it_says(tmp_path: Path) -> None:
    # A lab of its own: its files, and with them its name, belong to this test.
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    environment.pop("FLEETCTL_INVENTORY", None)
    text = (
        script().replace("fleetctl lab up", "fleetctl lab up --name tour").replace("lab down", "lab down --name tour")
    )
    try:
        done = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    finally:
        subprocess.run(["fleetctl", "lab", "down", "--name", "tour"], env=environment, capture_output=True, timeout=120)
    for said in ("2 nodes", "complete", "chain whole", "no node carries fleetctl's mark"):
        assert said in done.stdout, f"nothing in the tour says {said!r}:\n{done.stdout}"
