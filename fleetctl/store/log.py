"""The log of one rollout, for people and their tools: one JSON object a line, without secrets.

It tells what the journal tells, and what is no event (notes). It is not what a rollout rests on: a log that can't be
written stops nothing. Its numbers are the journal's, which is how a journal cut off at its end is told (`logged`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fleetctl.model.fleet import Json
from fleetctl.model.rollout import Event
from fleetctl.model.secret import scrub_data
from fleetctl.store.codec import encode, time_to_text

_TAIL_BYTES = 64 << 10


def log_path(state_directory: Path, rollout: str) -> Path:
    return state_directory / "logs" / rollout / "rollout.jsonl"


class RolloutLog:
    """Appends to the log; a listener of flows.rollout.run: never raises, and waits for no disk.

    `length` is asked for the number of the last event in the journal, `secrets` are the values never to be written.
    """

    def __init__(
        self,
        path: Path,
        length: Callable[[], int],
        secrets: Sequence[str] = (),
        *,
        is_shared: bool = False,
    ) -> None:
        self.path = path
        self.problem = ""
        """Why the last write came to nothing; empty: it did not."""
        self._length = length
        self._secrets = secrets
        self._modes = (0o2770, 0o660) if is_shared else (0o700, 0o600)
        self._is_ready = False

    def __call__(self, events: Sequence[Event]) -> None:
        first = self._length() - len(events) + 1
        self._write([{"seq": seq, **json.loads(encode(event))} for seq, event in enumerate(events, first)])

    def note(self, text: str, **about: Json) -> None:
        """Something worth knowing that is no event: a hook that failed, a poll that was not readable."""
        self._write([{"kind": "note", "at": time_to_text(datetime.now(UTC)), "text": text, **about}])

    def _write(self, entries: Sequence[Json]) -> None:
        try:
            lines = [json.dumps(scrub_data(entry, self._secrets), separators=(",", ":")) for entry in entries]
            self._append("".join(f"{line}\n" for line in lines).encode())
            self.problem = ""
        except (OSError, ValueError, TypeError) as error:
            self.problem = f"{self.path}: {error}"

    def _append(self, data: bytes) -> None:
        if not self._is_ready:
            self._make_ready()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)

    def _make_ready(self) -> None:
        directory_mode, file_mode = self._modes
        for directory in (self.path.parent.parent, self.path.parent):
            try:
                directory.mkdir(mode=0o700)
                directory.chmod(directory_mode)
            except FileExistsError:
                continue
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, file_mode)
            os.fchmod(descriptor, file_mode)  # whatever the umask is
            os.close(descriptor)
        except FileExistsError:
            self._end_torn_line()
        self._is_ready = True

    def _end_torn_line(self) -> None:
        """A controller that was killed may have left half a line: it must not spoil ours."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                os.write(descriptor, b"\n")
        finally:
            os.close(descriptor)


def logged(path: Path) -> int:
    """The number of the last event that a log tells of; 0 where it tells of none, or there is no log."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            # The last event is near the end, unless one line is longer than the tail.
            for start in (max(0, size - _TAIL_BYTES), 0):
                log.seek(start)
                numbers = [number for line in log.read().splitlines() if (number := _number(line))]
                if numbers:
                    return max(numbers)
    except OSError:
        return 0
    return 0


def _number(line: bytes) -> int:
    try:
        entry = json.loads(line)
    except ValueError:
        return 0
    number = entry.get("seq") if isinstance(entry, dict) else 0
    return number if isinstance(number, int) else 0
