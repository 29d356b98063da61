"""The loop on real time: one thread decides, another carries everything that waits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fleetctl.decide.state import RolloutState
from fleetctl.flows.acts.view import Rollout
from fleetctl.flows.performer import ActPerformer
from fleetctl.flows.rollout import Listener, run
from fleetctl.flows.watch import watch
from fleetctl.model.rollout import Closed, Outcome, Polled, Request
from fleetctl.ports import Journal

Arrival = Outcome | Polled | Request

LOOK_UP_EVERY_S = 1.0
"""The longest wait in one go: a clock that was set, or a signal, is noticed within this."""


class WallClock:
    """Implements ports.Clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


@dataclass(slots=True)
class LiveInbox:
    """Implements ports.Inbox over a queue that signal handlers and other threads may fill."""

    clock: WallClock
    # SimpleQueue: a signal handler may put while the same thread is in get.
    _queue: queue.SimpleQueue[Arrival] = field(default_factory=queue.SimpleQueue)

    def deliver(self, arrival: Arrival) -> None:
        self._queue.put(arrival)

    def take(self, until: datetime | None) -> Sequence[Arrival]:
        arrivals: list[Arrival] = []
        wait_s = LOOK_UP_EVERY_S if until is None else (until - self.clock.now()).total_seconds()
        with contextlib.suppress(queue.Empty):
            arrivals.append(self._queue.get(timeout=min(max(wait_s, 0.0), LOOK_UP_EVERY_S)))
            while True:
                arrivals.append(self._queue.get_nowait())
        return arrivals


class LoopThread:
    """An asyncio loop in a thread of its own, for as long as the `with` block lasts."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="adapters", daemon=True)

    def __enter__(self) -> LoopThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.call(_cancel_others())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end and return what it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def start(self, coroutine: Coroutine[Any, Any, None], on_error: Callable[[BaseException], None]) -> None:
        """Let a coroutine run beside; `on_error` hears of it if it dies of one."""

        def look(task: concurrent.futures.Future[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                on_error(error)

        asyncio.run_coroutine_threadsafe(coroutine, self.loop).add_done_callback(look)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def conduct(
    state: RolloutState,
    rollout: Rollout,
    journal: Journal,
    inbox: LiveInbox,
    thread: LoopThread,
    listener: Listener,
    companions: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
) -> Closed | None:
    """Run a rollout on real nodes until it closes, or until a person leaves.

    `companions` run beside it (heartbeat, requests); one that dies ends the loop with its error. On leaving, acts
    under way are not cancelled: what runs on a node goes on there, as after a SIGKILL, and the next controller
    observes it again.
    """
    names: Mapping[str, str] = {node.scheduler_name: node.name for node in rollout.terms.fleet.values()}
    performer = ActPerformer(rollout, thread.loop, inbox.deliver)
    died: list[BaseException] = []

    def leave(error: BaseException) -> None:
        died.append(error)
        inbox.deliver(Request("leave", by="fleetctl", why=str(error)))

    poll_s = rollout.terms.policy.poll_s
    thread.start(watch(rollout.world.scheduler, names, inbox.clock, poll_s, inbox.deliver), leave)
    for companion in companions:
        thread.start(companion(), leave)
    closed = run(state, journal, inbox, performer, inbox.clock, listener)
    if closed is None and died:
        raise died[0]
    return closed
