"""The verdict on a battle of beats."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from evidence.battle.beats import Verdict, judge
from tests.kit.beats import Sent

NOON = datetime(2026, 11, 25, 12, tzinfo=timezone.utc)


def sent(id_: str, seconds: float) -> Sent:
    return Sent("run", id_, 1, NOON + timedelta(seconds=seconds))


def test_a_run_that_was_sent_twice_counts_at_its_first_time() -> None:
    found = judge([sent("a", 0), sent("b", 1), sent("b", 1.4), sent("c", 2)])
    assert found == Verdict(runs=3, twice=1, at_once=0, longest_gap=1.0)
    assert found.is_good(faults=1)
    assert not found.is_good(faults=0)


def test_runs_that_come_too_early_are_of_two_beats() -> None:
    found = judge([sent("a", 0), sent("b", 1), sent("x", 1.3), sent("c", 2.3)])
    assert found.at_once == 1
    assert not found.is_good(faults=9)


def test_a_gap_longer_than_a_beat_needs_to_be_replaced_is_bad() -> None:
    assert judge([sent("a", 0), sent("b", 8)]).is_good(faults=0)
    assert not judge([sent("a", 0), sent("b", 11)]).is_good(faults=0)
    assert judge([]).longest_gap == 0
