"""`dkms status`, in the forms of dkms 2 (`name, version, kernel, arch: state`) and 3 (`name/version, ...`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.parse.raw import command_of

_ROW = re.compile(
    r"^(?P<module>[^\s,/:]+)(?:/|,\s*)(?P<version>[^\s,:]+)"
    r"(?:,\s*(?P<kernel>[^\s,:]+))?(?:,\s*(?P<architecture>[^\s,:]+))?"
    r":\s*(?P<state>[A-Za-z-]+)(?P<rest>[^\n]*)$"
)
# "installed-weak from 4.18.0-372": a module of another kernel that the distribution's weak-modules linked in.
_INSTALLED = frozenset({"installed", "installed-weak"})
# A module of the kernel's own was moved aside: dkms 2 and 3.0, then 3.1 and later.
_HARMLESS = frozenset({"original_module exists", "original modules exist"})


@dataclass(frozen=True, slots=True)
class DkmsRow:
    """One module version, for one kernel; `added` rows name no kernel."""

    module: str
    version: str
    kernel: str
    architecture: str
    state: str
    note: str = ""

    @property
    def is_clean(self) -> bool:
        """Installed, and what is installed is what was built. A note that we do not know is not clean."""
        return self.state in _INSTALLED and all(note in _HARMLESS for note in self.note.lower().split("; ") if note)


@dataclass(frozen=True, slots=True)
class DkmsStatus:
    rows: tuple[DkmsRow, ...]
    errors: tuple[str, ...] = ()
    """A broken tree: dkms complains and leaves the rows of that module out."""


def read_dkms_text(out: str, err: str = "") -> DkmsStatus:
    rows: list[DkmsRow] = []
    errors = [line.strip() for line in err.splitlines() if "Error!" in line]
    for line in out.splitlines():
        stripped = line.strip()
        found = _ROW.match(stripped)
        if found:
            note = "; ".join(re.findall(r"\(([^()]*)\)", found["rest"]))
            rows.append(
                DkmsRow(
                    found["module"],
                    found["version"],
                    found["kernel"] or "",
                    found["architecture"] or "",
                    found["state"].lower(),
                    note,
                )
            )
        elif stripped:
            errors.append(stripped)
    return DkmsStatus(tuple(rows), tuple(errors))


def read_dkms(raw: RawFacts) -> Reading[DkmsStatus]:
    """Not applicable where dkms is not installed. Lines that are no rows are given as errors."""
    ran = command_of(raw, "dkms_status", "dkms status")
    if ran.kind == "not_applicable":
        return not_applicable(ran.reason)
    if not ran.is_known:
        return unknown(ran.reason)
    status = read_dkms_text(ran.get().out, ran.get().err)
    if ran.get().rc != 0 and not status.errors:
        return unknown(f"dkms status: {ran.get().why}")
    return value_of(status)
