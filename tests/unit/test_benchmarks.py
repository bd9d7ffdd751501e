"""The page on speed says what was measured last."""

from __future__ import annotations

from benchmarks import report
from testkit.page import drawn


def test_the_page_is_drawn_from_the_results() -> None:
    assert report.PAGE.read_text() == report.page(report.PAGE.read_text(), report.read())


def test_every_result_is_on_the_page() -> None:
    assert drawn(report.PAGE.read_text()) == set(report.SECTIONS)
