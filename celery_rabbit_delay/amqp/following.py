"""Follows the streams beside a cascade as they grow, each from a position that was reached before."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import kombu

from .. import upstream
from ..core.errors import DelayError
from ..core.topology import Stream
from . import declare
from .connecting import copy_of
from .stream_reader import SILENCE, StreamMessage, StreamReader, consume, message_of

#: The prefetch count, in messages of at most 100 records each.
_PREFETCH = 200

#: Seconds after which streams are consumed anew: see amqp/subscription.py.
RENEWAL = 60


class Place(NamedTuple):
    """The last message of a stream that was read. Reading continues after it."""

    offset: int
    digest: bytes  # detects that the stream was deleted and created again

    @classmethod
    def of(cls, one: StreamMessage) -> Place:
        return cls(one.offset, hashlib.blake2b(one.body, digest_size=8).digest())


class StreamReplaced(DelayError):
    """A stream was deleted, and perhaps created again, since its last message was read."""


class Follower:
    """Follows streams of a `kombu.Connection`'s cascade through a separate AMQP connection."""

    def __init__(self, client: kombu.Connection) -> None:
        self._client = copy_of(client, "follower")
        self._ends: dict[str, int] = {}
        self._followed: dict[Stream, tuple[Any, Callable[[str, StreamMessage], None]]] = {}  # channel, callback
        self._reached: dict[Stream, Place | StreamMessage | None] = {}
        self._renewed = time.monotonic()
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

    def follow(
        self, places: Mapping[Stream, Place | None], callback: Callable[[str, StreamMessage], None]
    ) -> list[Stream]:
        """Make `read` call back with a stream's name and each of its messages, or only those after a place.

        Returns the streams that do not exist. Raises `NotPermitted`, `StreamUnavailable`, `StreamReplaced`.
        """
        with StreamReader(self._client) as reader:
            extents = reader.extents(places) if places else {}
        for stream, place in places.items():
            reached = -1 if place is None else place.offset
            last = extents[stream].last if stream in extents else -1
            last = reached if last is None else last
            if last < reached:
                raise StreamReplaced(f"the stream {stream.name!r} was deleted")
            if stream in extents:
                self._ends[stream.name] = last
                self._follow(stream, place, callback)
        return [stream for stream in places if stream not in extents]

    def _follow(self, stream: Stream, place: Place | None, callback: Callable[[str, StreamMessage], None]) -> None:
        channel = self._client.connection.channel()
        self._followed[stream], self._reached[stream] = (channel, callback), place
        begun = place is None
        last = -1

        def on_message(message: Any) -> None:
            nonlocal begun, last
            self._unacknowledged[channel] = message.delivery_tag
            if message.delivery_tag % (_PREFETCH // 4) == 0:
                self._acknowledge()
            one = message_of(message, last)
            last = one.offset
            if not begun and place is not None:
                if one.offset < place.offset:  # RabbitMQ sends whole chunks
                    return
                begun = True
                if one.offset == place.offset:  # otherwise the message was too old and RabbitMQ has deleted it
                    if Place.of(one) != place:
                        raise StreamReplaced(f"the stream {stream.name!r} was deleted and created again")
                    return
            self._reached[stream] = one
            callback(stream.name, one)

        with declare.translate_errors(self._client.transport.delay_options.cascade):
            consume(channel, stream, "first" if place is None else place.offset, on_message, _PREFETCH)

    def _renew(self) -> None:
        """Consume anew. What comes on a channel that is being closed, py-amqp drops: it comes again."""
        for stream, (channel, callback) in self._followed.items():
            upstream.close_without_waiting(channel)
            self._unacknowledged.pop(channel, None)
            reached = self._reached[stream]  # only now: the others advance meanwhile
            self._follow(stream, Place.of(reached) if isinstance(reached, StreamMessage) else reached, callback)
        self._renewed = time.monotonic()

    def read(self, timeout: float) -> bool:
        """Call back for messages that have arrived or arrive within some seconds; return whether any did.

        Consumes anew now and then. Raises `NotPermitted`, `StreamUnavailable`, `StreamReplaced`, and py-amqp's errors.
        """
        if time.monotonic() > self._renewed + RENEWAL:
            self._renew()
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


def message_at(client: kombu.Connection, stream: Stream, offset: int) -> StreamMessage | None:
    """Return the message at an offset of a stream; None if it is no longer there.

    Raises `StreamUnavailable`, `NotPermitted`.
    """
    channel = client.connection.channel()
    found: list[StreamMessage] = []

    def on_message(message: Any) -> None:
        channel.basic_ack(message.delivery_tag)
        one = message_of(message)
        if one.offset >= offset:
            found.append(one)

    with declare.translate_errors(client.transport.delay_options.cascade):
        tag = consume(channel, stream, offset, on_message, prefetch=10)
    with suppress(TimeoutError), client.connection.within(SILENCE):
        while not found:
            client.drain_events()
    channel.basic_cancel(tag)
    channel.close()
    return found[0] if found and found[0].offset == offset else None
