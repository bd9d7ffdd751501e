"""The page on speed says what was measured last."""

from __future__ import annotations

import json

from benchmarks import report, sizing, worker_settings
from testkit.page import drawn


def test_the_page_is_drawn_from_the_results() -> None:
    assert report.PAGE.read_text() == report.page(report.PAGE.read_text(), report.read())


def test_every_result_is_on_the_page() -> None:
    assert drawn(report.PAGE.read_text()) == {*report.SECTIONS, *report.SCHEDULE_SECTIONS}


def test_the_table_for_workers_is_drawn_from_its_results() -> None:
    text = worker_settings.PAGE.read_text()
    assert drawn(text) == {"machine", "settings"}
    assert text == worker_settings.page(text, json.loads(worker_settings.RESULTS.read_text()))


def test_the_page_on_sizing_is_drawn_from_the_results() -> None:
    assert sizing.PAGE.read_text() == sizing.page(sizing.PAGE.read_text())
    assert drawn(sizing.PAGE.read_text()) == {"machine", "settings"}
