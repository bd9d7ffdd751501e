"""A cascade as data: exchanges, queues and bindings, for all code that declares, verifies, draws or tests it.

Pure. A level's queue holds a message for the level's ticks, then dead-letters it into the level's `done` exchange, which
leads to the queue of the next level in the message's routing key. After the last level the message passes the final
`done` exchange, an outbox of its destination, and an exit, which is an exchange that leads to destinations.

At-least-once dead lettering allows 32 unsettled messages per queue. Without outboxes, a destination that accepts
nothing would therefore block a level for everybody; with them it blocks only its outboxes. An outbox may hold messages
for a round delay: a message with just this delay enters there, and passes no level. A message that cannot be routed
becomes an orphan.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Literal, NamedTuple

from . import routing_key
from .destination import SHORT_LIVED, Address, Destination, read
from .levels import Level, Route, powers_of_two
from .routing_key import MAX_LENGTH

QueueType = Literal["quorum", "classic"]

#: The version of the layout on a broker. Raise it with each change of names, arguments or keys, because a broker keeps
#: the parts that an earlier release declared (docs/how-it-works.md, A later layout).
LAYOUT = 3

#: The highest priority that is normal; quorum queues deliver messages of higher priorities first.
MAX_NORMAL_PRIORITY = 4

#: The clock of quorum queues counts whole milliseconds: a message may leave up to one millisecond before its TTL.
EXPIRY_MARGIN_MS = 1

_MILLISECOND = timedelta(milliseconds=1)


class Exchange(NamedTuple):
    """An exchange.

    The bindings of a direct one route as soon as they exist. Not so for topic exchanges: while another connection
    creates a binding, RabbitMQ with Mnesia reports that it exists before it routes messages.
    """

    name: str
    type: str = "direct"
    arguments: Mapping[str, str] = MappingProxyType({})


class Queue(NamedTuple):
    name: str
    arguments: Mapping[str, str | int]

    @property
    def seconds(self) -> float:
        """The minimum time, in seconds, that a message stays in this queue."""
        return max(0, int(self.arguments["x-message-ttl"]) - EXPIRY_MARGIN_MS) / 1000


class Binding(NamedTuple):
    source: str
    destination: str
    destination_type: Literal["exchange", "queue"]
    routing_key: str


class Stream(NamedTuple):
    """A stream beside a cascade."""

    name: str
    routing_key: str  # from the exchange behind ingest
    max_age: int  # seconds
    segment: int  # bytes

    @property
    def queue(self) -> Queue:
        arguments: dict[str, str | int] = {
            "x-queue-type": "stream",
            "x-max-age": f"{self.max_age}s",
            "x-stream-max-segment-size-bytes": self.segment,
        }
        return Queue(self.name, arguments)


@dataclass(frozen=True)
class Cascade:
    """Levels of 1, 2, 4, ... ticks, under names that begin with `prefix`, and the outboxes of their destinations.

    Names contain everything that decides how a part is declared: the version of the layout, the tick, and the type of
    classic queues. Cascades that differ in any of these exist side by side, and no release publishes into the layout of
    another one. Only the name of `marker` contains the number of levels: cascades with more or fewer levels share those
    that they have in common, and a message needs only the levels in its key.

    Quorum queues of RabbitMQ 4.0 to 4.2 distinguish two priorities, up to 4 and above
    (https://www.rabbitmq.com/docs/4.0/quorum-queues#priorities), and look for expired messages only at the head. In a
    shared queue, normal messages would therefore wait for high ones. `high` stands for the levels of messages above
    `MAX_NORMAL_PRIORITY` there; both kinds share everything from `done` on.
    """

    prefix: str
    tick: timedelta  # whole milliseconds
    powers: int  # levels of 2^0 to 2^(powers - 1) ticks
    queue_type: QueueType = "quorum"
    high: bool = False

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The levels, the shortest first. Messages visit them in the opposite order."""
        return tuple(self._level(1 << power) for power in range(self.powers))

    def _level(self, ticks: int) -> Level:
        queue = f"{self.base_name}.delay.{self.milliseconds(ticks)}"
        return Level(ticks, self.milliseconds(ticks), queue, f"{queue}.done")

    def milliseconds(self, ticks: int) -> int:
        return ticks * (self.tick // _MILLISECOND)

    @property
    def max_ticks(self) -> int:
        """The sum of all powers of two: the longest delay, in ticks."""
        return (1 << self.powers) - 1

    def route(self, ticks: int, outbox: int) -> Route:
        """Return the route through the levels that add up to `ticks`, and an outbox with a delay in ticks."""
        return Route(tuple(self.levels[one.bit_length() - 1] for one in powers_of_two(ticks)), outbox)

    def entry(self, route: Route, destination: Destination) -> tuple[str, tuple[str, ...]]:
        """Return the exchange to publish to, and all keys for a route to a destination; the first is the routing key.

        Without a level, the message enters the outbox itself.
        """
        addresses = destination.outbox_address(self.milliseconds(route.outbox)), destination.address
        if route.levels:
            return self.ingest, (routing_key.key(route.levels), *addresses)
        return self.outbox_ingest, addresses

    @cached_property
    def root(self) -> str:
        """The common prefix of all names of the cascade."""
        return self.root_of(LAYOUT)

    def root_of(self, layout: int) -> str:
        """Return the root in another layout. Where the exchange of that name exists, that layout is in use."""
        milliseconds = self.tick // _MILLISECOND
        return f"{self.prefix}.v{layout}.{milliseconds}ms" + (".classic" if self.queue_type == "classic" else "")

    @property
    def base_name(self) -> str:
        """The common prefix of the names of ingest and of the levels."""
        return f"{self.root}.high" if self.high else self.root

    @cached_property
    def ingest(self) -> str:
        return f"{self.base_name}.ingest"

    @property
    def behind_ingest(self) -> str:
        """The exchange that leads from ingest to the levels and to the streams."""
        return f"{self.base_name}.route"

    @property
    def outbox_ingest(self) -> str:
        """The exchange for messages whose delay is that of an outbox.

        It has no alternate exchange, unlike `done`: a message for an outbox that was deleted returns to its publisher.
        """
        return f"{self.root}.ingest.outboxes"

    @property
    def done(self) -> str:
        return f"{self.root}.done"

    @property
    def exit(self) -> str:
        return f"{self.root}.exit"

    @property
    def short_lived_exit(self) -> str:
        """The exit of the outbox that short-lived queues share.

        It leads to no exchange: what one of these cannot route stays in the outbox that it came from.
        """
        return f"{self.exit}.short-lived"

    @property
    def exits(self) -> tuple[str, str]:
        """The exchanges that lead to destinations."""
        return self.exit, self.short_lived_exit

    @property
    def orphans(self) -> str:
        return f"{self.root}.orphans"

    @property
    def lost(self) -> str:
        """The exchange of the orphans. No queue has its name, so that permission to bind it does not allow purging."""
        return f"{self.root}.lost"

    @property
    def discard(self) -> str:
        return f"{self.root}.discard"

    @property
    def marker(self) -> str:
        """The exchange that is declared last: if it exists, all levels and their bindings to each other exist.

        RabbitMQ from 4.3 shows an exchange only to users with some permission on it
        (https://github.com/rabbitmq/rabbitmq-server/releases/tag/v4.3.1), hence a name that a publisher's permission
        to write to ingest can cover.
        """
        return f"{self.ingest}.{self.powers}"

    def exchanges(self) -> Iterator[Exchange]:
        """Yield all exchanges; the last one is `marker`, to be declared after queues and bindings."""
        # Without an alternate exchange, so that a message that no queue takes returns to its publisher (mandatory).
        yield Exchange(self.ingest, "fanout")
        yield Exchange(self.behind_ingest, "topic")
        yield Exchange(self.outbox_ingest)
        way_out: dict[str, str] = {"alternate-exchange": self.lost}
        for level in self.levels:
            yield Exchange(level.done, "topic", way_out)  # a forged key may lead to no other level
        yield Exchange(self.lost, "fanout")
        yield Exchange(self.done, arguments=way_out)
        for name in self.exits:
            yield Exchange(name, arguments=way_out)
        yield Exchange(self.root, "fanout")
        yield Exchange(self.marker, "fanout")

    def queues(self) -> Iterator[Queue]:
        for level in self.levels:
            yield self._passing(level.queue, level.ttl, level.done)
        yield self._passing(self._outbox_name(SHORT_LIVED), 0, self.short_lived_exit)
        yield Queue(self.orphans, {"x-queue-type": self.queue_type, **self._kept})
        yield Queue(self.discard, {"x-queue-type": self.queue_type, "x-message-ttl": 0})

    @property
    def _kept(self) -> dict[str, str | int]:
        # From 4.0 on, a quorum queue drops, or dead-letters early, a message that was read and returned 20 times
        # (https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling).
        return {"x-delivery-limit": 1_000_000_000} if self.queue_type == "quorum" else {}

    def _passing(self, name: str, delay: int, dead_letter_exchange: str) -> Queue:
        """Return a queue that hands on each message after a delay in milliseconds, and loses none."""
        arguments: dict[str, str | int] = {
            "x-queue-type": self.queue_type,
            "x-message-ttl": delay + EXPIRY_MARGIN_MS if delay else 0,
            "x-dead-letter-exchange": dead_letter_exchange,
        }
        if self.queue_type == "quorum":
            # https://www.rabbitmq.com/docs/quorum-queues#dead-lettering
            arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
            # Otherwise the client's node leads all queues. For classic queues RabbitMQ 3.10 lacks this argument.
            arguments |= {"x-queue-leader-locator": "balanced"}
        return Queue(name, {**arguments, **self._kept})

    def bindings(self) -> Iterator[Binding]:
        yield Binding(self.ingest, self.behind_ingest, "exchange", "")
        for index, level in enumerate(self.levels):
            yield Binding(self.behind_ingest, level.queue, "queue", routing_key.entry_pattern(level))
            for lower in self.levels[:index]:
                yield Binding(level.done, lower.queue, "queue", routing_key.next_pattern(level, lower))
            yield Binding(level.done, self.done, "exchange", routing_key.exit_pattern(level))
        yield Binding(self.done, self._outbox_name(SHORT_LIVED), "queue", SHORT_LIVED)
        yield Binding(self.lost, self.orphans, "queue", "")

    def stream_binding(self, stream: Stream) -> Binding:
        """Return the binding that leads from ingest to a stream."""
        return Binding(self.behind_ingest, stream.name, "queue", stream.routing_key)

    @property
    def outbox_prefix(self) -> str:
        """The common prefix of the names of outboxes."""
        return f"{self.root}.out."

    def outbox_address(self, queue: str) -> str | None:
        """Return the address of an outbox by its name, as far as the name says it; None for other queues."""
        if not queue.startswith(self.outbox_prefix):
            return None
        return f"{routing_key.SENTINEL}.{queue.removeprefix(self.outbox_prefix)}"

    def outbox_of(self, queue: str) -> Address | None:
        """Return what the name of an outbox says; None for other queues, and for that of the short-lived queues."""
        address = self.outbox_address(queue)
        return address and read(address)  # type: ignore[return-value]

    def _outbox_name(self, address: str) -> str:
        name = self.outbox_prefix + address.removeprefix(f"{routing_key.SENTINEL}.")
        if len(name.encode()) <= MAX_LENGTH:
            return name
        found = read(address)
        digest = hashlib.sha256(address.encode()).hexdigest()[:40]
        return f"{self.outbox_prefix}{found.mark if found else ''}!{digest}"

    def outbox_name(self, destination: Destination, ticks: int = 0) -> str:
        """Return the name of the queue in which messages wait for a delay, and until their destination accepts them."""
        return self._outbox_name(destination.outbox_address(self.milliseconds(ticks)))

    def outbox(self, destination: Destination, ticks: int = 0) -> Queue:
        """Return the outbox of a destination with a delay."""
        name = self.outbox_name(destination, ticks)
        return self._passing(name, self.milliseconds(ticks), self._exit_of(destination))

    def outbox_bindings(self, destination: Destination, ticks: int = 0) -> Iterator[Binding]:
        """Yield the bindings to the outbox of a destination with a delay. The shared one is part of the cascade."""
        if destination.short_lived:
            return
        name, address = self.outbox_name(destination, ticks), destination.outbox_address(self.milliseconds(ticks))
        if ticks:
            yield Binding(self.outbox_ingest, name, "queue", address)
        yield Binding(self.done, name, "queue", address)

    def _exit_of(self, destination: Destination) -> str:
        return self.short_lived_exit if destination.short_lived else self.exit

    def exit_bindings(self, destination: Destination) -> Iterator[Binding]:
        """Yield the bindings from exits to a destination.

        Both exits lead to a queue that looks short-lived: publishers that did not declare it go by its name.
        """
        for taken_for in dict.fromkeys((destination, destination.by_name)):
            for queue in taken_for.queues:
                yield Binding(self._exit_of(taken_for), queue, "queue", taken_for.address)
        if destination.exchange:
            # A message that the user's exchange cannot route stays in its outbox, although `exit` has routed it.
            yield Binding(self.exit, destination.exchange, "exchange", destination.address)
        if destination.fanout:
            yield Binding(self.exit, self.discard, "queue", destination.address)


class Topology(NamedTuple):
    """All parts of some cascades and of their routes to some destinations, each once, by name."""

    exchanges: dict[str, Exchange]
    queues: dict[str, Queue]
    bindings: dict[Binding, None]

    @classmethod
    def of(
        cls,
        cascades: Iterable[Cascade],
        destinations: Iterable[Destination] = (),
        streams: Iterable[Stream] = (),
        outboxes: Iterable[int] = (),
    ) -> Topology:
        """Return the parts of some cascades, with outboxes of so many ticks besides those without a delay."""
        topology = cls({}, {}, {})
        destinations, streams, outboxes = list(destinations), list(streams), list(outboxes)
        for cascade in cascades:
            topology.exchanges.update((exchange.name, exchange) for exchange in cascade.exchanges())
            topology.queues.update((queue.name, queue) for queue in cascade.queues())
            topology.bindings.update(dict.fromkeys(cascade.bindings()))
            for destination in destinations:
                topology.bindings.update(dict.fromkeys(cascade.exit_bindings(destination)))
                for ticks in (0, *outboxes) if not destination.short_lived else ():
                    outbox = cascade.outbox(destination, ticks)
                    topology.queues[outbox.name] = outbox
                    topology.bindings.update(dict.fromkeys(cascade.outbox_bindings(destination, ticks)))
            for stream in streams:
                topology.queues[stream.name] = stream.queue
                topology.bindings[cascade.stream_binding(stream)] = None
        return topology
