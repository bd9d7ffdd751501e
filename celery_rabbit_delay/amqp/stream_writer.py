"""Writes the streams beside a cascade: a record of each delayed message, its key, and later changes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from amqp import Message
from amqp.exceptions import AMQPError, InternalError, RecoverableConnectionError, ResourceError

from .. import upstream
from ..core import journal, streams
from ..core.errors import CascadeMissing, DelayError, StreamUnavailable, UnsupportedConfiguration
from ..core.journal import Record
from ..core.keys import last_of_key
from ..core.options import Options
from ..core.plan import Plan
from ..core.topology import Cascade, Stream
from . import declare
from .clients import PerClient
from .clocks import utc_ms
from .confirms import ConfirmedChannel, NotStored, Outgoing
from .create import ensure_stream

logger = logging.getLogger(__name__)

#: The maximum number of records, and of their bytes, in one message of a stream. Fewer messages are faster to read.
_MAX_RECORDS, _MAX_BYTES = 100, 100_000

#: Bytes of a record that RabbitMQ takes by default, of 16 MiB: the message alone may just fit.
_LARGEST = 16 * 1024 * 1024 - 10_000

#: Seconds until the next attempt to write to a stream that does not work; at first it may only just be coming up.
_FIRST_PAUSE, _PAUSE = 1, 60

#: The names of streams that do not work, and the time (`time.monotonic`) of the next attempt, for a `kombu.Connection`.
paused_of: PerClient[dict[str, float]] = PerClient(dict)


class StreamWriter:
    """Writes the streams of a cascade through one AMQP connection."""

    def __init__(self, connection: Any, cascade: Cascade, options: Options) -> None:
        self._connection = connection
        self._cascade = cascade
        self._options = options
        self._channel = ConfirmedChannel(connection)
        self._has_keys = False

    def records(self, messages: Iterable[tuple[Plan, Any]]) -> dict[Any, Outgoing]:
        """Return the records to publish before some messages. Each `amqp.Message` comes with its plan.

        A process that stops in between leaves a record without a message, and never a message without a record.
        """
        packs: dict[Stream, list[list[Record]]] = {}
        sizes: dict[Stream, int] = {}  # bytes of the last pack
        for plan, message in messages:
            stream = plan.stream
            if stream is None or self._is_paused(stream):
                continue
            record = Record(plan.due_ms, plan.number, plan.id, plan.key or "", *upstream.serialize(message))
            if record.size > _LARGEST:
                logger.warning("The message %r is sent without being recorded: it is too large to record", plan.id)
                continue
            lists = packs.setdefault(stream, [])
            if not lists or len(lists[-1]) >= _MAX_RECORDS or sizes[stream] + record.size > _MAX_BYTES:
                lists.append([])
                sizes[stream] = 0
            lists[-1].append(record)
            sizes[stream] += record.size
        return {
            (stream, number): self.outgoing(stream, journal.pack_records(pack, utc_ms()))
            for stream, lists in packs.items()
            for number, pack in enumerate(lists)
        }

    @contextmanager
    def recording(self, records: Mapping[Any, Outgoing]) -> Iterator[None]:
        """Pause streams if the broker closes the connection because of a record to them.

        RabbitMQ 4.3 does that if a stream has lost its data, which happens when a node is killed just after the stream
        was created. Delayed messages are not blocked: Kombu reconnects, and publishes them without a record.
        """
        try:
            yield
        except (ResourceError, InternalError) as exc:
            if not records:
                raise
            self.pause(records, exc)
            raise RecoverableConnectionError(str(exc)) from exc

    def store(self, records: Mapping[Any, Outgoing]) -> None:
        """Store records, and create missing streams for them. Log a warning if that fails."""
        for (stream, number), record in records.items():
            try:
                self.write(stream, [record.message.body])
            except (DelayError, AMQPError, OSError) as exc:
                self.pause([(stream, number)], exc)

    def _is_paused(self, stream: Stream) -> bool:
        return paused_of[self._connection.client].get(stream.name, 0) > time.monotonic()

    def pause(self, records: Iterable[Any], reason: Exception) -> None:
        """Stop writing to the streams of some records for a while; log a warning if it is the first one."""
        paused = paused_of[self._connection.client]
        for stream in {stream for stream, _ in records}:
            name = stream.name
            if not paused:
                logger.warning(
                    "Delayed messages are sent without being recorded, so they cannot be listed or moved: "
                    "the stream %r does not work: %s. To record none, set the option journal=None",
                    name,
                    reason,
                )
            pause = _PAUSE if name in paused else _FIRST_PAUSE
            # A broker without streams closes the connection at each attempt.
            paused[name] = time.monotonic() + (math.inf if isinstance(reason, UnsupportedConfiguration) else pause)

    def prepare(self, plans: Iterable[Plan]) -> None:
        """Create the stream of keys if some messages have one, once. Raises the same errors as `write` for a key."""
        for plan in plans:
            if plan.key is not None and not self._has_keys:
                self.write(streams.keys(self._cascade), [streams.marker()])
                self._has_keys = True

    def write_keys(self, plans: Iterable[Plan]) -> None:
        """Write the keys of some messages, which become the last of these keys. Raises the same errors as `write`."""
        if last := [last_of_key(plan.key, plan.number) for plan in plans if plan.key is not None]:
            self.write(streams.keys(self._cascade), last)

    def write(self, stream: Stream, bodies: Iterable[bytes]) -> None:
        """Store messages in a stream, which is created if it is missing: one round trip.

        Raises `CascadeMissing` with `declare="passive"`, `NotPermitted`, `CascadeConflict`, `NotStored`.
        """
        messages = [self.outgoing(stream, body) for body in bodies]
        try:
            self._write(stream, messages)
        except CascadeMissing:
            self.ensure(stream)
            self._write(stream, messages)

    def _write(self, stream: Stream, messages: Iterable[Outgoing]) -> None:
        unsent = dict(enumerate(messages))
        with self._exclusively(), declare.translate_errors(self._cascade):
            try:
                self._channel.publish_all(unsent)
            except (InternalError, ResourceError) as exc:  # the stream has no leader, or has lost its data
                raise StreamUnavailable(f"the stream {stream.name!r} cannot be written now: {exc}") from exc
            if not unsent:
                return
            if self._channel.returned(self._cascade.ingest, stream.routing_key) is None:
                raise NotStored(f"RabbitMQ could not store a message in the stream {stream.name!r}")
            raise CascadeMissing(f"the stream {stream.name!r} is missing, or its node is down")

    def ensure(self, stream: Stream) -> None:
        """Create a stream that is missing. Raises the errors of `ensure_stream`."""
        with self._exclusively():
            ensure_stream(self._channel, self._options, self._cascade, stream)

    def outgoing(self, stream: Stream, body: bytes) -> Outgoing:
        """Return a message for a stream."""
        return Outgoing(Message(body, delivery_mode=2), self._cascade.ingest, stream.routing_key)

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        with self._connection.exclusively(self._channel, self._options.confirm_timeout):
            try:
                yield
            except BaseException:
                self._channel.reset()
                raise
