"""The page of benchmarks shows the latest results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_rabbit_delay.core.topology import LAYOUT
from evidence.benchmarks import one_off, report, sizing, worker_settings
from evidence.benchmarks.__main__ import add
from tests.kit import meter
from tests.kit.page import drawn, machine, said

ROOT = Path(__file__).parents[2]

ABOUT: dict[str, Any] = {
    "rabbitmq": "4.3.6",
    "date": "2026-11-01",
    "python": "3.11.7",
    "cpus": 2,
    "celery": "5.7.0",
    "kombu": "5.7.0",
    "amqp": "5.4.2",
    "scale": 1.0,
    "repeats": 3,
    "messages": 500,
    "layout": LAYOUT,
}


@pytest.mark.parametrize("path", [report.PAGE, report.NOTES])
def test_the_page_is_drawn_from_the_results(path: Path) -> None:
    assert path.read_text() == report.page(path.read_text(), report.read())


def test_every_result_is_on_a_page_and_goals_are_not_in_front_of_users() -> None:
    users, contributors = (drawn(path.read_text()) for path in (report.PAGE, report.NOTES))
    assert users | contributors == {*report.SECTIONS, *report.SCHEDULE_SECTIONS}
    assert {"goals", "floors", "schedule_goals"} <= contributors
    assert not users & contributors


def test_a_row_that_was_not_measured_is_said_to_be_missing() -> None:
    results: dict[str, Any] = {"4.3": {"rows": {}, "about": {}}}
    assert report.drawn_from(report.SECTIONS["declaring"], results) == "Not measured yet."
    assert "not measured yet" in report.goals(results)


def test_figures_of_an_earlier_layout_are_marked() -> None:
    before = {name: value for name, value in ABOUT.items() if name != "layout"}
    results: dict[str, Any] = {"4.3": {"rows": {"memory": {}}, "about": {"memory": before}}}
    assert "`memory`" in report.earlier(results)
    assert "layout 2 |" in report.measured(results, ["memory"])
    assert report.current(results)["4.3"]["rows"] == {}
    results["4.3"]["about"]["memory"] = ABOUT
    assert report.earlier(results) == f"All figures are those of layout {LAYOUT} of the queues on the broker."
    assert "layout" not in report.measured(results, ["memory"])


def test_the_comparison_says_what_was_measured() -> None:
    measured = [found["rows"] for found in report.read().values()]

    def each(figure: Callable[[report.Rows], float], form: str = "{:.2f}") -> str:
        return " / ".join(form.format(figure(rows)) for rows in measured)

    def late(name: str) -> str:
        return each(lambda rows: rows["lateness"][name]["p50"], "{:.0f}") + " ms"

    def memory(name: str) -> str:
        return each(lambda rows: rows["memory"][name]["median"] / 1000, "{:.1f}") + " kB"

    comparison = said(ROOT / "docs" / "comparison.md")
    confirmed, everyday = (
        each(report.ratio(f"{row}_cpu_confirmed", report.US, report.NATIVE)) for row in ("broker", "everyday")
    )
    cpu = f"{confirmed}, everyday delays {everyday} |"
    whole, native = late(f"{report.US}, whole seconds"), late(report.NATIVE)
    assert f"| 1 | {cpu}" in comparison
    burst = each(report.ratio("broker_cpu", f"{report.US}, quorum", f"{report.NATIVE}, quorum"))
    assert f"| 1 | {burst} |" in comparison
    assert f"| {native} | {whole}, fractions of a second {late(report.US)} |" in comparison
    assert f"| {memory(report.NATIVE)} | {memory(report.US)} |" in comparison


def test_the_table_for_workers_is_drawn_from_its_results() -> None:
    text = worker_settings.PAGE.read_text()
    assert drawn(text) == {"machine", "settings"}
    assert text == worker_settings.page(text, json.loads(worker_settings.RESULTS.read_text()))


def test_the_how_to_on_one_off_entries_is_drawn_from_the_results() -> None:
    assert one_off.PAGE.read_text() == one_off.page(one_off.PAGE.read_text())
    assert drawn(one_off.PAGE.read_text()) == {"one_off"}


def test_the_page_on_sizing_is_drawn_from_the_results() -> None:
    assert sizing.PAGE.read_text() == sizing.page(sizing.PAGE.read_text())
    assert drawn(sizing.PAGE.read_text()) == {"measured", "settings", "minute", "month", "backlog"}


@pytest.mark.parametrize("path", [report.RESULTS, report.SCHEDULE])
def test_every_row_says_when_and_how_it_was_measured(path: Path) -> None:
    for found in json.loads(path.read_text()).values():
        assert found["about"].keys() == found["rows"].keys()
        assert all(ABOUT.keys() - {"messages", "layout"} <= about.keys() for about in found["about"].values())


def test_a_row_measured_later_leaves_what_others_say_of_themselves(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    later = {**ABOUT, "date": "2026-11-09", "cpus": 4, "note": "on a busy machine"}
    add(path, "4.3", "lateness", {"us": {"p50": 1.0}}, ABOUT)
    add(path, "4.3", "memory", {"us": meter.spread([1.0, 2.0, 3.0])}, ABOUT)
    assert "| `memory` | 3 runs, 500 messages |" in report.measured(
        json.loads(path.read_text()), ["lateness", "memory"]
    )
    add(path, "4.3", "memory", {"us": meter.spread([4.0])}, later)
    text = report.measured(json.loads(path.read_text()), ["lateness", "memory"])
    assert "Measured from 2026-11-01 to 2026-11-09 on RabbitMQ 4.3.6, " in text
    assert "on a machine with 2 or 4 CPUs." in text
    assert "| `lateness` | 500 messages, 2026-11-01, 2 CPUs |" in text
    assert "| `memory` | 1 run, 500 messages, 2026-11-09, 4 CPUs, on a busy machine |" in text


def test_what_was_measured_at_once_on_one_machine_is_said_once() -> None:
    said = machine("Measured", [ABOUT, {**ABOUT, "rabbitmq": "3.10.8"}])
    assert said == (
        "Measured on 2026-11-01 on RabbitMQ 4.3.6 and 3.10.8, Celery 5.7.0, Kombu 5.7.0, py-amqp 5.4.2 and "
        "Python 3.11.7, on a machine with 2 CPUs."
    )
