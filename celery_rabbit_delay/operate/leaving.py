"""Finds what would run again without this package, whose workers alone know of cancellations, moves and keys."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import kombu

from ..amqp import schedule
from ..amqp.clocks import utc_ms
from ..amqp.destinations import QueueNames
from ..amqp.schedule import Scheduled
from ..core.changes import Changes
from ..core.destination import Destination
from ..core.journal import Record
from ..core.keys import Keys
from ..core.streams import Unreadable
from .management import Snapshot
from .status import status


class Revivable(NamedTuple):
    """What waits and must not be delivered, and would be by workers without this package."""

    #: Each with what was done to it: "cancelled", "moved" or "replaced"; the soonest first.
    known: list[tuple[Scheduled, str]]
    #: The number of messages that may be cancelled or replaced as well, because no record tells their ids.
    unknown: int


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
    if not connection.transport.delay_options.streams or (snapshot and not waiting):
        return Revivable([], 0)
    known, keys = Changes(time.time), Keys(time.monotonic)

    def judge(record: Record) -> str | None:
        return _fate(record, known, keys) if record.due > utc_ms() else None

    fates = {record.number: (record, fate) for record, fate in schedule.judged(connection, known, keys, judge)}
    dead = []
    for record, fate in sorted(fates.values()):
        with suppress(Unreadable):  # `list` names it
            if fate:
                dead.append((schedule.describe(record, schedule.to_message(record).headers, names), fate))
    may_be_dead = known.has_cancelled or bool(keys.last)
    return Revivable(dead, max(0, waiting - len(fates)) if may_be_dead else 0)


def _fate(record: Record, known: Changes, keys: Keys) -> str:
    """Return what was done to a message; "" if it is to be delivered."""
    if known.voids(record.number):
        return "moved"
    if keys.replaces(record.number):
        return "replaced"
    return "cancelled" if schedule.is_cancelled(record, known) else ""
