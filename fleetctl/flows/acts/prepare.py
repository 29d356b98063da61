"""Acts before anything is changed: check, drain, preflight."""

from __future__ import annotations

from dataclasses import replace

from fleetctl.decide.candidates import tell
from fleetctl.decide.guard import (
    CLEAR,
    first_obstacle,
    has_clean_packages,
    holds_lease,
    is_free,
    is_ours,
    is_quiet,
    is_same_machine,
    left_behind,
    may_be_taken,
)
from fleetctl.flows.acts.view import Rollout, View, outcome
from fleetctl.model.drift import Disturbance
from fleetctl.model.mark import Mark
from fleetctl.model.record import Owed
from fleetctl.model.rollout import Learnt, Outcome, Result

RESULT_OF = {
    "clear": Result.OK,
    "wait": Result.UNKNOWN,
    "foreign": Result.FOREIGN,
    "blocked": Result.BLOCKED,
}
"""What an act concludes from a guard's finding."""


async def check(rollout: Rollout, owed: Owed) -> Outcome:
    """Look at a node that may be changed: is it ours to take, does it drift, may the declared state be installed?"""
    node = rollout.node(owed)
    work, view = await rollout.look(node, owed.record)
    if not view.is_known:
        return outcome(owed, Result.UNKNOWN, f"can't be probed: {view.reason}")
    if not work.is_known:
        return outcome(owed, Result.UNKNOWN, f"the scheduler does not say: {work.reason}")
    seen = view.get()
    finding = first_obstacle(
        holds_lease(seen.facts, rollout.terms.lease),
        is_same_machine(seen.facts, owed.record.identity),
        may_be_taken(work.get(), rollout.terms.mark, rollout.terms.adoptable),
        CLEAR if owed.record.changed else has_clean_packages(seen.facts),
    )
    if not finding.is_clear:
        return outcome(owed, RESULT_OF[finding.kind], finding.reason)
    return await _judge(rollout, owed, seen, is_ours_already=work.get().cordoned)


async def _judge(rollout: Rollout, owed: Owed, seen: View, *, is_ours_already: bool) -> Outcome:
    hardware = [drift for drift in seen.troubles if drift.cause == "hardware"]
    if hardware:
        return outcome(owed, Result.UNWELL, tell(hardware[0]))
    if seen.to_change:
        refusals = seen.refusals
        if refusals:
            return outcome(owed, Result.BLOCKED, f"{refusals[0].reason}; {refusals[0].next_step}")
        return outcome(owed, Result.OK, learnt=replace(seen.learnt, closures=seen.closures))
    if seen.unread:
        return outcome(owed, Result.UNKNOWN, tell(seen.unread[0]))
    if seen.troubles and not is_ours_already:
        return outcome(owed, Result.UNWELL, tell(seen.troubles[0]))
    if is_ours_already:
        # Nothing to change, but only a passed verify gives back what fleetctl took out.
        known = replace(seen.learnt, disturbance=Disturbance.DRAIN, closures=seen.closures)
        return outcome(owed, Result.OK, "already as declared", learnt=known)
    node = rollout.node(owed)
    names = [component.name for component in rollout.terms.components]
    verdict = await rollout.world.verifier.verify(node, names, rollout.variables(node, owed.record), passive=True)
    if verdict.is_pass:
        return outcome(owed, Result.CURRENT, learnt=seen.learnt)
    if verdict.unknown:
        return outcome(owed, Result.UNKNOWN, verdict.unknown)
    return outcome(owed, Result.UNWELL, "; ".join(verdict.failures) or f"skipped: {', '.join(verdict.skipped)}")


async def drain(rollout: Rollout, owed: Owed) -> Outcome:
    """Take the lease on the node, then mark it ours in the scheduler. Waiting until it is empty is the loop's."""
    node, terms = rollout.node(owed), rollout.terms
    leased = await rollout.world.nodes.take_lease(node, terms.lease)
    if leased.kind != "ok":
        return outcome(owed, Result(leased.kind), leased.reason)
    if owed.record.attempts == 0 and terms.policy.hooks.before_drain:
        await rollout.tell(terms.policy.hooks.before_drain, owed)
    work = await rollout.work(node)
    if not work.is_known:
        return outcome(owed, Result.UNKNOWN, f"the scheduler does not say: {work.reason}")
    mark = Mark(terms.mark.rollout, terms.mark.nonce, terms.summary)
    replaces = left_behind(work.get().reason, rollout.terms.adoptable) if work.get().cordoned else None
    drained = await rollout.world.scheduler.drain(node.scheduler_name, mark, replaces)
    if drained.kind == "foreign":
        await rollout.world.nodes.release_lease(node, terms.lease)
    return outcome(owed, Result(drained.kind), drained.reason)


async def preflight(rollout: Rollout, owed: Owed) -> Outcome:
    """On the empty node: packages clean, change simulated, both ways downloaded. Changes nothing."""
    node = rollout.node(owed)
    work, view = await rollout.look(node, owed.record)
    if not view.is_known:
        return outcome(owed, Result.UNKNOWN, f"can't be probed: {view.reason}")
    facts = view.get().facts
    finding = first_obstacle(
        is_ours(work, rollout.terms.mark),
        is_same_machine(facts, owed.record.identity),
        holds_lease(facts, rollout.terms.lease),
        is_free(work, facts),
        is_quiet(facts),
        has_clean_packages(facts),
    )
    if not finding.is_clear:
        return outcome(owed, RESULT_OF[finding.kind], finding.reason)
    if not owed.record.changed and view.get().closures != owed.record.closures:
        return outcome(owed, Result.BLOCKED, "its packages were changed by others since it was checked")
    if not view.get().to_change:
        return outcome(owed, Result.OK, "nothing to change", learnt=Learnt(boot_id=facts.boot_id.value))
    # A controller that took the rollout up holds a later epoch than the lease: its Ansible would be refused.
    leased = await rollout.hold_lease(node, facts)
    if leased.kind != "ok":
        return outcome(owed, Result(leased.kind), leased.reason)
    applied = await rollout.world.changer.preflight(node, rollout.change(owed.record), rollout.terms.lease)
    return outcome(
        owed,
        Result(applied.kind),
        applied.reason,
        signature=applied.signature,
        learnt=Learnt(boot_id=facts.boot_id.value),
    )
