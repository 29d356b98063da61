"""Acts that change a node: apply, restart, power cycle. Each re-reads everything the laws ask for first."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from fleetctl.decide.guard import (
    Finding,
    first_obstacle,
    has_clean_packages,
    holds_lease,
    is_free,
    is_ours,
    is_quiet,
    is_same_machine,
)
from fleetctl.flows.acts.prepare import RESULT_OF
from fleetctl.flows.acts.view import Rollout, View, outcome
from fleetctl.model.drift import Disturbance
from fleetctl.model.reading import Reading
from fleetctl.model.record import Owed
from fleetctl.model.rollout import Course, Learnt, Outcome, Result
from fleetctl.model.work import Work

BOOT_POLL_S = 2.0
"""Pause between two looks for the new boot id."""
ORDER_AGAIN_AFTER_S = 120.0
"""A node that still runs the old boot this long after the order did not take it; it is ordered again."""


def _may_be_changed(rollout: Rollout, owed: Owed, work: Reading[Work], view: View) -> Finding:
    """Law 4, with what was read just now. A node that was never drained only has its packages' owner asked."""
    ground = (
        is_same_machine(view.facts, owed.record.identity),
        holds_lease(view.facts, rollout.terms.lease),
        is_quiet(view.facts),
    )
    if not owed.record.marked:
        return first_obstacle(*ground)
    return first_obstacle(is_ours(work, rollout.terms.mark), *ground, is_free(work, view.facts))


async def apply(rollout: Rollout, owed: Owed) -> Outcome:
    """Run the roles, forward or back, then look at what they left on disk."""
    node, record = rollout.node(owed), owed.record
    work, view = await rollout.look(node, record)
    if not view.is_known:
        return outcome(owed, Result.UNKNOWN, f"can't be probed: {view.reason}")
    finding = _may_be_changed(rollout, owed, work, view.get())
    if finding.is_clear and record.attempts == 0 and record.course is Course.FORWARD:
        # Later tries, and the way back, may find packages half-way through our own doing; the role finishes them.
        finding = has_clean_packages(view.get().facts)
    if not finding.is_clear:
        untouched = False if record.attempts == 0 else None
        return outcome(owed, RESULT_OF[finding.kind], finding.reason, learnt=Learnt(changed=untouched))
    seen = view.get()
    if not seen.to_change and (record.course is Course.FORWARD or seen.closures == record.closures):
        return outcome(owed, Result.OK, "nothing to change", learnt=seen.learnt)
    leased = await rollout.hold_lease(node, seen.facts)
    if leased.kind != "ok":
        return outcome(owed, Result(leased.kind), leased.reason)
    applied = await rollout.world.changer.apply(node, rollout.change(record), rollout.terms.lease)
    if applied.kind != "ok":
        untouched = False if applied.kind == "blocked" and record.attempts == 0 and not applied.changed else None
        learnt = Learnt(changed=untouched)
        return outcome(owed, Result(applied.kind), applied.reason, signature=applied.signature, learnt=learnt)
    return await _judge_applied(rollout, owed, applied.reboot_required)


async def _judge_applied(rollout: Rollout, owed: Owed, reboot_required: bool) -> Outcome:
    """The package manager's word is not enough: the module for the next boot's kernel must be there."""
    view = await rollout.view(rollout.node(owed), owed.record)
    if not view.is_known:
        return outcome(owed, Result.UNKNOWN, f"can't be probed after the change: {view.reason}")
    blocked = view.get().blocks_restart
    if blocked:
        return outcome(owed, Result.FAILED, blocked, signature=_kind_of(blocked))
    learnt = view.get().learnt
    remaining = max(learnt.disturbance or Disturbance.NONE, Disturbance.REBOOT if reboot_required else Disturbance.NONE)
    return outcome(owed, Result.OK, learnt=replace(learnt, disturbance=remaining))


async def restart(rollout: Rollout, owed: Owed) -> Outcome:
    """Order the reboot, unless it has happened; only a new boot id over a new connection counts."""
    node, old = rollout.node(owed), owed.intent.boot_id
    if not old:
        return outcome(owed, Result.FAILED, "no boot id was read before the restart, so none could prove it")
    while not (now := await rollout.world.nodes.boot_id(node)).is_known:
        await asyncio.sleep(BOOT_POLL_S)
    if now.get() != old:
        return outcome(owed, Result.OK, learnt=Learnt(boot_id=now.get()))
    work, view = await rollout.look(node, owed.record)
    if not view.is_known:
        return outcome(owed, Result.UNKNOWN, f"can't be probed: {view.reason}")
    finding = _may_be_changed(rollout, owed, work, view.get())
    if not finding.is_clear:
        return outcome(owed, RESULT_OF[finding.kind], finding.reason)
    if view.get().blocks_restart:
        reason = view.get().blocks_restart
        return outcome(owed, Result.FAILED, reason, signature=_kind_of(reason))
    leased = await rollout.hold_lease(node, view.get().facts)
    if leased.kind != "ok":
        return outcome(owed, Result(leased.kind), leased.reason)
    ordered = await rollout.world.nodes.restart(node, rollout.terms.lease)
    if ordered.kind == "foreign":
        return outcome(owed, Result.FOREIGN, ordered.reason)
    # An order whose answer was lost may have been taken: either way only the boot id tells.
    return await _await_boot(rollout, owed, old, ordered.reason)


async def _await_boot(rollout: Rollout, owed: Owed, old: str, doubt: str) -> Outcome:
    waited_s = 0.0
    while waited_s < ORDER_AGAIN_AFTER_S:
        await asyncio.sleep(BOOT_POLL_S)
        now = await rollout.world.nodes.boot_id(rollout.node(owed))
        if now.is_known and now.get() != old:
            return outcome(owed, Result.OK, learnt=Learnt(boot_id=now.get()))
        # While it does not answer it is rebooting, or gone: the state's limit decides which.
        waited_s = waited_s + BOOT_POLL_S if now.is_known else 0.0
    return outcome(owed, Result.UNKNOWN, doubt or "still runs the boot it had before the order")


async def power_cycle(rollout: Rollout, owed: Owed) -> Outcome:
    """The site's own command, once per restart; whether it helped is for the boot id to say."""
    answer = await rollout.world.nodes.power_cycle(rollout.node(owed), rollout.terms.policy.power_cycle)
    return outcome(owed, Result.OK if answer.kind == "ok" else Result.UNKNOWN, answer.reason)


def _kind_of(reason: str) -> str:
    """The part of a reason that is the same on every node it happens on."""
    return reason.split(":", 1)[0].strip()
