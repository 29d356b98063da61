"""May this node be touched now? Asked with fresh readings before every apply, restart, rollback and undrain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fleetctl.model.mark import Mark, Ownership, owner_of, read_mark
from fleetctl.model.node_facts import Identity, Lease, NodeFacts
from fleetctl.model.reading import Reading
from fleetctl.model.work import Work


@dataclass(frozen=True, slots=True)
class Finding:
    """clear: go on. wait: not safe now, observe again. foreign: it is not ours. blocked: it needs a person."""

    kind: Literal["clear", "wait", "foreign", "blocked"]
    reason: str = ""

    @property
    def is_clear(self) -> bool:
        return self.kind == "clear"


CLEAR = Finding("clear")


def may_be_taken(work: Work, mark: Mark | None, adoptable: frozenset[str]) -> Finding:
    """Is the node free to be drained by us: not held by others, and not out by the scheduler's own doing?

    `mark` is None before the rollout begins; `adoptable` are rollouts that are over.
    """
    if work.cordoned:
        owner = owner_of(work.reason, mark)
        if owner is Ownership.OURS or left_behind(work.reason, adoptable) is not None:
            return CLEAR
        if owner is Ownership.SYSTEM:
            return Finding("blocked", f'drained by the scheduler itself: "{work.reason}"; find out why first')
        by = f" by {work.reason_by}" if work.reason_by else ""
        return Finding("foreign", f'drained{by}: "{work.reason}"')
    if work.down or not work.registered:
        state = "+".join(sorted(work.states))
        return Finding("blocked", f"the scheduler can't use it now ({state}); bring it back first")
    return CLEAR


def left_behind(reason: str, adoptable: frozenset[str]) -> Mark | None:
    """The mark of a rollout that is over, on a node that it left drained."""
    found = read_mark(reason)
    return found if found is not None and found.rollout in adoptable else None


def is_ours(work: Reading[Work], mark: Mark) -> Finding:
    """Is the node still drained, and by us?"""
    if not work.is_known:
        return Finding("wait", f"the scheduler does not say: {work.reason}")
    found = work.get()
    owner = owner_of(found.reason, mark)
    if not found.cordoned:
        return Finding("foreign", "given back by others while we had it")
    if owner in (Ownership.FOREIGN, Ownership.OTHER_ROLLOUT):
        by = f" by {found.reason_by}" if found.reason_by else ""
        return Finding("foreign", f'drained{by}: "{found.reason}"')
    return CLEAR


def is_free(work: Reading[Work], facts: NodeFacts) -> Finding:
    """Is nothing running there: by the scheduler's word, and by the node's own?"""
    if not work.is_known:
        return Finding("wait", f"the scheduler does not say: {work.reason}")
    if not work.get().empty:
        jobs = ", ".join(job.id for job in work.get().jobs)
        return Finding("wait", f"work on the node: {'job ' + jobs if jobs else 'allocated'}")
    if not facts.work_processes.is_known:
        return Finding("wait", f"processes on the node can't be read: {facts.work_processes.reason}")
    if facts.work_processes.get():
        return Finding("wait", f"still running on the node: {', '.join(facts.work_processes.get())}")
    return CLEAR


def is_same_machine(facts: NodeFacts, identity: Identity | None) -> Finding:
    """Is it the machine that was drained under this name?"""
    if not facts.identity.is_known:
        return Finding("wait", f"the node's identity can't be read: {facts.identity.reason}")
    if identity is not None:
        difference = facts.identity.get().differs_from(identity)
        if difference:
            return Finding("foreign", f"another machine answers under this name: {difference}")
    return CLEAR


def is_quiet(facts: NodeFacts) -> Finding:
    """Is no package manager at work, and no package half-way?"""
    if not facts.package_processes.is_known:
        return Finding("wait", f"processes on the node can't be read: {facts.package_processes.reason}")
    if facts.package_processes.get():
        return Finding("wait", f"at work on the node: {', '.join(facts.package_processes.get())}")
    return CLEAR


def has_clean_packages(facts: NodeFacts) -> Finding:
    if not facts.broken_packages.is_known:
        return Finding("wait", f"package states can't be read: {facts.broken_packages.reason}")
    if facts.broken_packages.get():
        return Finding("blocked", f"packages half-way: {', '.join(facts.broken_packages.get())}")
    return CLEAR


def holds_lease(facts: NodeFacts, lease: Lease) -> Finding:
    """Is the lease on the node free, or this rollout's?"""
    if facts.lease.kind == "unknown":
        return Finding("wait", f"the lease on the node can't be read: {facts.lease.reason}")
    if facts.lease.is_known:
        held = facts.lease.get()
        if held.rollout != lease.rollout:
            return Finding("foreign", f"leased by rollout {held.rollout} of {held.controller}")
        if held.epoch > lease.epoch:
            return Finding("foreign", f"taken over by {held.controller} (epoch {held.epoch}, ours {lease.epoch})")
    return CLEAR


def first_obstacle(*findings: Finding) -> Finding:
    """The first finding that is not clear; order them worst first."""
    return next((finding for finding in findings if not finding.is_clear), CLEAR)
