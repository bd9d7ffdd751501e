"""Draws `results.json` into docs/benchmarks.md.

A test checks that the page is current.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from celery_rabbit_delay.core.topology import LAYOUT
from tests.kit.page import fill, listed, machine, markdown

from .contenders import Contender, Native, Ours, QueuePerDelay
from .rows import HORIZONS, LATENESS, ROUTES

RESULTS, SCHEDULE = (Path(__file__).with_name(name) for name in ("results.json", "schedule.json"))
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"

Rows = dict[str, dict[str, Any]]

US, NATIVE, NONE = Ours.name, Native.name, Contender.name


#: Rows of the broker's CPU, by their delays.
CPU = {
    "broker_cpu_confirmed": "1 to 15 s",
    "everyday_cpu_confirmed": "5, 10 and 15 s",
    "hour_cpu_confirmed": "1 s to an hour",
    "broker_cpu": "1 to 15 s, a burst",
}


def ratio(row: str, numerator: str, denominator: str) -> Callable[[Rows], float]:
    return lambda rows: float(rows[row][numerator]["median"] / rows[row][denominator]["median"])


def cpu(results: dict[str, Any]) -> str:
    """Return a table of microseconds of the broker's CPU for a message, by contender and kind of delays."""

    def cell(row: str, name: str) -> str:
        each = [
            found["rows"][row].get(f"{name}, quorum" if row == "broker_cpu" else name) for found in results.values()
        ]
        return " / ".join(f"{one['median']:,.0f}" for one in each) if all(each) else "–"

    lines = [[name, *(cell(row, name) for row in CPU)] for name in (NONE, US, NATIVE, QueuePerDelay.name)]
    return markdown(["", *CPU.values()], lines)


def lateness(results: dict[str, Any]) -> str:
    def cell(found: dict[str, Any]) -> str:
        return f"{found['p50']:,.0f} / {found['p99']:,.0f} / {found['most']:,.0f}, {found['early']} early"

    lines = [[name, *(cell(found["rows"]["lateness"][name]) for found in results.values())] for name in LATENESS]
    return markdown(["", *(f"RabbitMQ {broker}" for broker in results)], lines)


def hops(results: dict[str, Any]) -> str:
    """Return a table of the mean hops: levels, and the outbox."""
    found = next(iter(results.values()))["rows"]["hops"]
    lines = []
    for name in ROUTES:
        means = [f"{1 + found[f'{name}, {horizon}']['mean']:.1f}" for horizon in ("everyday", *HORIZONS)]
        most = max(1 + found[f"{name}, {horizon}"]["most"] for horizon in HORIZONS)
        lines.append([name, *means, str(most)])
    return markdown(["options", "everyday", *HORIZONS, "most"], lines)


def measured(results: dict[str, Any]) -> str:
    """Return when and with what the rows were measured, and which of them with an earlier layout."""
    every = [found["about"][row] for found in results.values() for row in found["about"]]
    text = machine("Measured", every)
    earlier = dict.fromkeys(row for found in results.values() for row in found["about"] if is_earlier(found, row))
    if earlier:
        text += f" **With an earlier layout of the queues: {listed(f'`{row}`' for row in earlier)}.**"
    notes = {row: one["note"] for found in results.values() for row, one in found["about"].items() if "note" in one}
    return " ".join([text, *(f"`{row}`: {note}." for row, note in notes.items())])


def is_earlier(found: dict[str, Any], row: str) -> bool:
    return bool(found["about"][row].get("layout") != LAYOUT)


SECTIONS = {"measured": measured, "cpu": cpu, "hops": hops, "lateness": lateness}


def read(path: Path = RESULTS) -> dict[str, Any]:
    """Return the results of each broker."""
    results = json.loads(path.read_text())
    return {broker: results[broker] for broker in sorted(results)}


def page(text: str) -> str:
    return fill(text, {name: partial(section, read()) for name, section in SECTIONS.items()})


def main() -> None:
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
