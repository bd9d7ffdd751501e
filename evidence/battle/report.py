"""Draws what battles and the campaign found into `PAGES`, and writes a line for each battle into `verdicts.csv`.

A test checks that these files are current.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from celery_rabbit_delay.delay.core.names import LAYOUT
from tests.kit.page import fill, machine, markdown

from . import pieces
from .app import OURS
from .scenarios import SCENARIOS

RESULTS = Path(__file__).with_name("results.json")
VERDICTS = Path(__file__).with_name("verdicts.csv")
_DOCS = Path(__file__).parents[2] / "docs"
PAGES = Path(__file__).with_name("README.md"), _DOCS / "trust.md", _DOCS / "operations.md"

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

CRASH = "broker killed, RabbitMQ's own settings"

#: What happens to one node of three after the other, by scenario.
CLUSTERS = {
    "a node of three killed": "is killed",
    "rolling restart of three": "is stopped and started, a few seconds apart",
    "a node of three partitioned": "does not answer for 12 s",
}

#: RabbitMQ -> scenario -> contender -> figures.
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
    """Yield each scenario with a RabbitMQ, a contender and the figures."""
    for broker, found in results.items():
        for row, contenders in found.items():
            for contender, figures in contenders.items():
                yield row, broker, contender, figures


def battles(results: Results, contender: str) -> list[dict[str, Any]]:
    """Return the figures of each battle of a contender."""
    return [figures for *_, who, figures in rows(results) if who == contender]


def total(results: Results, contender: str, figure: str) -> int:
    return sum(figures[figure] for figures in battles(results, contender))


def lost(results: Results, contender: str) -> str:
    of = f"of {total(results, contender, 'confirmed'):,} tasks {total(results, contender, 'lost'):,} were lost"
    return f"{of}, and {total(results, contender, 'early'):,} ran early"


def first(results: Results) -> str:
    """Return how many tasks of this package were lost or early."""
    return f"In {len(battles(results, OURS))} battles, {lost(results, OURS)}."


def answers(results: Results) -> str:
    """Return what a reader wants to know first."""
    names = ("duplicated", "unexplained", "revoked", "cancelled")
    twice, unexplained, revoked, cancelled = (total(results, OURS, name) for name in names)
    share = 100 * twice / total(results, OURS, "confirmed")
    return "\n".join(
        [
            f"- **Lost or early?** {first(results)}",
            f"- **Run twice?** {twice:,} ({share:.1f} %), each because a fault struck while it was on its way; "
            f"{unexplained:,} without a fault.",
            f"- **Cancelled, and run?** {revoked:,} of {cancelled:,}.",
            f"- **Native delayed delivery**: {lost(results, NATIVE)}.",
            f"- **Plain `eta`**: {lost(results, PLAIN)}, mostly because two scenarios delete the queue in which all of "
            "them wait, and because the worker's clock decides when they run.",
        ]
    )


def how(results: Results) -> str:
    """Return when and with what the battles were run."""
    figures = [figures for *_, figures in rows(results)]
    earlier = " Some with an earlier layout of the queues." * any(
        one["layout"] != LAYOUT for one in battles(results, OURS)
    )
    return machine("Run", figures) + earlier


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


SECTIONS: dict[str, Callable[[], str]] = {
    "how": lambda: how(read()),
    "first": lambda: f"{first(read())} {pieces.summary(pieces.read())}",
    "answers": lambda: answers(read()),
    "clusters": lambda: clusters(read()),
    "campaign_totals": lambda: pieces.totals(pieces.of_ours(pieces.read())),
}


def page(text: str) -> str:
    return fill(text, SECTIONS)


def main() -> None:
    for one in PAGES:
        one.write_text(page(one.read_text()))
    VERDICTS.write_text(verdicts(read()))


if __name__ == "__main__":
    main()
