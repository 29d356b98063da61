"""pytest plugin that the verify files of roles are run with, by `fleetctl verify` and by molecule.

FLEETCTL_DECLARED names a JSON file {host: {variable: value}}: what is declared for each host.
Beside testinfra's `host`, a verify file has the fixtures `declared` and `ask`, and the marker `active` for checks that
would disturb running work (`-m "not active"` leaves them out). A failed check says in one line what is wrong, and
begins with "hardware: " where no other version of the software would cure it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

DECLARED = "FLEETCTL_DECLARED"
TIMED_OUT = 124  # as timeout(1)
BOOT_LIMIT_S = 300

# Runs on the node. A program in uninterruptible sleep can't be killed: it is signalled, but never waited for.
_WITHIN = """
import os, signal, subprocess, sys, tempfile, time
out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
try:
    child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
except OSError as error:
    sys.stderr.write(str(error))
    sys.exit(127)
end = time.time() + float(sys.argv[1])
while child.poll() is None and time.time() < end:
    time.sleep(0.05)
code = child.poll()
if code is None:
    os.killpg(child.pid, signal.SIGKILL)
    code = 124
for file, stream in ((out, sys.stdout), (err, sys.stderr)):
    file.seek(0)
    stream.buffer.write(file.read())
    stream.flush()
os._exit(code if code >= 0 else 128 - code)
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a program on the node ended; code 127: there is no such program, 124: it did not end in time."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def has_timed_out(self) -> bool:
        return self.code == TIMED_OUT

    @property
    def words(self) -> str:
        """What it said, in one line."""
        return " ".join((self.out.strip() or self.err.strip() or f"exit code {self.code}").split())


Ask = Callable[..., Answer]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "active: disturbs running work; only on a node without any")


@pytest.fixture(scope="module")
def declared(host: Any, request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """Variables of the host under test: what FLEETCTL_DECLARED says, over the plain defaults of the file's role."""
    return {**_role_defaults(request.path), **_declared_of(host.backend.get_hostname())}


@pytest.fixture(scope="module")
def ask(host: Any) -> Ask:
    """Run argv on the node, without a shell and within limit_s seconds: ask(["nvidia-smi", "-L"], limit_s=30)."""

    def run(argv: Sequence[str], limit_s: float = 30) -> Answer:
        words = ["python3", "-c", _WITHIN, str(limit_s), *argv]
        done = host.run(" ".join(["%s"] * len(words)), *words)
        return Answer(tuple(argv), done.rc, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="module", autouse=True)
def _boot_is_over(ask: Ask) -> None:
    """sshd answers before the last services have started. A boot that never ends is judged as it is."""
    ask(["systemctl", "is-system-running", "--wait"], limit_s=BOOT_LIMIT_S)


def _declared_of(name: str) -> Mapping[str, Any]:
    path = os.environ.get(DECLARED)
    if not path:
        pytest.fail(f"{DECLARED} is not set: it names the JSON file of what is declared for each host", pytrace=False)
    every: Mapping[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    if name not in every:
        pytest.fail(f"{path} declares nothing for {name}", pytrace=False)
    found: Mapping[str, Any] = every[name]
    return found


def _role_defaults(verify_file: Path) -> Mapping[str, Any]:
    """Defaults without a template; one with a template is the role's own affair."""
    file = verify_file.parent.parent / "defaults" / "main.yml"
    defaults = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {name: value for name, value in (defaults or {}).items() if "{{" not in str(value)}
