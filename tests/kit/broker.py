"""A private node as tests see it: fresh vhosts, users, and what is on the broker, through the management API."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import kombu

from celery_rabbit_delay import Options
from celery_rabbit_delay.delay.amqp import declare, routes
from celery_rabbit_delay.delay.amqp.publisher import DelayedPublisher
from celery_rabbit_delay.delay.amqp.sender import Turn
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.delay.core.topology import Cascade
from tests.kit.abilities import Ability
from tests.kit.node import Node
from tests.kit.wait import wait_until

#: Short ticks make timing tests short and honest; few levels are quick to declare.
QUICK: dict[str, Any] = {"tick": 0.01, "max_delay": 120}

#: Those of `install` instead.
DEFAULTS: dict[str, Any] = {"tick": Options.tick, "max_delay": Options.max_delay}

#: The delay's tests pass without the schedule, too: see tools/delay_alone.py.
SCHEDULE = "celery_rabbit_delay.schedule"
if find_spec(SCHEDULE):
    QUICK["schedule"] = True


def quick(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return quick options with others; without the schedule nothing is recorded, whatever a test asks for."""
    given = {**QUICK, **options}
    return given if given.get("schedule") else {name: value for name, value in given.items() if name != "journal"}


#: Seconds to wait for messages through queues that several connections declare at the same moment: RabbitMQ tells the
#: second one that a quorum queue exists before it takes messages, and tries those again after three minutes.
DECLARED_TWICE = 200


#: The arguments of a queue that takes one message and refuses the others.
REFUSING = {"x-max-length": 1, "x-overflow": "reject-publish"}


class Broker:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.api = node.api

    @cached_property
    def version(self) -> tuple[int, ...]:
        return tuple(map(int, self.api("GET", "/overview")["rabbitmq_version"].split(".")))

    def add_vhost(self) -> Vhost:
        vhost = Vhost(self, f"t-{uuid.uuid4().hex[:8]}")
        self.api("PUT", f"/vhosts/{vhost.name}")
        self.api("PUT", f"/permissions/{vhost.name}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        return vhost

    def has(self, ability: Ability) -> bool:
        return ability.is_in(self.version)

    @contextmanager
    def vhost(self) -> Iterator[Vhost]:
        vhost = self.add_vhost()
        try:
            yield vhost
        finally:
            for user in vhost.users:
                self.api("DELETE", f"/users/{user}")
            if not self.has(Ability.SURVIVES_TWO_CRASHES):
                # A level that goes while it elects its leader may end all dead-lettering of the node, and with it all
                # quorum queues that need it (rabbitmq-server #16652, seen on 3.10.8).
                time.sleep(0.2)
            self.api("DELETE", f"/vhosts/{vhost.name}")


#: What the package waits for a new queue. Most tests do not: see tests/conftest.py.
SAVED_AFTER, STARTED_AFTER = declare.SAVED_AFTER, declare.STARTED_AFTER


@contextmanager
def waiting_for_queues() -> Iterator[None]:
    """Let publishers of this process wait for new queues as the package does.

    For a node that is killed before its disk has them, or publishers that create one at once: before 4.1, it may be
    used before it has its TTL.
    """
    waited = declare.SAVED_AFTER, declare.STARTED_AFTER
    declare.SAVED_AFTER, declare.STARTED_AFTER = SAVED_AFTER, STARTED_AFTER
    try:
        yield
    finally:
        declare.SAVED_AFTER, declare.STARTED_AFTER = waited


@contextmanager
def own_node(**options: Any) -> Iterator[Vhost]:
    """Yield a vhost on a node of its own, for a test that others would notice; `options` are those of `Node`."""
    with waiting_for_queues(), Node(plugins=("rabbitmq_management",), **options) as node:
        yield Broker(node).add_vhost()


@dataclass
class Vhost:
    broker: Broker
    name: str
    users: list[str] = field(default_factory=list)

    def url(self, scheme: str = "rabbit-delay", user: str = "guest", port: int | None = None) -> str:
        return f"{scheme}://{user}:{user}@127.0.0.1:{port or self.broker.node.port}/{self.name}"

    def connection(
        self,
        user: str = "guest",
        confirm_publish: bool = False,
        has_streams: bool = True,
        port: int | None = None,
        **options: Any,
    ) -> kombu.Connection:
        """Return a Kombu connection with our transport and quick options; the streams for its records are there.

        `port` is that of a proxy.
        """
        if has_streams and options.get("journal") is not None:
            self.make_streams(options)
        transport_options = {"rabbit_delay": quick(options), "confirm_publish": confirm_publish}
        return kombu.Connection(self.url(user=user, port=port), transport_options=transport_options)

    def make_streams(self, options: Mapping[str, Any]) -> None:
        """Create the streams of the schedule, if it is among some options, as a worker does when it starts."""
        given = quick({**options, "declare": "auto"})
        if given.get("schedule"):
            make_streams(self.url(), given)

    def plain(self) -> kombu.Connection:
        """Return a Kombu connection with Kombu's own transport.

        It confirms: what a quorum queue has been sent without a confirm may be lost when the channel is closed.
        """
        return kombu.Connection(self.url("amqp"), transport_options={"confirm_publish": True})

    def user(self, configure: str, write: str, read: str) -> str:
        name = f"u-{uuid.uuid4().hex[:8]}"
        self.broker.api("PUT", f"/users/{name}", {"password": name, "tags": ""})
        self.users.append(name)
        self.broker.api(
            "PUT", f"/permissions/{self.name}/{name}", {"configure": configure, "write": write, "read": read}
        )
        return name

    def declare(self, *queues: str, exchange: str = "", kind: str = "direct", arguments: Any = None) -> None:
        """Declare durable queues, each bound by its name to an exchange if one is named."""
        with self.plain() as connection:
            channel = connection.default_channel
            if exchange:
                channel.exchange_declare(exchange, kind, durable=True, auto_delete=False)
            for queue in queues:
                channel.queue_declare(queue, durable=True, auto_delete=False, arguments=arguments)
                if exchange:
                    channel.queue_bind(queue, exchange, queue)

    def publish(self, queue: str, *delays: float, **options: Any) -> None:
        """Publish messages to a queue, with delays in seconds."""
        with self.connection() as connection:
            lead(connection, queue, delays)
            for delay in delays:
                publish(connection, delay, queue, **options)

    def publish_one(self, user: str = "guest", **options: Any) -> None:
        """Publish a message to the queue "q", delayed by 20 ms, over a connection with options of its own."""
        with self.connection(user, **options) as connection:
            publish(connection, 0.02)

    def connections(self) -> list[str]:
        rows = self.broker.api("GET", f"/vhosts/{self.name}/connections?columns=name")
        return [row["name"] for row in rows]

    def names(self, kind: str) -> list[str]:
        """Return the names of "queues" or "exchanges", without those that RabbitMQ makes itself."""
        rows = self.broker.api("GET", f"/{kind}/{self.name}?columns=name")
        return sorted(row["name"] for row in rows if row["name"] and not row["name"].startswith("amq."))

    def bindings(self) -> set[tuple[str, str, str, str]]:
        """Return (source, destination, kind, routing key) of each binding, without those of the default exchange."""
        rows = self.broker.api("GET", f"/bindings/{self.name}")
        return {(r["source"], r["destination"], r["destination_type"], r["routing_key"]) for r in rows if r["source"]}

    def arguments(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.broker.api("GET", f"/{kind}/{self.name}/{quote(name, safe='')}")["arguments"]
        return found

    def policy(self, name: str, definition: dict[str, Any], pattern: str = ".*", priority: int = 0) -> None:
        """Set a policy for queues, and return once it is in force for those that match its pattern."""
        policy = {"pattern": pattern, "priority": priority, "apply-to": "queues", "definition": definition}
        self.broker.api("PUT", f"/policies/{self.name}/{name}", policy)
        queues = f"/queues/{self.name}?columns=name,policy,type"

        def is_in_force(queue: dict[str, Any]) -> bool:
            if not re.search(pattern, queue["name"]):
                return True
            return queue.get("policy") == name or queue["type"] == "stream"  # to which such policies do not apply

        wait_until(lambda: all(map(is_in_force, self.broker.api("GET", queues))), "the policy is in force")

    def delay_retries(self, pattern: str = "") -> None:
        """Make what comes back to queues that are not there yet wait for a minute, where RabbitMQ can."""
        if self.broker.has(Ability.DELAYS_RETRIES):
            self.policy("retries", {"delayed-retry-type": "all", "delayed-retry-min": 60_000}, pattern)

    def close_connections(self, name: str = "") -> None:
        """Close the connections whose clients give a name, or all, as operators do, once there is one."""

        def close() -> int:
            closed = 0
            for row in self.broker.api("GET", f"/vhosts/{self.name}/connections"):
                if name in row["client_properties"].get("connection_name", ""):
                    with suppress(HTTPError):  # one that is gone already
                        self.broker.api("DELETE", f"/connections/{quote(row['name'], safe='')}")
                        closed += 1
            return closed

        wait_until(close, "the management API lists a connection")

    def delete_exchange(self, name: str) -> None:
        self.broker.api("DELETE", f"/exchanges/{self.name}/{quote(name, safe='')}")

    def delete_queue(self, name: str) -> None:
        self.broker.api("DELETE", f"/queues/{self.name}/{quote(name, safe='')}")

    def consumers(self, queue: str) -> list[int]:
        """Return the prefetch counts of the consumers of a queue."""
        rows = self.broker.api("GET", f"/consumers/{self.name}")
        return sorted(row["prefetch_count"] for row in rows if row["queue"]["name"] == queue)

    def count(self, *queues: str) -> int:
        """Return how many messages are ready in some queues."""

        def count(queue: str) -> int:  # RabbitMQ says 0, too, when a leader takes long to answer
            counts = (int(channel.queue_declare(queue, passive=True).message_count) for _ in range(3))
            return next(filter(None, counts), 0)

        with self.plain() as connection:
            channel = connection.default_channel
            return sum(map(count, queues))

    def levels_and_outboxes(self) -> list[str]:
        return [name for name in self.names("queues") if ".delay." in name or ".out." in name]

    def waiting(self) -> dict[str, int]:
        """Return how many messages levels and outboxes hold, by their names, without empty ones."""
        names = self.levels_and_outboxes()
        with self.plain() as connection:
            channel = connection.default_channel
            counts = {name: int(channel.queue_declare(name, passive=True).message_count) for name in names}
        return {name: count for name, count in counts.items() if count}

    def take(self, queue: str, amount: int, timeout: float = 60) -> list[Any]:
        """Take so many raw messages, as Kombu's own transport sees them."""
        with self.plain() as connection:
            try:
                return take(connection, queue, amount, timeout)
            except AssertionError as exc:
                rows = self.broker.api("GET", f"/queues/{self.name}?columns=name,messages,messages_ready,state,leader")
                raise AssertionError(f"{exc}; there are {[row for row in rows if row.get('messages')]}") from None

    @property
    def cascade(self) -> Any:
        return Options(**QUICK).cascade


def make_streams(url: str, options: Mapping[str, Any]) -> None:
    """Create the streams that options with the schedule want, as a worker does when it starts."""
    # By name: the delay's tests are those that import nothing of the schedule.
    create, streams = map(import_module, (f"{SCHEDULE}.amqp.create_streams", f"{SCHEDULE}.core.streams"))
    with kombu.Connection(url, transport_options={"rabbit_delay": options}) as connection:
        create.make_streams(connection, streams.wanted(Options.parse(options)))


def publish(connection: Any, delay: float, routing_key: str = "q", headers: Any = None, **options: Any) -> None:
    """Publish a message with a delay in seconds."""
    headers = {"x-delay": delay * 1000, **(headers or {})}
    connection.Producer().publish("x", routing_key=routing_key, headers=headers, **options)


def take(connection: kombu.Connection, queue: str | list[str], amount: int, timeout: float = 60) -> list[Any]:
    """Take so many messages from queues, or more if more came along with the last, and acknowledge them."""
    messages: list[Any] = []
    channel = connection.channel()

    def on_message(message: Any) -> None:
        message.ack()
        messages.append(message)

    queues = [kombu.Queue(name, no_declare=True) for name in ([queue] if isinstance(queue, str) else queue)]
    with kombu.Consumer(channel, queues, on_message=on_message, auto_declare=False):
        while len(messages) < amount:
            try:
                connection.drain_events(timeout=timeout)
            except TimeoutError:
                raise AssertionError(f"{len(messages)} of {amount} messages came to {queue!r}") from None
    channel.close()
    return messages


def lead(connection: kombu.Connection, queue: str, delays: Iterable[float] = ()) -> None:
    """Lead to a queue, also through the outboxes with just some delays in seconds."""
    with publishing(connection) as publisher:
        ticks = {publisher.options.ticks(round(seconds * 1_000_000)) for seconds in delays}
    ensure(connection, Destination("", queue), *ticks)


@contextmanager
def publishing(connection: kombu.Connection) -> Iterator[DelayedPublisher]:
    """Yield the publisher of a connection, in a turn with the connection of its own."""
    sender = connection.connection.sender
    with Turn(sender, 60):
        yield sender.publisher()


def as_another_process() -> None:
    """Forget what this process knows of the broker."""
    routes._all.clear()


def waits_by_time(connection: kombu.Connection) -> bool:
    """Return whether the messages of a connection wait for a delivery time, in outboxes without a delay."""
    with publishing(connection) as publisher:
        return publisher.cascade.by_time


def ensure(connection: kombu.Connection, destination: Destination, *outboxes: int) -> None:
    """Lead to a destination, also through its outboxes with delays in ticks, as far as the options have these.

    Messages use these at once, as if another process had created them a while ago.
    """
    with publishing(connection) as publisher:
        publisher.routes.ensure(publisher.channel, destination)
        known = publisher.routes._known.get(destination)
        if known is None or publisher.cascade.by_time:
            return
        known.started, combined = 0, publisher.options.combined_in(publisher.cascade)
        some = {*combined, *(ticks for ticks in outboxes if ticks in publisher.options.outbox_ticks)}
        if publisher.options.declare == "auto" and some:
            lead_to(publisher.channel.get_channel(), publisher.cascade, destination, some)
            known.combined, known.missing = combined, None


def lead_to(channel: Any, cascade: Cascade, destination: Destination, outboxes: Iterable[int]) -> None:
    """Create outboxes of a destination with some delays in ticks, and lead to them."""
    declare.declare_outboxes(channel, cascade, destination, [*outboxes])
    declare.bind_outboxes(channel, cascade, destination, [*outboxes])
