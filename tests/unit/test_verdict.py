"""The verdict on a battle."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from evidence.battle import pieces, report
from evidence.battle.app import OURS
from evidence.battle.verdict import Fault, Run, judge
from tests.kit import ledger
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


def test_percentiles_are_of_first_runs() -> None:
    published = [{"id": str(n), "sent": 0.0, "due": 0.0} for n in range(100)]
    ran = [*({"id": str(n), "at": float(n)} for n in range(100)), {"id": "0", "at": 500.0}]
    figures = judge(published, ran).figures()
    assert [figures[name] for name in ("p50", "p99", "p100")] == [50.0, 99.0, 99.0]
    assert figures["unexplained"] == 1


def test_the_page_is_drawn_from_the_results() -> None:
    texts = [page.read_text() for page in report.PAGES]
    assert texts == list(map(report.page, texts))
    assert set().union(*map(drawn, texts)) == set(report.SECTIONS)
    assert report.VERDICTS.read_text() == report.verdicts(report.read())


def test_the_comparison_says_how_battles_ended() -> None:
    def last(contender: str) -> str:
        return " / ".join(f"{found[report.CRASH][contender]['p100']:.0f}" for found in report.read().values()) + " s"

    assert f"| {last(report.NATIVE)} | {last(OURS)} |" in said(ROOT / "docs" / "comparison.md")


def test_a_retry_that_is_published_twice_is_due_when_it_was_due_at_first() -> None:
    again = [{"id": "a", "sent": 3.0, "due": 13.0}, {"id": "a", "confirmed": 3.1}]
    assert judge([*PUBLISHED, *again], [{"id": "a", "at": 11.0}]).runs == [Run(10.0, 11.0)]


def test_a_fault_explains_why_a_retry_ran_twice_whose_task_it_struck() -> None:
    retry = {"id": "a.1", "sent": 12.0, "due": 13.0}
    runs = [{"id": "a.1", "at": 13.0}, {"id": "a.1", "at": 13.1}]
    struck = judge([*PUBLISHED, retry], runs, [Fault("broker killed", 8.0, 11.0)])
    assert (struck.duplicated, struck.unexplained) == (["a.1"], [])
    calm = judge([*PUBLISHED, retry], runs, [Fault("broker killed", 14.0, 15.0)])
    assert (calm.duplicated, calm.unexplained) == ([], ["a.1"])


def test_a_task_is_struck_from_a_minute_before_it_is_due_until_it_runs() -> None:
    fault = Fault("broker killed", 100.0, 110.0)
    assert pieces.is_struck(Run(due=170.0, at=170.1), [fault])
    assert not pieces.is_struck(Run(due=170.1, at=170.2), [fault])
    assert pieces.is_struck(Run(due=99.0, at=100.0), [fault])
    assert not pieces.is_struck(Run(due=99.0, at=99.9), [fault])


def test_percentiles_of_pieces_are_at_most_a_tenth_too_high() -> None:
    counts = pieces.classes(Run(10.0, 10.0 + seconds) for seconds in (0.0, 0.0005, 0.02, 0.5, 100.0))
    assert pieces.percentile(counts, 40) == 0.001
    assert 0.02 <= pieces.percentile(counts, 60) <= 0.022
    assert 0.5 <= pieces.percentile(counts, 80) <= 0.55
    assert 100 <= pieces.percentile(counts, 100) <= 110
    assert math.isnan(pieces.percentile({}, 50))


PIECE: dict[str, Any] = {
    **{"contender": "celery-rabbit-delay", "rabbitmq": "4.3.6", "release": "4.3", "nodes": 1, "seed": 7, "minutes": 10},
    **{"rate": 300, "date": "2026-11-25", "commit": "abc", "confirmed": 1000, "delayed": 900, "lost": 0, "early": 0},
    **{"duplicated": 2, "unexplained": 0, "cancelled": 20, "revoked": 0, "moved": 9, "last": 61.5},
    **{"faults": {"broker killed": 3}, "calm": {"10": 500}, "struck": {"10": 400, "80": 100}},
}


def test_pieces_of_a_campaign_add_up() -> None:
    other = {
        **PIECE,
        "confirmed": 500,
        "delayed": 450,
        "lost": 1,
        "faults": {"broker killed": 1, "cut": 2},
        "nodes": 3,
        "last": 9.0,
    }
    native = {**PIECE, "contender": "native delayed delivery"}
    assert pieces.summary([PIECE, native, other]) == (
        "In a campaign of 1,500 tasks, 90 % of them delayed, through 6 faults, 3 of them on single nodes, 1 was lost, "
        "0 ran early, and of 40 cancelled ones 0 ran; of 1,500 tasks 0 ran "
        "twice without a fault."
    )
    _, _, alone, clustered, theirs = pieces.totals([native, PIECE, other]).splitlines()
    assert "| 4.3.6 | 1 | 3 | 1,000 | 0 | 0 | 2 | 20 | 0 | 0.00 | 2.05 | 62 |" in alone
    assert "| 4.3.6 | 3 | 3 | 500 | 1 | 0 | 2 | 20 | 0 | 0.00 | 2.05 | 9 |" in clustered
    assert theirs.startswith("| native delayed delivery | 2026-11-25 | 4.3.6 | 1 | 3 | 1,000 | 0 |")
    summed = pieces.totals([PIECE, {**other, "nodes": 1}]).splitlines()
    assert "| 1 | 6 | 1,500 | 1 | 0 | 4 | 40 | 0 | 0.00 | 2.05 | 62 |" in summed[-1]


def test_a_follower_of_a_ledger_reads_each_entry_once_and_none_by_halves(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(b'{"id": 1}\n{"i')
    follower = ledger.Follower(path)
    assert follower.read() == [{"id": 1}]
    assert follower.read() == []
    with path.open("ab") as file:
        file.write(b'd": 2}\n')
    assert follower.read() == [{"id": 2}]
