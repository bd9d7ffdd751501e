"""Ways to have a message delivered later, as a user would pick them, each in a fresh vhost of its own."""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any
from unittest import mock

import amqp
import kombu

from celery_rabbit_delay import Options
from celery_rabbit_delay.delay.core import headers as headers_
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.delay.core.topology import Cascade, Queue
from tests.kit.broker import Broker, lead_to, make_streams, publishing
from tests.kit.node import Node

Log = Callable[[str], None]

#: Ours, installed with `schedule=True`.
SCHEDULE = "with the schedule"

QUEUE = "bench"
DESTINATION = Destination("", QUEUE)
BODY = "x" * 200  # about what Celery's protocol sends for a small task


class Contender:
    """Publishes to `QUEUE`; this one without a delay, which is the floor."""

    name = "no delay"
    scheme = "amqp"
    exchange = kombu.Exchange("")

    def __init__(self, url: str, confirm: bool = False, **options: Any) -> None:
        transport_options = {
            "confirm_publish": confirm,
            # A broker that slows a publisher down for longer than py-amqp's second is not a lost connection here.
            "socket_settings": {socket.TCP_USER_TIMEOUT: 300_000},
            **self.transport_options(confirm, options),
        }
        self.connection = kombu.Connection(url.replace("amqp", self.scheme, 1), transport_options=transport_options)
        self.producer = self.connection.Producer()
        arguments = {"x-queue-type": "quorum"}
        self.queue = kombu.Queue(QUEUE, self.exchange, routing_key=QUEUE, queue_arguments=arguments)
        self.queue(self.connection.default_channel).declare()
        self.prepare()

    def transport_options(self, confirm: bool, options: dict[str, Any]) -> dict[str, Any]:
        return {}

    def prepare(self) -> None:
        """Declare what it needs besides the queue."""

    def prepare_for(self, delays: Sequence[float]) -> None:
        """Declare what messages with these delays need, so that it is not measured."""

    def publish(self, delay: float, body: Any = BODY, **options: Any) -> None:
        """Publish a message as a user does."""
        self.producer.publish(body, routing_key=QUEUE, **options)

    def burst(self, delays: Sequence[float], body: str = BODY) -> None:
        """Send messages as fast as py-amqp can: what Python does for each delay, it does once, beforehand."""
        wires = {delay: self.wire(delay) for delay in set(delays)}
        channel = self.connection.connection.channel()  # stays open: nobody waits for a confirm
        for delay in delays:
            exchange, key, headers = wires[delay]
            sent = amqp.Message(body, delivery_mode=2, application_headers=headers)
            channel._basic_publish(sent, exchange, key)

    def wire(self, delay: float) -> tuple[str, str, dict[str, Any]]:
        """Return exchange, routing key and headers of a message."""
        return "", QUEUE, {}

    def close(self) -> None:
        self.connection.close()


class Ours(Contender):
    name = "celery-rabbit-delay"
    scheme = "rabbit-delay"

    def transport_options(self, confirm: bool, options: dict[str, Any]) -> dict[str, Any]:
        return {"rabbit_delay": options}

    def prepare(self) -> None:
        self.publish(0.001, body="warm-up")
        take(self.connection, 1)

    def publish(self, delay: float, body: Any = BODY, **options: Any) -> None:
        self.producer.publish(body, routing_key=QUEUE, headers={"x-delay": delay * 1000}, **options)

    def prepare_for(self, delays: Sequence[float]) -> None:
        options = self.options
        outboxes = {options.route(options.cascade, options.ticks(round(delay * 1_000_000))).outbox for delay in delays}
        with publishing(self.connection) as publisher:
            lead_to(publisher.channel.get_channel(), options.cascade, DESTINATION, outboxes | {0})

    @property
    def options(self) -> Options:
        found: Options = self.connection.transport.delay_options
        return found

    def wire(self, delay: float) -> tuple[str, str, dict[str, Any]]:
        options = self.options
        due = datetime.now(timezone.utc) + timedelta(seconds=delay)
        headers = headers_.wrap({}, options.cascade.root, "", QUEUE, due)
        route = options.route(options.cascade, options.ticks(round(delay * 1_000_000)))
        exchange, (key, *others) = options.cascade.entry(route, DESTINATION)
        return exchange, key, {**headers, "CC": list(others)} if others else headers


class OursBare(Ours):
    """The floor: messages with the addresses of ours, and nothing else."""

    name = "addresses alone"

    def wire(self, delay: float) -> tuple[str, str, dict[str, Any]]:
        exchange, key, headers = super().wire(delay)
        return exchange, key, {name: headers[name] for name in headers.keys() & {"CC"}}


@dataclass(frozen=True)
class Hurried(Cascade):
    """A cascade in which no level and no outbox takes longer than a second: hops as always, but nobody waits long."""

    def _passing(self, name: str, delay: int, dead_letter_exchange: str) -> Queue:
        return super()._passing(name, min(delay, 1000), dead_letter_exchange)


class HurriedOptions(Options):
    @cached_property
    def cascade(self) -> Cascade:
        cascade = super().cascade
        return Hurried(**{field.name: getattr(cascade, field.name) for field in fields(Cascade)})


class OursHurried(Ours):
    """Ours, with levels and outboxes of a second at most."""

    def transport_options(self, confirm: bool, options: dict[str, Any]) -> dict[str, Any]:
        return {"rabbit_delay": HurriedOptions()}


class Native(Contender):
    """Celery's native delayed delivery: Kombu's own functions, since 5.5."""

    name = "native delayed delivery"
    exchange = kombu.Exchange("bench", type="topic")

    def prepare(self) -> None:
        from kombu.transport import native_delayed_delivery as native

        self.lead_to(self.connection, self.queue)
        self.key = native.calculate_routing_key

    @staticmethod
    def lead_to(connection: kombu.Connection, queue: kombu.Queue) -> None:
        """Do what a worker does at its start."""
        from kombu.transport import native_delayed_delivery as native

        native.declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
        native.bind_queue_to_native_delayed_delivery_exchange(connection, queue)

    def publish(self, delay: float, body: Any = BODY, **options: Any) -> None:
        key = self.key(int(delay), QUEUE)
        self.producer.publish(body, exchange="celery_delayed_27", routing_key=key, **options)

    def wire(self, delay: float) -> tuple[str, str, dict[str, Any]]:
        return "celery_delayed_27", self.key(int(delay), QUEUE), {}


class NativeHurried(Native):
    """The same, with queues of a second each."""

    @staticmethod
    def lead_to(connection: kombu.Connection, queue: kombu.Queue) -> None:
        with mock.patch("kombu.transport.native_delayed_delivery.pow", create=True, return_value=1):
            Native.lead_to(connection, queue)


class QueuePerDelay(Contender):
    """A queue with a TTL for each delay, in whole seconds, as the classic articles do it."""

    name = "one queue per delay"

    def prepare(self) -> None:
        self.channel = self.connection.default_channel
        self.declared: set[int] = set()

    def prepare_for(self, delays: Sequence[float]) -> None:
        for delay in delays:
            self.declared_for(delay)

    def publish(self, delay: float, body: Any = BODY, **options: Any) -> None:
        self.producer.publish(body, routing_key=self.declared_for(delay), **options)

    def wire(self, delay: float) -> tuple[str, str, dict[str, Any]]:
        return "", self.declared_for(delay), {}

    def declared_for(self, delay: float) -> str:
        """Declare the queue for a delay, once, and return its name."""
        seconds = round(delay)
        if seconds not in self.declared:
            self.declared.add(seconds)
            arguments = {
                "x-queue-type": "quorum",
                "x-message-ttl": seconds * 1000,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": QUEUE,
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            }
            self.channel.queue_declare(f"wait.{seconds}", durable=True, auto_delete=False, arguments=arguments)
        return f"wait.{seconds}"


class MessageTTL(QueuePerDelay):
    """One queue for all delays and a TTL for each message: whoever is at the head holds up the rest."""

    name = "one queue, a TTL per message"

    def prepare(self) -> None:
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": QUEUE, "x-queue-type": "quorum"}
        channel = self.connection.default_channel
        channel.queue_declare("wait", durable=True, auto_delete=False, arguments=arguments)

    def publish(self, delay: float, body: Any = BODY, **options: Any) -> None:
        self.producer.publish(body, routing_key="wait", expiration=delay, **options)


@contextmanager
def vhost(node: Node) -> Iterator[str]:
    """Yield the URL of a fresh vhost."""
    with Broker(node).vhost() as fresh:
        yield fresh.url("amqp")


def with_streams(url: str) -> str:
    """Create the streams of the schedule on a vhost, as a worker does when it starts; return its URL."""
    make_streams(url.replace("amqp", Ours.scheme, 1), {"schedule": True})
    return url


def take(connection: kombu.Connection, amount: int, timeout: float = 60) -> int:
    """Consume so many messages from `QUEUE`, without acknowledging them, which would cost all contenders the same.

    Returns how many came: fewer where a contender has lost some, of which nobody asked for a confirm.
    """
    taken = 0
    channel = connection.connection.channel()

    def on_message(message: Any) -> None:
        nonlocal taken
        taken += 1

    channel.basic_consume(QUEUE, callback=on_message, no_ack=True)
    with suppress(TimeoutError):
        while taken < amount:
            connection.drain_events(timeout=timeout)
    channel.close()
    return taken


def receiving(url: str, amount: int) -> Callable[[], list[float]]:
    """Start a process that consumes so many messages, whose bodies begin with the time when they are due.

    Returns a function that waits for it, and returns how many seconds late each message was.
    """
    there, here = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_receive, args=(url, amount, here))
    process.start()

    def lateness() -> list[float]:
        late: list[float] = there.recv()
        process.join()
        return late

    return lateness


def _receive(url: str, amount: int, lateness: Any) -> None:
    late: list[float] = []
    with kombu.Connection(url) as connection:
        channel = connection.default_channel

        def on_message(message: Any) -> None:
            late.append(time.time() - float(message.body.split()[0]))

        channel.basic_consume(QUEUE, callback=on_message, no_ack=True)
        while len(late) < amount:
            connection.drain_events(timeout=300)
    lateness.send(late)
