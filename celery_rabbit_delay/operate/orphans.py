"""Orphans: messages that could not be delivered when they were due."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import kombu
from amqp import Message
from amqp.exceptions import ChannelError, MessageNacked

from ..amqp import declare
from ..amqp.confirms import ConfirmedChannel
from ..core.headers import read_state
from .messages import take, unwrapped


class Orphan(NamedTuple):
    """A message that could not be delivered when it was due, and where it was going."""

    exchange: str
    routing_key: str
    due: datetime | None  # None: its header does not say
    task: str | None  # Celery's name and id of it
    task_id: str | None
    size: int  # bytes of the body


def orphans(connection: kombu.Connection, limit: int) -> list[Orphan]:
    """Return the oldest orphans, which stay where they are."""
    channel = connection.channel()
    try:
        queue = connection.transport.delay_options.cascade.orphans
        return [_orphan(message) for message in take(channel, queue, limit)]
    finally:
        channel.close()  # gives them back


def replay(connection: kombu.Connection, limit: int) -> Iterator[tuple[Orphan, str | None]]:
    """Send the oldest orphans on to where they were going, one by one, as if they were sent now.

    Yields each with None once the broker has stored it there, or else with the reason why it stays an orphan.
    Interrupted at any point, nothing is lost; the one that was being sent may be sent twice.
    """
    channel = connection.channel()
    destination = ConfirmedChannel(connection.connection)
    try:
        for message in take(channel, connection.transport.delay_options.cascade.orphans, limit):
            copy, exchange, routing_key = unwrapped(message)
            try:
                refused = destination.publish(copy, exchange, routing_key)
            except (ChannelError, MessageNacked) as exc:
                refused = str(exc)
                destination.reset(close=True)
            if refused is None:
                channel.basic_ack(message.delivery_tag)
            yield _orphan(message), refused
    finally:
        channel.close()


def purge(connection: kombu.Connection) -> int:
    """Remove all orphans, for good; return how many."""
    with declare.translate_errors(connection.transport.delay_options.cascade):
        return int(connection.default_channel.queue_purge(connection.transport.delay_options.cascade.orphans))


def _orphan(message: Message) -> Orphan:
    headers = message.headers
    _, exchange, routing_key = unwrapped(message)
    state = read_state(headers)
    due = state.due if state else None
    return Orphan(exchange, routing_key, due, headers.get("task"), headers.get("id"), len(message.body))
