"""What the stream `keys` contains: which message of each key was sent last. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from .changes import KEPT
from .errors import InvalidDelay
from .streams import MAX_KEYED_DELAY, reading
from .text import duration

_KEY, _NUMBER = b"k", struct.Struct(">Q")


def check_keyed_delay(delay: int) -> None:
    """Raise `InvalidDelay` if a delay in microseconds is too long for a message with a key."""
    if delay > MAX_KEYED_DELAY * 1_000_000:
        raise InvalidDelay(
            f"a message with an x-delay-key may wait for a day at most, {MAX_KEYED_DELAY} s, but this one has a delay "
            f"of {duration(delay / 1_000_000)}: choose an earlier eta, or leave the key out"
        )


def last_of_key(key: str, number: int) -> bytes:
    """Return a message that names the last message of a key."""
    return _KEY + _NUMBER.pack(number) + key.encode()


class Keys:
    """The state that the stream `keys` describes, as far as it has been read.

    Entries are kept at least as long as the stream keeps them, from the time of reading: the stream does not contain
    the time of writing. A message of which nothing was read yet does not count as replaced, because it may be due
    before its entry is read.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Use `clock`, which returns seconds since any moment."""
        self._clock = clock
        self._since = clock()
        self._last: dict[str, int] = {}
        self._replaced: set[int] = set()
        self._before: tuple[dict[str, int], set[int]] = ({}, set())  # entries from before `_since`

    @reading
    def apply(self, message: bytes) -> None:
        """Apply a message of the stream. Raises `Unreadable`."""
        if message[:1] == _KEY:
            key, number = message[1 + _NUMBER.size :].decode(), _NUMBER.unpack_from(message, 1)[0]
            now = self._clock()
            if now - self._since >= 2 * MAX_KEYED_DELAY or len(self._last) + len(self._replaced) >= KEPT:
                self._since, self._before = now, (self._last, self._replaced)
                self._last, self._replaced = {}, set()
            last, replaced = self._before
            previous = self._last.get(key, last.get(key, number))
            if previous != number:
                self._replaced.add(previous)
            for numbers in (self._replaced, replaced):
                numbers.discard(number)  # a message that is published again after an error is the last one again
            self._last[key] = number

    @property
    def last(self) -> Mapping[str, int]:
        """The number of the message that was sent last, by key."""
        last, _ = self._before
        return {**last, **self._last}

    def __contains__(self, key: object) -> bool:
        """Return whether a message of a key was sent."""
        last, _ = self._before
        return key in self._last or key in last

    def replaces(self, number: int) -> bool:
        """Return whether a later message with the same key replaces a message."""
        _, replaced = self._before
        return number in self._replaced or number in replaced
