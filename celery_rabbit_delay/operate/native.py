"""Removes the queues and exchanges of Celery's native delayed delivery."""

from __future__ import annotations

from typing import Any

import kombu
from amqp.exceptions import PreconditionFailed

from ..amqp import declare
from ..core import native
from ..core.errors import CascadeConflict
from ..core.topology import Exchange, Queue, QueueType
from .management import Management
from .status import unsettled


def native_waiting(connection: kombu.Connection, management: Management | None = None) -> int:
    """Return how many messages wait in the queues of native delayed delivery.

    Messages between two queues are visible only with the management API.
    """
    names = [queue.name for _, queue in native.levels("quorum")]
    rows = management.queues() if management else {}
    ready = sum(declare.message_count(connection.default_channel, name) or 0 for name in names)
    return ready + sum(unsettled(rows[name]) for name in names if name in rows)


def teardown_native(connection: kombu.Connection) -> int:
    """Delete the exchanges and empty queues of native delayed delivery; return how many there were.

    It goes from the longest level to the shortest, like messages, and stops at a queue that has received a message in
    the meantime. Raises `NotPermitted`, and before it deletes anything `CascadeConflict` for a queue or exchange with
    such a name but other properties.
    """
    channel = connection.default_channel
    deleted = 0
    with declare.translate_errors(connection.transport.delay_options.cascade):
        there = _existing(channel)
        for exchange, queue in there:
            if exchange:
                channel.exchange_delete(exchange.name)
                deleted += 1
            if queue:
                if declare.message_count(channel, queue.name):
                    break
                channel.queue_delete(queue.name)
                deleted += 1
    return deleted


def _existing(channel: Any) -> list[tuple[Exchange | None, Queue | None]]:
    """Return the existing exchange and queue of each level, the longest first, and the exchange `DELIVERY`."""
    found: list[tuple[Exchange | None, Queue | None]] = []
    kinds: tuple[QueueType, ...] = ("quorum", "classic")
    for (exchange, quorum), (_, classic) in zip(*(native.levels(kind) for kind in kinds), strict=True):
        queue = quorum if declare.queue_exists(channel, quorum.name) else None
        if queue and not any(_is_declared_as(channel, one) for one in (quorum, classic)):
            raise _conflict("queue", queue.name)
        found.append((_existing_exchange(channel, exchange), queue))
    found.append((_existing_exchange(channel, native.DELIVERY), None))
    return found


def _existing_exchange(channel: Any, exchange: Exchange) -> Exchange | None:
    if not declare.exchange_exists(channel, exchange.name):
        return None
    try:
        declare.declare_exchange(channel, exchange)
    except PreconditionFailed:
        raise _conflict("exchange", exchange.name) from None
    return exchange


def _is_declared_as(channel: Any, queue: Queue) -> bool:
    try:
        declare.declare_queue(channel, queue)
    except PreconditionFailed:
        return False
    return True


def _conflict(kind: str, name: str) -> CascadeConflict:
    return CascadeConflict(
        f"the {kind} {name!r} is not as Celery's native delayed delivery declares it, so nothing was deleted: "
        "delete the others by hand"
    )
