"""Messages sent through a cascade to see whether they come back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations

import kombu
from amqp import Message

from ..amqp import declare
from ..amqp.pending import PendingMessage, now
from ..amqp.publisher import DelayedPublisher
from ..amqp.streams import StreamReader
from ..core.destination import Destination
from ..core.errors import CascadeMissing, NotRouted, StreamUnavailable
from ..core.headers import addressed
from ..core.levels import Level
from ..core.topology import Cascade, Stream


def probe(connection: kombu.Connection, cascade: Cascade, seconds: float = 2, patience: float = 15) -> Iterator[str]:
    """Send messages through every level that holds them for at most `seconds`, and from each to each lower one.

    Yields what is wrong. The messages come back to a queue that exists only for this connection; `patience` is how many
    seconds late they may be.
    """
    channel = connection.channel()
    queue = channel.queue_declare(f"{cascade.prefix}.probe.{uuid.uuid4()}", exclusive=True, auto_delete=True).queue
    destination = Destination("", (queue,), short_lived=True)
    declare.bind_destination(channel, cascade, destination)
    passive = replace(connection.transport.delay_options, declare="passive", confirm=True, slack=0)
    publisher = DelayedPublisher(connection.connection, cascade, passive)
    levels = [level for level in cascade.levels if level.ttl <= seconds * 1000]
    routes: list[tuple[Level, ...]] = [(level,) for level in levels]
    routes += [(higher, lower) for lower, higher in combinations(levels, 2)]
    arrived: dict[int, float] = {}

    def on_message(message: Message) -> None:
        arrived[int(message.body)] = time.monotonic()

    channel.basic_consume(queue, no_ack=True, callback=on_message)
    sent: dict[int, float] = {}
    for number, route in enumerate(routes):
        milliseconds = sum(level.ttl for level in route)
        message = Message(str(number), application_headers=addressed({"CC": []}, destination))
        sent[number] = time.monotonic()
        try:
            publisher.publish(PendingMessage(message, now() + milliseconds * 1000, destination))
        except NotRouted:
            yield f"ingest takes no message for {_names(route)}"
            del sent[number]
    deadline = time.monotonic() + 2 * seconds + patience
    while arrived.keys() < sent.keys() and time.monotonic() < deadline:
        try:
            connection.drain_events(timeout=0.5)
        except TimeoutError:
            continue
    for number, at in sent.items():
        due = at + sum(level.ttl for level in routes[number]) / 1000
        if number not in arrived:
            yield f"a message through {_names(routes[number])} has not come back"
        elif arrived[number] < due:
            yield f"a message through {_names(routes[number])} came {due - arrived[number]:.3f} s early"
    channel.close()


def probe_streams(connection: kombu.Connection, streams: Iterable[Stream]) -> Iterator[str]:
    """Yield which of those streams that exist cannot be written or read, and why."""
    with StreamReader(connection, patience=2) as reader:
        for stream in streams:
            try:
                next(reader.read(stream), None)
            except (StreamUnavailable, CascadeMissing) as exc:
                yield str(exc)


def _names(levels: Iterable[Level]) -> str:
    return " and ".join(level.queue for level in levels)
