"""How fast the journal is here: python -m tests.bench.journal [DIRECTORY] [EVENTS]; one JSON object on the last line.

DIRECTORY should lie on the disk that will hold the journal: appending one by one measures its fsync.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fleetctl.decide.state import RolloutState
from fleetctl.model.drift import Disturbance
from fleetctl.model.node_facts import Identity
from fleetctl.model.policy import Limit, RolloutPolicy
from fleetctl.model.rollout import (
    Act,
    Admitted,
    Closure,
    Concluded,
    Course,
    Emptied,
    Event,
    Intended,
    Intent,
    Learnt,
    Opened,
    Outcome,
    Result,
    State,
)
from fleetctl.store.codec import decode, encode
from fleetctl.store.database import Database, default_url, open_database
from fleetctl.store.journal import Journal, read_events, verify
from fleetctl.store.lock import acquire
from fleetctl.store.log import RolloutLog, log_path

NOW = datetime(2026, 11, 30, 2, 10, tzinfo=UTC)
ROLLOUT = "r-20261130-a7"
EVENTS_PER_NODE = 16


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    node_count = (int(sys.argv[2]) if len(sys.argv) > 2 else 100_000) // EVENTS_PER_NODE
    database = open_database(default_url(directory))
    journal = Journal(database, acquire(database, "bench", ROLLOUT, NOW))
    result = write(directory, journal, list(a_rollout(node_count)))
    result["verify_s"] = seconds(lambda: verify(database, ROLLOUT))
    result["replay_s"] = seconds(lambda: replay(database, node_count))
    tracemalloc.start()
    state = replay(database, node_count)
    result["replayed_state_mb"], result["replay_peak_mb"] = (size / 1e6 for size in tracemalloc.get_traced_memory())
    if state.counts() != {State.DONE: node_count}:
        raise SystemExit(f"the replay ended elsewhere: {state.counts()}")
    database.close()
    result["file_mb"] = (directory / "journal.db").stat().st_size / 1e6
    print(json.dumps({key: round(value, 1) for key, value in result.items()}))  # noqa: T201


def write(directory: Path, journal: Journal, events: list[Event]) -> dict[str, float]:
    journal.append(events[:1])
    single, rest = [[event] for event in events[1:1001]], events[1001:]
    groups = [rest[start : start + 100] for start in range(0, len(rest), 100)]
    log = RolloutLog(log_path(directory, ROLLOUT), lambda: journal.length, tuple(f"secret-{n}" for n in range(100)))
    texts = [encode(event) for event in events]
    return {
        "events": len(events),
        "append_one_by_one_per_s": len(single) / seconds(lambda: exhaust(map(journal.append, single))),
        "append_in_groups_of_100_per_s": len(rest) / seconds(lambda: exhaust(map(journal.append, groups))),
        "log_per_s_with_100_secrets": len(single) / seconds(lambda: exhaust(map(log, single))),
        "encode_us": 1e6 / len(events) * seconds(lambda: exhaust(map(encode, events))),
        "decode_us": 1e6 / len(events) * seconds(lambda: exhaust(map(decode, texts))),
        "payload_bytes": sum(map(len, texts)) / len(texts),
    }


def replay(database: Database, node_count: int) -> RolloutState:
    state = new_state(node_count)
    for event in read_events(database, ROLLOUT):
        state.fold(event)
    return state


def a_rollout(node_count: int) -> Iterator[Event]:
    """The events of nodes that all go well, in the order of a window of 50."""
    names = tuple(f"gpu{number:05}" for number in range(node_count))
    yield Opened(NOW, ROLLOUT, "bench", ("driver",), names, "alice@ctl-1", "ctl-1", "5f0c93d1")
    number, at = 0, NOW
    for start in range(0, node_count, 50):
        window = names[start : start + 50]
        for step in range(8):
            for name in window:
                at += timedelta(milliseconds=100)
                for event in _step(step, name, number, at):
                    number += isinstance(event, Intended)
                    yield event


def _step(step: int, node: str, number: int, at: datetime) -> Iterator[Event]:
    acts = (Act.CHECK, Act.DRAIN, None, Act.PREFLIGHT, Act.APPLY, Act.RESTART, Act.VERIFY, Act.UNDRAIN)
    act = acts[step]
    if step == 0:
        yield Admitted(at, node, "main")
    if act is None:
        yield Emptied(at, node)
        return
    learnt = Learnt()
    if act is Act.CHECK:
        learnt = Learnt(Disturbance.REBOOT, Identity("4c4c4544-0000", "SN1", "a" * 32), "b" * 36)
    elif act is Act.PREFLIGHT:
        packages = {f"libnvidia-part-{index}": "570.195.03-1" for index in range(14)}
        learnt = Learnt(
            closures={"driver": Closure(packages, tuple(packages), {"nvidia_driver_version": "570.195.03"})}
        )
    conclusion = State.DONE if act is Act.UNDRAIN else None
    yield Intended(at, Intent(number, node, act, Course.FORWARD, conclusion=conclusion))
    yield Concluded(at, Outcome(number, node, act, Result.OK, learnt=learnt))


def new_state(node_count: int) -> RolloutState:
    policy = RolloutPolicy(max_unavailable=Limit(100, is_percent=True))
    return RolloutState(policy, {f"gpu{number:05}": [("rack", f"r{number // 32}")] for number in range(node_count)})


def seconds(run: Callable[[], object]) -> float:
    begun_at = time.perf_counter()
    run()
    return time.perf_counter() - begun_at


def exhaust(items: Iterable[object]) -> None:
    deque(items, maxlen=0)


if __name__ == "__main__":
    main()
