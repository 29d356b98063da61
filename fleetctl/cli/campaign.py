"""Runs one rollout from the command line: lock, journal, signals, progress, and the honest exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from fleetctl.adapters.quiet import end_orphan, orphans
from fleetctl.components import registry
from fleetctl.decide.state import RolloutState
from fleetctl.errors import JournalDamaged
from fleetctl.flows.acts.view import Rollout, Terms
from fleetctl.flows.live import LiveInbox, LoopThread, WallClock, conduct
from fleetctl.model.fleet import Json, Node
from fleetctl.model.mark import Mark
from fleetctl.model.names import fold
from fleetctl.model.node_facts import Lease
from fleetctl.model.rollout import Closed, Closure, Event, Opened, Request, Resumed
from fleetctl.model.secret import secrets_in
from fleetctl.parse.node import read_node
from fleetctl.report.progress import LiveProgress, PlainProgress
from fleetctl.report.rollout import summary
from fleetctl.store.database import Database, default_url, open_database
from fleetctl.store.history import list_rollouts
from fleetctl.store.journal import Journal, read_events, verify
from fleetctl.store.liveness import user_name
from fleetctl.store.lock import HEARTBEAT_S, Claim, acquire, heartbeat, release
from fleetctl.store.log import RolloutLog, log_path, logged
from fleetctl.store.open_rollout import new_name, new_nonce
from fleetctl.store.policy_record import policy_from_json, policy_to_json
from fleetctl.store.requests import Requests

if TYPE_CHECKING:
    from fleetctl.cli.build import OpenSite
    from fleetctl.ports import Component

REQUESTS_EVERY_S = 1.0
ORPHANS_END_WITHIN_S = 300.0
"""How long an Ansible run that an earlier controller left behind may go on before it is ended."""

EXIT = {"complete": 0, "incomplete": 3, "stopped": 4}


@dataclass(frozen=True, slots=True)
class Campaign:
    """One rollout of an open site, new or taken up."""

    site: OpenSite
    database: Database
    claim: Claim
    state: RolloutState
    journal: Journal


def open_journal(site: OpenSite) -> Database:
    """The site's journal."""
    url = site.site.state_url or default_url(site.state_directory)
    return open_database(url, site.site.state_group)


def new_state(site: OpenSite, opened: Opened) -> RolloutState:
    """An empty state under the terms that the rollout was opened with."""
    domains = {name: list(node.domains.items()) for name, node in site.inventory.fleet.nodes.items()}
    return RolloutState(policy_from_json(opened.policy), domains)


def replay(site: OpenSite, database: Database, rollout: str) -> RolloutState:
    """The state that a rollout's journal amounts to."""
    state: RolloutState | None = None
    for event in read_events(database, rollout):
        if state is None:
            assert isinstance(event, Opened)  # the journal refuses to begin with anything else
            state = new_state(site, event)
        state.fold(event)
    assert state is not None
    return state


@contextmanager
def begin(
    site: OpenSite,
    components: Sequence[Component],
    nodes: Sequence[Node],
    overrides: Mapping[str, Json],
    summary_text: str,
    *,
    targets: Mapping[str, Mapping[str, Closure]] | None = None,
    force: bool = False,
) -> Iterator[Campaign]:
    """A new rollout: the lock is ours, its opening is on disk, nothing else has happened."""
    database, now = open_journal(site), datetime.now(UTC)
    name = new_name(database, now)
    claim = acquire(database, site.site.name, name, now, force=force)
    try:
        opened = Opened(
            at=now,
            rollout=name,
            site=site.site.name,
            components=tuple(component.name for component in components),
            nodes=tuple(node.name for node in nodes),
            by=user_name(),
            controller=str(claim.controller),
            nonce=new_nonce(),
            policy=policy_to_json(site.site.policy),
            overrides=overrides,
            targets=targets or {},
            summary=summary_text,
        )
        state, journal = new_state(site, opened), Journal(database, claim)
        _write(state, journal, [opened, Resumed(now, str(claim.controller), claim.epoch)])
        yield Campaign(site, database, claim, state, journal)
    finally:
        release(database, claim)


@contextmanager
def take_up(site: OpenSite, rollout: str, *, force: bool = False) -> Iterator[Campaign]:
    """A rollout that was left or killed: replayed, its lock ours, what its controller left running has ended."""
    database, now = open_journal(site), datetime.now(UTC)
    require_whole(site, database, rollout)  # said before the lock changes hands
    claim = acquire(database, site.site.name, rollout, now, force=force)
    try:
        await_orphans(site)
        state, journal = replay(site, database, rollout), Journal(database, claim)
        _write(state, journal, [Resumed(datetime.now(UTC), str(claim.controller), claim.epoch)])
        yield Campaign(site, database, claim, state, journal)
    finally:
        release(database, claim)


def require_whole(site: OpenSite, database: Database, rollout: str) -> None:
    """JournalDamaged unless the rollout's journal is whole, and no older copy than its log knows of."""
    chain = verify(database, rollout, logged(log_path(site.state_directory, rollout)))
    if chain.broken_at is not None:
        raise JournalDamaged(
            f"the journal of {rollout} can't be trusted from event {chain.broken_at} on: {chain.reason}. Restore it; "
            f"`fleetctl status` finds our nodes without it, `fleetctl take-over` adopts them"
        )


def _write(state: RolloutState, journal: Journal, events: Sequence[Event]) -> None:
    journal.append(events)
    for event in events:
        state.fold(event)


def await_orphans(site: OpenSite) -> None:
    """Let Ansible runs of a dead controller end by themselves, so that no package manager is torn; then end them."""
    until = time.monotonic() + ORPHANS_END_WITHIN_S
    for orphan in orphans(site.state_directory):
        click.echo(f"waiting for a run of the earlier controller to end: {fold(orphan.nodes)}", err=True)
        while orphan.is_at_work and time.monotonic() < until:
            time.sleep(0.5)
        end_orphan(orphan)


def adoptable(campaign: Campaign) -> frozenset[str]:
    """Rollouts that are over: what they left drained may be taken up."""
    entries = list_rollouts(campaign.database, campaign.site.site.name, datetime.now(UTC))
    return frozenset(
        entry.rollout for entry in entries if entry.status in EXIT and entry.rollout != campaign.state.name
    )


def with_targets(nodes: Sequence[Node], targets: Mapping[str, Mapping[str, Closure]]) -> tuple[Node, ...]:
    """The nodes, declaring the versions of the closures that an undo goes to."""
    return tuple(replace(node, variables={**node.variables, **_merged(targets.get(node.name, {}))}) for node in nodes)


def _merged(closures: Mapping[str, Closure]) -> dict[str, Json]:
    return {name: value for closure in closures.values() for name, value in closure.variables.items()}


def carry_out(campaign: Campaign, nodes: Sequence[Node], also_adopt: frozenset[str] = frozenset()) -> int:
    """Run the rollout to its end; the exit code. `nodes` are all of its nodes, with their declared variables."""
    state, opened = campaign.state, campaign.state.opened
    assert opened is not None
    components = tuple(registry.by_name(name) for name in opened.components)
    terms = Terms(
        fleet={node.name: node for node in with_targets(nodes, opened.targets)},
        components=components,
        overrides=opened.overrides,
        mark=Mark(opened.rollout, opened.nonce),
        lease=Lease(opened.rollout, str(campaign.claim.controller), campaign.claim.epoch, opened.nonce),
        policy=state.policy,
        summary=opened.summary,
        targets=opened.targets,
        adoptable=adoptable(campaign) | also_adopt,
        read_node_facts=read_node,
    )
    clock = WallClock()
    inbox = LiveInbox(clock)
    log = RolloutLog(
        log_path(campaign.site.state_directory, state.name),
        lambda: campaign.journal.length,
        secrets_in({node.name: dict(node.variables) for node in nodes}),
        is_shared=campaign.site.site.state_group is not None,
    )
    progress = LiveProgress(state, clock.now) if sys.stderr.isatty() else PlainProgress(state)

    def listener(events: Sequence[Event]) -> None:
        log(events)
        progress(events)

    async def beat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await asyncio.to_thread(heartbeat, campaign.database, campaign.claim, clock.now())

    async def hear() -> None:
        requests = Requests(campaign.database, campaign.claim)
        while True:
            for request in await asyncio.to_thread(requests.take):
                inbox.deliver(request)
            await asyncio.sleep(REQUESTS_EVERY_S)

    thread = LoopThread()
    with progress, _signals(inbox), thread:
        rollout = Rollout(campaign.site.world(components), terms)
        closed = conduct(state, rollout, campaign.journal, inbox, thread, listener, (beat, hear))
        if closed is None:
            progress.__exit__(None, None, None)
            _leave(campaign)
    return _conclude(state, closed)


def _leave(campaign: Campaign) -> None:
    """Go now, like a process that was killed: what runs on nodes goes on there."""
    name = campaign.state.name
    click.echo(f"left. What is under way goes on; nothing is lost: fleetctl rollout resume {name}", err=True)
    release(campaign.database, campaign.claim)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: that would wait for, and so end, the Ansible runs that are to go on.
    os._exit(4)


def _conclude(state: RolloutState, closed: Closed | None) -> int:
    assert closed is not None
    click.echo(f"rollout {state.name} {closed.status}" + (f": {closed.reason}" if closed.reason else ""))
    click.echo(summary(state, datetime.now(UTC)))
    if closed.status != "complete":
        click.echo(f"See: fleetctl rollout show {state.name} NODE", err=True)
    return EXIT[closed.status]


@contextmanager
def _signals(inbox: LiveInbox) -> Iterator[None]:
    """Ctrl-C once: no new nodes. Twice: leave. A lost terminal changes nothing."""
    presses = 0

    def on_interrupt(_number: int, _frame: object) -> None:
        nonlocal presses
        presses += 1
        by = f"{user_name()} (Ctrl-C)"
        if presses == 1:
            _say("stopping: no new nodes, those under way finish. Ctrl-C again leaves now; `resume` goes on later")
            inbox.deliver(Request("stop", by))
        else:
            inbox.deliver(Request("leave", by))

    old = {
        signal.SIGINT: signal.signal(signal.SIGINT, on_interrupt),
        signal.SIGTERM: signal.signal(signal.SIGTERM, on_interrupt),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    }
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        click.echo(text, err=True)
