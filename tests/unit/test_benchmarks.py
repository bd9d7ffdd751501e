"""Pages say what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from celery_rabbit_delay.delay.core.names import LAYOUT
from evidence.benchmarks.__main__ import RESULTS
from evidence.benchmarks.contenders import SCHEDULE, Contender, Native, Ours, QueuePerDelay
from evidence.benchmarks.publishing import PLAIN
from evidence.benchmarks.rows import HORIZONS, LATENESS, ROUTES
from tests.kit.page import machine, said

DOCS = Path(__file__).parents[2] / "docs"
PAGE = said(DOCS.parent / "evidence" / "benchmarks" / "README.md")

US, NATIVE, NONE = Ours.name, Native.name, Contender.name


def read() -> dict[str, Any]:
    """Return the results of each broker."""
    results = json.loads(RESULTS.read_text())
    return {broker: results[broker] for broker in sorted(results)}


ROWS = [{**found["rows"], **found["rows"].get("warm", {})} for found in read().values()]
ABOUT = {
    row: [found["about"][row] for found in read().values() if row in found["about"]] for row in read()["4.3"]["about"]
}


def each(row: str, name: str, what: str = "median", form: str = "{:,.0f}") -> str:
    """Return a figure on RabbitMQ 3.10 and 4.3, or just on 4.3."""
    return " / ".join(
        form.format(one[row][name][what]) if what in one[row][name] else "–" for one in ROWS if row in one
    )


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
    assert each("hour_cpu_confirmed", US, "ratio", "{:.2f}") in PAGE
    assert " / ".join(f"{one['journal_broker_cpu']['one by one']['with']['ratio']:.2f}" for one in ROWS) in PAGE


#: Columns, with digits.
BINDINGS = {"bindings": 0, "seconds": 1, "restart": 1, "restart cpu": 1}

PUBLISHERS = {
    "CPU of a call, µs": ("cpu", ""),
    "its median time, µs": ("time", ""),
    "first call, `countdown=1`, ms": ("first_task", ", 1 s, to a queue"),
    "first call, ms": ("first_task", ", 60 s, to a queue"),
    "first call to a further queue, which is new, ms": ("first_task", ", 60 s, to a further queue"),
    "first call on a fresh virtual host, ms": ("first_task", ", on a fresh virtual host"),
}


def test_the_table_of_publishers_says_what_was_measured() -> None:
    for what, (row, where) in PUBLISHERS.items():
        ratios = [each(row, kind + where, "ratio", "{:.2f}") for kind in (US, SCHEDULE)]
        plain = PLAIN + where.replace(", 1 s", ", 60 s")
        assert cells(what, each(row, plain), *ratios, each(row, US + where, "floor", "{:.2f}")) in PAGE
    for what in ("cpu", "time"):
        batch = [each(what, f"{kind}, batch", "ratio", "{:.2f}") for kind in (US, SCHEDULE)]
        assert ", with the schedule ".join(batch) in PAGE
    assert each("cpu", f"{US}, batch", "floor", "{:.2f}") in PAGE
    assert each("cpu", f"{US}, no delay", "ratio", "{:.2f}") in PAGE


def test_the_page_says_what_workers_and_imports_cost() -> None:
    for name in (NATIVE, US, f"{US}, levels", SCHEDULE):
        ratios, floors = (
            [each("worker", f"{name}, {pool}", what, "{:.2f}") for pool in ("solo", "prefork")]
            for what in ("ratio", "floor")
        )
        assert cells(name, *ratios, " / ".join(floors)) in PAGE
    for kind in (US, SCHEDULE):
        assert f"{each('imports', kind, 'modules')} modules and {each('imports', kind)} ms" in PAGE
    assert f"{ROWS[-1]['memory'][US]['median'] / ROWS[-1]['memory'][NATIVE]['median']:.2f} of native's" in PAGE
    found = ROWS[-1]["bindings"]
    for kind, figures in found.items():
        assert cells(kind, *(f"{figures[what]['median']:.{digits}f}" for what, digits in BINDINGS.items())) in PAGE


def test_the_comparison_says_what_was_measured() -> None:
    def ratio(row: str) -> str:
        return " / ".join(f"{one[row][US]['median'] / one[row][NATIVE]['median']:.2f}" for one in ROWS)

    def late(name: str) -> str:
        return each("lateness", name, "p50", "{:.0f}") + " ms"

    comparison = said(DOCS / "comparison.md")
    for row in ("broker_cpu_confirmed", "everyday_cpu_confirmed", "broker_cpu"):
        assert f"| 1 | {ratio(row)} |" in comparison
    assert f"| 1 | {each('hour_cpu_confirmed', US, 'ratio', '{:.2f}')} |" in comparison
    whole = late(f"{US}, whole seconds")
    assert f"| {late(NATIVE)} | {whole}, fractions of a second {late(US)} |" in comparison


def test_every_row_says_when_and_how_it_was_measured() -> None:
    how = {"rabbitmq", "date", "python", "cpus", "celery", "kombu", "amqp", "scale", "repeats"}
    for found in read().values():
        assert found["about"].keys() == found["rows"].keys()
        assert all(how <= about.keys() for about in found["about"].values())


def test_the_page_says_what_a_cancelled_id_costs_a_worker_that_starts() -> None:
    def more(what: str) -> float:
        starts = [one["cancelled"] for one in ROWS]
        each = [one["100,000 ids"][what]["median"] - one["no id"][what]["median"] for one in starts]
        return float(sum(each) / len(each) / 100_000)

    [shown] = re.findall(r"(\d+) bytes of memory and \[(\d+) µs\]", (DOCS / "sizing.md").read_text())
    assert [*map(int, shown)] == pytest.approx([more("bytes"), 1e6 * more("cpu")], abs=1)


def test_the_calculation_of_the_cpu_fits_what_was_measured() -> None:
    [(fixed, more)] = re.findall(r"\(([\d,]+) \+ (\d+) × hops\) µs", (DOCS / "sizing.md").read_text())
    hops = {"everyday_cpu_confirmed": 1.0, "broker_cpu_confirmed": 3.3, "hour_cpu_confirmed": 5.0}
    for row, number in hops.items():
        calculated = int(fixed.replace(",", "")) + int(more) * number
        assert all(calculated == pytest.approx(one[row][US]["median"], rel=0.25) for one in ROWS)
