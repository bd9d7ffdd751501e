"""Where the messages for a `kombu.Queue` may be sent to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import kombu
from kombu.common import Broadcast

from ..core.destination import Destination


def is_lasting(durable: bool, exclusive: bool, auto_delete: bool, arguments: Mapping[str, Any] | None) -> bool:
    """Return whether a queue that is declared so stays until somebody deletes it."""
    return durable and not exclusive and not auto_delete and "x-expires" not in (arguments or {})


def destinations_of(queue: kombu.Queue) -> Iterator[Destination]:
    """Yield where messages for a queue may be sent to: the queue itself, and its exchange.

    Nobody else may bind an exclusive queue, and the name of a broadcast queue is another one each time.
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
