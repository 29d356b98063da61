"""fleet.yml."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.errors import PolicyError
from fleetctl.model.fleet import Connection
from fleetctl.model.policy import Hooks, Limit, RolloutPolicy, StateLimits
from fleetctl.model.site import Site, SlurmSettings
from fleetctl.store.content import find_content
from fleetctl.store.policy_file import parse_limit, read_policy, site_of
from fleetctl.store.yaml_file import parse_yaml

EXAMPLE = find_content().example / "fleet.yml"


def site(text: str, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Site:
    return site_of(parse_yaml(text, Path("/srv/train-a/fleet.yml"), PolicyError), flags or {}, environ or {})


def refusal_of(text: str, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(PolicyError) as refusal:
        site(text, flags, environ)
    return str(refusal.value)


def test_an_empty_file_gives_the_defaults() -> None:
    assert site("") == Site("train-a", Path("/srv/train-a"))
    assert site("rollout:\nhooks:\n") == site("")


def test_every_key_is_carried_over() -> None:
    found = site("""
        schedulers: {slurm: {via: "ssh://automation@Head-1:2222", partitions: [train, debug]}}
        failure_domains: {rack: rack, power: pdu}
        nodes: gpu,!spare
        names: {slurm: slurm_name, bmc: bmc_address}
        rollout:
          canary: 2
          soak_min: 30
          max_unavailable: "5%"
          max_unavailable_per: {rack: 2, power: 10%}
          max_failures: 3
          same_signature_stops_at: 2
          on_failed_verify: quarantine
          drain_timeout_h: 48
          limits_min: {checking: 1, preflight: 2, applying: 3, restarting: 0.5, verifying: 5, undraining: 6,
                       returning: 7, quarantined: 8}
          retry_after_s: 1
          retry_at_most_s: 9
          deferred_again_after_s: 11
          poll_s: 2
        power_cycle: [/opt/pdu, --cycle]
        hooks: {before_drain: "silence --for '2 h'", after_undrain: [a], on_quarantine: [b, c]}
        roles_path: [../roles, /srv/roles]
        state_url: postgresql:///fleet
        state_group: gpuadmins
        inventory_max_age_s: 5
        """)
    assert found == Site(
        name="train-a",
        directory=Path("/srv/train-a"),
        slurm=SlurmSettings(Connection("Head-1", 2222, "automation"), ("train", "debug")),
        failure_domains={"rack": "rack", "power": "pdu"},
        policy=RolloutPolicy(
            canary=2,
            soak_s=1800,
            max_unavailable=Limit(5, is_percent=True),
            max_unavailable_per={"rack": Limit(2), "power": Limit(10, is_percent=True)},
            max_failures=3,
            same_signature_stops_at=2,
            on_failed_verify="quarantine",
            limits=StateLimits(60, 172800, 120, 180, 30, 300, 360, 420, 480),
            retry_after_s=1,
            retry_at_most_s=9,
            deferred_again_after_s=11,
            poll_s=2,
            power_cycle=("/opt/pdu", "--cycle"),
            hooks=Hooks(("silence", "--for", "2 h"), ("a",), ("b", "c")),
        ),
        nodes="gpu,!spare",
        names={"slurm": "slurm_name", "bmc": "bmc_address"},
        roles_path=(Path("/srv/roles"), Path("/srv/roles")),
        state_url="postgresql:///fleet",
        state_group="gpuadmins",
        inventory_max_age_s=5,
    )


def test_a_slurm_on_this_machine_has_no_head() -> None:
    assert site("schedulers: {slurm: {via: local}}").slurm == SlurmSettings(None)
    assert site("schedulers: {slurm: {}}").slurm == SlurmSettings(None)
    assert site("").slurm is None


@pytest.mark.parametrize("value", ["0", "'0'", '"0%"'])
def test_a_budget_of_zero_says_what_to_write_instead(value: str) -> None:
    assert re.search(r"write 1 or more|from 1% to 100%", refusal_of(f"rollout: {{max_unavailable: {value}}}"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "rollout:\n  max_unavailabel: 2",
            "fleet.yml:2: rollout.max_unavailabel: there is no max_unavailabel (did you mean max_",
        ),
        ("canary: 2", "fleet.yml:1: canary: there is no canary"),
        ("schedulers: {slrm: {}}", "did you mean slurm?"),
        ("rollout: {canary: yes}", "rollout.canary: true must be a number"),
        ("rollout: {canary: -1}", "-1 must be 0 or more"),
        ("rollout: {canary: 1.5}", "must be a whole number"),
        ("rollout: {max_unavailable: 101%}", "from 1% to 100%"),
        ("rollout: {max_unavailable: 2.5}", "must be a whole number, or a percentage"),
        ("rollout: {max_unavailable: true}", "must be a whole number, or a percentage"),
        ("rollout: {max_unavailable: -3}", "-3 must be 1 or more"),
        ("rollout: {max_failures: many}", 'rollout.max_failures: "many" must be a whole number'),
        ("rollout: {same_signature_stops_at: 0}", "must be 1 or more"),
        ("rollout: {soak_min: .inf}", "must be a finite number"),
        ("rollout: {drain_timeout_h: 0}", "must be more than 0"),
        ("rollout: {on_failed_verify: no}", "false is not one of 'roll_back' or 'quarantine'"),
        ("rollout: {drain_timeout_h: 1, limits_min: {draining: 60}}", "keep one of the two"),
        ("rollout: 3", "rollout: 3 must hold keys and values"),
        (
            "rollout: {max_unavailable_per: {rak: 2}}\nfailure_domains: {rack: rack}",
            "rak is not a key of failure_domains (did you mean rack?)",
        ),
        ("rollout: {max_unavailable_per: {rack: 0}}\nfailure_domains: {rack: rack}", "write 1 or more"),
        ('rollout: {windows: ["Mon-Fri 08:00-18:00 Europe/Paris"]}', "not enforced yet"),
        ('rollout: {windows: ["Mon-Fri 8-18"]}', 'must look like "Mon-Fri 08:00-18:00 Europe/Paris"'),
        ("rollout: {windows: Mon}", "must be a list"),
        ('failure_domains: {rack: "{{ rack }}"}', "should match pattern"),
        ("names: {slrm: x}", "is not one of 'slurm'"),
        ("nodes: ''", "nodes"),
        ("schedulers: {slurm: {via: head-1}}", 'must be "local" or "ssh://'),
        ('schedulers: {slurm: {via: "ssh://a:secret@head-1"}}', "without a password"),
        ('schedulers: {slurm: {via: "ssh://-oProxyCommand=x"}}', 'must be "local"'),
        ('schedulers: {slurm: {via: "ssh://head:99999"}}', 'must be "local"'),
        ('hooks: {before_drain: "a \'b"}', "can't be split into words"),
        ("hooks: {before_drain: [1]}", "1 must be text"),
        ("power_cycle: 5", "power_cycle: 5 must be a list"),
        ("power_cycle: /srv/train-a/off now", "/srv/train-a/off lies in the inventory"),
        ("hooks: {on_quarantine: hooks/post}", "hooks/post lies in the inventory"),
        ("a: 1\na: 2", "a second time"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_with_its_place(text: str, words: str) -> None:
    told = refusal_of(text)
    assert words in told
    assert told.startswith("/srv/train-a/fleet.yml:")
    assert "\n" not in told


def test_a_password_in_an_address_is_not_repeated() -> None:
    assert "secret" not in refusal_of('schedulers: {slurm: {via: "ssh://a:secret@head-1"}}')


def test_all_that_is_wrong_is_told_at_once() -> None:
    assert len(refusal_of("rollout: {canary: x, max_failures: y}\nnodez: all").splitlines()) == 3


def test_flag_beats_environment_beats_file_beats_default() -> None:
    file, environ = "rollout: {max_failures: 2, canary: 2}", {"FLEETCTL_MAX_FAILURES": "3", "FLEETCTL_CANARY": "3"}
    assert site("").policy.max_failures == 0
    assert site(file).policy.max_failures == 2
    assert site(file, {}, environ).policy.max_failures == 3
    assert site(file, {"max_failures": 4, "canary": None}, environ).policy.max_failures == 4
    assert site(file, {"max_failures": 4, "canary": None}, environ).policy.canary == 3


def test_a_flag_of_zero_is_given() -> None:
    assert site("rollout: {max_failures: 2}", {"max_failures": 0}).policy.max_failures == 0


def test_limits_by_domain_can_be_given_in_one_word() -> None:
    found = site("failure_domains: {rack: rack, power: pdu}", {}, {"FLEETCTL_MAX_UNAVAILABLE_PER": "rack=2, power=10%"})
    assert found.policy.max_unavailable_per == {"rack": Limit(2), "power": Limit(10, is_percent=True)}
    assert 'must look like "rack=2' in refusal_of("", {"max_unavailable_per": "rack"})


def test_what_is_wrong_with_a_flag_names_the_flag() -> None:
    assert refusal_of("", {"max_unavailable": "0"}).startswith("--max-unavailable 0: 0 would let no node out")


def test_what_is_wrong_in_the_environment_names_the_variable() -> None:
    assert refusal_of("", {}, {"FLEETCTL_MAX_FAILURES": "x"}).startswith("FLEETCTL_MAX_FAILURES x: ")


def test_a_misspelt_variable_of_the_environment_is_not_ignored() -> None:
    assert "did you mean FLEETCTL_MAX_UNAVAILABLE" in refusal_of("", {}, {"FLEETCTL_MAX_UNAVAILBLE": "1"})


def test_variables_that_hooks_are_given_are_no_settings() -> None:
    environ = {
        "FLEETCTL_NODE": "a",
        "FLEETCTL_ROLLOUT": "b",
        "FLEETCTL_REASON": "c",
        "FLEETCTL_INVENTORY": "d",
        "HOME": "/",
    }
    assert site("", {}, environ) == site("")


@given(st.integers(1, 10**6))
def test_a_number_of_nodes_is_that_many(amount: int) -> None:
    for written in (amount, str(amount), f" {amount} "):
        assert parse_limit(written).of(10**7) == amount


@given(st.integers(1, 100), st.integers(0, 10**6))
def test_a_percentage_rounds_down_and_is_at_least_one(percent: int, total: int) -> None:
    allowed = parse_limit(f"{percent}%").of(total)
    assert allowed >= 1
    assert allowed == 1 or allowed * 100 <= percent * total < (allowed + 1) * 100


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.integers())))
def test_no_limit_lets_nothing_out(value: object) -> None:
    with contextlib.suppress(ValueError):
        assert parse_limit(value).of(100) >= 1


@given(st.one_of(st.integers(1, 100).map(lambda amount: f"{amount}%"), st.integers(1, 10**6).map(str)))
def test_a_limit_reads_what_it_prints(text: str) -> None:
    assert str(parse_limit(text)) == text


# --- the example


def test_the_example_is_valid() -> None:
    assert read_policy(EXAMPLE.parent, {}, {}).policy.max_unavailable == Limit(5, is_percent=True)


def test_what_the_example_shows_in_comments_are_the_defaults() -> None:
    """Each key that is commented out, taken alone, changes nothing; so the example can't drift from the code."""
    lines = EXAMPLE.read_text().splitlines()
    seen = []
    for text in _commented_sections(lines):
        if "hooks:" in text:
            hooks = "/hooks"
            assert site(text).policy.hooks == Hooks(
                (f"{hooks}/silence-alerts",), (f"{hooks}/unsilence-alerts",), (f"{hooks}/post-to-chat",)
            )
            continue  # the example hooks themselves: the default is none
        assert site(text) in (site(""), site("schedulers: {slurm: {}}")), text
        seen.append(text)
    assert len(seen) > 20


def test_the_example_names_every_key() -> None:
    from fleetctl.store import policy_file

    text = EXAMPLE.read_text()
    for section in (
        policy_file._FleetFile,
        policy_file._Slurm,
        policy_file._Rollout,
        policy_file._LimitsMin,
        policy_file._Hooks,
    ):
        for key in section.model_fields:
            if key != "draining":  # drain_timeout_h says it
                assert re.search(rf"^\s*(# +)?{key}:", text, re.MULTILINE), key


def _commented_sections(lines: list[str]) -> list[str]:
    """Every commented-out key with its value, below the sections that it stands in."""
    found: list[str] = []
    sections: list[str] = []
    for index, line in enumerate(lines):
        if section := re.match(r"( *)\w+:\s*$", line):
            sections = [*sections[: len(section[1]) // 2], line]
        if commented := re.match(r"( *)# \w+:( .*)?$", line):
            indent = commented[1]
            block = [line.replace("# ", "", 1)]
            for following in lines[index + 1 :]:
                if not following.startswith(f"{indent}#   "):
                    break
                block.append(following.replace("# ", "", 1))
            found.append("\n".join([*sections[: len(indent) // 2], *block]))
    return found
