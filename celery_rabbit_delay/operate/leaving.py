"""Finds what would run again without this package, whose workers alone know of cancellations, moves and keys."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import kombu

from ..amqp import schedule
from ..amqp.destinations import QueueNames
from ..amqp.schedule import Scheduled
from ..core.destination import Destination
from ..core.fates import Fate, Fates
from ..core.headers import read_state
from ..core.journal import Record
from ..core.streams import Unreadable
from .management import Snapshot
from .status import status


class Revivable(NamedTuple):
    """What waits and must not be delivered, and would be by workers without this package."""

    #: Each with what was done to it: "cancelled", "moved" or "replaced"; the soonest first.
    known: list[tuple[Scheduled, str]]
    #: The number of messages that may be cancelled or replaced as well, because no record tells their ids. None:
    #: RabbitMQ may hold some until they are due, which only a snapshot counts.
    unknown: int | None
    #: The queues from which they would take messages, although these are paused.
    paused: list[str]


def revivable(
    connection: kombu.Connection,
    destinations: Iterable[Destination],
    names: QueueNames,
    snapshot: Snapshot | None = None,
) -> Revivable:
    """Return what would run again without this package. Raises `StreamUnavailable`, `NotPermitted`.

    Messages that are due, and wait in queues of the app, are not seen. Without streams nothing is ever cancelled.
    """
    found = status(connection, destinations, snapshot)
    waiting = found.waiting + found.stuck
    if not connection.transport.delay_options.streams:
        return Revivable([], 0, [])
    if snapshot and not waiting:
        return Revivable([], 0, [one.queue for one in schedule.paused(connection, names)])
    fates = Fates(time.time)
    known = {record.number: (record, fate) for record, fate in schedule.recorded(connection, fates)}
    dead = []
    for record, fate in sorted(known.values(), key=lambda one: one[0]):
        with suppress(Unreadable):  # `list` names it
            if fate is not Fate.WAITS:
                dead.append((schedule.describe(record, schedule.headers_in(record), names), fate.value))
    unknown: int | None = 0
    if fates.changes.has_cancelled or fates.keys.last:
        root = connection.transport.delay_options.cascade.root  # others of the prefix share the records
        here = sum(_root_of(record) == root for record, _ in known.values())
        unknown = None if found.is_partial else max(0, waiting - here)
    return Revivable(dead, unknown, [one.queue for one in schedule.paused_in(fates.changes, names)])


def _root_of(record: Record) -> str | None:
    """Return the root of the cascade in which a recorded message waits, if its record can be read."""
    with suppress(Unreadable):
        state = read_state(schedule.headers_in(record))
        return state.root if state else None
    return None
