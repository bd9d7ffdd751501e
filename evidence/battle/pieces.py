"""The pieces of a campaign, and their sums. Pure, but for `read`."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.kit.page import markdown

from .app import CONTENDERS, OURS
from .verdict import Fault, Run

RESULTS = Path(__file__).with_name("campaign.json")

AFTERMATH = 60  # seconds after a fault that do not count as calm

#: Lateness is counted in classes, so that pieces add up: class n is up to `GROWTH` ** n milliseconds.
GROWTH = 1.1

#: {"contender", "rabbitmq", "nodes", "commit", …, "confirmed", "lost", …, "faults": {name: count}, "last": seconds,
#: "calm" and "struck": {class of lateness: tasks}}
Piece = dict[str, Any]

COUNTS = {
    "confirmed": "tasks",
    "lost": "lost",
    "early": "early",
    "duplicated": "twice, by a fault",
    "cancelled": "cancelled",
    "revoked": "ran anyway",
}


def read() -> list[Piece]:
    found: list[Piece] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return found


def add(piece: Piece) -> None:
    """Add a piece to the file, which has one a line."""
    lines = ",\n".join(map(json.dumps, [*read(), piece]))
    RESULTS.write_text(f"[\n{lines}\n]\n")


def is_struck(run: Run, faults: Iterable[Fault]) -> bool:
    """Return whether a fault struck while a task was late, or in the minute before it was due."""
    return any(fault.began <= run.at and fault.ended >= run.due - AFTERMATH for fault in faults)


def classes(runs: Iterable[Run]) -> dict[str, int]:
    """Return how many runs are in each class of lateness."""
    counted = Counter(_class(run.late) for run in runs)
    return {str(number): counted[number] for number in sorted(counted)}


def _class(seconds: float) -> int:
    return max(0, math.ceil(math.log(max(seconds, 1e-9) * 1000, GROWTH)))


def percentile(counted: Mapping[str, int], percent: float) -> float:
    """Return the seconds within which so many percent of tasks ran, at most a tenth too high; NaN if there are none."""
    left = sum(counted.values()) * percent / 100
    for number in sorted(map(int, counted)):
        left -= counted[str(number)]
        if left <= 0:
            return float(GROWTH**number) / 1000
    return math.nan


def of_ours(pieces: Iterable[Piece]) -> list[Piece]:
    return [piece for piece in pieces if piece["contender"] == OURS]


def total(pieces: Iterable[Piece], name: str) -> int:
    return sum(piece[name] for piece in pieces)


def faults(pieces: Iterable[Piece]) -> Counter[str]:
    """Return how often each fault struck."""
    return sum((Counter(piece["faults"]) for piece in pieces), Counter[str]())


def lateness(pieces: list[Piece], part: str) -> str:
    """Return within how many seconds 99 % of the tasks that are "calm" or "struck" ran."""
    classes = sum((Counter(piece[part]) for piece in pieces), Counter[str]())
    return f"{min(percentile(classes, 99), max(piece['last'] for piece in pieces)):.2f}"


def groups(pieces: Iterable[Piece]) -> Iterator[tuple[str, str, str, int, list[Piece]]]:
    """Yield a contender, a day, a release of RabbitMQ, a number of nodes, and the pieces with them."""

    def key(piece: Piece) -> tuple[int, str, str, int]:
        return list(CONTENDERS).index(piece["contender"]), piece["date"], piece["rabbitmq"], piece["nodes"]

    for (contender, date, rabbitmq, nodes), found in groupby(sorted(pieces, key=key), key):
        yield list(CONTENDERS)[contender], date, rabbitmq, nodes, list(found)


def summary(pieces: list[Piece]) -> str:
    """Return what a reader wants to know first, of this package."""
    mine = of_ours(pieces)
    if not mine:
        return "No piece of the campaign has been fought yet."
    confirmed, lost, early, cancelled, ran = (
        total(mine, name) for name in ("confirmed", "lost", "early", "cancelled", "revoked")
    )
    alone = [piece for piece in mine if piece["nodes"] == 1]
    explained = [piece for piece in mine if "unexplained" in piece]  # whether faults explain it was not always noted
    delayed = 100 * total(mine, "delayed") // confirmed
    was = "was" if lost == 1 else "were"
    return (
        f"In a campaign of {confirmed:,} tasks, {delayed} % of them delayed, through {faults(mine).total():,} faults, "
        f"{faults(alone).total():,} of them on single nodes, {lost:,} {was} lost, {early:,} ran early, and of "
        f"{cancelled:,} cancelled ones {ran:,} ran; of the {total(explained, 'confirmed'):,} for which it was noted, "
        f"{total(explained, 'unexplained'):,} ran twice although no fault had struck since they were sent."
    )


def totals(pieces: list[Piece]) -> str:
    """Return a table with a line for each contender, day, RabbitMQ and number of nodes."""
    lines = []
    for contender, date, rabbitmq, nodes, found in groups(pieces):
        sums = [f"{total(found, name):,}" for name in COUNTS]
        late = [lateness(found, part) for part in ("calm", "struck")]
        last = f"{max(piece['last'] for piece in found):.0f}"
        lines.append([contender, date, rabbitmq, str(nodes), str(faults(found).total()), *sums, *late, last])
    titles = ["99 % late by, calm, s", "near a fault, s", "the last, s"]
    return markdown(["", "on", "RabbitMQ", "nodes", "faults", *COUNTS.values(), *titles], lines)
