"""Asks which process of a beat is active, and when it will send what; deletes the queue of one that is not needed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import kombu
from amqp import Message

from ..amqp import declare
from ..amqp.connecting import own_channel
from ..amqp.lock import REPLY_TO
from ..core.beat import beat_prefix
from ..core.errors import DelayError
from ..core.options import Options
from .management import Snapshot


class PeriodicTask(NamedTuple):
    """An entry of `beat_schedule`."""

    entry: str
    task: str
    next: datetime | None  # None: it cannot be calculated
    last: datetime  # or when the entry began


class BeatStatus(NamedTuple):
    """The active process of a beat, and its entries, the next first."""

    process: str | None  # host:pid; None: none has answered
    entries: list[PeriodicTask]


def beat_status(connection: kombu.Connection, queue: str, patience: float = 5) -> BeatStatus | None:
    """Ask the active process of a beat, by its queue, and wait `patience` seconds. None if no beat has run there.

    Needs the permissions to read the queue and to write to `amq.default`.
    """
    answers: list[Any] = []
    with own_channel(connection) as channel:
        if declare.message_count(channel, queue) is None:
            return None
        channel.basic_consume(REPLY_TO, no_ack=True, callback=lambda message: answers.append(json.loads(message.body)))
        question = Message(b"", reply_to=REPLY_TO, expiration=str(int(patience * 1000)))
        channel.basic_publish(question, exchange="", routing_key=queue)
        deadline = time.monotonic() + patience
        while not answers and (left := deadline - time.monotonic()) > 0:
            with suppress(TimeoutError):
                connection.drain_events(timeout=left)
    if not answers:
        return BeatStatus(None, [])
    entries = [
        PeriodicTask(
            name, one["task"], one["next"] and datetime.fromisoformat(one["next"]), datetime.fromisoformat(one["last"])
        )
        for name, one in answers[0]["entries"].items()
    ]
    return BeatStatus(answers[0]["process"], sorted(entries, key=lambda one: (one.next is None, one.next or one.last)))


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
