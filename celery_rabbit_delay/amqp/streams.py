"""Reads the streams beside a cascade: their present contents, or new messages as they arrive."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import kombu
from amqp import Message
from amqp.exceptions import AMQPError, NotFound, PreconditionFailed

from .. import upstream
from ..core import streams
from ..core.errors import CascadeMissing, StreamUnavailable
from ..core.frames import Deliveries, UnexpectedMethod
from ..core.options import Options
from ..core.streams import Unreadable
from ..core.topology import Stream
from . import declare
from .confirms import ConfirmedChannel
from .connecting import abandon, copy_of
from .create import ensure_stream
from .deliveries import take_anything

logger = logging.getLogger(__name__)

#: The prefetch count.
_PREFETCH = 2000

#: Seconds without an answer after which a stream counts as unavailable.
SILENCE = 20


class Entry(NamedTuple):
    """A message of a stream, with its offset."""

    offset: int
    body: bytes


class StreamReader:
    """Reads streams of a `kombu.Connection`'s cascade through a separate AMQP connection."""

    def __init__(
        self,
        client: kombu.Connection,
        patience: float = 15,
        silence: float | None = None,
        options: Options | None = None,
    ) -> None:
        """Wait `patience` seconds for a stream that exists: a starting broker restores streams last.

        `silence`: seconds to wait for an answer, by default `SILENCE`. `options`: of a cascade other than the client's.
        Both times are at most the option `confirm_timeout`.
        """
        self._client = client
        self._options: Options = options or client.transport.delay_options
        most = math.inf if self._options.confirm_timeout is None else self._options.confirm_timeout
        self._patience = min(patience, most)
        self._silence = min(SILENCE if silence is None else silence, most)
        self._connection: kombu.Connection | None = None

    def __enter__(self) -> StreamReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            abandon(connection)

    def length(self, stream: Stream) -> int:
        """Return the approximate number of messages in a stream."""
        with suppress(AMQPError):
            return declare.message_count(self._connect().channel(), stream.name) or 0
        return 0

    def create(self, stream: Stream) -> None:
        """Create a stream that is missing. Raises the errors of `ensure_stream`.

        A broker without streams closes this reader's connection, and not that of the consumer.
        """
        connection = self._connect()
        with connection.within(self._silence):
            ensure_stream(ConfirmedChannel(connection), self._options, self._options.cascade, stream)

    def _connect(self) -> Any:
        if self._connection is None:
            self._connection = copy_of(self._client)
            self._connection.connect()
        return self._connection.connection

    def read(self, stream: Stream) -> Iterator[Entry]:
        """Yield the messages that a stream holds now, the oldest first; nothing if it does not exist.

        Raises `StreamUnavailable`, `NotPermitted`.
        """
        deadline: float | None = None
        last = -1
        while True:
            deadline = deadline or time.monotonic() + self._patience
            try:
                for entry in self._read(stream, last + 1):
                    last = entry.offset
                    deadline = None  # it works: whatever fails from here on is another failure
                    yield entry
                return
            except (AMQPError, OSError, StreamUnavailable) as exc:
                self._close()
                if time.monotonic() > (deadline or math.inf):
                    raise StreamUnavailable(
                        f"the stream {stream.name!r} cannot be read ({exc}): {_advice(exc)}"
                    ) from exc
                time.sleep(0.2)

    def _read(self, stream: Stream, first: int) -> Iterator[Entry]:
        connection = self._connect()
        marker = streams.marker()
        if not self._publish(connection, stream, marker):
            return
        with connection.within(self._silence), declare.translate_errors(self._options.cascade):
            channel = connection.channel()
            consume(channel, stream, first or "first", None, _PREFETCH)
        try:
            for number, entry in enumerate(_received(connection, self._silence), 1):
                if number % (_PREFETCH // 4) == 0:
                    channel.basic_ack(number, multiple=True)
                if entry.offset >= first:  # the first messages may be older, because RabbitMQ sends whole chunks
                    yield entry
                if entry.body == marker:
                    return
        except UnexpectedMethod as exc:
            raise StreamUnavailable(f"the broker has ended it: {exc}") from exc
        finally:
            self._close()  # py-amqp has missed frames, and could not parse the next ones

    def _publish(self, connection: Any, stream: Stream, marker: bytes) -> bool:
        """Put a marker at the end of a stream; return whether the stream exists."""
        cascade = self._options.cascade
        channel = ConfirmedChannel(connection)
        with connection.within(self._silence), declare.translate_errors(cascade):
            try:
                message = Message(marker, delivery_mode=2)
                if channel.publish(message, cascade.ingest, stream.routing_key) is None:
                    return True
            except NotFound:  # ingest
                channel.reset()
            try:
                declare.passive_declare_queue(channel.get_channel(), stream.name)
            except NotFound as exc:
                if "no queue" in exc.reply_text:
                    return False
                raise StreamUnavailable(exc.reply_text) from exc
        if self._options.declare == "passive":
            raise CascadeMissing(f"the stream {stream.name!r} is no longer bound: run `celery -A APP delay setup`")
        ensure_stream(channel, self._options, cascade, stream)
        raise StreamUnavailable("it was not bound")


def follow(connection: Any, stream: Stream, first: int, callback: Callable[[Entry], None]) -> None:
    """Make reads of an `amqp.Connection` call back for each message of a stream from an offset on.

    If the stream is deleted, or its node goes down, the next message of a consumer makes the connection read it again.
    """
    channel = connection.channel()
    last = -1

    def on_message(message: Any) -> None:
        nonlocal last
        channel.basic_ack(message.delivery_tag)
        entry = entry_of(message, last)
        last = entry.offset
        if entry.offset >= first:
            callback(entry)

    def on_cancel(consumer_tag: str) -> None:
        connection.followed[stream.name] = time.monotonic()
        upstream.close_without_waiting(channel)

    # What says that a task is cancelled must not wait until a busy consumer acknowledges what came before it, for the
    # task itself may be there already. More do not fit into the buffers of a socket, and RabbitMQ closes a connection
    # that takes nothing for 15 s.
    consume(channel, stream, first, on_message, prefetch=10_000, on_cancel=on_cancel)


def _advice(exc: Exception) -> str:
    """Return what to do about a stream that cannot be read."""
    if isinstance(exc, TimeoutError):  # an alarm lets no marker in, and says nothing of the stream
        return "start the nodes that it is on, and wait until no memory or disk alarm blocks publishers"
    return (
        "start the nodes that it is on. If that does not help, its data is lost, because a node was killed just after "
        "the stream was created: delete it, and it is created again when needed"
    )


def _received(connection: Any, silence: float = SILENCE) -> Iterator[Entry]:
    """Yield the messages that an `amqp.Connection` receives. It must receive only messages of one stream."""
    deliveries = Deliveries(_parse_offset)
    while True:
        with connection.within(silence):
            before = deliveries.frames
            while deliveries.frames == before:  # heartbeats do not count as an answer
                found = deliveries.feed(upstream.receive(connection, connection.seconds_left()))
        yield from map(Entry._make, found)


def _parse_offset(properties: bytes) -> int:
    message = Message()
    upstream.deserialize(message, properties)
    return int(message.headers["x-stream-offset"])


def consume(
    channel: Any,
    stream: Stream,
    offset: int | str,
    callback: Callable[[Any], None] | None,
    prefetch: int,
    on_cancel: Callable[[str], None] | None = None,
) -> str:
    """Consume a stream from an offset on, and return the consumer's tag. Raises `StreamUnavailable`.

    The broker sends `prefetch` messages ahead of their acknowledgements. If it ends the consumer, it calls `on_cancel`,
    or a read of the connection raises `amqp.ConsumerCancelled`.
    """
    take_anything(channel)
    channel.basic_qos(0, prefetch, False)
    try:
        tag: str = channel.basic_consume(
            stream.name, callback=callback, arguments={"x-stream-offset": offset}, on_cancel=on_cancel
        )
    except (NotFound, PreconditionFailed) as exc:  # a node that has just started has no running replica
        raise StreamUnavailable(exc.reply_text) from exc
    return tag


def entry_of(message: Any, last: int = -1) -> Entry:
    """Return the entry of an `amqp.Message` of a stream; without an offset, it is the one after `last`."""
    return Entry(message.headers.get("x-stream-offset", last + 1), bytes(message.body or b""))  # an empty body is ""


def apply_readable(apply: Callable[[bytes], object], stream: Stream, entry: Entry) -> None:
    """Call a function with a message of a stream; log a warning if the message is malformed."""
    try:
        apply(entry.body)
    except Unreadable as exc:
        logger.warning("Message %d of the stream %r is skipped: %s", entry.offset, stream.name, exc)
