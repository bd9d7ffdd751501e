"""Lists, replays and removes orphans: messages whose outbox was deleted while they waited in levels."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple

import kombu
from amqp import Message

from ..delay.amqp import declare
from ..delay.core.headers import State, read_state
from . import replaying
from .broker_connection import own_channel
from .cascades import require
from .queue_names import QueueNames


class Orphan(NamedTuple):
    """A message whose outbox was deleted, with its destination."""

    exchange: str
    routing_key: str
    due: datetime | None  # None: unknown
    task: str | None  # Celery's name of the task, and its id
    task_id: str | None
    size: int  # bytes of the body
    digest: str  # of all this, and of all that its consumer would receive
    arguments: str = ""  # Celery's short text of them
    refused: str | None = None  # the reason why `replay` would leave it, as far as it is known


def orphans(connection: kombu.Connection, limit: int, allowed: replaying.Allowed | None = None) -> list[Orphan]:
    """Return the oldest orphans, without removing them; with `allowed`, also why `replay` would leave some.

    Whoever reads orphans at the same moment sees only the others. Raises `CascadeMissing`.
    """
    require(connection)
    channel, queue = connection.default_channel, connection.transport.delay_options.cascade.orphans
    found = replaying.look(connection, queue, limit)
    is_there = functools.cache(lambda queue: declare.message_count(channel, queue) is not None)

    def publish(copy: Message, exchange: str, routing_key: str, state: State) -> str | None:
        return None if exchange or is_there(routing_key) else f"there is no queue {routing_key!r}"

    return [
        _orphan(message)._replace(refused=replaying.send_on(message, allowed, publish) if allowed else None)
        for message in found
    ]


#: Returns whether an orphan is selected.
Chosen = Callable[[Orphan], bool]


def replay(
    connection: kombu.Connection, limit: int, allowed: replaying.Allowed, chosen: Chosen = lambda orphan: True
) -> Iterator[tuple[Orphan, str | None]]:
    """Send the chosen ones of the oldest orphans to their destinations, see `replaying.replay`.

    Yields each with the reason why it stays, or None. Raises `CascadeMissing`, and what `replaying.replay` raises.
    """
    require(connection)
    cascade = connection.transport.delay_options.cascade
    connection.connection.interceptor.learn()

    def is_chosen(message: Message) -> bool:
        return chosen(_orphan(message))

    channel = connection.default_channel
    there, sent = declare.message_count(channel, cascade.orphans) or 0, 0
    for message, refused in replaying.replay(connection.connection, cascade, allowed, limit, is_chosen):
        sent += refused is None
        yield _orphan(message), refused
    replaying.wait_for_return(channel, cascade.orphans, there - sent)


def remove(connection: kombu.Connection, limit: int | None, chosen: Chosen) -> int:
    """Remove the chosen ones of the oldest orphans for good; return their number. Raises `CascadeMissing`.

    With None as the limit, all of them are looked at.
    """
    require(connection)
    removed = 0
    queue = connection.transport.delay_options.cascade.orphans
    there = declare.message_count(connection.default_channel, queue) or 0
    with own_channel(connection) as channel:  # closing it returns the others to the queue
        for message in replaying.take(channel, queue, limit):
            if chosen(_orphan(message)):
                channel.basic_ack(message.delivery_tag)
                removed += 1
    replaying.wait_for_return(connection.default_channel, queue, there - removed)
    return removed


def are_for(names: QueueNames) -> Chosen:
    """Return a function that returns whether an orphan is for one of some queues."""
    return lambda orphan: names.leads_to_one(orphan.exchange, orphan.routing_key)


def purge(connection: kombu.Connection, names: QueueNames) -> tuple[int, int]:
    """Remove the orphans for some queues for good; return how many, and how many are left.

    Raises `CascadeMissing`, `NotPermitted`.
    """
    require(connection)
    queue = connection.transport.delay_options.cascade.orphans
    with declare.translate_errors(connection.transport.delay_options.cascade):
        if not names.only:
            return int(connection.default_channel.queue_purge(queue)), 0
        removed = remove(connection, None, are_for(names))
        return removed, declare.message_count(connection.default_channel, queue) or 0


def _orphan(message: Message) -> Orphan:
    headers = message.headers or {}
    copy, exchange, routing_key = replaying.original(message)
    state = read_state(headers)
    task, task_id = (None if headers.get(name) is None else str(headers[name]) for name in ("task", "id"))
    due = state.due if state else None
    received = repr((exchange, routing_key, due, copy.properties, copy.body)).encode(errors="replace")
    digest = hashlib.blake2b(received, digest_size=12).hexdigest()
    arguments = " ".join(str(headers[name]) for name in ("argsrepr", "kwargsrepr") if headers.get(name))
    return Orphan(exchange, routing_key, due, task, task_id, len(message.body), digest, arguments)
