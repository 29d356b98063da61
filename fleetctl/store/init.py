"""Lays down an inventory to start from."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from fleetctl.errors import BadInput
from fleetctl.store.content import find_content


@dataclass(frozen=True, slots=True)
class Laid:
    """What `init` wrote, and what was there before it and was left as it is; relative to the directory."""

    written: tuple[Path, ...]
    kept: tuple[Path, ...]


def init(directory: Path) -> Laid:
    """Copy the example inventory into `directory`; a file that is already there is never touched."""
    example = find_content().example
    written: list[Path] = []
    kept: list[Path] = []
    for source in sorted(path for path in example.rglob("*") if path.is_file()):
        name = source.relative_to(example)
        target = directory / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            # Exclusively: what appears in between is somebody else's.
            with target.open("xb") as file, source.open("rb") as text:
                shutil.copyfileobj(text, file)
            written.append(name)
        except FileExistsError:
            if not target.is_file():
                raise BadInput(f"{target} is in the way: it is no file; name another directory") from None
            kept.append(name)
        except OSError as exc:
            raise BadInput(f"{target} can't be written: {exc.strerror}") from exc
    return Laid(tuple(written), tuple(kept))
