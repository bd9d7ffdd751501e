"""Ticks -> the dotted-binary routing key, a destination <-> its address, and the binding patterns that read them.

Pure: may know AMQP's routing-key syntax, must not know a broker, a clock or Celery.

    @.^6.^3.^0          2^6 + 2^3 + 2^0 = 73 ticks, highest first
    @.orders+new        the exchange "orders", where the queue "new" is bound

The former is the routing key of a message. The latter travels in its CC header beside the user's own keys, which the
sentinel keeps from matching a level. Only bits that are set have a word, so that patterns are short: a node that starts
brings bindings back word by word, and what is due until it has them all is late.
"""

from __future__ import annotations

import functools
import hashlib
from typing import NamedTuple
from urllib.parse import quote, unquote

SENTINEL = "@"

#: Bytes that AMQP 0-9-1 allows a routing key (clause 4.2.5.3, short string).
MAX_LENGTH = 255


class Destination(NamedTuple):
    """Where a message goes when it is due.

    `exchange` is "" for the default exchange; then `queues` are the queues that the message is for. For any other
    exchange, that exchange routes the message, and `queues` are those known to be bound there with its routing key:
    once they are gone and the exchange has no other, the message is an orphan.
    """

    exchange: str
    queues: tuple[str, ...]


def encode(ticks: int) -> str:
    """The routing key of a message that is due in `ticks` ≥ 1."""
    levels = range(ticks.bit_length() - 1, -1, -1)
    return ".".join([SENTINEL, *(f"^{level}" for level in levels if ticks >> level & 1)])


def is_reserved(key: str) -> bool:
    """Whether a routing key begins with the sentinel, so that it could match a level."""
    return key.split(".", 1)[0] == SENTINEL


@functools.lru_cache(maxsize=1024)
def address(destination: Destination) -> str:
    """A routing key for a destination: readable, injective, two words without `*` or `#`; a hash if too long.

    Never just a name, for the target exchange sees the key too, and a user's topic binding may end in that name.
    """
    names = [destination.exchange, *(destination.queues or ("",))]
    readable = f"{SENTINEL}." + "+".join(quote(name, safe="").replace(".", "%2E") for name in names)
    if len(readable) <= MAX_LENGTH:
        return readable
    return f"{SENTINEL}.!{hashlib.sha256(readable.encode()).hexdigest()}"


def destination(key: str) -> Destination | None:
    """The destination that an address stands for; None for a hash. Raises `ValueError` for any other key."""
    if key.startswith(f"{SENTINEL}.!"):
        return None
    exchange, *queues = map(unquote, key.removeprefix(f"{SENTINEL}.").split("+"))
    found = Destination(exchange, tuple(queue for queue in queues if queue))
    if key != address(found):
        raise ValueError(f"{key!r} is not the address of a delayed message")
    return found


def entry_pattern(level: int) -> str:
    """Ingest to the queue of `level`: keys whose highest bit it is."""
    return f"{SENTINEL}.^{level}.#"


def next_pattern(level: int, lower: int) -> str:
    """From `level` to the queue of `lower`: the next set bit below."""
    return f"{SENTINEL}.#.^{level}.^{lower}.#"


def last_pattern(level: int) -> str:
    """From `level` to the done exchange: no set bit below."""
    return f"{SENTINEL}.#.^{level}"
