"""Reads the streams beside a cascade: their present contents, or new messages as they arrive.

Reading writes nothing, and needs no permission but to read. Only who must know each message that was confirmed, such as
a worker that starts, finds the end of a stream with a marker that it publishes.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import kombu
from amqp import Message
from amqp.exceptions import AMQPError, NotFound, PreconditionFailed
from kombu.exceptions import OperationalError

from ..core import streams
from ..core.errors import CascadeMissing, StreamUnavailable
from ..core.options import Options
from ..core.topology import Stream
from . import declare
from .confirms import ConfirmedChannel
from .connecting import abandon, copy_of, ensure_connection, is_lost
from .create import ensure_stream
from .unreadable import take_anything

#: The prefetch count.
_PREFETCH = 2000

#: Seconds without an answer after which a stream counts as unavailable.
SILENCE = 20

#: Seconds without a message after which the last chunks of streams have come, the same where the broker counts no
#: message in a stream, which it does up to 5 s after the first one, and the most seconds to wait for such a moment.
_QUIET, _COUNTED, _BUSY = 0.1, 1, 2


class StreamMessage(NamedTuple):
    """A message of a stream, with its offset."""

    offset: int
    body: bytes


class Extent(NamedTuple):
    """What a stream holds now."""

    messages: int  # their number, up to 5 s late
    last: int | None  # the offset of its last message, -1 for none; None if that message does not say


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
        Both times are at most the option `confirm_timeout`. Raises `UnsupportedConfiguration` without streams.
        """
        self._client = client
        self._options: Options = options or client.transport.delay_options
        self._options.require_streams()
        most = math.inf if self._options.confirm_timeout is None else self._options.confirm_timeout
        self.patience = min(patience, most)
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

    def create(self, stream: Stream) -> None:
        """Create a stream that is missing. Raises the errors of `ensure_stream`.

        A broker without streams closes this reader's connection, and not that of the consumer.
        """
        connection = self._connect()
        with connection.within(self._silence):
            ensure_stream(ConfirmedChannel(connection), self._options, self._options.cascade, stream)

    def _connect(self) -> Any:
        if self._connection is None:
            self._connection = copy_of(self._client, "reader")
            ensure_connection(self._connection)
        return self._connection.connection

    def extents(self, wanted: Iterable[Stream]) -> dict[Stream, Extent]:
        """Return what those of some streams hold that exist, including all that was confirmed before.

        Raises `StreamUnavailable`, `NotPermitted`; without a connection `kombu.exceptions.OperationalError`.
        """
        stream, *others = wanted
        [found] = self._with_retries(stream, lambda: iter([self._extents([stream, *others])]))
        return dict(found)

    def read(self, stream: Stream, extent: Extent | None = None) -> Iterator[StreamMessage]:
        """Yield the messages that a stream holds now, the oldest first; nothing if it does not exist.

        `extent` is what `extents` has found, if known. Raises as that.
        """
        extent = extent or self.extents([stream]).get(stream)
        if extent is None or extent.last == -1:
            return
        end = extent.last
        is_last = None if end is None else lambda message: message.offset >= end

        def attempt(first: int) -> Iterator[StreamMessage]:
            if end is None or first <= end:  # otherwise the error came after the last message
                yield from self._read(stream, first, is_last)

        yield from self._read_on(stream, attempt)

    def read_exactly(self, stream: Stream) -> Iterator[StreamMessage]:
        """Yield the same, up to a marker that this publishes. Raises `NotPermitted`, `CascadeMissing` as well."""

        def attempt(first: int) -> Iterator[StreamMessage]:
            marker = streams.marker()
            if self._publish(stream, marker):
                yield from self._read(stream, first, lambda message: message.body == marker)

        yield from self._read_on(stream, attempt)

    def _read_on(self, stream: Stream, attempt: Callable[[int], Iterator[StreamMessage]]) -> Iterator[StreamMessage]:
        """Yield what an attempt yields, and after an error go on behind the last message."""
        last = -1

        def rest() -> Iterator[StreamMessage]:
            nonlocal last
            for message in attempt(last + 1):
                last = message.offset
                yield message

        yield from self._with_retries(stream, rest)

    def _with_retries(self, stream: Stream, attempt: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Yield what an attempt yields; begin another one after an error, for some time since the last that worked."""
        deadline: float | None = None
        while True:
            deadline = deadline or time.monotonic() + self.patience
            try:
                for one in attempt():
                    deadline = None  # it works: whatever fails from here on is another failure
                    yield one
                return
            except (AMQPError, OSError, StreamUnavailable, OperationalError) as exc:
                self._close()
                if time.monotonic() > (deadline or math.inf):
                    if isinstance(exc, OperationalError):  # there is no connection, which says nothing of the stream
                        raise
                    raise StreamUnavailable(
                        f"the stream {stream.name!r} cannot be read ({exc}): {_advice(exc)}"
                    ) from exc
                time.sleep(0.2)

    def _extents(self, wanted: Iterable[Stream]) -> dict[Stream, Extent]:
        connection = self._connect()
        lasts: dict[Stream, int | None] = {}

        def note(stream: Stream, channel: Any, message: Any) -> None:
            channel.basic_ack(message.delivery_tag)
            known = lasts.get(stream)
            lasts[stream] = (message.headers or {}).get("x-stream-offset", None if known is None else known + 1)

        with connection.within(self._silence), declare.translate_errors(self._options.cascade):
            channel = connection.channel()
            counts = {stream: count for stream in wanted if (count := _count(channel, stream)) is not None}
            for stream in counts:
                # The last chunk comes at once, with what was confirmed before in it.
                own = connection.channel()
                consume(own, stream, "last", partial(note, stream, own), _PREFETCH)
            while any(count and stream not in lasts for stream, count in counts.items()):
                connection.drain_events()
        with suppress(TimeoutError), connection.within(_BUSY):
            while True:
                with connection.within(_QUIET if counts.keys() <= lasts.keys() else _COUNTED):
                    connection.drain_events()
        self._close()
        return {stream: Extent(count, lasts.get(stream, -1)) for stream, count in counts.items()}

    def _read(
        self, stream: Stream, first: int, is_last: Callable[[StreamMessage], bool] | None
    ) -> Iterator[StreamMessage]:
        connection = self._connect()
        arrived: deque[Any] = deque()
        with connection.within(self._silence), declare.translate_errors(self._options.cascade):
            channel = connection.channel()
            tag = consume(channel, stream, first or "first", arrived.append, _PREFETCH)
        last = -1
        while True:
            try:
                with connection.within(self._silence if is_last else _COUNTED):
                    while not arrived:
                        connection.drain_events()
            except TimeoutError:
                if is_last:
                    raise
                return
            raw = arrived.popleft()
            if raw.delivery_tag % (_PREFETCH // 4) == 0:
                channel.basic_ack(raw.delivery_tag, multiple=True)
            message = message_of(raw, last)
            last = message.offset
            if message.offset >= first:  # the first messages may be older, because RabbitMQ sends whole chunks
                yield message
            if is_last and is_last(message):
                break
        with connection.within(self._silence):
            channel.basic_cancel(tag)
            channel.close()

    def _publish(self, stream: Stream, marker: bytes) -> bool:
        """Put a marker at the end of a stream; return whether the stream exists."""
        connection, cascade = self._connect(), self._options.cascade
        channel = ConfirmedChannel(connection)
        with connection.within(self._silence), declare.translate_errors(cascade):
            try:
                message = Message(marker, delivery_mode=2)
                if channel.publish(message, cascade.ingest, stream.routing_key) is None:
                    return True
            except NotFound:  # ingest
                channel.reset()
            if _count(channel.get_channel(), stream) is None:
                return False
        if self._options.declare == "passive":
            raise CascadeMissing(f"the stream {stream.name!r} is no longer bound: run `celery -A APP delay setup`")
        ensure_stream(channel, self._options, cascade, stream)
        raise StreamUnavailable("it was not bound")


def _count(channel: Any, stream: Stream) -> int | None:
    """Return the number of messages in a stream; None if it does not exist. Raises `StreamUnavailable`."""
    try:
        return int(declare.passive_declare_queue(channel, stream.name).message_count)
    except NotFound as exc:
        if "no queue" in exc.reply_text:
            return None
        raise StreamUnavailable(exc.reply_text) from exc


def _advice(exc: Exception) -> str:
    """Return what to do about a stream that cannot be read."""
    if is_lost(exc):
        return "the connection is lost again and again: the log of RabbitMQ says why"
    if isinstance(exc, TimeoutError):  # an alarm lets no marker in, and says nothing of the stream
        return "start the nodes that it is on, and wait until no memory or disk alarm blocks publishers"
    return (
        "start the nodes that it is on. If that does not help, its data is lost, because a node was killed just after "
        "the stream was created: delete it, and it is created again when needed"
    )


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


def message_of(message: Any, last: int = -1) -> StreamMessage:
    """Return a message of a stream from an `amqp.Message`; without an offset, it is the one after `last`."""
    offset = message.headers.get("x-stream-offset", last + 1)
    return StreamMessage(offset, bytes(message.body or b""))  # an empty body is ""
