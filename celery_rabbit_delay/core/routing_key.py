"""Levels -> the dotted routing key of a delayed message, and the binding patterns that match it.

Pure: may know AMQP's routing-key syntax, must not know a broker, a clock or Celery.

    @.^6.^3.^0          the levels of 2^6, 2^3 and 2^0 ticks: 73 ticks, the longest first

The sentinel `@` keeps a user's key from matching a level. A key names only the levels to visit, so that patterns are
short: a node that starts restores bindings word by word, and messages that come due before it has finished are late.
"""

from __future__ import annotations

from collections.abc import Iterable

from .levels import Level

SENTINEL = "@"

#: The most bytes of a routing key (AMQP 0-9-1 clause 4.2.5.3, short string).
MAX_LENGTH = 255


def encode(levels: Iterable[Level]) -> str:
    """Return the routing key of a message that visits levels, given the longest first."""
    return ".".join([SENTINEL, *(level.word for level in levels)])


def is_reserved(key: str) -> bool:
    """Return whether a routing key begins with the sentinel, so that it could match a level."""
    return key.split(".", 1)[0] == SENTINEL


def entry_pattern(level: Level) -> str:
    """Return the pattern from ingest to the queue of `level`: keys whose first level it is."""
    return f"{SENTINEL}.{level.word}.#"


def next_pattern(level: Level, lower: Level) -> str:
    """Return the pattern from `level` to the queue of `lower`: keys in which it comes next."""
    return f"{SENTINEL}.#.{level.word}.{lower.word}.#"


def exit_pattern(level: Level) -> str:
    """Return the pattern from `level` to the final done exchange: keys that end with it."""
    return f"{SENTINEL}.#.{level.word}"
