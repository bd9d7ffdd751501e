"""Asks which process of a beat is active, and when it will send what; deletes the queue of one that is not needed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

import kombu
from amqp.exceptions import NotFound

from ..delay.amqp import declare
from ..delay.core.errors import DelayError
from ..delay.core.options import Options
from ..operate.management import Snapshot
from .core.runs import beat_prefix
from .lock import NoHolder, ask


class PeriodicTask(NamedTuple):
    """A periodic entry, of `beat_schedule` or written at run time."""

    entry: str
    task: str
    next: datetime | None  # None: it cannot be calculated, or is disabled
    last: datetime | None  # or when the entry began
    schedule: str = ""
    is_enabled: bool = True
    is_written: bool = False  # at run time, else it is in the code
    version: int = 0  # of what was written; 0 is none
    total: int | None = None  # how often it has run
    definition: dict[str, Any] | None = None  # task, schedule, args, kwargs, options; None if they are not JSON


class BeatStatus(NamedTuple):
    """The active process of a beat, and its entries, the next first."""

    process: str | None  # host:pid; None: none has answered
    entries: list[PeriodicTask]


def beat_status(connection: kombu.Connection, queue: str, patience: float = 5) -> BeatStatus | None:
    """Ask the active process of a beat, by its queue, and wait `patience` seconds. None if no beat has run there.

    Needs the permissions to read the queue and to write to `amq.default`.
    """
    try:
        answer = ask(connection, queue, patience=patience)
    except NotFound:
        return None
    except NoHolder:
        answer = None
    return read_status(answer) if answer else BeatStatus(None, [])


def read_status(answer: dict[str, Any]) -> BeatStatus:
    """Read what the active process of a beat has answered."""

    def read(name: str, one: dict[str, Any]) -> PeriodicTask:
        times = {key: one[key] and datetime.fromisoformat(one[key]) for key in ("next", "last")}
        return PeriodicTask(name, **{**one, **times})

    entries = [read(name, one) for name, one in answer["entries"].items()]
    return BeatStatus(answer["process"], sorted(entries, key=lambda one: (one.next is None, one.next, one.entry)))


def beat_queues(connection: kombu.Connection, own: str | None, snapshot: Snapshot | None) -> list[str]:
    """Return the queues of beats: that of an app, if it exists, and with the management API all of the prefix."""
    options: Options = connection.transport.delay_options
    names = {name for name in (snapshot.queues if snapshot else ()) if name.startswith(beat_prefix(options.prefix))}
    if own is not None and declare.queue_exists(connection.default_channel, own):
        names.add(own)
    return sorted(names)


def delete_beat_queues(connection: kombu.Connection, names: Iterable[str]) -> None:
    """Delete the queues of beats, with what they know of the last runs. Raises `DelayError` while a beat is active."""
    with declare.translate_errors(connection.transport.delay_options.cascade):
        for name in names:
            # Quorum queues refuse if-unused.
            if declare.passive_declare_queue(connection.default_channel, name).consumer_count:
                raise DelayError(f"the beat of {name!r} is active: stop all its processes first")
            connection.default_channel.queue_delete(name)
