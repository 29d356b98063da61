"""The witnesses of a rollout can tell too many nodes out: what they are shown here is written by hand."""

from __future__ import annotations

import pytest

from tests.lab import evidence

pytestmark = pytest.mark.lab

MARK = "fleetctl:r-20261130-a7:0a1b driver"


def events(*rows: str) -> list[evidence.Event]:
    return evidence.read_events("\n".join(f"{row}|DRAIN|{MARK}|fleet(2000)" for row in rows))


def test_events_that_overlap_are_counted_together() -> None:
    read = events(
        "gpu001|2026-11-30T22:22:40|2026-11-30T22:27:08",
        "gpu002|2026-11-30T22:27:07|2026-11-30T22:28:00",
        "gpu003|2026-11-30T22:27:07|Unknown",
    )
    frames = evidence.frames_of_events(read)
    assert evidence.most_at_once(frames, ["gpu001", "gpu002", "gpu003"]) == 3
    assert evidence.most_at_once(frames, ["gpu001", "gpu002"]) == 2
    assert evidence.most_at_once(frames, ["gpu004"]) == 0
    assert evidence.ever_out(frames) == {"gpu001", "gpu002", "gpu003"}


def test_events_that_follow_each_other_in_one_second_do_not_overlap() -> None:
    read = events(
        "gpu001|2026-11-30T22:22:40|2026-11-30T22:26:56",
        "gpu001|2026-11-30T22:26:56|2026-11-30T22:27:08",
        "gpu002|2026-11-30T22:27:08|2026-11-30T22:28:00",
    )
    assert evidence.most_at_once(evidence.frames_of_events(read), ["gpu001", "gpu002"]) == 1
    assert evidence.seconds_out(read) == {"gpu001": 268, "gpu002": 52}


def test_the_log_tells_drains_reboots_and_nodes_given_back() -> None:
    frames = evidence.frames_of_log(
        f"""\
[2026-11-30T22:22:40.201] update_node: node gpu001 reason set to: {MARK}
[2026-11-30T22:22:40.201] update_node: node gpu001 state set to DRAINED
[2026-11-30T22:22:41.000] update_node: node gpu002 state set to DRAINING
[2026-11-30T22:26:56.717] validate_node_specs: Node gpu001 unexpectedly rebooted boot_time=1 last response=1
[2026-11-30T22:27:08.439] update_node: node gpu001 state set to IDLE
[2026-11-30T22:27:09.257] error: Nodes gpu001 not responding
[2026-11-30T22:27:10.000] update_node: node gpu002 state set to UNDRAIN
[2026-11-30T22:27:11.000] error: Nodes gpu[003-004] not responding, setting DOWN
"""
    )
    assert [sorted(frame.out) for frame in frames] == [
        ["gpu001"],
        ["gpu001", "gpu002"],
        ["gpu001", "gpu002"],
        ["gpu002"],
        [],
        ["gpu003", "gpu004"],
    ]


def test_samples_tell_who_was_out_and_a_sample_cut_off_is_left_out() -> None:
    frames = evidence.frames_of_samples(
        "@ 100.5\ngpu001 IDLE+DRAIN\ngpu002 MIXED+DRAIN\ngpu003 IDLE\n"
        "@ 101.5\n@ failed\n"
        "@ 109.5\ngpu001 DOWN+NOT_RESPONDING\ngpu002 IDLE\ngpu003 IDLE+NOT_RESPONDING\n"
        "@ 110.5\ngpu001 DOWN\ngpu0"
    )
    assert frames == [
        evidence.Frame(100.5, frozenset({"gpu001", "gpu002"})),
        evidence.Frame(109.5, frozenset({"gpu001"})),
    ]
    assert evidence.largest_gap_s(frames) == 9
