"""kill -9 loses nothing: `rollout resume` takes up where the controller died, whatever was under way.

What came of it is asked from outside: slurmctld's log, slurmdbd, the nodes' dpkg.log and their sudo log.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.lab.conftest import wait_until
from tests.lab.deaths import (
    Death,
    Kind,
    kill_at_new_position,
    kill_when,
    live_runs,
    open_act,
    undrain_unanswered,
    watching_runs,
)
from tests.lab.fleet import NEW, OLD, Fleet, fleet_up

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FOREIGN = "RMA is open"
FOREIGN_NODE = "gpu003"
CHANGED = ("gpu001", "gpu002")
KILLS, KILLS_WITH_SURVIVORS = 25, 8


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three nodes, of which an admin has one."""
    with fleet_up(tmp_path_factory.mktemp("kills"), nodes=3) as fleet:
        fleet.lab.drain(FOREIGN_NODE, FOREIGN)
        yield fleet


def test_a_controller_killed_in_dpkg_after_the_reboot_order_and_at_the_undrain_loses_nothing(fleet: Fleet) -> None:
    fleet.declare(nvidia_driver_version=NEW)
    since, boot = now(fleet), fleet.lab.boot_id("gpu001")
    with watching_runs(fleet) as overlaps:
        first = fleet.start("rollout", "driver", "--yes")
        kill_when(first, lambda: is_changing_packages(fleet, "gpu001"), "dpkg works on gpu001")
        assert open_act(fleet, "gpu001") == "apply"
        assert live_runs(fleet), "its Ansible outlived it"

        second = fleet.start("rollout", "resume")
        kill_when(second, lambda: fleet.lab.boot_id("gpu001") != boot, "gpu001 is on its way to another boot")
        assert "waiting for a run of the earlier controller" in second.said
        assert open_act(fleet, "gpu001") == "restart"

        with undrain_unanswered(fleet) as is_given_back:
            third = fleet.start("rollout", "resume")
            kill_when(third, is_given_back, "a node is given back, and Slurm has not said so yet")
            given_back = [node for node in CHANGED if "DRAIN" not in fleet.lab.slurm_state(node)]
            assert given_back
            assert {open_act(fleet, node) for node in given_back} == {"undrain"}, "and not read back"

        last = fleet.start("rollout", "resume")
        assert last.end() == 0, last.said
    assert overlaps.looks > 100
    assert overlaps.runs, "the watcher has seen Ansible at work"
    assert overlaps.seen == []
    assert_all_changed(fleet, NEW)
    assert_changed_once(fleet, since)
    assert_foreign_drain_untouched(fleet)
    fleet.expect(0, "rollout", "verify-journal")


def test_after_all_that_a_second_rollout_has_nothing_to_do_and_runs_no_ansible(fleet: Fleet) -> None:
    before = fleet.on_all(fleet.ansible_modules, CHANGED)
    done = fleet.expect(3, "rollout", "driver", "--yes")
    assert "nothing to do" in done.stdout
    assert fleet.on_all(fleet.ansible_modules, CHANGED) == before
    fleet.ansible("gpu001", "ping")
    assert fleet.ansible_modules("gpu001") > before["gpu001"], "a run would have been seen"


def test_a_controller_killed_at_any_moment_loses_nothing(fleet: Fleet) -> None:
    """Rollouts there and back until enough controllers have died, each at another position of the journal."""
    draw = random.Random(580)
    deaths: list[Death] = []
    here = fleet.loaded(CHANGED[0])
    versions = itertools.cycle((OLD, NEW) if here == NEW else (NEW, OLD))
    with watching_runs(fleet) as overlaps, shown(deaths):
        while len({death.position.kind for death in deaths}) < KILLS or survived(deaths) < KILLS_WITH_SURVIVORS:
            version, since = next(versions), now(fleet)
            deaths += die_until_done(fleet, version, draw)
            assert_all_changed(fleet, version)
            assert_changed_once(fleet, since)
            assert_foreign_drain_untouched(fleet)
            fleet.expect(0, "rollout", "verify-journal")
    assert overlaps.seen == []


def die_until_done(fleet: Fleet, version: str, draw: random.Random) -> Iterator[Death]:
    """One rollout, whose controllers are killed at every position where none has died, until one gets to its end."""
    known: set[Kind] = set()
    words: tuple[str, ...] = ("rollout", "driver", "--yes", "--to", version)
    while True:
        controller = fleet.start(*words)
        death = kill_at_new_position(fleet, controller, known, draw)
        if death is None:
            assert controller.process.returncode == 0, controller.said
            return
        yield death
        words = ("rollout", "resume")


def survived(deaths: list[Death]) -> int:
    """At how many deaths children were left alive."""
    return sum(bool(death.survivors) for death in deaths)


@contextmanager
def shown(deaths: list[Death]) -> Iterator[None]:
    """After the block, the table of all kills; pytest prints it with -rP, or when the test fails."""
    try:
        yield
    finally:
        print(table(deaths))  # noqa: T201


def table(deaths: list[Death]) -> str:
    kinds = {death.position.kind for death in deaths}
    lines = [f"{len(deaths)} kills at {len(kinds)} different positions, {survived(deaths)} with children left alive"]
    for number, death in enumerate(deaths, 1):
        at = death.position
        alive = ", ".join(death.survivors) or "-"
        lines.append(f"{number:3}  {at.rollout}  {at.length:3}  {at.last:26}  {', '.join(at.begun) or '-':38}  {alive}")
    return "\n".join(lines)


def is_changing_packages(fleet: Fleet, node: str) -> bool:
    processes = fleet.lab.ssh(node, "ps -e -o args=", timeout_s=15).stdout
    return bool(re.search(r"^\S*dpkg .*--(unpack|configure|remove)", processes, re.MULTILINE))


def now(fleet: Fleet) -> str:
    """The time as all logs of the lab write it."""
    return fleet.head("date +%Y-%m-%dT%H:%M:%S")


def assert_all_changed(fleet: Fleet, version: str) -> None:
    assert fleet.on_all(fleet.loaded, CHANGED) == dict.fromkeys(CHANGED, version)
    for node in CHANGED:
        wait_until(lambda node=node: fleet.lab.slurm_state(node) == "IDLE", f"{node} is at work")  # type: ignore[misc]
        assert fleet.lab.say(node, "dpkg --audit") == ""
        assert "lease.json" not in fleet.lab.say(node, "sudo ls /var/lib/fleetctl")
    wait_until(lambda: not [e for e in fleet.events() if e.node in CHANGED and e.end is None], "slurmdbd has heard")


def assert_changed_once(fleet: Fleet, since: str) -> None:
    """Since then each node was drained, changed, booted, verified and given back: in this order, and each once."""
    log = fleet.log()
    for node in CHANGED:
        told = _since(since, re.findall(rf"\[(\S+)\.\d+\] update_node: node {node} state set to (\S+)", log))
        assert [state for _, state in told] == ["DRAINED", "IDLE"], (node, told)
        (drained, _), (given_back, _) = told
        boots = _since(since, re.findall(rf"\[(\S+)\.\d+\] (\S+): Node {node} unexpectedly rebooted", log))
        assert len(boots) == 1, (node, boots)
        packages = r"sed -nE 's/^(\S+) (\S+) (install|upgrade) (\S+) .*/\1T\2 \4/p' /var/log/dpkg.log"
        changes = _since(since, [line.split() for line in fleet.lab.say(node, packages).splitlines()])
        assert changes
        assert all(drained <= at <= boots[0][0] for at, _ in changes), (node, drained, changes, boots)
        assert len({package for _, package in changes}) == len(changes), f"a package was changed twice: {changes}"
        booted, checked = _last_boot(fleet, node), _gpus_checked(fleet, node)
        assert [at for at in checked if booted <= at <= given_back], (node, booted, checked, given_back)


def assert_foreign_drain_untouched(fleet: Fleet) -> None:
    assert re.findall(rf"update_node: node {FOREIGN_NODE} state set to (\S+)", fleet.log()) == ["DRAINED"]
    assert fleet.lab.settled_state(FOREIGN_NODE) == "IDLE+DRAIN"
    assert fleet.lab.reason(FOREIGN_NODE) == FOREIGN
    events = [event for event in fleet.events() if event.node == FOREIGN_NODE]
    assert {event.reason for event in events} == {FOREIGN}
    assert events[-1].end is None
    assert fleet.loaded(FOREIGN_NODE) == OLD


def _since(since: str, rows: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    return [(at, what) for at, what in rows if at >= since]


def _last_boot(fleet: Fleet, node: str) -> str:
    return fleet.lab.say(node, "date -d @$(stat -c %Y /proc/1) +%Y-%m-%dT%H:%M:%S")


def _gpus_checked(fleet: Fleet, node: str) -> list[str]:
    """When, by the node's sudo log since its boot, the check that copies on every GPU was run."""
    entries = "sudo journalctl --quiet --no-pager --output=short-iso --identifier=sudo"
    return fleet.lab.say(node, f"{entries} | grep cuInit | cut -c1-19 || true").splitlines()
