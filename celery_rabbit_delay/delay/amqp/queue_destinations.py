"""The destinations that messages for a `kombu.Queue` may be sent to."""

from __future__ import annotations

from collections.abc import Iterator

import kombu
from kombu.common import Broadcast

from ..core.destination import Destination, is_short_lived


def bindings_of(queue: kombu.Queue) -> Iterator[kombu.binding]:
    """Yield the bindings of a queue, except the one to the default exchange."""
    own = kombu.binding(queue.exchange, queue.routing_key, queue.binding_arguments)
    return (bound for bound in (own, *queue.bindings) if bound.exchange and bound.exchange.name)


def destinations_of(queue: kombu.Queue, with_namesake: bool = True) -> Iterator[Destination]:
    """Yield the destinations of messages for a queue, each once: the queue itself, and its exchanges.

    Not a broadcast queue, whose name changes each time. `with_namesake`: also the direct exchange that Celery names
    after each queue, although it sends to the queue itself (celery.app.amqp, `send_task_message`).
    """
    is_lasting = not isinstance(queue, Broadcast) and not is_short_lived(queue.name)
    found = [Destination("", queue.name)] if is_lasting else []
    for bound in bindings_of(queue):
        if bound.exchange.type == "direct" and bound.exchange.name == queue.name and not with_namesake:
            continue
        found.append(Destination(bound.exchange.name))
        if is_lasting and bound.routing_key and not bound.arguments:
            found.append(Destination(bound.exchange.name, bound.routing_key))
    yield from dict.fromkeys(found)
