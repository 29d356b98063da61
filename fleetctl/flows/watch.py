"""Polls the scheduler and delivers what differs from the poll before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from fleetctl.model.rollout import Polled
from fleetctl.model.work import Work
from fleetctl.ports import Clock, Scheduler


async def watch(
    scheduler: Scheduler,
    names: Mapping[str, str],
    clock: Clock,
    poll_s: float,
    deliver: Callable[[Polled], None],
) -> None:
    """Poll for ever. `names` maps scheduler names to node names; other nodes of the scheduler are left out."""
    last: dict[str, Work] = {}
    while True:
        read_at = clock.now()
        snapshot = await scheduler.snapshot()
        if not snapshot.is_known:
            deliver(Polled(read_at, is_readable=False, reason=snapshot.reason))
        else:
            present = {names[name]: work for name, work in snapshot.get().items() if name in names}
            changed: dict[str, Work | None] = {node: work for node, work in present.items() if last.get(node) != work}
            changed |= dict.fromkeys(last.keys() - present.keys())
            deliver(Polled(read_at, changed))
            last = present
        await asyncio.sleep(poll_s)
