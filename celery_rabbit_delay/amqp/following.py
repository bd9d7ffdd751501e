"""Follows the streams beside a cascade as they grow, each from a place that was reached before."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import kombu
from amqp import Message
from amqp.exceptions import NotFound

from ..core import journal
from ..core.errors import DelayError, StreamUnavailable
from ..core.topology import Stream
from . import declare
from .confirms import ConfirmedChannel, Outgoing
from .streams import SILENCE, Entry, consume, entry_of

#: Messages, of 100 records each at most, that the broker sends ahead of their acknowledgements.
_PREFETCH = 200


class Place(NamedTuple):
    """A message of a stream that was read, so that reading goes on after it."""

    offset: int
    digest: bytes  # tells whether it is still the same stream

    @classmethod
    def of(cls, entry: Entry) -> Place:
        return cls(entry.offset, hashlib.blake2b(entry.body, digest_size=8).digest())


class StreamReplaced(DelayError):
    """A stream was deleted and created again since a place in it was reached."""


class Follower:
    """Follows streams of a `kombu.Connection`'s cascade through an AMQP connection of its own."""

    def __init__(self, client: kombu.Connection) -> None:
        self._client = client.clone()
        self._ends: dict[str, int] = {}
        self._unacknowledged: dict[Any, int] = {}  # the last delivery tag, by channel

    def __enter__(self) -> Follower:
        self._client.connect()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._client.collect()

    @property
    def streams(self) -> dict[str, int]:
        """The names of the streams that are followed, and the offsets at which each ended when that began."""
        return dict(self._ends)

    def follow(self, places: Mapping[Stream, Place | None], callback: Callable[[str, Entry], None]) -> list[Stream]:
        """Make `read` call back with a stream's name and each message after a place of it, or all.

        Returns those of the streams that do not exist. Raises `NotPermitted`, `StreamUnavailable`, `StreamReplaced`.
        """
        # Before anything is consumed: what comes is to be read at once, and not to be kept.
        ends = {stream: self._end(stream) for stream in places}
        for stream, place in places.items():
            end = ends[stream]
            if place is not None and (end is None or end <= place.offset):
                raise StreamReplaced(f"the stream {stream.name!r} was deleted")
            if end is not None:
                self._ends[stream.name] = end
                self._follow(stream, place, partial(callback, stream.name))
        return [stream for stream, end in ends.items() if end is None]

    def _follow(self, stream: Stream, place: Place | None, callback: Callable[[Entry], None]) -> None:
        channel = self._client.connection.channel()
        begun = place is None
        last = -1

        def on_message(message: Any) -> None:
            nonlocal begun, last
            self._unacknowledged[channel] = message.delivery_tag
            if message.delivery_tag % (_PREFETCH // 4) == 0:
                self._acknowledge()
            entry = entry_of(message, last)
            last = entry.offset
            if not begun and place is not None:
                if entry.offset < place.offset:  # RabbitMQ sends whole chunks
                    return
                begun = True
                if entry.offset == place.offset:  # else it was too old, and is gone
                    if Place.of(entry) != place:
                        raise StreamReplaced(f"the stream {stream.name!r} was deleted and created again")
                    return
            callback(entry)

        _consume(channel, self._client, stream, "first" if place is None else place.offset, on_message)

    def read(self, timeout: float) -> bool:
        """Call back for what has come, or comes in some seconds; return whether anything came."""
        try:
            with self._client.connection.within(timeout):
                self._client.drain_events()
        except TimeoutError:
            self._acknowledge()
            return False
        return True

    def _acknowledge(self) -> None:
        """Acknowledge what came, or RabbitMQ closes the channel after half an hour.

        See https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout.
        """
        while self._unacknowledged:
            channel, tag = self._unacknowledged.popitem()
            channel.basic_ack(tag, multiple=True)

    def _end(self, stream: Stream) -> int | None:
        """Return the offset of the message that is the last one of a stream now; None if it does not exist."""
        if not mark(self._client, [stream]):
            return None
        markers: set[bytes] = set()
        found: list[int] = []

        def on_message(message: Any) -> None:
            channel.basic_ack(message.delivery_tag)
            entry = entry_of(message)
            if entry.body in markers:
                found.append(entry.offset)

        try:
            with self._client.connection.within(SILENCE):
                channel = self._client.connection.channel()
                # Consumed first: on a busy stream, "last" is soon after the marker.
                tag = _consume(channel, self._client, stream, "next", on_message)
                channel.basic_qos(0, _PREFETCH, False)  # RabbitMQ looks for "next" only after it has said consume-ok
                mark(self._client, [stream], markers.update)
                while not found:
                    self._client.drain_events()
                channel.basic_cancel(tag)
                channel.close()
        except TimeoutError as exc:
            raise StreamUnavailable(
                f"the stream {stream.name!r} does not answer: start the nodes that it is on"
            ) from exc
        return found[0]


def mark(
    client: kombu.Connection, streams: Iterable[Stream], announce: Callable[[Iterable[bytes]], object] | None = None
) -> dict[str, bytes]:
    """Put a marker at the end of each of some streams; return those of the streams that exist, by their names.

    They are announced before they are sent, to whoever reads them elsewhere.

    Whoever has read a stream up to its marker has read all that was in it before. A stream that does not exist costs
    the broker no entry in its log. Raises `NotPermitted`, `StreamUnavailable`.
    """
    cascade = client.transport.delay_options.cascade
    channel = ConfirmedChannel(client.connection)
    markers = {stream: journal.marker() for stream in streams}
    if announce is not None:
        announce(markers.values())
    unsent = {
        stream: Outgoing(Message(marker, delivery_mode=2), cascade.ingest, stream.routing_key)
        for stream, marker in markers.items()
    }
    with client.connection.exclusively(channel, SILENCE), declare.translate_errors(cascade):
        try:
            channel.publish_all(unsent)
        except NotFound:  # nor is there anything else of the cascade
            return {}
        finally:
            channel.reset()
    refused = [stream for stream in unsent if channel.returned(cascade.ingest, stream.routing_key) is None]
    if refused:
        raise StreamUnavailable(f"{', '.join(stream.name for stream in refused)} cannot be written now")
    return {stream.name: marker for stream, marker in markers.items() if stream not in unsent}


def entry_at(client: kombu.Connection, stream: Stream, offset: int) -> Entry | None:
    """Return the message of a stream with an offset; None if it is no longer there.

    Raises `StreamUnavailable`, `NotPermitted`.
    """
    channel = client.connection.channel()
    found: list[Entry] = []

    def on_message(message: Any) -> None:
        channel.basic_ack(message.delivery_tag)
        entry = entry_of(message)
        if entry.offset >= offset:
            found.append(entry)

    tag = _consume(channel, client, stream, offset, on_message, prefetch=10)
    with suppress(TimeoutError), client.connection.within(SILENCE):
        while not found:
            client.drain_events()
    channel.basic_cancel(tag)
    channel.close()
    return found[0] if found and found[0].offset == offset else None


def _consume(
    channel: Any, client: kombu.Connection, stream: Stream, offset: int | str, callback: Any, prefetch: int = _PREFETCH
) -> str:
    """Do what `consume` does. Raises `NotPermitted` as well."""
    with declare.translate_errors(client.transport.delay_options.cascade):
        return consume(channel, stream, offset, callback, prefetch)
