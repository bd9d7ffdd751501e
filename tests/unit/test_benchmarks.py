"""Pages say what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from celery_rabbit_delay.delay.core.names import LAYOUT
from evidence.benchmarks.__main__ import RESULTS
from evidence.benchmarks.contenders import Contender, Native, Ours, QueuePerDelay
from evidence.benchmarks.rows import HORIZONS, LATENESS, ROUTES
from tests.kit.page import machine, said

DOCS = Path(__file__).parents[2] / "docs"
PAGE = said(DOCS.parent / "evidence" / "benchmarks" / "README.md")

US, NATIVE, NONE = Ours.name, Native.name, Contender.name


def read() -> dict[str, Any]:
    """Return the results of each broker."""
    results = json.loads(RESULTS.read_text())
    return {broker: results[broker] for broker in sorted(results)}


ROWS = [found["rows"] for found in read().values()]
ABOUT = {row: [found["about"][row] for found in read().values()] for row in ROWS[0]}


def each(row: str, name: str, what: str = "median", form: str = "{:,.0f}") -> str:
    """Return a figure on RabbitMQ 3.10 and 4.3."""
    return " / ".join(form.format(one[row][name][what]) for one in ROWS)


def cells(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def test_the_page_says_when_and_with_what_it_was_measured() -> None:
    every = [found["about"][row] for found in read().values() for row in found["about"]]
    assert machine("Measured", every) in PAGE
    for row, about in ABOUT.items():
        assert all(f"`{row}`: {one['note']}." in PAGE for one in about if "note" in one)
        assert {one["layout"] for one in about} == {LAYOUT} or f"an earlier layout of the queues: `{row}`" in PAGE


def test_the_table_of_the_brokers_cpu_says_what_was_measured() -> None:
    rows = ("broker_cpu_confirmed", "everyday_cpu_confirmed", "hour_cpu_confirmed", "broker_cpu")
    for name in (NONE, US, NATIVE, QueuePerDelay.name):
        assert cells(name, *(each(row, name) if name in ROWS[0][row] else "–" for row in rows)) in PAGE


def test_the_table_of_hops_says_what_was_calculated() -> None:
    found = ROWS[0]["hops"]
    for name in ROUTES:
        means = [f"{1 + found[f'{name}, {horizon}']['mean']:.1f}" for horizon in ("everyday", *HORIZONS)]
        most = max(1 + found[f"{name}, {horizon}"]["most"] for horizon in HORIZONS)
        assert cells(name, *means, str(most)) in PAGE


def test_the_table_of_lateness_says_what_was_measured() -> None:
    for name in LATENESS:
        late = [[f"{row['lateness'][name][part]:,.0f}" for part in ("p50", "p99", "most")] for row in ROWS]
        early = [row["lateness"][name]["early"] for row in ROWS]
        assert cells(name, *(f"{' / '.join(one)}, {n} early" for one, n in zip(late, early, strict=True))) in PAGE


def test_the_page_says_what_was_measured_besides() -> None:
    for name in (US, NATIVE):
        assert each("memory", name) in PAGE, name
    assert each("due_at_once", US) in PAGE
    assert each("hour_cpu_confirmed", US, "ratio", "{:.2f}") in PAGE
    assert " / ".join(f"{one['journal_broker_cpu']['one by one']['with']['ratio']:.2f}" for one in ROWS) in PAGE


def test_the_comparison_says_what_was_measured() -> None:
    def ratio(row: str) -> str:
        return " / ".join(f"{one[row][US]['median'] / one[row][NATIVE]['median']:.2f}" for one in ROWS)

    def late(name: str) -> str:
        return each("lateness", name, "p50", "{:.0f}") + " ms"

    def memory(name: str) -> str:
        return " / ".join(f"{one['memory'][name]['median'] / 1000:.1f}" for one in ROWS) + " kB"

    comparison = said(DOCS / "comparison.md")
    for row in ("broker_cpu_confirmed", "everyday_cpu_confirmed", "broker_cpu"):
        assert f"| 1 | {ratio(row)} |" in comparison
    assert f"| 1 | {each('hour_cpu_confirmed', US, 'ratio', '{:.2f}')} |" in comparison
    whole = late(f"{US}, whole seconds")
    assert f"| {late(NATIVE)} | {whole}, fractions of a second {late(US)} |" in comparison
    assert f"| {memory(NATIVE)} | {memory(US)} |" in comparison


def test_every_row_says_when_and_how_it_was_measured() -> None:
    how = {"rabbitmq", "date", "python", "cpus", "celery", "kombu", "amqp", "scale", "repeats"}
    for found in read().values():
        assert found["about"].keys() == found["rows"].keys()
        assert all(how <= about.keys() for about in found["about"].values())


def test_the_page_says_what_a_cancelled_id_costs_a_worker_that_starts() -> None:
    starts = [one["cancelled"] for one in ROWS]
    each = [(one["100,000 ids"]["seconds"]["median"] - one["no id"]["seconds"]["median"]) * 10 for one in starts]
    [shown] = re.findall(r"140 bytes of memory and \[(\d+) µs\]", (DOCS / "sizing.md").read_text())
    assert int(shown) == pytest.approx(sum(each) / len(each), abs=1)
