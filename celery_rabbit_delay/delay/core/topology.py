"""A cascade as data: exchanges, queues, bindings, and so which levels lead to which. All declare and verify it so.

Pure. A level's queue holds a message for the level's ticks, then dead-letters it into the level's `done` exchange,
which leads to the queue of the next level in the message's routing key. After the last level the message passes the
final `done` exchange and an outbox of its destination, which dead-letters there: nothing is bound to what is not ours.

At-least-once dead lettering allows 32 unsettled messages per queue. Without outboxes, a destination that accepts
nothing would therefore block a level for everybody; with them it blocks only its outboxes, whose messages reach it once
it is there. An outbox may hold messages for a round delay: a message with just this delay enters there, and passes no
level. A message whose outbox was deleted becomes an orphan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal, NamedTuple

from . import routing_key
from .destination import SHORT_LIVED, Destination
from .levels import Level, Route, powers_of_two
from .names import Names

#: The clock of quorum queues counts whole milliseconds: a message may leave up to one millisecond before its TTL.
EXPIRY_MARGIN_MS = 1


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


_QUORUM: dict[str, str | int] = {"x-queue-type": "quorum"}

#: From 4.0 on, a quorum queue drops, or dead-letters early, a message that was read and returned 20 times
#: (https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling). From 4.3 on, a policy may make it wait before
#: it is there again, in milliseconds: of the policy's and the queue's own maximum the lower holds, while the argument
#: `x-delayed-retry-type`, even "disabled", is overruled. Earlier releases ignore these arguments.
_KEPT: dict[str, str | int] = {"x-delivery-limit": 1_000_000_000, "x-delayed-retry-max": 1}

#: How many lower levels a level is bound to. A message for one further down is tried by the levels in between, which
#: costs as much for each of them. With random bits that is one in 2^6, and to bind all would be 231 bindings more.
NEAR = 6

#: The key of the messages that find out whether quorum queues hold messages until a delivery time.
PROBE = f"{routing_key.SENTINEL}.probe"

#: The highest priority that is normal; quorum queues deliver messages of higher priorities first. Those of RabbitMQ 4.0
#: to 4.2 look for expired messages only at the head, so that normal ones would wait behind high ones.
MAX_NORMAL_PRIORITY = 4


@dataclass(frozen=True)
class Cascade(Names):
    """Levels of 1, 2, 4, ... ticks, and the outboxes of their destinations; no levels if it is `by_time`."""

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The levels, the shortest first. Messages visit them in the opposite order."""
        return tuple(self._level(1 << power) for power in range(0 if self.by_time else self.powers))

    def _level(self, ticks: int) -> Level:
        queue = f"{self.root}.delay.{self.milliseconds(ticks)}"
        return Level(ticks, self.milliseconds(ticks), queue, f"{queue}.done")

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
        address = destination.address(self.milliseconds(route.outbox))
        if route.levels:
            return self.ingest, (routing_key.key(route.levels), address)
        return self.outbox_ingest, (address,)

    def exchanges(self) -> Iterator[Exchange]:
        """Yield all exchanges; the last one is `marker`, to be declared after queues and bindings."""
        # Without an alternate exchange, so that a message that no queue takes returns to its publisher (mandatory).
        yield Exchange(self.ingest, "fanout")
        yield Exchange(self.behind_ingest, "topic")
        yield Exchange(self.outbox_ingest)
        below = self.lost
        for level in self.levels:  # even a forged key leads to lower levels alone
            yield Exchange(level.done, "topic", {"alternate-exchange": below})
            below = level.done
        yield Exchange(self.lost, "fanout")
        yield Exchange(self.done, arguments={"alternate-exchange": self.lost})
        yield Exchange(self.root, "fanout")
        if self.by_time:
            yield Exchange(self.probe)
        yield Exchange(self.marker, "fanout")

    def queues(self) -> Iterator[Queue]:
        for level in self.levels:
            yield self._passing(level.queue, level.ttl, level.done)
        # At most once, unlike all others: what is for a queue that is gone is dropped, as it is without a delay.
        yield Queue(self.short_lived_outbox, {**_QUORUM, **_KEPT, "x-message-ttl": 0, "x-dead-letter-exchange": ""})
        yield Queue(self.orphans, {**_QUORUM, **_KEPT})
        if self.by_time:
            yield Queue(self.probe, {**_QUORUM, **_KEPT, "x-message-ttl": 0, "x-dead-letter-exchange": self.probe})

    def _passing(self, name: str, delay: int, dead_letter_exchange: str) -> Queue:
        """Return a queue that hands on each message after a delay in milliseconds, and loses none."""
        arguments = {
            **_QUORUM,
            "x-message-ttl": delay + EXPIRY_MARGIN_MS if delay else 0,
            "x-dead-letter-exchange": dead_letter_exchange,
            # https://www.rabbitmq.com/docs/quorum-queues#dead-lettering
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            # Otherwise the client's node leads all queues.
            "x-queue-leader-locator": "balanced",
        }
        return Queue(name, {**arguments, **_KEPT})

    def bindings(self) -> Iterator[Binding]:
        yield Binding(self.ingest, self.behind_ingest, "exchange", "")
        for index, level in enumerate(self.levels):
            yield Binding(self.behind_ingest, level.queue, "queue", routing_key.entry_pattern(level))
            for lower in self.levels[max(0, index - NEAR) : index]:
                yield Binding(level.done, lower.queue, "queue", routing_key.next_pattern(level, lower))
            yield Binding(level.done, self.done, "exchange", routing_key.exit_pattern(level))
        yield Binding(self.done, self.short_lived_outbox, "queue", SHORT_LIVED)
        if self.by_time:
            yield Binding(self.outbox_ingest, self.short_lived_outbox, "queue", SHORT_LIVED)
            yield Binding(self.outbox_ingest, self.probe, "queue", PROBE)
        yield Binding(self.lost, self.orphans, "queue", "")

    @property
    def streams_mark(self) -> tuple[Exchange, Binding]:
        """The exchange and the binding that show that this cascade leads to streams."""
        return Exchange(self.streams_root, "fanout"), Binding(self.streams_root, self.root, "exchange", "")

    def stream_binding(self, stream: Stream) -> Binding:
        """Return the binding that leads from ingest to a stream."""
        return Binding(self.behind_ingest, stream.name, "queue", stream.routing_key)

    def outbox(self, destination: Destination, ticks: int = 0) -> Queue:
        """Return the outbox of a destination with a delay, which dead-letters to it. Raises `InvalidDestination`."""
        outbox = self._passing(self.outbox_name(destination, ticks), self.milliseconds(ticks), destination.exchange)
        if destination.key is None:  # the exchange routes by the keys of the message, of which one is its own
            return outbox
        return Queue(outbox.name, {**outbox.arguments, "x-dead-letter-routing-key": destination.key})

    def outbox_bindings(self, destination: Destination, ticks: int = 0) -> Iterator[Binding]:
        """Yield the bindings to the outbox of a destination with a delay. The shared one is part of the cascade."""
        name, address = self.outbox_name(destination, ticks), destination.address(self.milliseconds(ticks))
        if ticks or self.by_time:
            yield Binding(self.outbox_ingest, name, "queue", address)
        yield Binding(self.done, name, "queue", address)
