"""Follows the streams beside a cascade as they grow, each from a position that was reached before."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import kombu
from amqp import Message
from amqp.exceptions import NotFound

from ..core import streams
from ..core.errors import DelayError, StreamUnavailable
from ..core.topology import Stream
from . import declare
from .confirms import ConfirmedChannel, Outgoing
from .connecting import copy_of
from .streams import SILENCE, Entry, consume, entry_of

#: The prefetch count, in messages of at most 100 records each.
_PREFETCH = 200


class Place(NamedTuple):
    """The last message of a stream that was read. Reading continues after it."""

    offset: int
    digest: bytes  # detects that the stream was deleted and created again

    @classmethod
    def of(cls, entry: Entry) -> Place:
        return cls(entry.offset, hashlib.blake2b(entry.body, digest_size=8).digest())


class StreamReplaced(DelayError):
    """A stream was deleted, and perhaps created again, since its last message was read."""


class Follower:
    """Follows streams of a `kombu.Connection`'s cascade through a separate AMQP connection."""

    def __init__(self, client: kombu.Connection) -> None:
        self._client = copy_of(client)
        self._ends: dict[str, int] = {}
        self._unacknowledged: dict[Any, int] = {}  # the last delivery tag, by channel

    def __enter__(self) -> Follower:
        self._client.connect()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._client.collect()

    @property
    def streams(self) -> dict[str, int]:
        """The names of the followed streams, each with the offset of its last message when following began."""
        return dict(self._ends)

    def follow(self, places: Mapping[Stream, Place | None], callback: Callable[[str, Entry], None]) -> list[Stream]:
        """Make `read` call back with a stream's name and each of its messages, or only those after a place.

        Returns the streams that do not exist. Raises `NotPermitted`, `StreamUnavailable`, `StreamReplaced`.
        """
        # Before consuming, because messages that arrive must be processed at once, not stored.
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
                if entry.offset == place.offset:  # otherwise the message was too old and RabbitMQ has deleted it
                    if Place.of(entry) != place:
                        raise StreamReplaced(f"the stream {stream.name!r} was deleted and created again")
                    return
            callback(entry)

        _consume(channel, self._client, stream, "first" if place is None else place.offset, on_message)

    def read(self, timeout: float) -> bool:
        """Call back for messages that have arrived or arrive within some seconds; return whether any did."""
        try:
            with self._client.connection.within(timeout):
                self._client.drain_events()
        except TimeoutError:
            self._acknowledge()
            return False
        return True

    def _acknowledge(self) -> None:
        """Acknowledge received messages: otherwise RabbitMQ closes the channel after half an hour.

        See https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout.
        """
        while self._unacknowledged:
            channel, tag = self._unacknowledged.popitem()
            channel.basic_ack(tag, multiple=True)

    def _end(self, stream: Stream) -> int | None:
        """Return the offset of the last message of a stream; None if the stream does not exist."""
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
    client: kombu.Connection, wanted: Iterable[Stream], announce: Callable[[Iterable[bytes]], object] | None = None
) -> dict[str, bytes]:
    """Put a marker at the end of some streams; return the markers of the streams that exist, by their names.

    `announce` is called with the markers before they are sent, so that other readers can look for them.

    A reader that has reached the marker of a stream has read all earlier messages. The broker does not log an error for
    a stream that does not exist. Raises `NotPermitted`, `StreamUnavailable`.
    """
    cascade = client.transport.delay_options.cascade
    channel = ConfirmedChannel(client.connection)
    markers = {stream: streams.marker() for stream in wanted}
    if announce is not None:
        announce(markers.values())
    unsent = {
        stream: Outgoing(Message(marker, delivery_mode=2), cascade.ingest, stream.routing_key)
        for stream, marker in markers.items()
    }
    with client.connection.exclusively(channel, SILENCE), declare.translate_errors(cascade):
        try:
            channel.publish_all(unsent)
        except NotFound:  # there is no cascade
            return {}
        finally:
            channel.reset()
    refused = [stream for stream in unsent if channel.returned(cascade.ingest, stream.routing_key) is None]
    if refused:
        raise StreamUnavailable(f"{', '.join(stream.name for stream in refused)} cannot be written now")
    return {stream.name: marker for stream, marker in markers.items() if stream not in unsent}


def entry_at(client: kombu.Connection, stream: Stream, offset: int) -> Entry | None:
    """Return the message at an offset of a stream; None if it is no longer there.

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
    """Call `consume`. Raises `NotPermitted` in addition to its errors."""
    with declare.translate_errors(client.transport.delay_options.cascade):
        return consume(channel, stream, offset, callback, prefetch)
