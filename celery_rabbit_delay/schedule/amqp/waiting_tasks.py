"""What API, commands and page do with waiting tasks: list (`Scheduled`), cancel, restore; and pausing queues."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import kombu
from amqp import Message
from amqp.exceptions import AMQPError

from ... import upstream
from ...delay.amqp.confirms import NotStored
from ...delay.amqp.sender import settle
from ...delay.core import headers as headers_
from ...delay.core.due import eta_in_utc
from ...delay.core.errors import InvalidDelay
from ...delay.core.options import Options
from ...operate.broker_connection import again
from ...operate.queue_names import QueueNames
from ...text import counted, escape
from ...unreadable import Unreadable, reading
from ..core import changes, streams
from ..core.changes import Changes, Pause
from ..core.errors import StreamUnavailable
from ..core.fates import Fate, Fates
from ..core.journal import Record
from .follower import Follower
from .stream_consumer import PATIENCE

logger = logging.getLogger(__name__)

#: The ids that a line of the log names.
_NAMED = 3

#: Is called with a description of a malformed message in the journal.
Report = Callable[[str], object]


class Scheduled(NamedTuple):
    """A message that waits until it is due."""

    #: Celery's task id; for other messages their correlation id or message id, or "".
    id: str
    #: Celery's name of the task; None for other messages.
    task: str | None
    #: The queue that it goes to, or one of them; the routing key if the app knows no queue that its exchange routes to.
    queue: str
    #: When it is due, in UTC.
    due: datetime
    #: The arguments, in Celery's shortened form.
    args: str | None
    #: The keyword arguments, likewise.
    kwargs: str | None
    #: The exchange that it was sent to, "" for the default exchange.
    exchange: str
    #: The routing key that it was sent with.
    routing_key: str
    #: How often the task was retried before.
    retries: int
    #: Identifies this copy of the message.
    number: int


@reading
def to_message(record: Record) -> Message:
    """Return a message as it entered the cascade. Raises `Unreadable`."""
    message = Message(record.body)
    try:
        upstream.deserialize(message, record.properties)
    except (AMQPError, OSError) as exc:  # OSError: an invalid time
        raise ValueError(exc) from exc
    return message


@reading
def describe(record: Record, headers: Mapping[str, Any], queues: QueueNames, wanted: str | None = None) -> Scheduled:
    """Return a description of a waiting message, from its record and its headers. Raises `Unreadable`.

    If it goes to several queues, the description has only one of them, `wanted` if it is one of them.
    """
    state = headers_.read_state(headers)
    if state is None:
        raise ValueError("its message has no delay")
    queue = queues.name(state.exchange, state.routing_key, wanted) if state.queue is None else state.queue
    names = ("task", "argsrepr", "kwargsrepr")
    task, args, kwargs = (None if headers.get(name) is None else str(headers[name]) for name in names)
    due, retries = headers_.moment(record.due), _retries(headers)
    return Scheduled(
        record.id, task, queue, due, args, kwargs, state.exchange, state.routing_key, retries, record.number
    )


def concerns(headers: Mapping[str, Any], queues: QueueNames) -> bool:
    """Return whether a message, which `describe` can read, goes to one of some queues, if it is about these only."""
    if not queues.only:
        return True
    state = headers_.read_state(headers)
    return state is not None and queues.leads_to_one(*state.destination)


def _retries(headers: Mapping[str, Any]) -> int:
    """Return how often a task was retried; 0 if a sender wrote something else."""
    retries = headers.get("retries")
    return retries if isinstance(retries, int) and not isinstance(retries, bool) and 0 <= retries < 1 << 31 else 0


def scheduled(
    connection: kombu.Connection,
    task: str | None = None,
    queue: str | None = None,
    until: datetime | str | None = None,
    limit: int | None = None,
    queues: QueueNames | None = None,
    report: Report = logger.warning,
    id_: str | None = None,
    elsewhere: Callable[[], object] = lambda: None,
) -> Iterator[Scheduled]:
    """Yield waiting messages of the journal, the soonest first: of a task, for a queue, due until a time, of an id.

    Only messages for `queues`, if it is about them `only`; calls `elsewhere` if there are others. Needs memory for
    `limit` messages. `until` is parsed like the eta of `reschedule`. Raises `StreamUnavailable`,
    `NotPermitted`, `InvalidDelay` for an invalid `until`, `InvalidDestination` for a `queue` that is none of `queues`,
    `ValueError` for a `limit` below 1.
    """
    soonest, names = Soonest(limit), queues or QueueNames()
    names.check(queue)
    latest = math.inf if until is None else headers_.milliseconds(eta_in_utc(until, name="until"))

    def shown(record: Record) -> Scheduled | None:
        try:
            headers = to_message(record).headers
            one = describe(record, headers, names, queue)
        except Unreadable as exc:
            report(skipped(record, exc))
            return None
        if concerns(headers, names):
            return one
        if task in (None, one.task):
            elsewhere()
        return None

    def chosen(record: Record) -> bool:
        if record.due > latest or id_ not in (None, record.id):
            return False
        if task is None and queue is None and limit is None:
            return True
        one = shown(record)
        return one is not None and task in (None, one.task) and queue in (None, one.queue)

    for record in waiting(connection, report):
        if soonest.wants(record) and chosen(record):
            soonest.add(record)
    return filter(None, map(shown, soonest.records()))


def skipped(record: Record, reason: Unreadable) -> str:
    """Return what to report of a record whose message cannot be read."""
    return f"The record of message {record.number}, of the id {record.id!r}, is skipped: {reason}"


class Soonest:
    """The records that are due first, one for each `identity`."""

    def __init__(self, limit: int | None) -> None:
        """Keep `limit` of them, or with None all. Raises `ValueError`."""
        if limit is not None and limit < 1:
            raise ValueError(f"limit={limit!r}: use 1 or more, or None for all that waits")
        self._limit = limit
        self._heap: list[tuple[int, int, Record]] = []  # the latest first
        self._known: set[object] = set()

    def wants(self, record: Record) -> bool:
        if record.identity in self._known:
            return False
        return self._limit is None or len(self._heap) < self._limit or -record.due > self._heap[0][0]

    def add(self, record: Record) -> None:
        item = (-record.due, -record.number, record)
        self._known.add(record.identity)
        if self._limit is None:
            self._heap.append(item)
        elif len(self._heap) < self._limit:
            heapq.heappush(self._heap, item)
        else:
            self._known.discard(heapq.heapreplace(self._heap, item)[2].identity)

    def records(self) -> Iterator[Record]:
        return (record for *_, record in sorted(self._heap, reverse=True))


def waiting(connection: kombu.Connection, report: Report = logger.warning) -> Iterator[Record]:
    """Yield the journal's records of waiting messages, in no order; two of a message that was published again."""
    cascade, fates = connection.transport.delay_options.cascade, Fates(time.time)
    settle()
    with Follower(connection) as reader:
        # The changes first: a message that is moved in the meantime may then appear twice, but is never missing.
        wanted = reader.extents([streams.changes(cascade)])
        wanted |= reader.extents(streams.journals(cascade))
        for stream, extent in wanted.items():
            for message in reader.read(stream, extent):
                try:
                    now = utc_ms()
                    found = [(one, fates.of(one, now, headers_in)) for one in fates.apply(message.body)]
                except Unreadable as exc:
                    report(f"Message {message.offset} of the stream {stream.name!r} is skipped: {exc}")
                    continue
                yield from (record for record, fate in found if fate is Fate.WAITS)


def headers_in(record: Record) -> Mapping[str, Any]:
    """Return the headers of a message as it entered the cascade. Raises `Unreadable`."""
    return to_message(record).headers or {}


def cancel(connection: kombu.Connection, ids: Collection[str], copies: Collection[tuple[int, int]] = ()) -> None:
    """Cancel tasks by their ids, and recorded messages without an id. Returns once that is stored.

    `copies` are the numbers of those messages and their due times, in milliseconds since 1970. Raises `CascadeMissing`
    with `declare="passive"`, `NotPermitted`, and what py-amqp raises.
    """
    if ids or copies:
        write_changes(connection, [*changes.cancelled(ids), *itertools.starmap(changes.void, copies)])
        logger.info("%s: %s", counted(len(ids) + len(copies), "tasks cancelled"), named(ids))


def named(ids: Iterable[str]) -> str:
    """Return some ids for a line of a log, which names the first ones."""
    first = [*itertools.islice(ids, _NAMED + 1)]
    return escape(", ".join(first[:_NAMED] + ["…"] * (len(first) > _NAMED)))


def pause(connection: kombu.Connection, queue: str, names: QueueNames, until: datetime | str | None = None) -> None:
    """Pause one of some queues: no worker takes messages from it, until a time or until it is resumed.

    Raises `InvalidDestination` for another queue, or one that loses messages meanwhile; `InvalidDelay` for a time that
    is past or cannot be read; and what `cancel` raises.
    """
    names.check_pause(queue)
    end = None if until is None else headers_.milliseconds(eta_in_utc(until, name="until"))
    if end is not None and end <= utc_ms():
        raise InvalidDelay(f"until={str(until)!r} is in the past: use a later time, or none")
    _write_pause(connection, Pause(queue, end))


def resume(connection: kombu.Connection, queue: str, names: QueueNames) -> None:
    """End the pause of one of some queues. Raises what `pause` raises."""
    names.check(queue)
    _write_pause(connection, Pause(queue, 0))


def _write_pause(connection: kombu.Connection, one: Pause) -> None:
    write_changes(connection, [changes.pause(one)])
    logger.info(
        "The queue %r is %s", one.queue, "resumed" if one.until == 0 else f"paused until {one.end or 'it is resumed'}"
    )


def paused(connection: kombu.Connection, names: QueueNames) -> list[Pause]:
    """Return the queues among some that are paused now. Raises `StreamUnavailable`, `NotPermitted`."""
    found = Changes(time.time)
    for body in read_changes(connection):
        with suppress(Unreadable):  # `list` names it
            found.apply(body)
    return [one for name, one in found.paused(utc_ms()).items() if names.leads_to_one("", name)]


def restore(connection: kombu.Connection, ids: Collection[str]) -> None:
    """Take back what cancelled some ids. What a worker has discarded is gone. As `cancel`."""
    write_changes(connection, changes.restored(ids))
    logger.info("%s: %s", counted(len(ids), "ids restored"), named(ids))


def read_changes(connection: kombu.Connection) -> Iterator[bytes]:
    """Yield the messages of the stream of changes, the oldest first. Raises `StreamUnavailable`, `NotPermitted`."""
    with Follower(connection) as reader:
        for message in reader.read(streams.changes(connection.transport.delay_options.cascade)):
            yield message.body


def write_changes(connection: kombu.Connection, messages: Iterable[bytes], seconds: float | None = None) -> None:
    """Add to the stream of changes, which has no leader just after its creation, or the loss of a node. As `cancel`.

    With a limit in seconds it does not wait for the end of an alarm: `TimeoutError`. RabbitMQ has the messages then, in
    the buffers of its socket, and takes them when the alarm ends.
    """
    options: Options = connection.transport.delay_options
    streams.require_schedule(options)
    write = partial(connection.connection.interceptor.write, streams.changes_of(options), list(messages), seconds)
    again(write, (StreamUnavailable, NotStored), PATIENCE)


def utc_ms() -> int:
    """Return the milliseconds since 1970, the clock of due times."""
    return time.time_ns() // 1_000_000
