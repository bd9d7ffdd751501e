"""Orphans: messages that had no way to go when they were due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple

import kombu
from amqp import Message

from ..amqp import declare, waiting
from ..amqp.connecting import own_channel
from ..amqp.receiving import learn
from ..core.headers import read_state
from .cascades import require


class Orphan(NamedTuple):
    """A message that had no way to go when it was due, and where it was going."""

    exchange: str
    routing_key: str
    due: datetime | None  # None: its header does not say
    task: str | None  # Celery's name and id of it
    task_id: str | None
    size: int  # bytes of the body


def orphans(connection: kombu.Connection, limit: int) -> list[Orphan]:
    """Return the oldest orphans, which stay where they are."""
    require(connection)
    queue = connection.transport.delay_options.cascade.orphans
    return [_orphan(message) for message in waiting.look(connection, queue, limit)]


#: Says of an orphan whether it is one of those that something is to be done with.
Chosen = Callable[[Orphan], bool]


def everyone(orphan: Orphan) -> bool:
    """Choose any orphan."""
    return True


def replay(
    connection: kombu.Connection, limit: int, allowed: waiting.Allowed, chosen: Chosen = everyone
) -> Iterator[tuple[Orphan, str | None]]:
    """Send those chosen of the oldest orphans on, as `waiting.replay` does.

    Yields each with the reason why it stays, if it does.
    """
    require(connection)
    cascade = connection.transport.delay_options.cascade
    learn(connection)

    def is_chosen(message: Message) -> bool:
        return chosen(_orphan(message))

    for message, refused in waiting.replay(connection.connection, cascade, allowed, limit, is_chosen):
        yield _orphan(message), refused


def remove(connection: kombu.Connection, limit: int, chosen: Chosen) -> int:
    """Remove those chosen of the oldest orphans, for good; return how many."""
    require(connection)
    removed = 0
    with own_channel(connection) as channel:  # gives the others back
        for message in waiting.take(channel, connection.transport.delay_options.cascade.orphans, limit):
            if chosen(_orphan(message)):
                channel.basic_ack(message.delivery_tag)
                removed += 1
    return removed


def purge(connection: kombu.Connection) -> int:
    """Remove all orphans, for good; return how many."""
    require(connection)
    with declare.translate_errors(connection.transport.delay_options.cascade):
        return int(connection.default_channel.queue_purge(connection.transport.delay_options.cascade.orphans))


def _orphan(message: Message) -> Orphan:
    headers = message.headers or {}
    _, exchange, routing_key = waiting.original(message)
    state = read_state(headers)
    task, task_id = (None if headers.get(name) is None else str(headers[name]) for name in ("task", "id"))
    return Orphan(exchange, routing_key, state.due if state else None, task, task_id, len(message.body))
