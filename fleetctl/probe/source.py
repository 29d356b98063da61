"""The texts that are fed to `python3 -` on a node: the probe with its parameters, and the lease's installer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_PARAMETERS = 'PARAMETERS = "{}"\n'


@cache
def _text(name: str) -> str:
    return files("fleetctl.probe").joinpath(name).read_text(encoding="utf-8")


def probe_source(parameters: Mapping[str, object] | None = None) -> str:
    """The probe. JSON that is encoded once more as JSON is a Python text literal, whatever is in it."""
    text = _text("probe.py")
    if text.count(_PARAMETERS) != 1:
        raise AssertionError("probe.py has lost the line that takes its parameters")
    return text.replace(_PARAMETERS, f"PARAMETERS = {json.dumps(json.dumps(dict(parameters or {})))}\n")


def lease_source() -> str:
    """For `python3 - take --install ...` or `python3 - install`: runs lease.py, which can then copy itself."""
    return f"SOURCE = {json.dumps(_text('lease.py'))}\nexec(compile(SOURCE, 'lease.py', 'exec'))\n"
