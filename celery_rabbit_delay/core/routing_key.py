"""Levels -> the dotted routing keys of a delayed message, and the binding patterns that match them.

Pure: may know AMQP's routing-key syntax, must not know a broker, a clock or Celery.

    @.^6.^3.^0          the levels of 2^6, 2^3 and 2^0 ticks: 73 ticks, the longest first
    @.~960.~120         lanes of 960 and 120 ticks
    @.~120.-.^3.^0      a lane, and then powers of two: 129 ticks

The sentinel `@` keeps a user's key from matching a level. A key names only the levels to visit, so that patterns are
short: a node that starts restores bindings word by word, and messages that come due before it has finished are late.
Where powers follow lanes, a separator says so: an exchange that all lanes share looks for it, and leads on to the
powers, so that not each lane needs a binding to each of them.

    @.>~960             the first level of such a message is the lane of 960 ticks

Ingest is a direct exchange, and knows a message by its first level: for each message to a topic exchange, RabbitMQ asks
whether the user may use its routing keys, and remembers the last twelve answers (rabbit_channel,
check_topic_authorisation). Delays are of more kinds than that, and with RabbitMQ 4.3 to ask costs as much as a hop.
"""

from __future__ import annotations

from functools import lru_cache

from .levels import Level

SENTINEL = "@"

#: Between lanes and powers of two.
SEPARATOR = "-"

_ENTRY = ">"

#: The most bytes of a routing key (AMQP 0-9-1 clause 4.2.5.3, short string).
MAX_LENGTH = 255


@lru_cache(maxsize=1024)
def encode(levels: tuple[Level, ...]) -> str:
    """Return the routing key of a message that visits levels: lanes, then powers of two, each the longest first."""
    words = [level.word for level in levels]
    lanes = sum(level.is_lane for level in levels)
    if 0 < lanes < len(words):
        words.insert(lanes, SEPARATOR)
    return ".".join((SENTINEL, *words))


def entry_key(levels: tuple[Level, ...]) -> str:
    """Return the key by which ingest takes a message that visits levels; where there is but one, that of `encode`."""
    return encode(levels) if len(levels) == 1 else _entry_key(levels[0])


def entry_keys(level: Level) -> tuple[str, str]:
    """Return the keys of messages whose first level is `level`: of those with no other, and of those with more."""
    return encode((level,)), _entry_key(level)


def _entry_key(level: Level) -> str:
    # A word that is in no pattern: the key goes along, and must mean nothing to the exchanges after ingest.
    return f"{SENTINEL}.{_ENTRY}{level.word}"


def is_entry_key(key: str) -> bool:
    """Return whether a key says nothing but a message's first level."""
    return key.startswith(f"{SENTINEL}.{_ENTRY}")


def after_lanes(level: Level) -> str:
    """Return a key of a message that has come through its lanes, and whose last level is a power of two."""
    return f"{SENTINEL}.{SEPARATOR}.{level.word}"


def is_reserved(key: str) -> bool:
    """Return whether a routing key begins with the sentinel, so that it could match a level."""
    return key.split(".", 1)[0] == SENTINEL


def next_pattern(level: Level, lower: Level) -> str:
    """Return the pattern from `level` to the queue of `lower`: keys in which it comes next. Both or none are lanes."""
    return f"{SENTINEL}.#.{level.word}.{lower.word}.#"


def powers_pattern(lane: Level) -> str:
    """Return the pattern from a lane to the exchange that leads to the powers of two: keys with no lane after it."""
    return f"{SENTINEL}.#.{lane.word}.{SEPARATOR}.#"


def first_power_pattern(level: Level) -> str:
    """Return the pattern from that exchange to the queue of `level`: keys whose first power of two it is."""
    return f"{SENTINEL}.#.{SEPARATOR}.{level.word}.#"


def exit_pattern(level: Level) -> str:
    """Return the pattern from `level` to the final done exchange: keys that end with it."""
    return f"{SENTINEL}.#.{level.word}"
