"""The page on speed says what was measured last."""

from __future__ import annotations

from benchmarks import report


def test_the_page_is_drawn_from_the_results() -> None:
    assert report.PAGE.read_text() == report.page(report.PAGE.read_text(), report.read())


def test_every_result_is_on_the_page() -> None:
    drawn = {name for name in report.SECTIONS if f"<!-- results: {name} -->" in report.PAGE.read_text()}
    assert drawn == set(report.SECTIONS)
