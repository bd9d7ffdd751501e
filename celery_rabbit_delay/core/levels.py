"""Which levels a delay visits. Pure.

A level is a queue that holds every message for the same number of ticks. A message's levels add up to its delay.
"""

from __future__ import annotations

from typing import NamedTuple


class Level(NamedTuple):
    """One level of a cascade."""

    ticks: int
    #: Milliseconds that a message stays, at least.
    ttl: int
    queue: str
    #: The exchange that the queue dead-letters into.
    done: str

    @property
    def word(self) -> str:
        """The level's word in routing keys: `^3` for 2^3 ticks."""
        return f"^{self.ticks.bit_length() - 1}"


def fewest_set_bits(start: int, slack: int) -> int:
    """Return the number in [start, start + slack] with the fewest set bits, each a hop; the smallest if several."""
    free = (start ^ (start + slack)).bit_length()  # start and start + slack agree above these bits
    low = start & ((1 << free) - 1)
    return start if low == 0 else start - low + (1 << (low - 1).bit_length())


def powers_of_two(ticks: int) -> list[int]:
    """Return the ticks of the levels that add up to `ticks`, the longest first."""
    return [1 << bit for bit in range(ticks.bit_length() - 1, -1, -1) if ticks >> bit & 1]
