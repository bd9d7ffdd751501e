"""Sends test messages through a cascade, and checks that they come back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from itertools import combinations

import kombu
from amqp import Message

from ..amqp import declare
from ..amqp.confirms import ConfirmedChannel
from ..amqp.streams import StreamReader
from ..core.destination import Destination
from ..core.errors import CascadeMissing, StreamUnavailable
from ..core.headers import addressed
from ..core.levels import Level, Route
from ..core.parts import Stream
from ..core.topology import Cascade


def probe(connection: kombu.Connection, cascade: Cascade, seconds: float = 2, patience: float = 15) -> Iterator[str]:
    """Send messages through every level of at most `seconds`, and from each of these to each that may follow.

    Yields problems. The messages come back to a queue that exists only for this connection; they may be `patience`
    seconds late. Raises `NotPermitted`, `CascadeMissing`, and `TimeoutError` if the broker does not confirm a message.
    """
    channel = connection.channel()
    queue = channel.queue_declare(f"{cascade.prefix}.probe.{uuid.uuid4()}", exclusive=True, auto_delete=True).queue
    destination = Destination("", (queue,), short_lived=True)
    declare.bind_destination(channel, cascade, destination)
    confirmed = ConfirmedChannel(connection.connection)
    timeout = connection.transport.delay_options.confirm_timeout
    levels = [level for level in cascade.levels if level.ttl <= seconds * 1000]
    routes: list[tuple[Level, ...]] = [(level,) for level in levels]
    routes += [(second, first) for first, second in combinations(levels, 2)]
    arrived: dict[int, float] = {}

    def on_message(message: Message) -> None:
        arrived[int(message.body)] = time.monotonic()

    channel.basic_consume(queue, no_ack=True, callback=on_message)
    sent: dict[int, float] = {}
    for number, route in enumerate(routes):
        exchange, (key, *addresses) = cascade.entry(Route(route, 0), destination)
        headers = addressed({"CC": []}, addresses)
        message = Message(str(number), application_headers=headers)
        sent[number] = time.monotonic()
        with declare.translate_errors(cascade):
            returned = confirmed.publish(message, exchange, key, confirm_timeout=timeout)
        if returned is not None:
            yield f"{exchange} accepts no message for {_named(route)}"
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
            yield f"a message through {_named(routes[number])} has not come back"
        elif arrived[number] < due:
            yield f"a message through {_named(routes[number])} came {due - arrived[number]:.3f} s early"
    confirmed.reset()
    channel.close()


def _named(route: Iterable[Level]) -> str:
    return " and ".join(level.queue for level in route)


def probe_streams(connection: kombu.Connection, streams: Iterable[Stream]) -> Iterator[str]:
    """Yield the reason for each existing stream that cannot be written or read."""
    with StreamReader(connection, patience=2) as reader:
        for stream in streams:
            try:
                next(reader.read_exactly(stream), None)
            except (StreamUnavailable, CascadeMissing) as exc:
                yield str(exc)
