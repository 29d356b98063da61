"""How the events of an Ansible run are judged, what is said of a failure, and what is kept of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetctl.adapters.ansible_events import RunStory
from fleetctl.adapters.ansible_log import LOG_LIMIT_BYTES, NodeLog, line_of
from fleetctl.adapters.ansible_reason import is_lock_held, lease_refusal, reason_of, signature_of
from fleetctl.model.secret import HIDDEN, scrub, secrets_in
from fleetctl.ports import Applied
from tests.unit.case_files import params, read_cases

REASONS = read_cases("ansible/reasons.yaml")
RUNS = read_cases("ansible/runs.yaml")

texts = st.text(max_size=60)
plain_data = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("case", params(REASONS, lambda case: case["case"]))
def test_a_failed_task_is_told_in_one_telling_line(case: dict[str, Any]) -> None:
    reason = reason_of(case["given"])
    expected = {"lock_held": False, "signature": signature_of(reason), **case["expect"]}
    assert {"reason": reason, "lock_held": is_lock_held(reason), "signature": signature_of(reason)} == expected


@pytest.mark.parametrize("case", params(RUNS, lambda case: case["case"]))
def test_each_node_of_a_run_is_judged_by_its_own_events(case: dict[str, Any]) -> None:
    story = RunStory.of(case["of"])
    for event in case["events"]:
        list(story.fold(event))
    list(story.conclude(case.get("end", "the run ended")))
    judged = {name: node.verdict for name, node in story.nodes.items()}
    assert judged == {name: Applied(**applied) for name, applied in case["expect"].items()}


@given(st.lists(st.fixed_dictionaries({"event": texts, "event_data": st.dictionaries(texts, plain_data, max_size=4)})))
@example([{"event": "runner_on_ok", "event_data": {"host": []}}])
def test_no_node_is_ok_without_its_last_task(events: list[dict[str, Any]]) -> None:
    story = RunStory.of(["n1"])
    for event in events:
        list(story.fold(event))
    list(story.conclude("over"))
    assert story.nodes["n1"].verdict is not None
    assert story.nodes["n1"].verdict.kind != "ok"


@given(st.dictionaries(st.sampled_from(["msg", "stderr", "stdout", "rc", "results", "exception"]), plain_data))
def test_whatever_a_result_holds_there_is_one_line(result: dict[str, Any]) -> None:
    reason = reason_of(result)
    assert reason
    assert "\n" not in reason
    assert lease_refusal(result) == ""


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.sampled_from(["gpu001", "gpu-2.example.com", "n"]))
def test_a_signature_is_equal_on_all_nodes_that_fail_alike(pid: int, build: int, node: str) -> None:
    text = (
        f"{node}: E: lock held by process {pid} on {node}, nvidia-dkms-580 580.95.{build}-0ubuntu{pid} for "
        f"6.8.0-{build}-generic in /var/lib/dkms/{node}/{build}, key 0x{pid:x}"
    )
    assert signature_of(text, node) == (
        "<node>: E: lock held by process <n> on <node>, nvidia-dkms-<n> <n> for <n>-generic in <path>, key <hex>"
    )


def test_signatures_of_different_failures_differ() -> None:
    lines = [case["expect"]["reason"] for case in REASONS]
    assert len({signature_of(line) for line in lines}) == len(set(lines))


def test_secrets_are_found_by_the_names_of_their_variables() -> None:
    variables = {
        "ansible_become_password": "hunter-2-a",
        "bmc": {"password": "hunter-2-b", "user": "admin-of-bmc"},
        "api_tokens": ["hunter-2-c"],
        "nvidia_driver_version": "580.95.05",
        "site_secret": {"any_name": "hunter-2-d"},
        "bypass_proxy": "not-a-secret",
        "vault_pass": 7,
    }
    assert set(secrets_in(variables)) == {"hunter-2-a", "hunter-2-b", "hunter-2-c", "hunter-2-d"}


@pytest.mark.parametrize(
    "text",
    [
        "login with password=hunter2 failed",
        'curl -H "Authorization: Bearer hunter2" x',
        "https://admin:hunter2@bmc-1/redfish",
        '{"token": "hunter2"}',
    ],
)
def test_what_looks_like_a_secret_is_hidden_though_nobody_declared_it(text: str) -> None:
    assert "hunter2" not in scrub(text)
    assert HIDDEN in scrub(text)


@given(st.text(min_size=4, max_size=20), texts, texts)
def test_a_declared_secret_is_never_kept(secret: str, before: str, after: str) -> None:
    assert secret not in scrub(f"{before}{secret}{after}", (secret,)).replace(HIDDEN, "")


@pytest.mark.case("N07")
def test_a_log_is_private_bounded_and_keeps_its_end(tmp_path: Path) -> None:
    log = NodeLog(tmp_path, "r-1", "n1", ("hunter2",))
    for number in range(20_000):
        log.append(f"line {number} hunter2 {'x' * 20}\n")
    assert log.path == tmp_path / "logs" / "r-1" / "n1.log"
    assert log.path.stat().st_mode & 0o777 == 0o600
    assert log.path.parent.stat().st_mode & 0o777 == 0o700
    text = log.path.read_text()
    assert len(text) < LOG_LIMIT_BYTES * 1.1
    assert text.startswith("... older lines are gone\nline ")
    assert text.endswith(f"line 19999 {HIDDEN} {'x' * 20}\n")


def test_a_log_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in the way")
    NodeLog(tmp_path, "r-1", "n1", ()).append("text\n")


def test_a_failed_task_is_logged_with_the_end_of_its_output() -> None:
    output = "\n".join(f"line {number}" for number in range(100))
    data = {"host": "n1", "role": "nvidia_driver", "task": "Install", "res": {"stdout": output, "msg": "no"}}
    text = line_of({"event": "runner_on_failed", "event_data": data})
    assert "FAILED  nvidia_driver: Install\n" in text
    assert text.endswith("    line 99\n")
    assert "line 80" not in text
    assert line_of({"event": "runner_on_start", "event_data": data}) == ""
