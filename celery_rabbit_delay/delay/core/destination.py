"""The destination of a delayed message, which ones are short-lived, and the addresses of their outboxes. Pure.

    @.+celery         the outbox of the queue "celery"
    @.60s.+celery     the same with a delay of 60 s
    @.orders+         the outbox of the exchange "orders"
    @.orders+new      the outbox of the exchange "orders" for the routing key "new"
    @.short-lived     the outbox that short-lived queues share

An outbox dead-letters to its destination itself, so nothing is bound to what belongs to the user.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container
from typing import NamedTuple
from urllib.parse import quote

from .errors import InvalidDestination
from .routing_key import MAX_LENGTH, SENTINEL, is_reserved

SHORT_LIVED = f"{SENTINEL}.short-lived"

#: The name of a queue that ends with a connection, a client or a worker: RabbitMQ chose it, it is a UUID, as those of
#: replies, that of `worker_direct` (celery.utils.nodenames), or one of our own for test messages.
_UUID = "[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}"
_SHORT_LIVED = re.compile(
    rf"amq\..*|{_UUID}(?:\.reply\..*)?|.*\.dq2|.*\.probe\.{_UUID}",
    re.ASCII | re.IGNORECASE | re.DOTALL,
).fullmatch


class Destination(NamedTuple):
    """The destination of a due message: a queue, or an exchange, which routes the message with its bindings then."""

    exchange: str  # "" for a queue
    #: The name of the queue; of an exchange the routing key that has outboxes of its own, None for those of all others.
    key: str | None = None

    @property
    def is_short_lived(self) -> bool:
        """Whether it shares an outbox with others of its kind, because nothing would delete its own."""
        return not self.exchange and _SHORT_LIVED(self.key or "") is not None

    def address(self, delay: int = 0) -> str:
        """Return the routing key to its outbox with a delay in milliseconds: readable, injective, without `*` or `#`.

        It is never just a name: the exchange sees it, too, and a user's topic binding might match it.
        """
        if self.is_short_lived:
            return SHORT_LIVED
        text = "+".join(quote(name, safe="").replace(".", "%2E") for name in (self.exchange, self.key or ""))
        mark = "" if not delay else f"{delay}ms." if delay % 1000 else f"{delay // 1000}s."
        return f"{SENTINEL}.{mark}{text}"

    def __str__(self) -> str:
        if not self.exchange:
            return f"queue {self.key!r}"
        return f"exchange {self.exchange!r}" + (f" with the routing key {self.key!r}" if self.key is not None else "")


def of(exchange: str, routing_key: str, bound: Container[tuple[str, str]] = ()) -> Destination:
    """Return the destination of a message; `bound` are exchanges with routing keys that have outboxes of their own.

    Raises `InvalidDestination`.
    """
    check_key(exchange, "exchange")
    check_key(routing_key)
    if not exchange:
        if not routing_key:
            raise InvalidDestination("the routing key is empty: for the default exchange it is the name of a queue")
        return Destination("", routing_key)
    if routing_key and (exchange, routing_key) in bound:
        return Destination(exchange, routing_key)
    if is_reserved(routing_key):
        raise InvalidDestination(
            f"the routing key {routing_key!r} begins with the word {SENTINEL!r}, which delayed messages use "
            "themselves: choose another routing key, or send it without a delay"
        )
    return Destination(exchange)


def is_short_lived(queue: str) -> bool:
    """Return whether a queue is short-lived by its name."""
    return Destination("", queue).is_short_lived


@functools.lru_cache(maxsize=1024)
def check_key(key: str, what: str = "routing key") -> None:
    """Raise `InvalidDestination` for a key that AMQP cannot carry (clause 4.2.5.3, short string)."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError as exc:
        raise InvalidDestination(f"the {what} {key!r} is not valid text: use characters that UTF-8 can encode") from exc
    if size > MAX_LENGTH:
        raise InvalidDestination(f"the {what} {key[:40]!r}... has {size} bytes: use at most {MAX_LENGTH}")
