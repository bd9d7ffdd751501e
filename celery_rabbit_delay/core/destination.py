"""The destination of a delayed message, and the addresses that lead the message there. Pure.

    @.+celery         the outbox of the queue "celery"
    @.60s.+celery     the same with a delay of 60 s
    @.orders+         the outbox of the exchange "orders"
    @.orders+new      the outbox of the exchange "orders" for the routing key "new"
    @.short-lived     the outbox that short-lived queues share
    @.=+celery        the queue "celery"
    @.=orders+        the exchange "orders"

Two addresses travel with a message beside the user's own keys: one leads it from `done` to an outbox, the other one
from `exit` to its destination. They differ, so that a message enters one outbox alone.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote, unquote

from .errors import InvalidDestination
from .routing_key import MAX_LENGTH, SENTINEL

#: Queues that a connection remembers. Reply queues may be without number.
_MOST_QUEUES = 10_000

SHORT_LIVED = f"{SENTINEL}.short-lived"

#: Bytes of an address before its text, so that all addresses of a destination have the same one.
_ROOM = len("@.9999999999999ms.")

_ADDRESS = re.compile(r"@\.(=|[1-9]\d{0,12}m?s\.|)([^+!]*\+.*|!.*)", re.ASCII | re.DOTALL).fullmatch

_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.ASCII | re.IGNORECASE).search


class Destination(NamedTuple):
    """The destination of a due message.

    `exchange` is "" for the default exchange; then `queues` are the queues that the message is for. Any other exchange
    routes the message itself, with its bindings at that moment.
    """

    exchange: str
    queues: tuple[str, ...] = ()
    #: A routing key of a named exchange that has an outbox of its own; None for the outbox of the exchange.
    key: str | None = None
    #: Short-lived queues share an outbox, because nothing would delete the outbox of such a queue.
    short_lived: bool = False
    #: A fanout exchange without bindings drops the message, as without a delay.
    fanout: bool = False

    @property
    def address(self) -> str:
        """The routing key from `exit` to the destination."""
        return encode(self.exchange, *(self.queues or ("",)), mark="=")

    @property
    def by_name(self) -> Destination:
        """The same as publishers take it for that did not declare its queues: they go by the names."""
        return self._replace(short_lived=any(map(is_short_lived, self.queues)))

    def outbox_address(self, delay: int = 0) -> str:
        """Return the routing key from `done` to the outbox with a delay in milliseconds."""
        if self.short_lived:
            return SHORT_LIVED
        return encode(self.exchange, *(self.queues or (self.key or "",)), mark=_mark(delay))

    def __str__(self) -> str:
        if not self.exchange:
            return f"queue {', '.join(map(repr, self.queues))}"
        return f"exchange {self.exchange!r}" + (f" with the routing key {self.key!r}" if self.key is not None else "")


def _mark(delay: int) -> str:
    """Return the word for the delay of an outbox in milliseconds; none without a delay."""
    if not delay:
        return ""
    return f"{delay}ms." if delay % 1000 else f"{delay // 1000}s."


@functools.lru_cache(maxsize=1024)
def encode(*names: str, mark: str = "") -> str:
    """Return an address for names: readable, injective, without `*` or `#`; a hash if too long.

    An address is never just a name: the destination's exchange sees it, too, and a user's topic binding might match it.
    """
    text = "+".join(quote(name, safe="").replace(".", "%2E") for name in names)
    if len(text) > MAX_LENGTH - _ROOM:
        text = f"!{hashlib.sha256(text.encode()).hexdigest()}"
    return f"{SENTINEL}.{mark}{text}"


class Address(NamedTuple):
    """What an address says."""

    mark: str  # of the destination itself "=", of its outbox its delay as a word, or ""
    names: tuple[str, ...] | None  # None: a hash

    @property
    def delay(self) -> int:
        """The delay of the outbox, in milliseconds."""
        number = self.mark.rstrip("ms.=")
        return int(number or 0) * (1 if self.mark.endswith("ms.") else 1000)


def read(address: str) -> Address | None:
    """Return what an address says; None for `SHORT_LIVED`, and for what is no address."""
    found = _ADDRESS(address)
    if found is None:
        return None
    mark, text = found.groups()
    return Address(mark, None if text.startswith("!") else tuple(map(unquote, text.split("+"))))


def decode(address: str) -> tuple[str, ...] | None:
    """Return the names that an address stands for; None for a hash and for `SHORT_LIVED`."""
    found = read(address)
    return found and found.names


def is_address(key: str) -> bool:
    """Return whether a routing key has the form of an address. That of a delay does not have it."""
    return key.startswith(f"{SENTINEL}.") and not {"+", "!"}.isdisjoint(key)


def is_short_lived(queue: str) -> bool:
    """Return whether a queue is short-lived by its name: the broker chose the name, or it contains a UUID."""
    return queue.startswith("amq.") or bool(_UUID(queue))


def is_match(kind: str, binding_key: str, routing_key: str) -> bool:
    """Return whether an exchange of a type routes a routing key by a binding key (AMQP 0-9-1, clause 3.1.3)."""
    if kind == "topic":
        return _pattern(binding_key)(f".{routing_key}") is not None
    return kind == "fanout" or binding_key == routing_key


@functools.lru_cache(maxsize=1024)
def _pattern(binding_key: str) -> Callable[[str], re.Match[str] | None]:
    """Return a function that matches a routing key, with a dot before each word."""
    words = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    return re.compile("".join(words.get(word, r"\." + re.escape(word)) for word in binding_key.split("."))).fullmatch


class Declarations:
    """The declarations on a connection that decide which outbox a message takes."""

    def __init__(self) -> None:
        self._short_lived: dict[str, bool] = {}
        self._fanouts = {"amq.fanout"}  # it exists without being declared
        self._keys: set[tuple[str, str]] = set()
        #: See `_destination`, of which this remembers what it has returned.
        self.destination = functools.lru_cache(maxsize=1024)(self._destination)

    def add_queue(self, name: str, lasting: bool) -> None:
        """Record a queue; a `lasting` one is durable, not exclusive, not auto-delete, and never expires.

        The queues that were declared last are remembered.
        """
        self._short_lived.pop(name, None)
        if len(self._short_lived) >= _MOST_QUEUES:
            del self._short_lived[next(iter(self._short_lived))]
        self._short_lived[name] = not lasting
        self.destination.cache_clear()

    def add_exchange(self, name: str, kind: str) -> None:
        """Record an exchange and its type."""
        if kind == "fanout":
            self._fanouts.add(name)
            self.destination.cache_clear()

    def add_binding(self, queue: str, exchange: str, key: str) -> None:
        """Record a binding of a queue to an exchange with a routing key, unless the queue is short-lived."""
        if exchange and not self._is_short_lived(queue):
            self._keys.add((exchange, key))
            self.destination.cache_clear()

    def _destination(self, exchange: str, keys: tuple[str, ...], passive: bool = False) -> Destination:
        """Return the destination of a message to an exchange with some keys; the first one is its own.

        A `passive` publisher creates no outboxes; of a queue that it did not declare, it only sees whether it has one.
        """
        keys = tuple(dict.fromkeys(keys))
        if exchange:
            if exchange in self._fanouts:
                return Destination(exchange, fanout=True)
            # One outbox per bound key, so that queues behind one exchange do not block each other. A message with more
            # keys may be for several of them.
            has_own = len(keys) == 1 and (exchange, keys[0]) in self._keys
            return Destination(exchange, key=keys[0] if has_own else None)
        if not all(keys):
            raise InvalidDestination("the routing key is empty: for the default exchange it is the name of a queue")
        if passive:
            return Destination("", keys, short_lived=any(self._short_lived.get(key, False) for key in keys))
        return Destination("", keys, short_lived=any(map(self._is_short_lived, keys)))

    def _is_short_lived(self, queue: str) -> bool:
        return self._short_lived.get(queue, is_short_lived(queue))


@functools.lru_cache(maxsize=1024)
def check_key(key: str, what: str = "routing key") -> None:
    """Raise `InvalidDestination` for a key that AMQP cannot carry (clause 4.2.5.3, short string)."""
    try:
        size = len(key.encode())
    except UnicodeEncodeError as exc:
        raise InvalidDestination(f"the {what} {key!r} is not valid text: use characters that UTF-8 can encode") from exc
    if size > MAX_LENGTH:
        raise InvalidDestination(f"the {what} {key[:40]!r}... has {size} bytes: use at most {MAX_LENGTH}")
