"""Counts and groups what the journal says of the messages that wait."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

import kombu

from ...operate.queue_names import QueueNames
from ...unreadable import Unreadable
from ..core.fates import Fate, Fates
from . import tasks as schedule
from .tasks import Soonest

#: The number of messages that `recorded` groups.
SOONEST = 1000


class Group(NamedTuple):
    """Recorded messages of one task for one queue."""

    task: str  # "" for messages that are no tasks
    queue: str
    amount: int
    due: datetime  # of the first one


class Recorded(NamedTuple):
    """The messages in the journal that are not due yet."""

    amount: int
    cancelled: int  # of them
    #: The others, at most the `SOONEST` ones, the group with the first one first.
    groups: list[Group]
    elsewhere: int = 0  # messages among these for queues that were not asked for


def recorded(connection: kombu.Connection, names: QueueNames) -> Recorded:
    """Return what the journal says of the messages that wait. Raises `StreamUnavailable`, `NotPermitted`."""
    known: set[object] = set()
    cancelled: set[object] = set()
    soonest = Soonest(SOONEST)
    for record, fate in schedule.recorded(connection, Fates(time.time)):
        if fate in (Fate.WAITS, Fate.CANCELLED):
            known.add(record.identity)
        if fate is Fate.CANCELLED:
            cancelled.add(record.identity)
        elif fate is Fate.WAITS and soonest.wants(record):
            soonest.add(record)
    groups: dict[tuple[str, str], Group] = {}
    elsewhere = 0
    for record in soonest.records():
        with suppress(Unreadable):  # `list` names it
            headers = schedule.to_message(record).headers
            one = schedule.describe(record, headers, names)
            if not schedule.concerns(headers, names):
                elsewhere += 1
                continue
            name = one.task or "", one.queue
            group = groups.get(name, Group(*name, 0, one.due))
            groups[name] = group._replace(amount=group.amount + 1)
    return Recorded(len(known), len(cancelled), list(groups.values()), elsewhere)
