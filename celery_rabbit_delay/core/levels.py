"""The choice of levels for a delay. Pure.

A level is a queue that holds every message for the same number of ticks. There is one level for each power of two, and
additional levels, "lanes", of any number of ticks for everyday delays. A message visits the fewest levels that add up
to its delay, or sometimes one more (see `Encoder`), each at most once: lanes first, then powers of two, the longest
first in each group.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import combinations
from math import comb
from typing import NamedTuple

#: Seconds, chosen for few mean hops of round delays and of evenly spread ones (docs/benchmarks.md). They include whole
#: seconds up to 15 because `retry_backoff` picks these at random; 1, 2, 4 and 8 are powers of two.
DEFAULT_LANES: tuple[float, ...] = (
    *(3, 5, 6, 7, 9, 10, 11, 12, 13, 14),
    *(15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 14400, 28800),
    *(86400, 172800, 604800, 1209600, 2592000),
)

#: The maximum number of lanes in a route.
MAX_LANES = 3

_MOST_SUMS = 896  # of lanes to choose a route from; limits the time
_MOST_WAYS = 12_000  # to combine lanes; limits the memory to triples of 40 lanes, or pairs of 150
_ONES = bytes(byte.bit_count() for byte in range(256))


class Level(NamedTuple):
    """One level of a cascade."""

    ticks: int
    #: The minimum time that a message stays, in milliseconds.
    ttl: int
    queue: str
    #: The exchange that the queue dead-letters into.
    done: str

    @property
    def is_lane(self) -> bool:
        return not is_power_of_two(self.ticks)

    @property
    def word(self) -> str:
        """The level's word in routing keys: `^3` for 2^3 ticks, `~120` for a lane of 120 ticks."""
        return f"~{self.ticks}" if self.is_lane else f"^{self.ticks.bit_length() - 1}"


class Encoder:
    """Finds the fewest levels, out of powers of two up to 2^(powers - 1) ticks and lanes, that add up to a delay.

    Of the delays up to an hour, one in seventy takes a level more, or rarely up to three, because the search looks at a
    limited number of sums and remainders.

    A route is a few lanes and, for the remainder, the number with the fewest set bits. So the search computes the
    remainder for each sum of lanes: a loop over them takes 80 to 180 µs. Packed side by side into one integer they
    take 18 to 25 µs: one subtraction, a table of the set bits in a byte, and a few additions handle all sums at once.
    """

    def __init__(self, powers: int, lanes: Iterable[int] = ()) -> None:
        self.max_ticks = (1 << powers) - 1
        lanes = sorted(lanes, reverse=True)
        ways: dict[int, tuple[int, ...]] = {}  # a sum -> its lanes, the fewest that make it
        for count in range(1, MAX_LANES + 1):
            if count > 1 and comb(len(lanes), count) > _MOST_WAYS:
                break
            for some in combinations(lanes, count):
                if (total := sum(some)) <= self.max_ticks:
                    ways.setdefault(total, some)
        self._sums = sorted(ways)
        self._ways = [ways[total] for total in self._sums]
        self._size = 4 if powers <= 32 else 6  # bytes: ten years are less than 2^39 ms
        self._packed = b"".join(total.to_bytes(self._size, "little") for total in self._sums)
        self._counts = b"".join(len(some).to_bytes(self._size, "little") for some in self._ways)

    def split(self, ticks: int, slack: int) -> tuple[tuple[int, ...], int]:
        """Return lanes, the longest first, and the number whose set bits are the other levels.

        They add up to a number in [ticks, ticks + slack], and to `max_ticks` at most. They are never more levels than
        with powers of two alone. 1 ≤ ticks ≤ max_ticks.
        """
        slack = max(0, min(slack, self.max_ticks - ticks))
        number = fewest_set_bits(ticks, slack)
        hops = number.bit_count()
        if hops == 1:
            return (), number

        # A sum within the slack leaves nothing. Otherwise, the remainder may be rounded up to a multiple of 2^bits; the
        # slack contains one or two of these, and the search tries both if time allows. If there are too many sums, it
        # tries those next to the delay: they leave the smallest remainders.
        bits = (slack + 1).bit_length() - 1
        first, last = ticks + (1 << bits) - 1, ticks + slack
        end = bisect_right(self._sums, first)
        start = max(0, end - _MOST_SUMS)
        count = end - start
        if not count:
            return (), number
        size = self._size
        sums, used = self._packed[start * size : end * size], self._counts[start * size : end * size]
        most = first.to_bytes(size, "little") * count
        if last != first and count <= _MOST_SUMS // 2:
            sums, used, most = sums * 2, used * 2, most + last.to_bytes(size, "little") * count
        left = int.from_bytes(most, "little") - int.from_bytes(sums, "little")
        if bits:
            multiple = ((1 << 8 * size) - (1 << bits)).to_bytes(size, "little")
            left &= int.from_bytes(multiple * (len(most) // size), "little")
        ones = int.from_bytes(left.to_bytes(len(most), "little").translate(_ONES), "little")
        ones += int.from_bytes(used, "little")
        ones += ones >> 8  # the lowest byte for each sum becomes the total of its bytes
        ones += ones >> 16 if size == 4 else (ones >> 16) + (ones >> 32)
        totals = ones.to_bytes(len(most), "little")[::size]

        alone = min((len(some) for some in self._ways[end : bisect_right(self._sums, last)]), default=hops)
        for fewer in range(1, hops):
            if fewer == alone:
                return next(some for some in self._ways[end:] if len(some) == alone), 0
            found = totals.rfind(fewer)
            if found >= 0:
                found = start + found % count
                rest = ticks - self._sums[found]
                return self._ways[found], fewest_set_bits(rest, slack) if rest > 0 else 0
        return (), number


def fewest_set_bits(start: int, slack: int) -> int:
    """Return the number in [start, start + slack] with the fewest set bits, each a hop; the smallest if several."""
    free = (start ^ (start + slack)).bit_length()  # start and start + slack agree above these bits
    low = start & ((1 << free) - 1)
    return start if low == 0 else start - low + (1 << (low - 1).bit_length())


def is_power_of_two(ticks: int) -> bool:
    """Return whether a positive number of ticks is that of a power of two, not of a lane."""
    return not ticks & (ticks - 1)


def powers_of_two(ticks: int) -> list[int]:
    """Return the ticks of the levels that add up to `ticks`, the longest first."""
    return [1 << bit for bit in range(ticks.bit_length() - 1, -1, -1) if ticks >> bit & 1]
