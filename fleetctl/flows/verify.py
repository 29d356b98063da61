"""Proves nodes outside of a rollout: the same checks, and the same fresh probe after them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fleetctl.decide.candidates import tell
from fleetctl.decide.guard import is_free
from fleetctl.errors import SchedulerError
from fleetctl.flows.observe import Lookout, Progress
from fleetctl.model.fleet import Node
from fleetctl.model.proof import Proof
from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.model.survey import Observation
from fleetctl.model.work import Work
from fleetctl.ports import Scheduler, Verdict, Verifier

AT_ONCE = 64
DEADLINE_S = 1800.0
ASKED_FOR_PASSIVE = "asked for"


async def verify(
    lookout: Lookout,
    verifier: Verifier,
    chosen: Sequence[Node],
    scheduler: Scheduler | None,
    *,
    passive: bool = False,
    deadline_s: float = DEADLINE_S,
    progress: Progress = lambda _done, _total: None,
) -> tuple[Proof, ...]:
    """Prove each node. Checks that disturb work run only where the scheduler and the node say that there is none."""
    work = await _snapshot(None if passive else scheduler)
    slots = asyncio.Semaphore(AT_ONCE)
    proofs: dict[str, Proof] = {}

    async def prove(node: Node) -> None:
        async with slots:
            try:
                async with asyncio.timeout(deadline_s):
                    proofs[node.name] = await _prove(lookout, verifier, node, work, passive)
            except TimeoutError:
                proofs[node.name] = Proof(node.name, unknown=f"not proven within {deadline_s:g} s")
            except Exception as error:  # noqa: BLE001  a fault of ours on one node must not hide the others
                proofs[node.name] = Proof(node.name, unknown=f"unexpected {type(error).__name__}: {error}")
        progress(len(proofs), len(chosen))

    progress(0, len(chosen))
    await asyncio.gather(*(prove(node) for node in chosen))
    return tuple(proofs[node.name] for node in chosen)


async def _snapshot(scheduler: Scheduler | None) -> dict[str, Work]:
    if scheduler is None:
        return {}
    seen = await scheduler.snapshot()
    if not seen.is_known:
        raise SchedulerError(f"the scheduler does not say which nodes are empty: {seen.reason}; --passive does not ask")
    return dict(seen.get())


async def _prove(lookout: Lookout, verifier: Verifier, node: Node, work: dict[str, Work], passive: bool) -> Proof:
    declared = lookout.declared(node)
    if not declared:
        names = " or ".join(component.name for component in lookout.components)
        return Proof(node.name, unknown=f"nothing is declared for {names}, so nothing can be proven")
    before = await lookout.look(node, declared)
    if not before.is_known:
        return Proof(node.name, unknown=f"can't be probed: {before.reason}")
    because = ASKED_FOR_PASSIVE if passive else _why_passive(node, work, before.get())
    variables = {**node.variables, **lookout.overrides}
    verdict = await verifier.verify(node, tuple(declared), variables, passive=bool(because))
    after = await lookout.look(node, declared)
    return _judge(node.name, because, verdict, after)


def _why_passive(node: Node, work: dict[str, Work], seen: Observation) -> str:
    """Why checks that disturb must not run; empty: nothing is there to disturb."""
    mine = work.get(node.scheduler_name)
    found: Reading[Work] = unknown("it does not know the node") if mine is None else value_of(mine)
    return is_free(found, seen.facts).reason


def _judge(node: str, because: str, verdict: Verdict, after: Reading[Observation]) -> Proof:
    failures = [*verdict.failures, *(f"skipped: {check}" for check in verdict.skipped)]
    reason = verdict.unknown
    if after.is_known:
        seen = after.get()
        failures += [tell(drift) for drift in (*seen.to_change, *seen.troubles)]
        if seen.unread and not reason:
            reason = tell(seen.unread[0])
    elif not reason:
        reason = f"can't be probed after verify: {after.reason}"
    return Proof(node, verdict.passed, because, tuple(failures), reason)
