"""Messages taken out of queues of ours and sent on, each confirmed before the original is acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amqp import Message

from ..amqp import declare
from ..core.headers import Delivery, resent

#: Headers with which a quorum queue counts how often it has delivered a message.
_COUNTS = ("x-delivery-count", "x-acquired-count")


def take(channel: Any, queue: str, limit: int | None = None) -> Iterator[Message]:
    """Yield the oldest messages of a queue, of those that are there now, unacknowledged. None comes twice."""
    there = declare.message_count(channel, queue) or 0
    for _ in range(there if limit is None else min(limit, there)):
        message = channel.basic_get(queue)
        if message is None:
            # RabbitMQ 3.10 and 4.0 dead-letter what expires just when it is asked for only once something else happens
            # in the queue (rabbit_fifo, dequeue): a consumer comes and goes.
            channel.basic_cancel(channel.basic_consume(queue, callback=lambda message: None))
            return
        yield message


def unwrapped(message: Message) -> tuple[Message, str, str]:
    """Return a copy of a message to be sent again, its exchange and its routing key."""
    info = message.delivery_info
    delivery = resent(Delivery(info["exchange"], info["routing_key"], message.headers))
    headers = {key: value for key, value in delivery.headers.items() if key not in _COUNTS}
    copy = Message(message.body, **{**message.properties, "application_headers": headers})
    return copy, delivery.exchange, delivery.routing_key
