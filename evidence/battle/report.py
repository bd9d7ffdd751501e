"""Draws what battles and the campaign found into `PAGES`, and writes a line for each battle into `verdicts.csv`.

A test checks that these files are current.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from celery_rabbit_delay.core.topology import LAYOUT
from tests.kit.page import fill, machine, markdown

from . import pieces
from .app import CONTENDERS, OURS
from .scenarios import SCENARIOS

RESULTS = Path(__file__).with_name("results.json")
LOAD = Path(__file__).with_name("load.json")
VERDICTS = Path(__file__).with_name("verdicts.csv")
_DOCS = Path(__file__).parents[2] / "docs"
#: For users, and one for contributors.
PAGES = _DOCS / "battle.md", _DOCS / "trust.md", _DOCS / "operations.md", _DOCS / "contributing" / "battle.md"

COUNTS = {
    "confirmed": "confirmed",
    "lost": "lost",
    "early": "early",
    "expired": "ran after expiry",
    "duplicated": "ran twice, by a fault",
    "unexplained": "other duplicates",
    "cancelled": "cancelled",
    "revoked": "ran anyway",
    "moved": "moved",
}
LATENESS = ("p50", "p99", "p100")
TITLES = [*COUNTS.values(), "seconds late: half, 99 %, all"]

NATIVE, PLAIN = "native delayed delivery", "plain eta"

#: The scenario and the load that the page begins with.
CRASH, MOST = "broker killed, RabbitMQ's own settings", "1,000,000 wait"

#: What happens to one node of three after the other, by scenario.
CLUSTERS = {
    "a node of three killed": "is killed",
    "rolling restart of three": "is stopped and started, a few seconds apart",
    "a node of three partitioned": "does not answer for 12 s",
}

#: RabbitMQ -> scenario, or kind of load -> contender -> figures.
Results = dict[str, dict[str, dict[str, dict[str, Any]]]]


def read(path: Path = RESULTS) -> Results:
    found: Results = json.loads(path.read_text()) if path.exists() else {}
    return found


def add(path: Path, broker: str, row: str, contender: str, figures: dict[str, Any]) -> None:
    results = read(path)
    results.setdefault(broker, {}).setdefault(row, {})[contender] = figures
    path.write_text(json.dumps(results, indent=2) + "\n")


def cells(figures: dict[str, Any]) -> list[str]:
    """Return the cells of a battle, under `TITLES`."""
    return [*(f"{figures.get(name, 0):,}" for name in COUNTS), ", ".join(f"{figures[name]:.1f}" for name in LATENESS)]


def rows(results: Results) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield each scenario, or kind of load, with a RabbitMQ, a contender and the figures."""
    for broker, found in results.items():
        for row, contenders in found.items():
            for contender, figures in contenders.items():
                yield row, broker, contender, figures


def battles(results: Results, contender: str) -> list[dict[str, Any]]:
    """Return the figures of each battle of a contender."""
    return [figures for *_, who, figures in rows(results) if who == contender]


def machines(results: Results) -> str:
    """Return when and with what each contender's battles were fought, a line for each."""
    each = {contender: battles(results, contender) for contender in CONTENDERS}
    return "\n".join(f"- {contender}: {machine('fought', found)}" for contender, found in each.items() if found)


def total(results: Results, contender: str, figure: str) -> int:
    return sum(figures[figure] for figures in battles(results, contender))


def lost(results: Results, contender: str) -> str:
    of = f"of {total(results, contender, 'confirmed'):,} tasks {total(results, contender, 'lost'):,} were lost"
    return f"{of}, and {total(results, contender, 'early'):,} ran early"


def first(results: Results) -> str:
    """Return how many tasks of this package were lost or early."""
    return f"In {len(battles(results, OURS))} battles, {lost(results, OURS)}."


def answers(results: Results, loads: Results) -> str:
    """Return what a reader wants to know first."""

    def late(broker: str, contender: str) -> str:
        figures = results[broker][CRASH][contender]
        return f"{figures['p50']:.0f} s and {figures['p100']:.0f} s"

    twice, unexplained = (total(results, OURS, name) for name in ("duplicated", "unexplained"))
    share = 100 * twice / total(results, OURS, "confirmed")
    crashes = ", ".join(f"{late(broker, OURS)} on RabbitMQ {broker} ({late(broker, NATIVE)})" for broker in results)
    waiting = [
        f"{figures['beside'][0]:.0f} ms on RabbitMQ {broker} ({figures['alone'][0]:.0f})"
        for broker in loads
        for figures in [loads[broker][MOST].get(OURS)]
        if figures
    ]
    return "\n".join(
        [
            f"- **Is anything lost, or early?** {first(results)}",
            f"- **Does a task run twice?** {twice:,} of them did ({share:.1f} %), each because a fault struck "
            f"while it was on its way; {unexplained:,} without a fault.",
            "- **How late are tasks when the only node is killed**, again and again, with RabbitMQ's default settings? "
            f"The median and the maximum: {crashes}; in parentheses native delayed delivery.",
            f"- **And the others?** Native delayed delivery: {lost(results, NATIVE)}. Plain `eta`: "
            f"{lost(results, PLAIN)}, mostly because two scenarios delete the queue in which all of them wait, and "
            "because the worker's clock decides when they run.",
            f"- **How many may wait?** With {MOST.removesuffix(' wait')} tasks waiting, the median of tasks without a "
            f"delay is {', '.join(waiting)}; in parentheses when none waits.",
        ]
    )


def clusters(results: Results) -> str:
    """Return a table of what tasks undergo when something happens to the nodes of a cluster."""

    def late(scenario: str, contender: str) -> str:
        return " / ".join(f"{found[scenario][contender]['p100']:.0f}" for found in results.values()) + " s"

    lines = []
    for scenario, happens in CLUSTERS.items():
        twice = max(
            one["duplicated"] / one["confirmed"] for one in (found[scenario][OURS] for found in results.values())
        )
        lines.append([happens, late(scenario, OURS), late(scenario, NATIVE), f"{100 * twice:.1f} %"])
    titles = [f"last task late on {' / '.join(results)}", "native", "run twice, at most"]
    return markdown(["one node after the other", *titles], lines)


def totals(results: Results) -> str:
    lines = []
    for contender, broker in product(CONTENDERS, results):
        mine = [figures for _, *who, figures in rows(results) if who == [broker, contender]]
        sums = [f"{sum(figures.get(name, 0) for figures in mine):,}" for name in COUNTS]
        lines.append([contender, broker, str(len(mine)), *sums])
    return markdown(["", "RabbitMQ", "battles", *COUNTS.values()], lines)


def verdicts(results: Results) -> str:
    """Return a line of comma-separated values for each battle: how it ended, and seconds late."""
    order = list(SCENARIOS)
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["scenario", "RabbitMQ", "contender", "date", "commit", *COUNTS.values(), "half", "99 %", "all"])
    for *who, figures in sorted(rows(results), key=lambda row: order.index(row[0])):
        counts = [figures.get(name, 0) for name in COUNTS]
        late = [f"{figures[name]:.1f}" for name in LATENESS]
        lines.writerow([*who, figures["date"], figures.get("commit"), *counts, *late])
    return text.getvalue()


def scenarios() -> str:
    return markdown(["scenario", "what is done"], [[name, s.play.__doc__ or ""] for name, s in SCENARIOS.items()])


def load(results: Results) -> str:
    """Return the table of what waiting tasks cost."""
    lines = []
    for *who, figures in rows(results):
        if "broker" in figures:
            latency = [", ".join(map(milliseconds, figures[name])) for name in ("alone", "beside")]
            counts = [f"{figures[name]:,.0f}" for name in ("broker", "worker", "rate of one", "rate of eight")]
            lines.append([*who, *counts[:2], *latency, *counts[2:]])
    titles = ["broker's memory, bytes a task", "worker's", "immediate tasks alone, ms, half and 99 %", "beside them"]
    rates = ["sent per second by one process", "by eight"]
    return markdown(["", "RabbitMQ", "contender", *titles, *rates], lines)


def milliseconds(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "not in 3 s"


def bursts(results: Results) -> str:
    lines = [[*who, f"{figures['seconds']:,.0f}"] for *who, figures in rows(results) if "seconds" in figures]
    return markdown(["", "RabbitMQ", "contender", "seconds until the last has run"], lines)


def earlier(results: Results) -> str:
    """Return of which layout the battles of this package are."""
    layouts = {figures.get("layout", 2) for figures in battles(results, OURS)}
    if layouts == {LAYOUT}:
        return (
            f"The battles of this package were fought with the present layout of the queues on the broker ({LAYOUT})."
        )
    return (
        "**The battles of this package are not those of this release**, but of an earlier layout of the queues on the "
        "broker, which was not published. Battles with the present layout will replace them."
    )


SECTIONS: dict[str, Callable[[], str]] = {
    "earlier": lambda: earlier(read()),
    "machine": lambda: machines(read()),
    "first": lambda: f"{earlier(read())}\n\n{first(read())}\n\n{pieces.summary(pieces.read())}",
    "answers": lambda: answers(read(), read(LOAD)),
    "totals": lambda: totals(read()),
    "clusters": lambda: clusters(read()),
    "campaign": lambda: pieces.summary(pieces.read()),
    "peers": lambda: pieces.peers(pieces.read()),
    "campaign_totals": lambda: pieces.totals(pieces.of_ours(pieces.read())),
    "faults": lambda: pieces.kinds(pieces.of_ours(pieces.read())),
    "campaign_peers": lambda: pieces.totals(pieces.beside_peers(pieces.read())),
    "pieces": lambda: pieces.origins(pieces.read()),
    "scenarios": scenarios,
    "load": lambda: load(read(LOAD)),
    "bursts": lambda: bursts(read(LOAD)),
}


def page(text: str) -> str:
    return fill(text, SECTIONS)


def main() -> None:
    for one in PAGES:
        one.write_text(page(one.read_text()))
    VERDICTS.write_text(verdicts(read()))


if __name__ == "__main__":
    main()
