"""Reads what the delay writes: addresses, the names of outboxes; and which keys a binding takes. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote

from ..delay.core.destination import Destination
from ..delay.core.names import Names
from ..delay.core.routing_key import SENTINEL

_ADDRESS = re.compile(r"@\.([1-9]\d{0,12}m?s\.|)([^+]*)\+(.*)", re.ASCII | re.DOTALL).fullmatch


class Outbox(NamedTuple):
    """An outbox by its name, except for the one that short-lived queues share."""

    queue: str
    ticks: int  # of its delay; 0 for the outbox that each destination has
    destination: Destination


class Address(NamedTuple):
    """What an address says."""

    delay: int  # milliseconds
    destination: Destination


def read(address: str) -> Address | None:
    """Return what an address says; None for `SHORT_LIVED`, and for what is no address."""
    found = _ADDRESS(address)
    if found is None:
        return None
    mark, exchange, key = found.groups()
    delay = int(mark.rstrip("ms.") or 0) * (1 if mark.endswith("ms.") else 1000)
    exchange, key = unquote(exchange), unquote(key)
    return Address(delay, Destination(exchange, key if key or not exchange else None))


def outbox_of(names: Names, queue: str) -> Outbox | None:
    """Return the outbox of a cascade that a queue is by its name; None for other queues."""
    if not queue.startswith(names.outbox_prefix):
        return None
    found = read(f"{SENTINEL}.{queue.removeprefix(names.outbox_prefix)}")
    if found is None or found.delay % names.milliseconds(1):
        return None
    return Outbox(queue, found.delay // names.milliseconds(1), found.destination)


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
