"""How many messages wait where."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import kombu

from ..amqp import declare
from ..core.layouts import Layout1
from ..core.topology import Binding, Cascade
from .management import Management


class LevelStatus(NamedTuple):
    """A level's queue. `ready` messages wait; `unsettled` ones are on their way to the next queue (None: unknown)."""

    queue: str
    ttl: int  # milliseconds
    ready: int | None  # None: the queue is missing
    unsettled: int | None


class Status(NamedTuple):
    levels: list[LevelStatus]
    orphans: int | None  # None: the queue is missing
    destinations: list[Binding] | None  # what `done` leads to; None: unknown

    @property
    def waiting(self) -> int:
        return sum((level.ready or 0) + (level.unsettled or 0) for level in self.levels)

    @property
    def blocked(self) -> list[LevelStatus]:
        """Levels with as many unsettled messages as at-least-once dead lettering takes at a time, or in a burst, more.

        https://www.rabbitmq.com/docs/quorum-queues#dead-lettering
        """
        return [level for level in self.levels if (level.unsettled or 0) >= 32]


def status(connection: kombu.Connection, wanted: Iterable[Cascade], management: Management | None = None) -> Status:
    """Return how many messages wait where. Those between two queues are seen only through the management API."""
    wanted = list(wanted)
    channel = connection.default_channel
    rows = management.queues() if management else {}
    levels = []
    for cascade in wanted:
        for level in cascade.levels:
            on_the_way = unsettled(rows[level.queue]) if level.queue in rows else None
            ready = declare.message_count(channel, level.queue)
            levels.append(LevelStatus(level.queue, level.ttl, ready, on_the_way))
    destinations = None
    if management:
        ours = {name for cascade in wanted for name in (cascade.done, cascade.fallback)}
        destinations = sorted(binding for binding in management.bindings() if binding.source in ours)
    return Status(levels, declare.message_count(channel, wanted[0].orphans), destinations)


def count_earlier(connection: kombu.Connection, cascades: Iterable[Layout1]) -> int | None:
    """Return how many messages wait in cascades of an earlier layout; None if there are none of these."""
    found = None
    for cascade in cascades:
        for level in cascade.levels:
            ready = declare.message_count(connection.default_channel, level.queue)
            if ready is None:  # nor is there any longer level
                break
            found = (found or 0) + ready
    return found


def message_count(connection: kombu.Connection, queue: str) -> int | None:
    """Return how many messages are ready in a queue; None if it does not exist."""
    return declare.message_count(connection.default_channel, queue)


def unsettled(row: dict[str, Any]) -> int:
    """Return how many messages are on their way out of a queue, from what the management API says of it."""
    return int(row.get("messages_dlx") or 0) + int(row.get("messages_unacknowledged") or 0)
