"""Converts levels into the routing keys of a delayed message and of the bindings between the levels.

Pure: may know AMQP's routing keys, must not know a broker, a clock or Celery.

    @.~960                                  the lane of 960 ticks, and no other level
    @.>^6  @.^6>^3  @.^3>                   2^6 and 2^3 ticks: into the first level, to the next, out of the last
    @.>~960  @.~960>-  @.->^3  @.^3>        the lane of 960 ticks, and then 2^3

A message has one key per step: the first one is its routing key, and the others are in its CC header. Each exchange on
the route has a binding for one of them. Between lanes and powers of two, a message passes through an exchange that all
lanes share, so that a lane does not need a binding to each power. The sentinel `@` keeps a user's key from matching a
step.

The exchanges are direct exchanges. Topic exchanges with patterns would need one key instead of several, but RabbitMQ
checks the user's permission on the keys of each message to a topic exchange, and caches twelve results (rabbit_channel,
check_topic_authorisation): with RabbitMQ 4.3 that costs as much as a hop. Also, a starting node restores the bindings
of direct exchanges several times as fast; messages that become due before it has finished are minutes late.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from .levels import Level

SENTINEL = "@"

#: The most bytes of a routing key (AMQP 0-9-1 clause 4.2.5.3, short string).
MAX_LENGTH = 255

#: Between lanes and powers of two.
_BETWEEN = "-"


@lru_cache(maxsize=1024)
def steps(levels: tuple[Level, ...]) -> tuple[str, ...]:
    """Return the routing keys of a message that visits levels: lanes, then powers of two, each the longest first."""
    if len(levels) == 1:
        return (_alone(levels[0]),)
    keys = [_first(levels[0])]
    for level, lower in pairwise(levels):
        if level.is_lane == lower.is_lane:
            keys.append(next_key(level, lower))
        else:
            keys += powers_key(level), first_power_key(lower)
    return (*keys, _last(levels[-1]))


def after_lanes(level: Level) -> tuple[str, str]:
    """Return the keys of a message that has passed its lanes and visits one more level, a power of two."""
    return first_power_key(level), _last(level)


def is_reserved(key: str) -> bool:
    """Return whether a routing key begins with the sentinel, so that it could be a step."""
    return key.split(".", 1)[0] == SENTINEL


def entry_keys(level: Level) -> tuple[str, str]:
    """Return the keys from ingest to the queue of `level`: for messages with one level, and with several."""
    return _alone(level), _first(level)


def next_key(level: Level, lower: Level) -> str:
    """Return the key from `level` to the queue of `lower`. Both or none are lanes."""
    return _step(level.word, lower.word)


def powers_key(lane: Level) -> str:
    """Return the key from a lane to the exchange that leads to the powers of two."""
    return _step(lane.word, _BETWEEN)


def first_power_key(level: Level) -> str:
    """Return the key from the exchange that leads to the powers of two to the queue of `level`."""
    return _step(_BETWEEN, level.word)


def exit_keys(level: Level) -> tuple[str, str]:
    """Return the keys from `level` to the final done exchange: for messages with one level, and with several."""
    return _alone(level), _last(level)


def _step(source: str, target: str) -> str:
    return f"{SENTINEL}.{source}>{target}"


def _alone(level: Level) -> str:
    # One key for both steps. A message with several levels must not have it, because ingest would route it twice.
    return f"{SENTINEL}.{level.word}"


def _first(level: Level) -> str:
    return _step("", level.word)


def _last(level: Level) -> str:
    return _step(level.word, "")
