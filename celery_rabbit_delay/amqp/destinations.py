"""Where the messages for a `kombu.Queue` may be sent to."""

from __future__ import annotations

from collections.abc import Iterator

import kombu
from kombu.common import Broadcast

from ..core.routing_key import Destination


def destinations_of(queue: kombu.Queue) -> Iterator[Destination]:
    """Yield where messages for a queue may be sent to: the queue itself, and its exchange.

    Nobody else may bind to an exclusive queue, and the name of a broadcast queue is another one each time.
    """
    if not queue.exclusive and not isinstance(queue, Broadcast):
        yield Destination("", (queue.name,))
        if queue.exchange.name and not queue.binding_arguments:
            yield Destination(queue.exchange.name, (queue.name,))
