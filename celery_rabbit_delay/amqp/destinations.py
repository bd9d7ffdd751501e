"""The destinations that messages for a `kombu.Queue` may be sent to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import kombu
from kombu.common import Broadcast

from ..core.destination import Destination


def is_lasting(durable: bool, exclusive: bool, auto_delete: bool, arguments: Mapping[str, Any] | None) -> bool:
    """Return whether a queue with these properties stays until it is deleted explicitly."""
    return durable and not exclusive and not auto_delete and "x-expires" not in (arguments or {})


def destinations_of(queue: kombu.Queue) -> Iterator[Destination]:
    """Yield the destinations of messages for a queue: the queue itself, and its exchange.

    Yields nothing for an exclusive queue, which only its own connection may bind, and for a broadcast queue, whose name
    changes each time.
    """
    if queue.exclusive or isinstance(queue, Broadcast):
        return
    lasting = is_lasting(queue.durable, queue.exclusive, queue.auto_delete, queue.queue_arguments)
    yield Destination("", (queue.name,), short_lived=not lasting)
    exchange = queue.exchange
    if exchange.name and exchange.type == "fanout":
        yield Destination(exchange.name, fanout=True)
    elif exchange.name:
        yield Destination(exchange.name)
        if lasting and not queue.binding_arguments:
            yield Destination(exchange.name, key=queue.routing_key)
