"""The page of benchmarks shows the latest results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_rabbit_delay.core.topology import LAYOUT
from evidence.benchmarks import report
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


def test_the_page_is_drawn_from_the_results() -> None:
    text = report.PAGE.read_text()
    assert text == report.page(text)
    assert drawn(text) == report.SECTIONS.keys()


def test_the_page_says_what_was_measured_besides() -> None:
    text = said(report.PAGE)
    rows = [found["rows"] for found in report.read().values()]
    records = [found["rows"] for found in report.read(report.SCHEDULE).values()]

    def each(row: str, name: str, what: str = "median", form: str = "{:,.0f}") -> str:
        return " / ".join(form.format(one[row][name][what]) for one in rows)

    for name in ("one by one", "batch", "no delay, unconfirmed", "Kombu, one by one", "Kombu, batch"):
        assert each("batch_rate", name) in text, name
    for name in ("plain eta", "plain eta, confirmed", "celery-rabbit-delay, no delay", "celery-rabbit-delay"):
        assert each("client_cpu", name, "ratio", "{:.2f}") in text, name
    for name in (report.US, report.NATIVE):
        assert each("worker", name, "ratio", "{:.2f}") in text, name
        assert each("memory", name) in text, name
    assert each("due_at_once", report.US) in text
    assert each("hour_cpu_confirmed", report.US, "ratio", "{:.2f}") in text
    assert each("lateness_fast", report.US, "p99") in text
    for row in ("journal_broker_cpu", "journal_client_cpu"):
        assert " / ".join(f"{one[row]['one by one']['with']['ratio']:.2f}" for one in records) in text, row


def test_figures_of_an_earlier_layout_are_marked() -> None:
    about = {"memory": {**ABOUT, "layout": LAYOUT - 1}, "worker": ABOUT}
    text = report.measured({"4.3": {"rows": {}, "about": about}})
    assert text.endswith("CPUs. **With an earlier layout of the queues: `memory`.**")
    about["memory"] = ABOUT
    assert "layout" not in report.measured({"4.3": {"rows": {}, "about": about}})


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
    hour = each(lambda rows: rows["hour_cpu_confirmed"][report.US]["ratio"])
    whole, native = late(f"{report.US}, whole seconds"), late(report.NATIVE)
    for ratio in (confirmed, everyday, hour):
        assert f"| 1 | {ratio} |" in comparison
    burst = each(report.ratio("broker_cpu", f"{report.US}, quorum", f"{report.NATIVE}, quorum"))
    assert f"| 1 | {burst} |" in comparison
    assert f"| {native} | {whole}, fractions of a second {late(report.US)} |" in comparison
    assert f"| {memory(report.NATIVE)} | {memory(report.US)} |" in comparison


def test_a_restart_went_as_its_picture_is_described() -> None:
    found = json.loads((ROOT / "evidence" / "benchmarks" / "restart.json").read_text())
    down, up = found["down"]
    assert "within five seconds. Later ones are four seconds late]" in (ROOT / "docs" / "operations.md").read_text()
    for due, at in found["runs"]:
        assert due <= at
        assert at - due < 0.2 or (down <= due <= up and at < up + 5) or (up < due and at - due < 4)


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
    add(path, "4.3", "memory", {"us": meter.spread([4.0])}, later)
    text = report.measured(json.loads(path.read_text()))
    assert "Measured from 2026-11-01 to 2026-11-09 on RabbitMQ 4.3.6, " in text
    assert text.endswith("on a machine with 2 or 4 CPUs. `memory`: on a busy machine.")


def test_what_was_measured_at_once_on_one_machine_is_said_once() -> None:
    said = machine("Measured", [ABOUT, {**ABOUT, "rabbitmq": "3.10.8"}])
    assert said == (
        "Measured on 2026-11-01 on RabbitMQ 4.3.6 and 3.10.8, Celery 5.7.0, Kombu 5.7.0, py-amqp 5.4.2 and "
        "Python 3.11.7, on a machine with 2 CPUs."
    )
