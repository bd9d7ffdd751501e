"""Levels -> the dotted routing key, a destination <-> its address, and the binding patterns that match them.

Pure: may know AMQP's routing-key syntax, must not know a broker, a clock or Celery.

    @.^6.^3.^0          the levels of 2^6, 2^3 and 2^0 ticks: 73 ticks, the longest first
    @.orders+new        the exchange "orders", where the queue "new" is bound

The former is the routing key of a message. The latter travels in its CC header beside the user's own keys. The sentinel
`@` keeps a user's key from matching a level. A key names only the levels to visit, so that patterns are short: a node
that starts restores bindings word by word, and messages that come due before it has finished are late.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote

from .levels import Level

SENTINEL = "@"

#: The most bytes of a routing key (AMQP 0-9-1 clause 4.2.5.3, short string).
MAX_LENGTH = 255


class Destination(NamedTuple):
    """Where a message goes when it is due.

    `exchange` is "" for the default exchange; then `queues` are the queues that the message is for. Any other exchange
    routes the message itself, and `queues` are those known to be bound there with its routing key: once they are gone
    and the exchange has no other, the message is an orphan.
    """

    exchange: str
    queues: tuple[str, ...]


def encode(levels: Iterable[Level]) -> str:
    """Return the routing key of a message that visits levels, given the longest first."""
    return ".".join([SENTINEL, *(level.word for level in levels)])


def is_reserved(key: str) -> bool:
    """Return whether a routing key begins with the sentinel, so that it could match a level."""
    return key.split(".", 1)[0] == SENTINEL


@functools.lru_cache(maxsize=1024)
def encode_destination(destination: Destination) -> str:
    """Return a routing key for a destination: readable, injective, two words without `*` or `#`; a hash if too long.

    It is never just a name: the target exchange sees the key too, and a user's topic binding may end in that name.
    """
    names = [destination.exchange, *(destination.queues or ("",))]
    readable = f"{SENTINEL}." + "+".join(quote(name, safe="").replace(".", "%2E") for name in names)
    if len(readable) <= MAX_LENGTH:
        return readable
    return f"{SENTINEL}.!{hashlib.sha256(readable.encode()).hexdigest()}"


def decode_destination(key: str) -> Destination | None:
    """Return the destination that an address stands for; None for a hash. Raises `ValueError` for any other key."""
    if key.startswith(f"{SENTINEL}.!"):
        return None
    exchange, *queues = map(unquote, key.removeprefix(f"{SENTINEL}.").split("+"))
    found = Destination(exchange, tuple(queue for queue in queues if queue))
    if key != encode_destination(found):
        raise ValueError(f"{key!r} is not the address of a delayed message")
    return found


def entry_pattern(level: Level) -> str:
    """Return the pattern from ingest to the queue of `level`: keys whose first level it is."""
    return f"{SENTINEL}.{level.word}.#"


def next_pattern(level: Level, lower: Level) -> str:
    """Return the pattern from `level` to the queue of `lower`: keys in which it comes next."""
    return f"{SENTINEL}.#.{level.word}.{lower.word}.#"


def exit_pattern(level: Level) -> str:
    """Return the pattern from `level` to the final done exchange: keys that end with it."""
    return f"{SENTINEL}.#.{level.word}"
