"""What Ansible did on each node, kept for `rollout show`: one bounded file per rollout and node, without secrets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fleetctl.model.secret import scrub

LOG_LIMIT_BYTES = 256 << 10
_OUTPUT_LINES = 12


def line_of(event: Mapping[str, Any]) -> str:
    """One task's outcome on one node, with the end of its output; empty for events that tell nothing."""
    kind, data = str(event.get("event", "")), event.get("event_data") or {}
    result = data.get("res") or {}
    words = {
        "runner_on_ok": "changed" if result.get("changed") else "ok",
        "runner_on_failed": "ignored" if data.get("ignore_errors") else "FAILED",
        "runner_on_unreachable": "UNREACHABLE",
    }.get(kind)
    if words is None:
        return ""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    role = f"{data['role']}: " if data.get("role") else ""
    lines = [f"{at} {words:7} {role}{data.get('task', '')}"]
    if words not in ("ok", "changed") or result.get("changed"):
        output = [str(result.get(key)) for key in ("msg", "stdout", "stderr", "module_stderr") if result.get(key)]
        lines += [f"    {line}" for line in "\n".join(output).splitlines()[-_OUTPUT_LINES:]]
    return "\n".join(lines) + "\n"


class NodeLog:
    """Appends to <state>/logs/<rollout>/<node>.log, mode 0600; the older half goes when it grows past its limit."""

    def __init__(self, state_directory: Path, rollout: str, node: str, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self.path = log_path(state_directory, rollout, node)

    def append(self, text: str) -> None:
        """Never raises: a full disk must not turn a change that went well into one that is not known."""
        if not text:
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._trim()
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as log:
                log.write(scrub(text, self._secrets))
        except OSError:
            return

    def _trim(self) -> None:
        if not self.path.exists() or self.path.stat().st_size < LOG_LIMIT_BYTES:
            return
        kept = self.path.read_bytes()[-LOG_LIMIT_BYTES // 2 :].partition(b"\n")[2]
        rest = self.path.with_suffix(".rest")
        rest.touch(mode=0o600)
        rest.write_bytes(b"... older lines are gone\n" + kept)
        rest.replace(self.path)


def log_path(state_directory: Path, rollout: str, node: str) -> Path:
    return state_directory / "logs" / rollout / f"{node}.log"
