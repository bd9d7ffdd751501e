"""The text of the keys: of a message that visits levels, and of the bindings between these.

Pure: may know AMQP's routing keys, must not know a broker, a clock or Celery.

    @.^9.^4.^0     the key of a message: 2^9 + 2^4 + 2^0 ticks
    @.^9.#         from the exchange behind ingest into level 9
    @.#.^8.#       from level 9 to level 8, the next one
    @.#.^9.^4.#    from level 9 to level 4
    @.#.^0         out of level 0

A message has this key from ingest to the end of its last level. Each exchange on the way is a topic exchange, which
compares the key with the patterns of its bindings; of those of one level exactly one matches, or none: then those of
the next level are tried. The sentinel `@` keeps a user's key from matching a level.

RabbitMQ checks the user's permission on the key of each message that is published to a topic exchange, and caches
twelve results (rabbit_channel, check_topic_authorisation): with RabbitMQ 4.3 that costs as much as a hop. It checks
only the exchange that the user publishes to. So that one is a fanout exchange.
"""

from __future__ import annotations

from collections.abc import Iterable

from .levels import Level

SENTINEL = "@"

#: The most bytes of a routing key (AMQP 0-9-1 clause 4.2.5.3, short string).
MAX_LENGTH = 255


def word(level: Level) -> str:
    """Return a level's word in routing keys: `^3` for 2^3 ticks."""
    return f"^{level.ticks.bit_length() - 1}"


def key(levels: Iterable[Level]) -> str:
    """Return the routing key of a message that visits levels, the longest first."""
    return ".".join((SENTINEL, *map(word, levels)))


def is_reserved(key: str) -> bool:
    """Return whether a routing key begins with the sentinel, so that it could be that of a delay."""
    return key.split(".", 1)[0] == SENTINEL


def entry_pattern(level: Level) -> str:
    """Return the binding key from the exchange behind ingest to the queue of `level`."""
    return f"{SENTINEL}.{word(level)}.#"


def next_pattern(level: Level, lower: Level) -> str:
    """Return the binding key from `level` to the queue of `lower`.

    From the next level, whatever the message has passed before: also for one that a higher level has no binding for.
    """
    is_next = level.ticks == 2 * lower.ticks
    return f"{SENTINEL}.#.{word(lower)}.#" if is_next else f"{SENTINEL}.#.{word(level)}.{word(lower)}.#"


def exit_pattern(level: Level) -> str:
    """Return the binding key from `level`, the last one, to the final done exchange."""
    return f"{SENTINEL}.#.{word(level)}"
