"""What the people who run it do with a cascade. I/O over a Kombu connection; returns data and prints nothing.

Every function takes a `kombu.Connection` with our transport, whose options say which cascade is meant.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from itertools import combinations
from typing import Any, Literal, NamedTuple

import kombu
from amqp import Message
from amqp.exceptions import AccessRefused, ChannelError, MessageNacked, PreconditionFailed

from . import declare, routing_key
from .exceptions import DestinationNotFound, NotPermitted, NotRouted
from .management import Management
from .message import HEADER, Delivery, addressed, divert, restore
from .options import Options
from .publish import ConfirmedChannel, DelayedPublisher
from .routing_key import Destination
from .topology import Binding, Cascade, Exchange, Queue, Topology

#: Headers with which a quorum queue counts how often it has delivered a message.
_COUNTS = ("x-delivery-count", "x-acquired-count")

#: What a policy changes in queues that have arguments of their own: the lesser value is in force, so that messages are
#: early, are deleted with their queue, or find it full (https://www.rabbitmq.com/docs/parameters#policies).
_LIMITS = {"message-ttl", "expires", "max-length", "max-length-bytes"}

State = Literal["present", "missing", "different", "unexpected", "unknown"]


class Part(NamedTuple):
    """A part of a topology as the broker has it. `detail` says more where it is not just present or missing."""

    kind: Literal["exchange", "queue", "binding", "policy"]
    name: str
    state: State
    detail: str = ""


class Level(NamedTuple):
    """A level's queue. `ready` messages wait; `unsettled` ones are on their way to the next queue (None: unknown)."""

    queue: str
    ttl: int  # milliseconds
    ready: int | None  # None: the queue is missing
    unsettled: int | None


class Status(NamedTuple):
    levels: list[Level]
    orphans: int | None  # None: the queue is missing
    destinations: list[Binding] | None  # what `done` leads to; None: unknown

    @property
    def waiting(self) -> int:
        return sum((level.ready or 0) + (level.unsettled or 0) for level in self.levels)

    @property
    def blocked(self) -> list[Level]:
        """Levels with as many unsettled messages as at-least-once dead lettering takes at a time, or in a burst, more.

        https://www.rabbitmq.com/docs/quorum-queues#dead-lettering
        """
        return [level for level in self.levels if (level.unsettled or 0) >= 32]


def cascades(connection: kombu.Connection, priorities: bool | None = None) -> list[Cascade]:
    """The cascade for normal messages, and that for priorities above 4 if wanted or, with None, if it is there."""
    options: Options = connection.transport.delay_options
    found = [options.cascade]
    if options.high_cascade != options.cascade_for(9):  # classic levels have no second one
        return found
    if priorities is None:
        try:
            priorities = declare.exchange_exists(connection.default_channel, options.high_cascade.complete)
        except AccessRefused:  # RabbitMQ 4.3 hides it; whatever is done next says what is not permitted
            priorities = False
    return [*found, options.high_cascade] if priorities else found


def compare(
    connection: kombu.Connection,
    wanted: Iterable[Cascade],
    destinations: Iterable[Destination] = (),
    management: Management | None = None,
) -> Iterator[Part]:
    """What of cascades the broker has. Changes nothing.

    Bindings, and policies that change queues, are seen only through the management API.

    Over AMQP, what is there with other arguments shows when it is declared again: that is refused, and if the
    arguments are the same, nothing happens (https://www.rabbitmq.com/docs/queues#property-equivalence).
    """
    wanted = list(wanted)
    topology = Topology.of(wanted, destinations)
    channel = connection.default_channel
    for exchange in topology.exchanges.values():
        yield _compared(channel, "exchange", exchange, declare.exchange_exists, declare.declare_exchange)
    for queue in topology.queues.values():
        yield _compared(channel, "queue", queue, declare.queue_exists, declare.declare_queue)
    if management is None:
        return
    existing = management.bindings()
    for binding in topology.bindings:
        yield Part("binding", _described(binding), "present" if binding in existing else "missing")
    # What leaves `done` and the guard leads to destinations; anything else that we do not know multiplies messages.
    inner = topology.exchanges.keys() - {name for cascade in wanted for name in (cascade.done, cascade.guard)}
    for binding in sorted(existing - topology.bindings.keys()):
        if binding.source in inner:
            yield Part("binding", _described(binding), "unexpected", "messages may arrive twice: remove it")
    rows = management.queues()
    for name in topology.queues:
        row = rows.get(name, {})
        who = row.get("policy") or row.get("operator_policy")
        for limit in sorted(_LIMITS.intersection(row.get("effective_policy_definition") or {})):
            detail = f"{who!r} sets its {limit}: give our queues a policy of higher priority without that"
            yield Part("policy", name, "unexpected", detail)


def _compared(channel: Any, kind: Any, part: Exchange | Queue, exists: Any, declare_again: Any) -> Part:
    try:
        if not exists(channel, part.name):
            return Part(kind, part.name, "missing")
        declare_again(channel, part)
    except PreconditionFailed as exc:
        return Part(kind, part.name, "different", exc.reply_text)
    except AccessRefused as exc:
        return Part(kind, part.name, "unknown", exc.reply_text)
    return Part(kind, part.name, "present")


def agree(connection: kombu.Connection) -> None:
    """Makes sure that the cascade on the broker, if there is one, has the parameters of the connection's options.

    Otherwise there may be levels that we know nothing of. Raises `CascadeConflict`.
    """
    cascade = connection.transport.delay_options.cascade
    channel = connection.default_channel
    # Who may not declare it may not delete it either, nor what is in it.
    with contextlib.suppress(NotPermitted), declare.translated(cascade):
        if declare.exchange_exists(channel, cascade.ingest):
            declare.declare_exchange(channel, next(cascade.exchanges()))


def _described(binding: Binding) -> str:
    return f"{binding.source} -> {binding.target} ({binding.routing_key})"


def setup(
    connection: kombu.Connection, wanted: Iterable[Cascade], destinations: Iterable[Destination]
) -> list[Destination]:
    """Creates cascades and leads them to destinations; returns those that do not exist yet.

    Raises `CascadeConflict`, `NotPermitted`, `InvalidDestination`.
    """
    channel = connection.default_channel
    for cascade in wanted:
        declare.create(channel, cascade)
    lacking = []
    for destination in destinations:
        try:
            declare.bind_destination(channel, connection.transport.delay_options.cascade, destination)
        except DestinationNotFound:
            lacking.append(destination)
    return lacking


def probe(connection: kombu.Connection, cascade: Cascade, seconds: float = 2, patience: float = 15) -> Iterator[str]:
    """Sends messages through every level, and from each to each lower one, that holds them for at most so many seconds.

    Yields what is wrong. They come back to a queue that exists only for this connection; `patience` is how many
    seconds late they may be.
    """
    channel = connection.channel()
    queue = channel.queue_declare(f"{cascade.prefix}.probe.{uuid.uuid4()}", exclusive=True, auto_delete=True).queue
    destination = Destination("", (queue,))
    declare.bind_destination(channel, cascade, destination)
    passive = replace(connection.transport.delay_options, declare="passive", confirm=True)
    publisher = DelayedPublisher(connection.connection, cascade, passive)
    levels = [level for level in range(cascade.levels) if cascade.ttl(level) <= seconds * 1000]
    wanted = {1 << level for level in levels} | {1 << a | 1 << b for a, b in combinations(levels, 2)}
    headers = {"CC": [routing_key.address(destination)]}
    arrived: dict[int, float] = {}

    def on_message(message: Message) -> None:
        arrived[int(message.body)] = time.monotonic()

    channel.basic_consume(queue, no_ack=True, callback=on_message)
    sent: dict[int, float] = {}
    for ticks in sorted(wanted):
        sent[ticks] = time.monotonic()
        try:
            publisher.publish(Message(str(ticks), application_headers=headers), ticks, destination)
        except NotRouted:
            yield f"ingest takes no message for {_levels(cascade, ticks)}"
            del sent[ticks]
    deadline = time.monotonic() + 2 * seconds + patience
    while arrived.keys() < sent.keys() and time.monotonic() < deadline:
        try:
            connection.drain_events(timeout=0.5)
        except TimeoutError:
            continue
    for ticks, at in sent.items():
        due = at + ticks * cascade.ttl(0) / 1000
        if ticks not in arrived:
            yield f"a message through {_levels(cascade, ticks)} has not come back"
        elif arrived[ticks] < due:
            yield f"a message through {_levels(cascade, ticks)} came {due - arrived[ticks]:.3f} s early"
    channel.close()


def _levels(cascade: Cascade, ticks: int) -> str:
    return " and ".join(cascade.delay(level) for level in reversed(range(cascade.levels)) if ticks >> level & 1)


def status(connection: kombu.Connection, wanted: Iterable[Cascade], management: Management | None = None) -> Status:
    """How many messages wait where. Those between two queues are seen only through the management API.

    Raises `CascadeConflict`.
    """
    agree(connection)
    channel = connection.default_channel
    rows = management.queues() if management else {}
    levels = []
    for cascade in wanted:
        for level in range(cascade.levels):
            name = cascade.delay(level)
            unsettled = _unsettled(rows[name]) if name in rows else None
            levels.append(Level(name, cascade.ttl(level), declare.ready(channel, name), unsettled))
    destinations = None
    if management:
        ours = (cascade.done, cascade.guard)
        destinations = sorted(binding for binding in management.bindings() if binding.source in ours)
    return Status(levels, declare.ready(channel, cascade.orphans), destinations)


class Orphan(NamedTuple):
    """A message that could not be delivered when it was due, and where it was going."""

    exchange: str
    routing_key: str
    due: datetime
    task: str | None  # Celery's name and id of it
    task_id: str | None
    size: int  # bytes of the body


def orphans(connection: kombu.Connection, limit: int) -> list[Orphan]:
    """The oldest so many orphans, which stay where they are."""
    channel = connection.channel()
    try:
        queue = connection.transport.delay_options.cascade.orphans
        return [_described_orphan(message) for message in _unacknowledged(channel, queue, limit)]
    finally:
        channel.close()  # gives them back


def replay(connection: kombu.Connection, limit: int) -> Iterator[tuple[Orphan, str | None]]:
    """Sends the oldest so many orphans on to where they were going, one by one, as if they were sent now.

    Yields each with None once the broker has stored it there, or else with the reason why it stays an orphan.
    Interrupted at any point, nothing is lost; the one that was being sent may be sent twice.
    """
    channel = connection.channel()
    destination = ConfirmedChannel(connection.connection)
    try:
        for message in _unacknowledged(channel, connection.transport.delay_options.cascade.orphans, limit):
            info = message.delivery_info
            restored = restore(Delivery(info["exchange"], info["routing_key"], message.headers))
            headers = {key: value for key, value in restored.headers.items() if key not in _COUNTS}
            copy = Message(message.body, **{**message.properties, "application_headers": headers})
            try:
                refused = destination.publish(copy, restored.exchange, restored.routing_key)
            except (ChannelError, MessageNacked) as exc:
                refused = str(exc)
                destination.forget(close=True)
            if refused is None:
                channel.basic_ack(message.delivery_tag)
            yield _described_orphan(message), refused
    finally:
        channel.close()


def purge(connection: kombu.Connection) -> int:
    """Removes all orphans, for good; returns how many."""
    with declare.translated(connection.transport.delay_options.cascade):
        return int(connection.default_channel.queue_purge(connection.transport.delay_options.cascade.orphans))


def migrate(source: kombu.Connection, target: kombu.Connection) -> Iterator[str]:
    """Moves what waits in one cascade into another, where each message is due when it was due anyway.

    Yields the level's queue for each one moved. What becomes due meanwhile is delivered by `source`. Interrupted at any
    point, nothing is lost, and it can be started again; the message that was being moved may be delivered twice.
    Raises what publishing with a delay raises, such as `InvalidDelay` beyond the `max_delay` of `target`.
    """
    agree(source)
    channel = source.channel()
    try:
        for cascade in reversed(cascades(source)):
            for level in reversed(range(cascade.levels)):  # down, as messages go
                for message in _unacknowledged(channel, cascade.delay(level)):
                    if not isinstance(message.headers.get(HEADER), dict):
                        continue  # put there by somebody else
                    _move(message, target)
                    channel.basic_ack(message.delivery_tag)
                    yield cascade.delay(level)
    finally:
        channel.close()


def _move(message: Message, target: kombu.Connection) -> None:
    info, ours = message.delivery_info, message.headers[HEADER]
    due = datetime.fromtimestamp(ours["due"] / 1000, timezone.utc)
    restored = restore(Delivery(info["exchange"], info["routing_key"], message.headers))
    publisher = target.connection.delayed(message.properties.get("priority"))
    headers = divert(restored.headers, publisher.cascade.track, restored.exchange, restored.routing_key, due)
    # A hash tells no queues. For the default exchange they are the keys; for another one they are safe to leave out.
    keys = () if restored.exchange else tuple(headers["CC"])
    destination = routing_key.destination(message.headers["CC"][-1]) or Destination(restored.exchange, keys)
    headers = addressed({key: value for key, value in headers.items() if key not in _COUNTS}, destination)
    copy = Message(message.body, **{**message.properties, "application_headers": headers})
    publisher.publish(copy, publisher.options.ticks_until(due, datetime.now(timezone.utc)), destination)


def teardown(connection: kombu.Connection) -> int:
    """Deletes all of the cascades, with what is in them; returns how many queues and exchanges there were.

    Raises `CascadeConflict`, `NotPermitted`.
    """
    agree(connection)
    channel = connection.default_channel
    topology = Topology.of(cascades(connection, priorities=True))
    deleted = 0
    with declare.translated(connection.transport.delay_options.cascade):
        for name in topology.exchanges:  # ingest first, so that nothing new comes in
            if declare.exchange_exists(channel, name):
                channel.exchange_delete(name)
                deleted += 1
        for name in topology.queues:
            if declare.queue_exists(channel, name):
                channel.queue_delete(name)
                deleted += 1
    return deleted


def _unacknowledged(channel: Any, queue: str, limit: int | None = None) -> Iterator[Message]:
    """The oldest so many messages of a queue, of those that are there now. None comes twice."""
    there = declare.ready(channel, queue) or 0
    for _ in range(there if limit is None else min(limit, there)):
        message = channel.basic_get(queue)
        if message is None:
            # RabbitMQ 3.10 and 4.0 dead-letter what expires just when it is asked for only once something else happens
            # in the queue (rabbit_fifo, dequeue): a consumer comes and goes.
            channel.basic_cancel(channel.basic_consume(queue, callback=lambda message: None))
            return
        yield message


def _described_orphan(message: Message) -> Orphan:
    info, headers = message.delivery_info, message.headers
    restored = restore(Delivery(info["exchange"], info["routing_key"], headers))
    ours = headers.get(HEADER)
    due = ours.get("due") if isinstance(ours, dict) else None
    return Orphan(
        restored.exchange,
        restored.routing_key,
        datetime.fromtimestamp((due if isinstance(due, int) else 0) / 1000, timezone.utc),
        headers.get("task"),
        headers.get("id"),
        len(message.body),
    )


def _unsettled(row: dict[str, Any]) -> int:
    return int(row.get("messages_dlx") or 0) + int(row.get("messages_unacknowledged") or 0)
