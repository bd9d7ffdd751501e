"""The parts of a cascade, as AMQP declares them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

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
