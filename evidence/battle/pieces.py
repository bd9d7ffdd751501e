"""The pieces of a campaign, and their sums. Pure, but for `read`."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.kit.page import listed, markdown

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
    "duplicated": "ran twice, by a fault",
    "unexplained": "other duplicates",
    "cancelled": "cancelled",
    "revoked": "ran anyway",
    "moved": "moved",
}
PERCENTS = 50, 99, 99.9


def read() -> list[Piece]:
    found: list[Piece] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return found


def add(piece: Piece) -> None:
    RESULTS.write_text(json.dumps([*read(), piece], indent=1) + "\n")


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


def beside_peers(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces that several contenders fought, at the same rate through the same faults."""

    def conditions(piece: Piece) -> tuple[Any, ...]:
        return tuple(piece[name] for name in ("release", "nodes", "rate", "minutes", "seed"))

    pieces = list(pieces)
    fought = Counter(where for where, _ in {(conditions(piece), piece["contender"]) for piece in pieces})
    return [piece for piece in pieces if fought[conditions(piece)] > 1]


def total(pieces: Iterable[Piece], name: str) -> int:
    return sum(piece[name] for piece in pieces)


def faults(pieces: Iterable[Piece]) -> Counter[str]:
    """Return how often each fault struck."""
    return sum((Counter(piece["faults"]) for piece in pieces), Counter[str]())


def lateness(pieces: Iterable[Piece], part: str) -> list[float]:
    """Return `PERCENTS` of the lateness, in seconds, of the tasks that are "calm" or "struck"."""
    counted = sum((Counter(piece[part]) for piece in pieces), Counter[str]())
    return [percentile(counted, percent) for percent in PERCENTS]


def groups(pieces: Iterable[Piece]) -> Iterator[tuple[str, str, int, list[Piece]]]:
    """Yield a contender, a release of RabbitMQ, a number of nodes, and the pieces with them."""

    def key(piece: Piece) -> tuple[int, str, int]:
        return list(CONTENDERS).index(piece["contender"]), piece["rabbitmq"], piece["nodes"]

    for (contender, rabbitmq, nodes), found in groupby(sorted(pieces, key=key), key):
        yield list(CONTENDERS)[contender], rabbitmq, nodes, list(found)


def summary(pieces: list[Piece]) -> str:
    """Return what a reader wants to know first, of this package."""
    mine = of_ours(pieces)
    if not mine:
        return "No piece of the campaign has been fought yet."
    confirmed, lost, early, cancelled, ran = (
        total(mine, name) for name in ("confirmed", "lost", "early", "cancelled", "revoked")
    )
    delayed = 100 * total(mine, "delayed") // confirmed
    return (
        f"In a campaign of {confirmed:,} tasks, {delayed} % of them delayed, through {faults(mine).total():,} faults, "
        f"{lost:,} were lost, {early:,} ran early, and of {cancelled:,} cancelled ones {ran:,} ran."
    )


def peers(pieces: list[Piece]) -> str:
    """Return how each contender fared where several were fought in the same conditions, a line for each."""
    lines = []
    compared = beside_peers(pieces)
    for contender in CONTENDERS:
        if found := [piece for piece in compared if piece["contender"] == contender]:
            sums = {name: f"{total(found, name):,}" for name in COUNTS}
            lines.append(
                f"- {contender}, {faults(found).total()} faults: of {sums['confirmed']} tasks {sums['lost']} were "
                f"lost, {sums['early']} ran early, {sums['duplicated']} ran twice, and of {sums['cancelled']} "
                f"cancelled ones {sums['revoked']} ran."
            )
    return "\n".join(lines)


def totals(pieces: list[Piece]) -> str:
    """Return a table with a line for each contender, RabbitMQ and number of nodes."""
    lines = []
    for contender, rabbitmq, nodes, found in groups(pieces):
        sums = [f"{total(found, name):,}" for name in COUNTS]
        late = [", ".join(map(_seconds, lateness(found, part))) for part in ("calm", "struck")]
        last = f"{max(piece['last'] for piece in found):.0f}"
        lines.append([contender, rabbitmq, str(nodes), str(faults(found).total()), *sums, *late, last])
    shown = "half, 99 %, 99.9 %"
    titles = [f"seconds late, calm: {shown}", f"within a minute of a fault: {shown}", "the last"]
    return markdown(["", "RabbitMQ", "nodes", "faults", *COUNTS.values(), *titles], lines)


def _seconds(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def kinds(pieces: list[Piece]) -> str:
    """Return a sentence of how often each fault struck."""
    struck = [f"{amount} × {name}" for name, amount in faults(pieces).most_common()]
    return f"The faults: {listed(struck)}."


def origins(pieces: list[Piece]) -> str:
    """Return a table of the pieces: what each was made with, and how to repeat it."""
    lines = []
    for piece in pieces:
        options = f"--rabbitmq {piece['release']} --nodes {piece['nodes']} --rate {piece['rate']:g}"
        options += f" --minutes {piece['minutes']:g} --seed {piece['seed']}"
        if piece["contender"] != OURS:
            options += f' --contender "{piece["contender"]}"'
        counts = piece["confirmed"], faults([piece]).total()
        lines.append([piece["date"], piece["commit"], f"`{options}`", *(f"{count:,}" for count in counts)])
    return markdown(["date", "commit", "`python -m evidence.battle.campaign …`", "tasks", "faults"], lines)
