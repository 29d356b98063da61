"""The lease: which rollout and controller may change this node. Runs on the node as root; Python 3.6, standard library.

lease.py [--directory DIR] [--wait-s S] VERB ...
  install                                  copy this program to DIR/lease.py
  take [--install] ROLLOUT CONTROLLER EPOCH NONCE
                                           create the lease, or raise the epoch of the same rollout's; then wait until
                                           no command runs under an older epoch
  check ROLLOUT EPOCH                      is this the lease now?
  release ROLLOUT CONTROLLER EPOCH NONCE   remove a lease that could be taken so; no lease at all is as good
  show                                     print it
  exec ROLLOUT EPOCH -- COMMAND ...        run the command if this is the lease now; the lease can't be taken over
                                           until the command and all its children have ended

Exit codes: 0 done; 2 wrong usage; 96 the lease is another's, or the epoch is stale; 97 exec: the same, nothing was run;
98 a command under the lease still runs, ask again; 99 the lease file can't be read: a person must look; 70 unexpected.
exec otherwise ends as its command does. One JSON line says why: on stdout, for exec on stderr.
"""

import argparse
import errno
import fcntl
import json
import os
import signal
import stat
import sys
import time
from typing import Any, Dict, List, NoReturn, Optional

OK, FOREIGN, NOT_RUN, BUSY, DAMAGED, UNEXPECTED = 0, 96, 97, 98, 99, 70
DIRECTORY = "/var/lib/fleetctl"
# Daemons that a package manager or Ansible may leave behind; nothing waits for these.
LEFT_BEHIND = frozenset(("gpg-agent", "dirmngr", "keyboxd", "scdaemon", "dbus-daemon", "dbus-launch"))
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

Lease = Dict[str, Any]


class Ended(Exception):
    """The verb is over: exit code and what to print."""

    def __init__(self, code: int, **said: Any) -> None:
        super().__init__(code)
        self.code = code
        self.said = said


def path_in(directory: str, name: str) -> str:
    return os.path.join(directory, name)


def make_directory(directory: str) -> None:
    try:
        os.makedirs(directory, 0o755)
    except FileExistsError:
        return
    os.chmod(directory, 0o755)


def open_lock(directory: str, name: str) -> int:
    """Mode 0600: whoever can open a lock file can hold it."""
    return os.open(path_in(directory, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def lock(descriptor: int, kind: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        if time.monotonic() >= until:
            return False
        time.sleep(0.05)


def read_lease(directory: str) -> Optional[Lease]:
    try:
        with open(path_in(directory, "lease.json"), "rb") as stream:
            found = json.loads(stream.read(65536).decode("utf-8"))
        if not isinstance(found["epoch"], int) or not isinstance(found["rollout"], str):
            raise ValueError("epoch or rollout is missing")
        return dict(found)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise Ended(DAMAGED, refused="the lease file is damaged: %s" % error) from None


def write_new(directory: str, name: str, data: bytes, mode: int) -> str:
    """A complete, synced file beside its final place; a crash leaves it under a name that nothing reads."""
    temporary = path_in(directory, ".%s.%d" % (name, os.getpid()))
    try:
        os.unlink(temporary)
    except FileNotFoundError:
        pass
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    return temporary


def sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_litter(directory: str) -> None:
    """Temporary files of a program that was killed; only under the mutex."""
    for name in os.listdir(directory):
        if name.startswith(".lease."):
            os.unlink(path_in(directory, name))


def install(directory: str) -> None:
    source = globals().get("SOURCE")
    if source is None:
        with open(__file__) as stream:
            source = stream.read()
    target = path_in(directory, "lease.py")
    try:
        with open(target, "rb") as stream_now:
            if stream_now.read() == source.encode("utf-8") and stat.S_IMODE(os.stat(target).st_mode) == 0o755:
                return
    except FileNotFoundError:
        pass
    os.rename(write_new(directory, "lease.py", source.encode("utf-8"), 0o755), target)
    sync_directory(directory)


def take(directory: str, until: float, asked: Lease) -> None:
    """Refuse new commands of the older epoch first, then wait for those that run: so none can slip in between."""
    mutex = open_lock(directory, "lease.mutex")
    if not lock(mutex, fcntl.LOCK_EX, until):
        raise Ended(BUSY, busy="another process writes the lease")
    remove_litter(directory)
    stored = read_lease(directory)
    if stored is not None:
        refuse_other(stored, asked)
    if stored != asked:
        temporary = write_new(directory, "lease.json", (json.dumps(asked, sort_keys=True) + "\n").encode(), 0o644)
        target = path_in(directory, "lease.json")
        if stored is None:
            os.link(temporary, target)
            os.unlink(temporary)
        else:
            os.rename(temporary, target)
        sync_directory(directory)
    os.close(mutex)
    commands = open_lock(directory, "lease.lock")
    if not lock(commands, fcntl.LOCK_EX, until):
        raise Ended(BUSY, busy="a command under the lease still runs", lease=asked, holders=holders_of(commands))
    raise Ended(OK, lease=asked)


def refuse_other(stored: Lease, asked: Lease) -> None:
    if stored["rollout"] != asked["rollout"] or stored.get("nonce") != asked["nonce"]:
        raise Ended(FOREIGN, refused="leased by another rollout", lease=stored)
    if stored["epoch"] > asked["epoch"]:
        raise Ended(FOREIGN, refused="a newer controller has this rollout", lease=stored)
    if stored["epoch"] == asked["epoch"] and stored.get("controller") != asked["controller"]:
        raise Ended(FOREIGN, refused="another controller has this epoch", lease=stored)


def check(directory: str, rollout: str, epoch: int, code: int) -> Lease:
    stored = read_lease(directory)
    if stored is None:
        raise Ended(code, refused="no lease", lease=None)
    if stored["rollout"] != rollout or stored["epoch"] != epoch:
        raise Ended(code, refused="the lease is %s epoch %d" % (stored["rollout"], stored["epoch"]), lease=stored)
    return stored


def release(directory: str, until: float, asked: Lease) -> None:
    mutex = open_lock(directory, "lease.mutex")
    if not lock(mutex, fcntl.LOCK_EX, until):
        raise Ended(BUSY, busy="another process writes the lease")
    stored = read_lease(directory)
    if stored is not None:
        # May be of an earlier epoch: its controller died after it gave the node back, and before this.
        refuse_other(stored, asked)
        os.unlink(path_in(directory, "lease.json"))
        sync_directory(directory)
    raise Ended(OK, lease=None)


def holders_of(descriptor: int) -> List[int]:
    inode = os.fstat(descriptor).st_ino
    try:
        with open("/proc/locks") as locks:
            rows = [line.split() for line in locks if " FLOCK " in line and "->" not in line]
        return [int(words[4]) for words in rows if words[5].rsplit(":", 1)[-1] == str(inode)]
    except (OSError, ValueError, IndexError):
        return []


# --- exec
#
# A lock that is merely inherited does not last: sudo, apt and Ansible close descriptors that they do not know. So a
# keeper process holds it, as the subreaper of everything that the command starts, and lets go when the last has ended.


def run_under_lease(directory: str, until: float, rollout: str, epoch: int, command: List[str]) -> NoReturn:
    descriptor = open_lock(directory, "lease.lock")
    if not lock(descriptor, fcntl.LOCK_SH, until):
        raise Ended(NOT_RUN, refused="the lease is being taken over", lease=read_lease(directory))
    check(directory, rollout, epoch, NOT_RUN)
    reading, writing = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(reading)
        keep(descriptor, writing, command)
    os.close(writing)
    os.close(descriptor)
    sys.exit(follow(reading))


def follow(reading: int) -> int:
    """Wait for the command as the keeper reports it; pass on signals that were meant for the command."""
    told = b""
    while b"\n" not in told:
        data = os.read(reading, 64)
        if not data:
            return UNEXPECTED
        told += data
    line, rest = told.split(b"\n", 1)
    child = int(line)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda got, _frame: send(child, got))
    while True:
        data = os.read(reading, 64)
        if not data:
            return int(rest or b"%d" % UNEXPECTED)
        rest += data


def send(child: int, number: int) -> None:
    try:
        os.kill(child, number)
    except ProcessLookupError:
        pass


def keep(descriptor: int, writing: int, command: List[str]) -> NoReturn:
    # A daemon left behind would hold an inherited lock for ever, so it is the second choice.
    os.set_inheritable(descriptor, not become_subreaper())
    ignored = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)
    child = os.fork()
    if child == 0:
        os.close(writing)
        # Python starts with these ignored, and the command must not inherit that.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            sys.stderr.write("lease.py: %s: %s\n" % (command[0], error.strerror))
            os._exit(127 if error.errno == errno.ENOENT else 126)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    report(writing, b"%d\n" % child)
    # The caller waits for the end of the command's own output, not ours.
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    while True:
        ended, status = os.wait()
        if ended == child:
            break
    report(writing, b"%d" % (os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)))
    os.close(writing)
    while reap() and any(name not in LEFT_BEHIND for name in descendants()):
        time.sleep(0.1)
    os._exit(0)


def report(writing: int, data: bytes) -> None:
    try:
        os.write(writing, data)
    except BrokenPipeError:
        pass  # the caller was killed: the command goes on, and so does its lock


def reap() -> bool:
    """Collect what has ended; False once nothing is left."""
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if ended == 0:
            return True


def descendants() -> List[str]:
    """Names of all processes below this one."""
    parents = {}
    names = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid, "rb") as stream:
                text = stream.read().decode("utf-8", "replace")
            names[int(pid)] = text[text.index("(") + 1 : text.rindex(")")]
            parents[int(pid)] = int(text[text.rindex(")") + 2 :].split()[1])
        except (OSError, ValueError, IndexError):
            continue
    found, grown = {os.getpid()}, True
    while grown:
        below = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= below
        grown = bool(below)
    return [names[pid] for pid in found if pid != os.getpid()]


def become_subreaper() -> bool:
    """True if orphans of the command will be ours to wait for; not so on a minimal Python without ctypes."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lease.py")
    parser.add_argument("--directory", default=DIRECTORY)
    parser.add_argument("--wait-s", type=float, default=30.0)
    verbs = parser.add_subparsers(dest="verb")
    verbs.add_parser("install")
    verbs.add_parser("show")
    verbs.add_parser("take").add_argument("--install", action="store_true")
    verbs.add_parser("release")
    for verb in ("take", "release"):
        verbs.choices[verb].add_argument("rollout")
        verbs.choices[verb].add_argument("controller")
        verbs.choices[verb].add_argument("epoch", type=int)
        verbs.choices[verb].add_argument("nonce")
    for verb in ("check", "exec"):
        verbs.add_parser(verb)
        verbs.choices[verb].add_argument("rollout")
        verbs.choices[verb].add_argument("epoch", type=int)
    verbs.choices["exec"].add_argument("command", nargs=argparse.REMAINDER)
    return parser


def do(asked: argparse.Namespace) -> None:
    until = time.monotonic() + asked.wait_s
    if asked.verb == "exec":
        command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
        if not command:
            raise Ended(2, refused="exec: no command")
        run_under_lease(asked.directory, until, asked.rollout, asked.epoch, command)
    if asked.verb in ("install", "take"):
        make_directory(asked.directory)
    if asked.verb == "install" or (asked.verb == "take" and asked.install):
        install(asked.directory)
    if asked.verb in ("take", "release"):
        lease = {key: getattr(asked, key) for key in ("rollout", "controller", "epoch", "nonce")}
        (take if asked.verb == "take" else release)(asked.directory, until, lease)
    elif asked.verb == "check":
        raise Ended(OK, lease=check(asked.directory, asked.rollout, asked.epoch, FOREIGN))
    elif asked.verb == "show":
        raise Ended(OK, lease=read_lease(asked.directory))
    elif asked.verb != "install":
        raise Ended(2, refused="no verb; see --help")


def main() -> None:
    asked = arguments().parse_args()
    try:
        do(asked)
    except Ended as ended:
        stream = sys.stderr if asked.verb == "exec" else sys.stdout
        stream.write(json.dumps(ended.said, sort_keys=True) + "\n")
        stream.flush()
        sys.exit(ended.code)
    except OSError as error:
        sys.stderr.write(json.dumps({"error": str(error)}) + "\n")
        sys.exit(NOT_RUN if asked.verb == "exec" else UNEXPECTED)


if __name__ == "__main__":
    main()
