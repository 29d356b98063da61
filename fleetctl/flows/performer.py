"""Starts acts on an event loop and delivers their outcomes; one act at a time on each node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fleetctl.flows.acts import change, prepare, prove
from fleetctl.flows.acts.view import Rollout, outcome
from fleetctl.model.record import Owed
from fleetctl.model.rollout import Act, Outcome, Result

ACTS = {
    Act.CHECK: prepare.check,
    Act.DRAIN: prepare.drain,
    Act.PREFLIGHT: prepare.preflight,
    Act.APPLY: change.apply,
    Act.RESTART: change.restart,
    Act.POWER_CYCLE: change.power_cycle,
    Act.VERIFY: prove.verify,
    Act.VERIFY_UNCHANGED: prove.verify_unchanged,
    Act.UNDRAIN: prove.undrain,
    Act.LABEL: prove.label,
    Act.LET_GO: prove.let_go,
    Act.RECHECK: prove.recheck,
}


@dataclass(slots=True)
class ActPerformer:
    """Implements ports.Performer. `start` may be called from another thread than the loop's."""

    rollout: Rollout
    loop: asyncio.AbstractEventLoop
    deliver: Callable[[Outcome], None]
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def start(self, owed: Sequence[Owed]) -> None:
        for item in owed:
            self.loop.call_soon_threadsafe(self._launch, item)

    def _launch(self, owed: Owed) -> None:
        earlier = self._tasks.get(owed.intent.node)
        self._tasks[owed.intent.node] = self.loop.create_task(self._perform(owed, earlier))

    async def _perform(self, owed: Owed, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None and not earlier.done():
            earlier.cancel()
            await asyncio.wait([earlier])
        try:
            result = await ACTS[owed.intent.act](self.rollout, owed)
        except Exception as error:  # noqa: BLE001  a fault of ours must not lose the node: unknown means look again
            result = outcome(owed, Result.UNKNOWN, f"unexpected {type(error).__name__}: {error}")
        self.deliver(result)

    async def cancel_all(self) -> None:
        """Give up every act under way; their intents stay open in the journal."""
        tasks = [task for task in self._tasks.values() if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
