"""Acts that prove and give back: verify, verify unchanged, recheck, undrain, label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleetctl.decide.candidates import tell
from fleetctl.decide.guard import (
    Finding,
    first_obstacle,
    holds_lease,
    is_free,
    is_ours,
    is_quiet,
    is_same_machine,
)
from fleetctl.flows.acts.prepare import RESULT_OF
from fleetctl.flows.acts.view import Rollout, View, outcome
from fleetctl.model.mark import Ownership, owner_of
from fleetctl.model.record import Owed
from fleetctl.model.rollout import Course, Learnt, Outcome, Result
from fleetctl.ports import Verdict

HARDWARE = "hardware: "
"""How a verify file tags a failure that no other version of the software would cure."""


async def verify(rollout: Rollout, owed: Owed) -> Outcome:
    """Every check of every changed component, then a fresh probe without drift."""
    return await _prove(rollout, owed, passive=not owed.record.marked)


async def recheck(rollout: Rollout, owed: Owed) -> Outcome:
    """The same, on a node that is back at work: nothing that disturbs it."""
    return await _prove(rollout, owed, passive=True)


async def verify_unchanged(rollout: Rollout, owed: Owed) -> Outcome:
    """Health of a node as it was found: passive while its job still runs, else the whole."""
    work, view = await rollout.look(rollout.node(owed), owed.record)
    if not view.is_known:
        return outcome(owed, Result.UNKNOWN, f"can't be probed: {view.reason}")
    ours = is_ours(work, rollout.terms.mark)
    if not ours.is_clear:
        return outcome(owed, RESULT_OF[ours.kind], ours.reason)
    has_work = not work.get().empty
    if not has_work:
        free = first_obstacle(is_free(work, view.get().facts), is_quiet(view.get().facts))
        if not free.is_clear:
            return outcome(owed, RESULT_OF[free.kind], free.reason)
    return await _prove(rollout, owed, passive=has_work)


async def _prove(rollout: Rollout, owed: Owed, *, passive: bool) -> Outcome:
    node, record = rollout.node(owed), owed.record
    names = [component.name for component in rollout.terms.components]
    verdict = await rollout.world.verifier.verify(node, names, rollout.variables(node, record), passive=passive)
    if not verdict.is_pass:
        return _failed(owed, verdict)
    view = await rollout.view(node, record)
    if not view.is_known:
        return outcome(owed, Result.UNKNOWN, f"can't be probed after verify: {view.reason}")
    return _judge(rollout, owed, view.get(), verdict)


def _failed(owed: Owed, verdict: Verdict) -> Outcome:
    if verdict.unknown:
        return outcome(owed, Result.UNKNOWN, verdict.unknown)
    if not verdict.failures:
        return outcome(owed, Result.FAILED, f"checks skipped: {', '.join(verdict.skipped)}", signature="checks skipped")
    if all(failure.startswith(HARDWARE) for failure in verdict.failures):
        return outcome(owed, Result.HARDWARE, "; ".join(text.removeprefix(HARDWARE) for text in verdict.failures))
    software = [failure for failure in verdict.failures if not failure.startswith(HARDWARE)]
    return outcome(owed, Result.FAILED, _first_of(software, verdict), signature=software[0].split(":", 1)[0])


def _first_of(failures: Sequence[str], verdict: Verdict) -> str:
    """One failed check, and how many more there are: a reason has one line, `fleetctl verify` tells the rest."""
    more = len(verdict.failures) - 1
    return failures[0] + (f" (and {more} more failed: fleetctl verify tells them)" if more else "")


def _judge(rollout: Rollout, owed: Owed, view: View, verdict: Verdict) -> Outcome:
    foreign = first_obstacle(
        is_same_machine(view.facts, owed.record.identity), holds_lease(view.facts, rollout.terms.lease)
    )
    if not foreign.is_clear:
        return outcome(owed, RESULT_OF[foreign.kind], foreign.reason)
    if owed.record.course is not Course.UNCHANGED and view.to_change:
        # A node that goes home as it was found may go home with the drift that it had.
        drift = view.to_change[0]
        signature = f"{drift.component} {drift.truth} not as declared"
        return outcome(owed, Result.FAILED, tell(drift), signature=signature)
    if view.troubles:
        drift = view.troubles[0]
        result = Result.HARDWARE if drift.cause == "hardware" else Result.FAILED
        return outcome(owed, result, tell(drift), signature=f"{drift.component} {drift.truth}")
    if view.unread:
        return outcome(owed, Result.UNKNOWN, tell(view.unread[0]))
    reason = f"{verdict.passed} checks passed"
    return outcome(owed, Result.OK, reason, learnt=Learnt(boot_id=view.facts.boot_id.value))


async def undrain(rollout: Rollout, owed: Owed) -> Outcome:
    """Give the node back if its mark is still ours. No drain any more: it was given back, by us before a crash."""
    node, terms = rollout.node(owed), rollout.terms
    if owed.record.marked:
        view = await rollout.view(node, owed.record)
        if not view.is_known:
            return outcome(owed, Result.UNKNOWN, f"can't be probed: {view.reason}")
        finding = first_obstacle(
            is_same_machine(view.get().facts, owed.record.identity), holds_lease(view.get().facts, terms.lease)
        )
        if not finding.is_clear:
            return outcome(owed, RESULT_OF[finding.kind], finding.reason)
        given = await rollout.world.scheduler.undrain(node.scheduler_name, terms.mark)
        if given.kind != "ok":
            return outcome(owed, Result(given.kind), given.reason)
    released = await rollout.world.nodes.release_lease(node, terms.lease)
    if owed.record.marked and terms.policy.hooks.after_undrain:
        await rollout.tell(terms.policy.hooks.after_undrain, owed)
    return outcome(owed, Result.OK, "" if released.kind == "ok" else f"lease not released: {released.reason}")


async def let_go(rollout: Rollout, owed: Owed) -> Outcome:
    """Take our lease off a node that is others' now. Its drain, its reason and its packages stay as they are."""
    released = await rollout.world.nodes.release_lease(rollout.node(owed), rollout.terms.lease)
    return outcome(owed, Result(released.kind), released.reason)


async def label(rollout: Rollout, owed: Owed) -> Outcome:
    """Write why the node is quarantined behind our mark; one that is back at work is drained for it."""
    node, terms = rollout.node(owed), rollout.terms
    work = await rollout.work(node)
    if not work.is_known:
        return outcome(owed, Result.UNKNOWN, f"the scheduler does not say: {work.reason}")
    finding = _may_be_labelled(owed, work.get().cordoned, owner_of(work.get().reason, terms.mark))
    if not finding.is_clear:
        return outcome(owed, RESULT_OF[finding.kind], finding.reason)
    mark = replace(terms.mark, why=f"quarantined: {owed.record.reason}")
    drained = await rollout.world.scheduler.drain(node.scheduler_name, mark)
    if drained.kind == "ok":
        # Nobody acts on it from here on: the mark says whose it is, the lease would only bar the next controller.
        await rollout.world.nodes.release_lease(node, terms.lease)
        if terms.policy.hooks.on_quarantine:
            await rollout.tell(terms.policy.hooks.on_quarantine, owed)
    return outcome(owed, Result(drained.kind), drained.reason)


def _may_be_labelled(owed: Owed, cordoned: bool, owner: Ownership) -> Finding:
    if owed.record.marked and not cordoned:
        return Finding("foreign", "given back by others")
    if cordoned and owner not in (Ownership.OURS, Ownership.NOBODY):
        return Finding("foreign", "its drain reason is not ours any more")
    return Finding("clear")
