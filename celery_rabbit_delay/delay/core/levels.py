"""The delays that are one hop by default, and the route of any: levels for powers of two, and an outbox. Pure.

A level is a queue that holds every message for 2^n ticks. An outbox is a queue of one destination, which every message
passes last; it may hold messages for a round delay. A route has the fewest levels that one outbox leaves.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

#: Seconds: delays of outboxes. Each everyday delay of evidence/benchmarks/rows.py is among them.
DEFAULT_OUTBOXES: tuple[float, ...] = (
    # The first `MOST_COMBINED` leave few levels to delays spread evenly up to 15 s, a minute, 10 minutes, an hour and a
    # day (evidence/benchmarks/README.md).
    *(5, 10, 15, 300, 600),
    *(1, 2, 3, 20, 30, 45, 60, 120, 180, 900, 1200, 1800, 2700),
    *(3600, 7200, 10800, 14400, 21600, 28800, 43200),
    *(86400, 172800, 259200, 604800, 1209600, 2592000),
)

#: Outboxes that delays which are not round may end in: with the one without a delay, they make 6 for a destination.
MOST_COMBINED = 5


class Level(NamedTuple):
    """One level of a cascade."""

    ticks: int  # a power of two
    #: The minimum time that a message stays, in milliseconds.
    ttl: int
    queue: str
    #: The exchange that the queue dead-letters into.
    done: str


class Route(NamedTuple):
    """The levels that a message visits, the longest first, and the delay of its outbox in ticks, 0 for none."""

    levels: tuple[Level, ...]
    outbox: int


def split(ticks: int, slack: int, max_ticks: int, whole: Collection[int], combined: Collection[int]) -> tuple[int, int]:
    """Return the delay of an outbox, and the number whose set bits are the levels before it.

    They add up to a number in [ticks, ticks + slack]. An outbox in `whole` takes just its own delay, one in `combined`
    the rest that leaves the fewest levels. 1 ≤ ticks ≤ max_ticks, the most that the levels add up to.
    """
    if ticks in whole:
        return ticks, 0

    def rest(outbox: int) -> int:
        left = ticks - outbox
        return fewest_set_bits(left, max(0, min(slack, max_ticks - left))) if left > 0 else 0

    # Of several, the shortest: it is the one without a delay if that is as good, so that few outboxes are made.
    outboxes = (0, *(outbox for outbox in combined if outbox <= ticks + slack))
    chosen = min(outboxes, key=lambda outbox: (rest(outbox).bit_count(), outbox))
    return chosen, rest(chosen)


def fewest_set_bits(start: int, slack: int) -> int:
    """Return the number in [start, start + slack] with the fewest set bits, each a level; the smallest if several."""
    free = (start ^ (start + slack)).bit_length()  # start and start + slack agree above these bits
    low = start & ((1 << free) - 1)
    return start if low == 0 else start - low + (1 << (low - 1).bit_length())


def powers_of_two(ticks: int) -> list[int]:
    """Return the ticks of the levels that add up to `ticks`, the longest first."""
    return [1 << bit for bit in range(ticks.bit_length() - 1, -1, -1) if ticks >> bit & 1]
