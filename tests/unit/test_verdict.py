"""The verdict on a battle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evidence.battle import report
from evidence.battle.app import OURS
from evidence.battle.verdict import Fault, judge
from tests.kit.page import drawn, said

ROOT = Path(__file__).parents[2]

PUBLISHED: list[dict[str, Any]] = [
    {"id": "a", "sent": 0.0, "due": 10.0},
    {"id": "a", "confirmed": 0.1},
    {"id": "b", "sent": 1.0, "due": 5.0},
    {"id": "b", "failed": "no"},
    {"id": "c", "sent": 2.0, "due": 4.0},  # its publisher was killed
]


def test_a_task_is_late_that_runs_later_than_the_scenario_lets_it() -> None:
    runs = [{"id": "a", "at": 40.0}, {"id": "b", "at": 12.0}, {"id": "c", "at": 4.5}]
    assert judge(PUBLISHED, runs).late == []
    verdict = judge(PUBLISHED, runs, patience=29)
    assert (verdict.late, verdict.good) == (["a"], False)


def test_a_confirmed_task_that_never_ran_is_lost_and_no_other() -> None:
    verdict = judge(PUBLISHED, [])
    assert (verdict.confirmed, verdict.lost, verdict.good) == (1, ["a"], False)


def test_an_unconfirmed_task_may_run_or_not() -> None:
    verdict = judge(PUBLISHED, [{"id": "a", "at": 10.0}, {"id": "c", "at": 4.5}])
    assert verdict.good
    assert verdict.lateness == [0.0, 0.5]


def test_a_task_that_was_cancelled_a_second_before_it_was_due_may_not_run() -> None:
    tried = {"id": "a", "cancelling": 1.0}
    assert judge([*PUBLISHED, tried], []).lost == []
    verdict = judge([*PUBLISHED, tried, {"id": "a", "cancelled": 9.0}], [{"id": "a", "at": 10.0}])
    assert (verdict.cancelled, verdict.revoked, verdict.good) == (["a"], ["a"], False)
    verdict = judge([*PUBLISHED, tried, {"id": "a", "cancelled": 9.1}], [{"id": "a", "at": 10.0}])
    assert (verdict.cancelled, verdict.revoked, verdict.good) == ([], [], True)


def test_a_task_that_was_moved_a_second_before_it_was_due_may_not_run_before_its_new_time() -> None:
    moving = {"id": "a", "moving": 15.0}
    at_its_old_time = [{"id": "a", "at": 10.0}]
    assert judge([*PUBLISHED, moving], at_its_old_time).good  # whoever moved it was killed
    verdict = judge([*PUBLISHED, moving, {"id": "a", "moved": 9.1}], at_its_old_time)
    assert (verdict.moved, verdict.early, verdict.good) == ([], [], True)
    moved_after_all = judge([*PUBLISHED, moving, {"id": "a", "moved": 9.1}], [{"id": "a", "at": 15.5}])
    assert (moved_after_all.moved, moved_after_all.lateness) == ([], [0.5])
    verdict = judge([*PUBLISHED, moving, {"id": "a", "moved": 9.0}], at_its_old_time)
    assert (verdict.moved, verdict.early, verdict.good) == (["a"], ["a"], False)
    verdict = judge([*PUBLISHED, moving, {"id": "a", "moved": 9.0}], [{"id": "a", "at": 15.5}])
    assert (verdict.moved, verdict.lateness, verdict.good) == (["a"], [0.5], True)
    assert judge([*PUBLISHED, moving, {"id": "a", "moved": 9.0}], []).lost == ["a"]


def test_a_task_that_runs_before_it_is_due_is_early_whatever_else_it_is() -> None:
    runs = [{"id": "b", "at": 4.9}, {"id": "a", "at": 11.0}, {"id": "a", "at": 9.9}]
    assert judge(PUBLISHED, runs).early == ["b", "a"]
    assert judge(PUBLISHED, runs, tolerance=0.2).good


def test_a_fault_explains_a_duplicate_that_it_struck_on_its_way() -> None:
    runs = [{"id": "a", "at": 10.0}, {"id": "a", "at": 12.0}, {"id": "c", "at": 4.0}, {"id": "c", "at": 4.1}]
    verdict = judge(PUBLISHED, runs, [Fault("broker killed", 5.0, 7.0)])
    assert (verdict.duplicated, verdict.unexplained) == (["a"], ["c"])
    assert verdict.good


def test_a_task_that_expired_before_it_was_due_is_not_lost_and_must_not_run() -> None:
    published = [{"id": "a", "sent": 0.0, "due": 10.0, "expires": 5.0}, {"id": "a", "confirmed": 0.1}]
    assert judge(published, []).good
    verdict = judge(published, [{"id": "a", "at": 10.0}])
    assert (verdict.expired, verdict.good) == (["a"], False)


def test_the_page_is_drawn_from_the_results() -> None:
    texts = [page.read_text() for page in report.PAGES]
    assert texts == list(map(report.page, texts))
    assert set().union(*map(drawn, texts)) == set(report.SECTIONS)
    assert report.VERDICTS.read_text() == report.verdicts(report.read())


def test_the_comparison_says_how_battles_ended() -> None:
    def last(contender: str) -> str:
        return " / ".join(f"{found[report.CRASH][contender]['p100']:.0f}" for found in report.read().values()) + " s"

    assert f"| {last(report.NATIVE)} | {last(OURS)} |" in said(ROOT / "docs" / "comparison.md")


def test_a_fault_explains_why_a_retry_ran_twice_whose_task_it_struck() -> None:
    retry = {"id": "a.1", "sent": 12.0, "due": 13.0}
    runs = [{"id": "a.1", "at": 13.0}, {"id": "a.1", "at": 13.1}]
    struck = judge([*PUBLISHED, retry], runs, [Fault("broker killed", 8.0, 11.0)])
    assert (struck.duplicated, struck.unexplained) == (["a.1"], [])
    calm = judge([*PUBLISHED, retry], runs, [Fault("broker killed", 14.0, 15.0)])
    assert (calm.duplicated, calm.unexplained) == ([], ["a.1"])
