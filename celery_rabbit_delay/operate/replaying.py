"""Takes messages out of queues of the cascade and sends them to their destinations before it acknowledges them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import kombu
from amqp import Message
from amqp.exceptions import AMQPError
from amqp.exceptions import ConnectionError as AMQPConnectionError

from .. import upstream
from ..delay.amqp import declare
from ..delay.amqp.connecting import Patience
from ..delay.amqp.queue_destinations import bindings_of
from ..delay.core import plan
from ..delay.core.destination import check_key
from ..delay.core.due import MICROSECOND
from ..delay.core.errors import DelayError
from ..delay.core.headers import Delivery, State, read_state, resent
from ..delay.core.plan import Now
from ..delay.core.topology import Cascade
from .broker_connection import own_channel

if TYPE_CHECKING:
    from ..delay.amqp.transport import UserConnection

#: Headers in which a quorum queue counts its deliveries of a message.
_COUNTS = ("x-delivery-count", "x-acquired-count")

#: Microseconds by which the due time in a header may have been rounded down.
_ROUNDED = 1000

_ADVICE = "use --any-queue, or any_queue=True, to allow any queue"


def take(channel: Any, queue: str, limit: int | None = None, peek: bool = False) -> Iterator[Message]:
    """Yield the oldest messages that a queue holds now, unacknowledged and each once.

    Drops messages that must no longer be delivered, except with `peek`.
    """
    channel.auto_decode = False  # or py-amqp decodes bodies as their senders say
    get = channel.peek if peek else channel.basic_get
    there = declare.message_count(channel, queue)
    if there is None:
        return
    for _ in range(there if limit is None else min(limit, there)):
        message = get(queue)
        if message is None:
            # If a message expires during a get, RabbitMQ 3.10 and 4.0 dead-letter it only at the next event in the
            # queue (rabbit_fifo, dequeue). A consumer that is added and cancelled is such an event.
            channel.basic_cancel(channel.basic_consume(queue, callback=lambda message: None))
            return
        yield message


def look(connection: kombu.Connection, queue: str, limit: int | None = None) -> list[Message]:
    """Return the oldest messages that a queue holds now. They stay in the queue."""
    with own_channel(connection) as channel:
        there = declare.message_count(channel, queue) or 0
        found = list(take(channel, queue, limit, peek=True))
    wait_for_return(connection.default_channel, queue, there)
    return found


def wait_for_return(channel: Any, queue: str, amount: int) -> None:
    """Wait until a queue holds `amount` messages again: RabbitMQ closes their reader's channel before they return.

    Not for longer than two seconds, because another consumer may have taken some of them.
    """
    tries = Patience(2, 0.01, 0.1)
    while (declare.message_count(channel, queue) or 0) < amount and tries.pause():
        pass


def original(message: Message) -> tuple[Message, str, str]:
    """Return a copy of a message for sending it again, with its exchange and its routing key."""
    info, headers, state = message.delivery_info, message.headers or {}, read_state(message.headers or {})
    delivery = resent(headers, state) if state else Delivery(info["exchange"], info["routing_key"], headers)
    headers = {key: value for key, value in delivery.headers.items() if key not in _COUNTS}
    copy = Message(message.body, **{**message.properties, "application_headers": headers})
    return copy, delivery.exchange, delivery.routing_key


class Allowed:
    """The destinations to which a command may send messages with the permissions of its user.

    The destination in a message may be forged by any user who may write to ingest.
    """

    def __init__(self, queues: Iterable[kombu.Queue] | None) -> None:
        """Allow queues and their exchanges, or with None any destination."""
        self._any = queues is None
        self._queues = {queue.name for queue in queues or ()}
        self._exchanges = {bound.exchange.name for queue in queues or () for bound in bindings_of(queue)}

    def refuses(self, exchange: str, routing_key: str) -> str | None:
        """Return why a message may not go to an exchange with a routing key; None if it may."""
        if self._any:
            return None
        if exchange:
            return None if exchange in self._exchanges else f"exchange {exchange!r} is not allowed: {_ADVICE}"
        return (
            None
            if routing_key in self._queues
            else f"queue {routing_key!r} is not one of the allowed queues: {_ADVICE}"
        )


#: Allows any destination.
ANYWHERE = Allowed(None)


def replay(
    connection: UserConnection,
    cascade: Cascade,
    allowed: Allowed,
    limit: int | None = None,
    chosen: Callable[[Message], bool] = lambda message: True,
) -> Iterator[tuple[Message, str | None]]:
    """Send the `chosen` ones of the oldest orphans to their destinations, one by one, as if they were sent now.

    One that is not due yet, because an outbox with a delay was deleted, waits in the cascade for the rest. Yields each
    orphan with None once the broker has stored its copy, or else with the reason why it stays. An interruption loses no
    message, and sends at most one twice. Raises `NotPermitted`, and `TimeoutError` after the option `confirm_timeout`.
    """
    channel = connection.channel()
    options = connection.delay_options

    def publish(copy: Message, exchange: str, routing_key: str, state: State) -> str | None:
        now = Now(datetime.now(timezone.utc), time.monotonic_ns())
        delay = (state.due - now.utc) // MICROSECOND + _ROUNDED
        if delay > 0:
            connection.sender.publish(plan.of_orphan(copy, state, delay, now, options))
            return None
        return connection.sender.publish_now(copy, exchange, routing_key)

    try:
        with declare.translate_errors(cascade):
            for message in filter(chosen, take(channel, cascade.orphans, limit)):
                refused = send_on(message, allowed, publish)
                if refused is None:
                    channel.basic_ack(message.delivery_tag)
                yield message, refused
    finally:
        with suppress(AMQPError, OSError):
            upstream.close_without_waiting(channel)  # returns unacknowledged messages to the queue


def send_on(
    message: Message, allowed: Allowed, publish: Callable[[Message, str, str, State], str | None]
) -> str | None:
    """Publish a copy of a message to its exchange with its routing key; return the reason if that fails, or None.

    `publish` also gets what the package's header says, and returns the reason if no queue took the copy. Raises
    `TimeoutError`, and errors of a lost connection.
    """
    state = read_state(message.headers or {})
    if state is None:
        return "it was not sent by celery-rabbit-delay"
    try:
        copy, exchange, routing_key = original(message)
        check_key(exchange, "exchange")
        check_key(routing_key)
        return allowed.refuses(exchange, routing_key) or publish(copy, exchange, routing_key, state)
    except AMQPConnectionError:
        raise
    except (AMQPError, DelayError, ValueError) as exc:
        return str(exc)
