"""A cascade as data: exchanges, queues and bindings, for all code that declares, verifies, draws or tests it.

Pure. A level's queue holds a message for the level's ticks, then dead-letters it into the level's `done` exchange. The
bindings of that exchange lead straight to the queue of the next level in the message's keys; from lanes to powers of
two they lead through an exchange that all lanes share. After the last level the message passes the final `done`
exchange, the outbox of its destination, and an exit, which is an exchange that leads to destinations.

At-least-once dead lettering allows 32 unsettled messages per queue. Without outboxes, a destination that accepts
nothing would therefore block a level for everybody; with them it blocks only its outbox. A message that cannot be
routed becomes an orphan.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple

from . import routing_key
from .destination import SHORT_LIVED, Destination
from .levels import Encoder, Level, is_power_of_two, powers_of_two
from .routing_key import MAX_LENGTH

QueueType = Literal["quorum", "classic"]

#: The version of the layout on a broker. Raise it with each change of names, arguments or keys, because a broker keeps
#: the parts that an earlier release declared. Also describe the earlier layout in `layouts`, and write an upgrade note.
LAYOUT = 2

#: The highest priority that is normal; quorum queues deliver messages of higher priorities first.
MAX_NORMAL_PRIORITY = 4

#: The clock of quorum queues counts whole milliseconds: a message may leave up to one millisecond before its TTL.
EXPIRY_MARGIN_MS = 1

_MILLISECOND = timedelta(milliseconds=1)

#: The limits of `Options`. A record that exceeds them is forged.
_LONGEST, _MOST_LANES = timedelta(days=10 * 365), 64


class Exchange(NamedTuple):
    """An exchange, usually a direct one, whose bindings route as soon as they exist.

    Not so for topic exchanges: while another connection creates a binding, RabbitMQ with Mnesia reports that it exists
    before it routes messages, and a short delay may end before that.
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
    routing_key: str  # from ingest
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
    """Levels of 1, 2, 4, ... ticks, and lanes between them, under names that begin with `prefix`.

    Names contain everything that decides how a part is declared: the version of the layout, the tick, and the type of
    classic queues. Cascades that differ in any of these exist side by side, and no release publishes into the layout of
    another one. Only the name of `marker` contains the set of levels: cascades with different levels share the levels
    that they have in common, and a message needs only the levels in its keys.

    Shards are parallel sets of levels and outboxes (an outbox is also only one queue), which share everything from
    `exit` on. The first shard has no number in its names.

    Quorum queues of RabbitMQ 4.0 distinguish two priorities, up to 4 and above
    (https://www.rabbitmq.com/docs/4.0/quorum-queues#priorities), and look for expired messages only at the head. In a
    shared queue, normal messages would therefore wait for high ones. `high` stands for the levels of messages above
    `MAX_NORMAL_PRIORITY`; both kinds share everything from `done` on.
    """

    prefix: str
    tick: timedelta  # whole milliseconds
    powers: int  # levels of 2^0 to 2^(powers - 1) ticks
    queue_type: QueueType = "quorum"
    high: bool = False
    lanes: tuple[int, ...] = ()  # ticks, the shortest first, none a power of two
    shard: int = 1

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """Powers of two, then lanes, the shortest first in each group. Messages visit them in the opposite order."""
        return tuple(map(self._level, (*(1 << power for power in range(self.powers)), *self.lanes)))

    @cached_property
    def _level_of_ticks(self) -> dict[int, Level]:
        return {level.ticks: level for level in self.levels}

    def _level(self, ticks: int) -> Level:
        ttl = ticks * (self.tick // _MILLISECOND)
        queue = f"{self.base_name}.delay.{ttl}"
        return Level(ticks, ttl, queue, f"{queue}.done")

    @property
    def max_ticks(self) -> int:
        """The sum of all powers of two: the longest delay, in ticks."""
        return (1 << self.powers) - 1

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self.powers, self.lanes)

    def route(self, ticks: int, slack: int) -> tuple[Level, ...]:
        """Return the fewest levels that add up to a number in [ticks, ticks + slack], in order; 1 ≤ ticks ≤ max_ticks.

        With lanes they may be more than the fewest possible, but never more than with powers of two alone.
        """
        return self._known_route(ticks, slack)

    @cached_property
    def _known_route(self) -> Callable[[int, int], tuple[Level, ...]]:
        return lru_cache(maxsize=1024)(self._route)

    def _route(self, ticks: int, slack: int) -> tuple[Level, ...]:
        lanes, rest = self._encoder.split(ticks, slack)
        return tuple(self._level_of_ticks[ticks] for ticks in (*lanes, *powers_of_two(rest)))

    @cached_property
    def root(self) -> str:
        """The common prefix of all names of the cascade."""
        return self.root_of(LAYOUT)

    def root_of(self, layout: int) -> str:
        """Return the root in another layout. Where the exchange of that name exists, that layout is in use."""
        milliseconds = self.tick // _MILLISECOND
        return f"{self.prefix}.v{layout}.{milliseconds}ms" + (".classic" if self.queue_type == "classic" else "")

    @property
    def shard_name(self) -> str:
        """The common prefix of all names of the shard."""
        return self.root if self.shard == 1 else f"{self.root}.s{self.shard}"

    @property
    def base_name(self) -> str:
        """The common prefix of the names of ingest and of the levels."""
        return f"{self.shard_name}.high" if self.high else self.shard_name

    @cached_property
    def ingest(self) -> str:
        return f"{self.base_name}.ingest"

    @property
    def lanes_done(self) -> str:
        """The exchange through which messages go from lanes to powers of two."""
        return f"{self.base_name}.lanes.done"

    @property
    def done(self) -> str:
        return f"{self.shard_name}.done"

    @property
    def exit(self) -> str:
        # Workers of layout 1 unwrap messages from exchanges with this prefix, so old and new workers can run together.
        return f"{self.root}.delay.exit"

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
    def record(self) -> str:
        """The exchange for records of sets of levels (`levels_record`)."""
        return f"{self.root}.record"

    @property
    def records(self) -> str:
        """The queue of the records of all sets of levels that were ever declared."""
        return f"{self.root}.records"

    def levels_record(self) -> str:
        """Return a record, as JSON, for `with_recorded_levels`. Records exist because AMQP cannot list queues."""
        return json.dumps({"powers": self.powers, "lanes": self.lanes})

    def with_recorded_levels(self, record: str | bytes) -> Cascade | None:
        """Return the cascade with the levels of a record instead of its own; None if the record is malformed.

        Any user who may publish to the default exchange can write to the queue of the records.
        """
        try:
            levels = json.loads(record)
        except (ValueError, RecursionError):
            return None
        if not isinstance(levels, dict):
            return None
        powers, lanes = levels.get("powers"), levels.get("lanes")
        if type(powers) is not int or not 1 <= powers <= (-(-_LONGEST // self.tick)).bit_length():
            return None
        if not isinstance(lanes, list) or len(lanes) > _MOST_LANES:
            return None
        if not all(type(lane) is int and 0 < lane < 1 << powers and not is_power_of_two(lane) for lane in lanes):
            return None
        return replace(self, powers=powers, lanes=tuple(sorted(set(lanes))))

    @property
    def marker(self) -> str:
        """The exchange that is declared last: if it exists, all levels and their bindings to each other exist.

        RabbitMQ from 4.3 shows an exchange only to users with some permission on it
        (https://github.com/rabbitmq/rabbitmq-server/releases/tag/v4.3.1), hence a name that a publisher's permission
        to write to ingest can cover.
        """
        if not self.lanes:
            return f"{self.ingest}.{self.powers}"
        return f"{self.ingest}.{self.powers}.{hashlib.sha256(repr(self.lanes).encode()).hexdigest()[:12]}"

    def exchanges(self) -> Iterator[Exchange]:
        """Yield all exchanges; the last one is `marker`, to be declared after queues and bindings."""
        # Ingest has no alternate exchange, so that a message that no level takes returns to its publisher (mandatory).
        yield Exchange(self.ingest)
        way_out: dict[str, str] = {"alternate-exchange": self.lost}
        for level in self.levels:
            yield Exchange(level.done, arguments=way_out)  # a forged key may lead to no other level
        if self.lanes:
            yield Exchange(self.lanes_done, arguments=way_out)
        yield Exchange(self.lost, "fanout")
        yield Exchange(self.done, arguments=way_out)
        for name in self.exits:
            yield Exchange(name, arguments=way_out)
        yield Exchange(self.record, "fanout")
        yield Exchange(self.root, "fanout")
        yield Exchange(self.marker, "fanout")

    def queues(self) -> Iterator[Queue]:
        for level in self.levels:
            yield self._passing(level.queue, level.ttl + EXPIRY_MARGIN_MS, level.done)
        yield self._passing(self._outbox_name(SHORT_LIVED), 0, self.short_lived_exit)
        yield Queue(self.orphans, {"x-queue-type": self.queue_type, **self._kept})
        yield Queue(self.records, {"x-queue-type": self.queue_type, **self._kept})
        yield Queue(self.discard, {"x-queue-type": self.queue_type, "x-message-ttl": 0})

    @property
    def _kept(self) -> dict[str, str | int]:
        # From 4.0 on, a quorum queue drops, or dead-letters early, a message that was read and returned 20 times
        # (https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling).
        return {"x-delivery-limit": 1_000_000_000} if self.queue_type == "quorum" else {}

    def _passing(self, name: str, ttl: int, dead_letter_exchange: str) -> Queue:
        """Return a queue that hands on each message after `ttl` milliseconds, and loses none."""
        arguments: dict[str, str | int] = {
            "x-queue-type": self.queue_type,
            "x-message-ttl": ttl,
            "x-dead-letter-exchange": dead_letter_exchange,
        }
        if self.queue_type == "quorum":
            # https://www.rabbitmq.com/docs/quorum-queues#dead-lettering
            arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
            # Otherwise the client's node leads all queues. For classic queues RabbitMQ 3.10 lacks this argument.
            arguments |= {"x-queue-leader-locator": "balanced"}
        return Queue(name, {**arguments, **self._kept})

    def bindings(self) -> Iterator[Binding]:
        for levels in (self.levels[: self.powers], self.levels[self.powers :]):
            for index, level in enumerate(levels):
                for key in routing_key.entry_keys(level):
                    yield Binding(self.ingest, level.queue, "queue", key)
                for lower in levels[:index]:
                    yield Binding(level.done, lower.queue, "queue", routing_key.next_key(level, lower))
                if level.is_lane:
                    yield Binding(level.done, self.lanes_done, "exchange", routing_key.powers_key(level))
                elif self.lanes:
                    yield Binding(self.lanes_done, level.queue, "queue", routing_key.first_power_key(level))
                for key in routing_key.exit_keys(level):
                    yield Binding(level.done, self.done, "exchange", key)
        yield Binding(self.done, self._outbox_name(SHORT_LIVED), "queue", SHORT_LIVED)
        yield Binding(self.lost, self.orphans, "queue", "")
        yield Binding(self.record, self.records, "queue", "")

    def stream_binding(self, stream: Stream) -> Binding:
        """Return the binding from ingest to a stream. Only the first shard has it."""
        return Binding(self.ingest, stream.name, "queue", stream.routing_key)

    @property
    def outbox_prefix(self) -> str:
        """The common prefix of the names of outboxes."""
        return f"{self.shard_name}.out."

    def outbox_of(self, queue: str) -> str | None:
        """Return what the name of an outbox, of any shard, says of its destination; None for other queues."""
        found = re.fullmatch(rf"{re.escape(self.root)}(?:\.s\d+)?\.out\.(.*)", queue, re.DOTALL)
        return found and found[1]

    def _outbox_name(self, address: str) -> str:
        name = self.outbox_prefix + address.removeprefix(f"{routing_key.SENTINEL}.")
        if len(name.encode()) <= MAX_LENGTH:
            return name
        return f"{self.outbox_prefix}!{hashlib.sha256(address.encode()).hexdigest()[:40]}"

    def outbox_name(self, destination: Destination) -> str:
        """Return the name of the queue in which due messages wait until their destination accepts them."""
        return self._outbox_name(destination.outbox_address)

    def outbox(self, destination: Destination) -> Queue:
        """Return the outbox of a destination."""
        return self._passing(self.outbox_name(destination), 0, self._exit_of(destination))

    def _exit_of(self, destination: Destination) -> str:
        return self.short_lived_exit if destination.short_lived else self.exit

    def destination_bindings(self, destination: Destination) -> Iterator[Binding]:
        """Yield the bindings from exits to a destination, and then the one from `done` to its outbox.

        A queue has both addresses that publishers may write: those that did not declare it go by its name.
        """
        for taken_for in dict.fromkeys((destination, destination.by_name)):
            for queue in taken_for.queues:
                yield Binding(self._exit_of(taken_for), queue, "queue", taken_for.address)
        if destination.exchange:
            # A message that the user's exchange cannot route stays in its outbox, although `exit` has routed it.
            yield Binding(self.exit, destination.exchange, "exchange", destination.address)
        if destination.fanout:
            yield Binding(self.exit, self.discard, "queue", destination.address)
        if not destination.short_lived:
            yield Binding(self.done, self.outbox_name(destination), "queue", destination.outbox_address)


class Topology(NamedTuple):
    """All parts of some cascades and of their routes to some destinations, each once, by name."""

    exchanges: dict[str, Exchange]
    queues: dict[str, Queue]
    bindings: dict[Binding, None]

    @classmethod
    def of(
        cls, cascades: Iterable[Cascade], destinations: Iterable[Destination] = (), streams: Iterable[Stream] = ()
    ) -> Topology:
        topology = cls({}, {}, {})
        destinations, streams = list(destinations), list(streams)
        for cascade in cascades:
            topology.exchanges.update((exchange.name, exchange) for exchange in cascade.exchanges())
            topology.queues.update((queue.name, queue) for queue in cascade.queues())
            topology.bindings.update(dict.fromkeys(cascade.bindings()))
            for destination in destinations:
                topology.queues[cascade.outbox_name(destination)] = cascade.outbox(destination)
                topology.bindings.update(dict.fromkeys(cascade.destination_bindings(destination)))
            for stream in streams if cascade.shard == 1 else ():
                topology.queues[stream.name] = stream.queue
                topology.bindings[cascade.stream_binding(stream)] = None
        return topology
