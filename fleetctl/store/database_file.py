"""The SQLite file of a journal: where it may lie, who may read it, and how it comes to be."""

from __future__ import annotations

import errno
import grp
import os
import stat
from collections.abc import Callable
from pathlib import Path

from fleetctl.errors import BadInput, JournalDamaged, JournalFull, StoreError

# Write-ahead logging shares memory between processes of one host: "WAL does not work over a network filesystem"
# (sqlite.org/wal.html). Names as in /proc/self/mountinfo.
_NETWORK = frozenset(
    ("afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "smb3", "wekafs")
)
_NETWORK_FUSE = ("fuse.ceph", "fuse.glusterfs", "fuse.juicefs", "fuse.s3fs", "fuse.sshfs")


def prepare_file(path: Path, group: str | None, lay_down: Callable[[Path], None]) -> None:
    """Make sure that a whole database lies at `path`, readable by us, or by us and `group`, and nobody else.

    A new one is laid down beside it and linked into place when it is complete: whoever finds an empty file finds
    damage, never a beginning.
    """
    if not path.is_absolute():
        raise BadInput(f"state_url: {path} is not absolute (sqlite has four slashes: sqlite:////var/lib/...)")
    if not path.parent.is_dir():
        raise BadInput(f"state_url: {path.parent} is not a directory: create it")
    kind = filesystem_of(path.resolve().parent)
    if kind in _NETWORK or kind.startswith(_NETWORK_FUSE):
        raise StoreError(
            f"{path} lies on {kind}, and SQLite is not safe there: "
            "set state_url to a file on a local disk, or to a PostgreSQL database"
        )
    gid = _shared_with(path.parent, group) if group else None
    if not path.exists():
        _create(path, 0o600 if gid is None else 0o660, lay_down)
    _check(path)


def filesystem_of(directory: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the filesystem that holds a directory, as the kernel names it; empty if it can't be told."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        # proc_pid_mountinfo(5): the third field is major:minor of st_dev, the type follows a lone dash
        before, _, after = line.partition(" - ")
        if before.split(" ")[2:3] == [wanted]:
            return after.split(" ")[0]
    return ""


def _shared_with(directory: Path, group: str) -> int:
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise BadInput(f"state_group {group} is not a group of this machine: add it, or remove the key") from None
    found = directory.stat()
    if found.st_gid != gid or not found.st_mode & stat.S_ISGID:
        # SQLite makes -wal and -shm files as needed: only a setgid directory gives them to the group.
        raise BadInput(
            f"state_group is {group}, but {directory} does not give it its files: "
            f"chgrp {group} {directory} && chmod 2770 {directory}"
        )
    return gid


def _create(path: Path, mode: int, lay_down: Callable[[Path], None]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, mode)
        os.fchmod(descriptor, mode)  # whatever the umask is
        os.close(descriptor)
        try:
            lay_down(draft)
            try:
                os.link(draft, path)
            except FileExistsError:
                return  # another process was first; its file is whole as well
        finally:
            for leftover in (draft, *(draft.with_name(f"{draft.name}-{end}") for end in ("wal", "shm", "journal"))):
                leftover.unlink(missing_ok=True)
        _sync_directory(path.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise JournalFull(f"{path}: no room to create it: make room, or set state_url") from error
        raise StoreError(f"{path} can't be created: {error.strerror}: check the directory, or set state_url") from error


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check(path: Path) -> None:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise BadInput(f"{path} is not a file: set state_url")
    if found.st_mode & 0o007:
        raise StoreError(f"{path} is open to everybody on this machine: chmod o= {path}")
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreError(f"{path} can't be read and written by us: ask for membership of its group, or set state_group")
    if found.st_size == 0:
        raise JournalDamaged(f"{path} is empty, so it was cut off: restore it, or move it away to begin anew")
