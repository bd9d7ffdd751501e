"""A cascade is data: exchanges, queues and bindings, looped over by whoever declares, verifies, draws or tests it.

Pure. One queue per power of two holds a message for tick·2^level, then dead-letters it into that level's `done`
exchange, whose bindings jump straight to the queue of the next set bit. After the last one the message passes through
the final `done` exchange to where it was going.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Literal, NamedTuple

from . import routing_key
from .routing_key import Destination

QueueType = Literal["quorum", "classic"]

#: Quorum queues take higher priorities first.
NORMAL_PRIORITY = 4

# The clock of quorum queues counts whole milliseconds: a message may leave up to one of them before its TTL has passed.
_CLOCK_MS = 1


class Exchange(NamedTuple):
    name: str
    type: str = "topic"
    arguments: Mapping[str, str] = MappingProxyType({})


class Queue(NamedTuple):
    name: str
    arguments: Mapping[str, str | int]

    @property
    def seconds(self) -> float:
        """How long a message stays in this queue of a level, at least."""
        return (int(self.arguments["x-message-ttl"]) - _CLOCK_MS) / 1000


class Binding(NamedTuple):
    source: str
    target: str
    kind: Literal["exchange", "queue"]  # of the target
    routing_key: str


@dataclass(frozen=True)
class Cascade:
    """`levels` powers of two of `tick`, under names that begin with `prefix`.

    Quorum queues of RabbitMQ 4.0 tell two priorities apart, up to 4 and above
    (https://www.rabbitmq.com/docs/4.0/quorum-queues#priorities), and look for expired messages only at the head, so in
    one queue normal ones would wait for high ones. `high` makes the levels for messages above `NORMAL_PRIORITY`; both
    kinds share everything from `done` on.
    """

    prefix: str
    tick: timedelta  # whole milliseconds
    levels: int
    queue_type: QueueType = "quorum"
    high: bool = False

    def ttl(self, level: int) -> int:
        """Milliseconds that a message stays in the queue of `level`, at least."""
        return (self.tick // timedelta(milliseconds=1)) << level

    @property
    def max_ticks(self) -> int:
        return (1 << self.levels) - 1

    @property
    def track(self) -> str:
        """What the names of ingest and of the levels begin with."""
        return f"{self.prefix}.high" if self.high else self.prefix

    @property
    def ingest(self) -> str:
        return f"{self.track}.ingest"

    @property
    def done(self) -> str:
        return f"{self.prefix}.done"

    @property
    def guard(self) -> str:
        return f"{self.prefix}.guard"

    @property
    def orphans(self) -> str:
        return f"{self.prefix}.orphans"

    @property
    def void(self) -> str:
        return f"{self.prefix}.void"

    @property
    def complete(self) -> str:
        """The exchange that is declared last: where it exists, all of the cascade does, with these parameters.

        RabbitMQ from 4.3 shows an exchange only to users with some permission on it
        (https://github.com/rabbitmq/rabbitmq-server/releases/tag/v4.3.1), hence a name that a publisher's permission
        to write to ingest can cover.
        """
        return f"{self.ingest}.{self.ttl(0)}ms.{self.levels}.{self.queue_type}"

    def delay(self, level: int) -> str:
        return f"{self.track}.delay.{self.ttl(level)}"

    def level_done(self, level: int) -> str:
        return f"{self.delay(level)}.done"

    def exchanges(self) -> Iterator[Exchange]:
        """The last one is `complete`, to be declared after queues and bindings."""
        # RabbitMQ compares an exchange's type, flags and alternate exchange with what is declared, and nothing else
        # (https://www.rabbitmq.com/docs/ae), so naming the parameters there makes another cascade of this prefix an
        # error. Nothing is ever bound to `complete`: what no level takes is returned to the publisher (mandatory).
        yield Exchange(self.ingest, arguments={"alternate-exchange": self.complete})
        for level in range(self.levels):
            yield Exchange(self.level_done(level))
        yield Exchange(self.orphans, "fanout")
        # Direct ones, whose bindings are in force once they exist: RabbitMQ with Mnesia says of one to a topic exchange
        # that somebody else is creating that it exists before it is in force, and a short delay may end meanwhile.
        yield Exchange(self.guard, "direct", {"alternate-exchange": self.orphans})
        yield Exchange(self.done, "direct", {"alternate-exchange": self.orphans})  # after all that it can lead to
        yield Exchange(self.complete, "fanout")

    def queues(self) -> Iterator[Queue]:
        # From 4.0 on, a quorum queue drops, or dead-letters early, what was looked at and put back 20 times
        # (https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling).
        kept: dict[str, str | int] = {"x-delivery-limit": 1_000_000_000} if self.queue_type == "quorum" else {}
        for level in range(self.levels):
            arguments: dict[str, str | int] = {
                "x-queue-type": self.queue_type,
                "x-message-ttl": self.ttl(level) + _CLOCK_MS,
                "x-dead-letter-exchange": self.level_done(level),
            }
            if self.queue_type == "quorum":
                # https://www.rabbitmq.com/docs/quorum-queues#dead-lettering
                arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
            yield Queue(self.delay(level), {**arguments, **kept})
        yield Queue(self.orphans, {"x-queue-type": self.queue_type, **kept})
        yield Queue(self.void, {"x-queue-type": self.queue_type, "x-message-ttl": 0})

    def bindings(self) -> Iterator[Binding]:
        for level in range(self.levels):
            yield Binding(self.ingest, self.delay(level), "queue", routing_key.entry_pattern(level))
            for lower in range(level):
                key = routing_key.next_pattern(level, lower)
                yield Binding(self.level_done(level), self.delay(lower), "queue", key)
            yield Binding(self.level_done(level), self.done, "exchange", routing_key.last_pattern(level))
        yield Binding(self.orphans, self.orphans, "queue", "")

    def destination_bindings(self, destination: Destination) -> Iterator[Binding]:
        """What leads from `done` to a destination.

        A message that an exchange beyond `done` can route nowhere would stay in its level for good: at-least-once
        dead lettering keeps it, and at 32 such messages the level stands still for everybody. An alternate exchange
        of ours does not help, for `done` did route it. So it always has one more way to go: to the queues known to
        be bound to that exchange (RabbitMQ delivers one copy, however many ways lead to a queue), whose absence
        makes it an orphan; or, if none is known, to a queue that keeps nothing, as an undelayed message without a
        route would be dropped.
        """
        key = routing_key.address(destination)
        source = self.done
        if destination.exchange:
            yield Binding(self.done, destination.exchange, "exchange", key)
            if destination.queues:
                yield Binding(self.done, self.guard, "exchange", key)
                source = self.guard
        for queue in destination.queues or (self.void,):
            yield Binding(source, queue, "queue", key)


class Topology(NamedTuple):
    """Everything on a broker that cascades and what they lead to need, each part once, by name."""

    exchanges: dict[str, Exchange]
    queues: dict[str, Queue]
    bindings: dict[Binding, None]

    @classmethod
    def of(cls, cascades: Iterable[Cascade], destinations: Iterable[Destination] = ()) -> Topology:
        topology = cls({}, {}, {})
        destinations = list(destinations)
        for cascade in cascades:
            topology.exchanges.update((exchange.name, exchange) for exchange in cascade.exchanges())
            topology.queues.update((queue.name, queue) for queue in cascade.queues())
            topology.bindings.update(dict.fromkeys(cascade.bindings()))
            for destination in destinations:
                topology.bindings.update(dict.fromkeys(cascade.destination_bindings(destination)))
        return topology
