"""Counts the messages in the queues of a cascade."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import kombu

from ..delay.amqp import declare
from ..delay.core.destination import Destination
from .cascades import existing, existing_outboxes
from .held_up import HeldUp, held, held_up, unsettled
from .management import Snapshot


class LevelStatus(NamedTuple):
    """A level's queue. `ready` messages wait; `unsettled` ones are between this queue and the next (None: unknown)."""

    queue: str
    ttl: int  # milliseconds
    ready: int | None  # None: the queue is missing
    unsettled: int | None

    @property
    def held(self) -> int:
        """The number of messages that have not left it, as far as known."""
        return (self.ready or 0) + (self.unsettled or 0)


class OutboxStatus(NamedTuple):
    """An outbox with a delay. `ready` messages wait; `unsettled` ones are due (None: unknown).

    In one without a delay, 0, `ready` counts the messages that RabbitMQ holds until a delivery time.
    """

    queue: str
    destination: str
    delay: int  # milliseconds
    ready: int
    unsettled: int | None


class StreamStatus(NamedTuple):
    """A stream beside the cascade. RabbitMQ deletes its messages by age, not on delivery."""

    queue: str
    messages: int


class Status(NamedTuple):
    """The message counts of cascades and of what stands beside them."""

    levels: list[LevelStatus]
    outboxes: list[OutboxStatus]  # those with a delay that are known and hold messages
    orphans: int | None  # None: the queue is missing
    destinations: list[str] | None  # of the cascade; None: unknown
    held_up: list[HeldUp] | None  # None: unknown
    streams: list[StreamStatus]  # those that exist
    #: The number of orphans some seconds ago, including those that somebody was looking at; 0 if unknown.
    all_orphans: int = 0
    #: Whether messages may wait that RabbitMQ holds until a delivery time, which only a snapshot counts.
    is_partial: bool = False

    @property
    def waiting(self) -> int:
        """The number of messages that are not due yet, as far as known."""
        return sum(level.held for level in self.levels) + sum(outbox.ready for outbox in self.outboxes)

    @property
    def ready(self) -> int:
        """The number of messages that are not due yet and in a queue, each counted once: what a snapshot says is older,
        and a message that was between two queues then may be in one now.
        """
        return sum(level.ready or 0 for level in self.levels) + sum(outbox.ready for outbox in self.outboxes)

    @property
    def stuck(self) -> int:
        """The number of due messages that their destinations have not accepted, as far as known."""
        return sum(one.stuck for one in self.held_up or ())

    @property
    def has_problems(self) -> bool:
        """Whether something is missing, or takes what is due from nobody as far as it is known."""
        held_up = any(one.is_stuck for one in self.held_up or ())
        return bool(self.blocked or self.orphans or held_up or self.missing) or not self.is_there

    @property
    def is_there(self) -> bool:
        """Whether there is any cascade: it may be one without levels."""
        return self.orphans is not None or len(self.missing) < len(self.levels)

    @property
    def missing(self) -> list[LevelStatus]:
        """Levels that do not exist."""
        return [level for level in self.levels if level.ready is None]

    @property
    def blocked(self) -> list[LevelStatus]:
        """Levels with as many unsettled messages as at-least-once dead lettering allows. A burst looks the same.

        https://www.rabbitmq.com/docs/quorum-queues#dead-lettering
        """
        return [level for level in self.levels if (level.unsettled or 0) >= 32]


def status(
    connection: kombu.Connection, destinations: Iterable[Destination] = (), snapshot: Snapshot | None = None
) -> Status:
    """Return the message counts. Messages between two queues are visible only in a snapshot of the management API.

    Without it, outboxes with a delay count only if they are of `destinations` and have a delay of the option.
    """
    wanted = existing(connection)
    channel = connection.default_channel

    def unsettled_in(queue: str) -> int | None:
        return unsettled(snapshot.queues[queue]) if snapshot and queue in snapshot.queues else None

    levels = []
    for cascade in wanted:
        # Down, as messages go, and outboxes last: none may pass from a queue that is not counted yet to one that is.
        ready = {level.queue: declare.message_count(channel, level.queue) for level in reversed(cascade.levels)}
        for level in cascade.levels:
            levels.append(LevelStatus(level.queue, level.ttl, ready[level.queue], unsettled_in(level.queue)))
    outboxes = []
    for outbox in existing_outboxes(connection, destinations, snapshot):
        if outbox.ticks:
            count, due = declare.message_count(channel, outbox.queue) or 0, unsettled_in(outbox.queue)
            if count or due:
                outboxes.append(
                    OutboxStatus(
                        outbox.queue, str(outbox.destination), wanted[0].milliseconds(outbox.ticks), count, due
                    )
                )
    for queue, destination, count in held(wanted[0], snapshot) if snapshot else ():
        outboxes.append(OutboxStatus(queue, destination, 0, count, None))
    orphans = declare.message_count(channel, wanted[0].orphans)
    beside = [
        StreamStatus(stream.name, messages)
        for stream in connection.connection.interceptor.streams()
        if (messages := declare.message_count(channel, stream.name)) is not None
    ]
    if snapshot is None:
        by_time = orphans is not None and wanted[-1].by_time
        return Status(levels, outboxes, orphans, None, None, beside, is_partial=by_time)
    led_to = {
        one.destination.exchange or one.destination.key or "" for one in existing_outboxes(connection, (), snapshot)
    }
    all_orphans = int(snapshot.queues.get(wanted[0].orphans, {}).get("messages") or 0)
    stuck = held_up(wanted[0], snapshot)
    return Status(levels, outboxes, orphans, sorted(led_to), stuck, beside, all_orphans)
