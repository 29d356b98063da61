"""What may be asked of a rollout, live, abandoned or over, and who takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.errors import BadInput, FleetctlError, Refused, SelectionError
from fleetctl.model.rollout import Closed, Request, Requested, Verb
from fleetctl.store.database import Database
from fleetctl.store.lock import acquire, release
from fleetctl.store.requests import ON_NODES, VERBS, Requests, submit
from tests.unit.journal_parts import NOW, ROLLOUT, abandon, begun, database_in


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return database_in(tmp_path)


def request(verb: Verb) -> Request:
    return Request(verb, "bob@ctl-1", ("gpu001",) if verb in ON_NODES else (), "because")


@pytest.mark.parametrize("verb", VERBS)
def test_a_live_controller_takes_every_verb_as_it_was_asked(database: Database, verb: Verb) -> None:
    claim = begun(database).claim
    asked = submit(database, ROLLOUT, request(verb), NOW)
    assert asked.id > 0
    assert Requests(database, claim).take() == (asked,)
    assert (asked.verb, asked.by, asked.why) == (verb, "bob@ctl-1", "because")


@pytest.mark.parametrize("verb", ["stop", "abort", "retry", "skip"])
def test_without_a_controller_it_waits_for_the_next_resume(database: Database, verb: Verb) -> None:
    abandon(database, begun(database).claim)
    asked = submit(database, ROLLOUT, request(verb), NOW)
    assert Requests(database, acquire(database, "lab", ROLLOUT, NOW)).take() == (asked,)


@pytest.mark.parametrize("verb", ["pause", "resume", "leave"])
def test_without_a_controller_there_is_nobody_to_pause(database: Database, verb: Verb) -> None:
    abandon(database, begun(database).claim)
    with pytest.raises(Refused, match="is run by nobody: `fleetctl rollout resume r-20261130-a7` takes it up"):
        submit(database, ROLLOUT, request(verb), NOW)


@pytest.mark.parametrize("verb", ["pause", "resume", "leave"])
def test_what_was_meant_for_a_controller_dies_with_it(database: Database, verb: Verb) -> None:
    claim = begun(database).claim
    submit(database, ROLLOUT, request(verb), NOW)
    abandon(database, claim)
    assert Requests(database, acquire(database, "lab", ROLLOUT, NOW)).take() == ()


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "retry"])
def test_of_a_rollout_that_is_over_nothing_but_retry_is_asked(database: Database, verb: Verb) -> None:
    release(database, begun(database, events=[Closed(NOW, "incomplete")]).claim)
    with pytest.raises(Refused, match=f"is over \\(incomplete\\): there is nothing to {verb}"):
        submit(database, ROLLOUT, request(verb), NOW)
    asked = submit(database, ROLLOUT, request("retry"), NOW)
    assert Requests(database, acquire(database, "lab", ROLLOUT, NOW)).take() == (asked,)


def test_a_controller_of_another_rollout_of_the_site_is_not_this_ones(database: Database) -> None:
    begun(database)
    begun(database, "r-20261130-b8")
    with pytest.raises(Refused, match="is run by nobody"):
        submit(database, ROLLOUT, request("pause"), NOW)


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        (Request("explode", "bob"), BadInput, "knows no verb 'explode': it knows pause, resume, abort"),  # type: ignore[arg-type]
        (Request("retry", "bob"), SelectionError, "retry needs the names of nodes"),
        (Request("pause", "bob", ("gpu001",)), BadInput, "concerns the whole rollout"),
        (Request("skip", "bob", ("gpu001", "gpu404")), SelectionError, "has no node gpu404"),
    ],
)
def test_what_can_not_be_followed_is_refused_where_it_is_asked(
    database: Database, asked: Request, error: type[FleetctlError], says: str
) -> None:
    claim = begun(database).claim
    with pytest.raises(error, match=says):
        submit(database, ROLLOUT, asked, NOW)
    assert Requests(database, claim).pending() == ()


def test_a_request_to_a_rollout_that_does_not_exist_is_refused(database: Database) -> None:
    with pytest.raises(SelectionError, match="there is no rollout r-none"):
        submit(database, "r-none", request("pause"), NOW)


def test_requests_are_taken_in_the_order_they_were_asked_and_each_once(database: Database) -> None:
    journal = begun(database)
    requests = Requests(database, journal.claim)
    first, second = (submit(database, ROLLOUT, request(verb), NOW) for verb in ("pause", "retry"))
    assert requests.take() == (first, second)
    third = submit(database, ROLLOUT, request("resume"), NOW)
    assert requests.take() == (third,)
    journal.append([Requested(NOW, second)])
    assert requests.pending() == (first, third)
