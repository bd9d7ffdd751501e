"""Writes the streams beside a cascade: a record of each delayed message, and later changes; pauses what fails."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from functools import partial

from amqp import Message
from amqp.exceptions import AMQPError, InternalError, ResourceError

from ... import upstream
from ...delay.amqp import declare
from ...delay.amqp.confirms import ANSWERS, NotStored, Outgoing
from ...delay.amqp.publisher import DelayedPublisher
from ...delay.core.errors import CascadeMissing, DelayError, NotRouted, UnsupportedConfiguration
from ...delay.core.headers import message_id
from ...delay.core.plan import Plan
from ...delay.core.topology import Stream
from ..core import journal
from ..core.errors import StreamUnavailable
from ..core.journal import Record
from .create_streams import create_streams

logger = logging.getLogger(__name__)

#: Bytes of a record that RabbitMQ takes by default, of 16 MiB: the message alone may just fit.
_LARGEST = 16 * 1024 * 1024 - 10_000

#: Seconds until the next attempt to record in a stream that is missing, or does not work.
_PAUSE = 60


class StreamWriter:
    """Writes the streams of a cascade through the connection of a publisher. For blocks of `Turn`."""

    def __init__(
        self, publisher: DelayedPublisher, paused: dict[str, float], lost: list[tuple[Stream, Record]]
    ) -> None:
        """`paused` are names of streams that do not work, and the time (`time.monotonic`) of the next attempt.

        `lost` gets records of which the answer was lost, to be stored with the next ones: twice is once in a list.
        """
        self._publisher, self._channel, self._options = publisher, publisher.channel, publisher.options
        self._paused, self._lost = paused, lost
        self._known: set[Stream] = set()  # those that have taken a message of this connection

    def record(self, plan: Plan, message: Message) -> None:
        """Send the record of a message that is stored, without waiting: a later turn reads the answer.

        Only the first one for a stream is waited for: one that has lost its data makes RabbitMQ 4.3 close the
        connection, which must not hit the next message. Logs a warning if that fails, as where the stream is missing.
        """
        ticket = plan.ticket
        if ticket is None or self._is_paused(stream := ticket.stream) or not (record := record_of(plan, message)):
            return
        if stream not in self._known:
            self.store([(stream, record)])
            return
        try:
            answered = partial(self._on_answer, stream, record)
            self._channel.send(self.outgoing(stream, journal.pack_records([record])), answered)
        except (AMQPError, OSError) as exc:
            self._give_up(stream, exc)

    def _on_answer(self, stream: Stream, record: Record, refusal: Exception | None) -> None:
        if refusal is None:
            return
        self._known.discard(stream)
        if isinstance(refusal, (NotRouted, NotStored)):
            self.pause(stream, refusal)
        else:  # the connection is lost, or another message has closed the channel
            self._lost.append((stream, record))

    def store(self, records: Iterable[tuple[Stream, Record]]) -> None:
        """Store the records of messages that are stored, many in one message. Log a warning if that fails."""
        bodies: dict[Stream, list[bytes]] = {}
        for stream, pack in journal.packs(records):
            bodies.setdefault(stream, []).append(journal.pack_records(pack))
        for stream, some in bodies.items():
            try:
                if not self._is_paused(stream):
                    self._write(stream, [self.outgoing(stream, body) for body in some])
            except (DelayError, AMQPError, OSError) as exc:
                self._give_up(stream, exc)

    def _give_up(self, stream: Stream, reason: Exception) -> None:
        self.pause(stream, reason)
        if not isinstance(reason, ANSWERS):
            self._publisher.connection.abandon()  # no error: the messages are stored; the next connects again

    def _is_paused(self, stream: Stream) -> bool:
        return self._paused.get(stream.name, 0) > time.monotonic()

    def pause(self, stream: Stream, reason: Exception) -> None:
        """Stop writing to a stream for a while; log a warning if none was paused in the last minute."""
        name, before = stream.name, time.monotonic() - _PAUSE
        if all(end < before for end in self._paused.values()):
            logger.warning(
                "Delayed messages are sent without being recorded, so they cannot be listed or moved: "
                "the stream %r does not work: %s. To record none, set the option journal=None",
                name,
                reason,
            )
        # A broker without streams closes the connection at each attempt.
        self._paused[name] = time.monotonic() + (math.inf if isinstance(reason, UnsupportedConfiguration) else _PAUSE)

    def write(self, stream: Stream, bodies: Iterable[bytes]) -> None:
        """Store what must not be lost in a stream, which is created if it is missing: one round trip.

        Raises `CascadeMissing` with `declare="passive"`, `NotPermitted`, `CascadeConflict`, `NotStored`.
        """
        messages = [self.outgoing(stream, body) for body in bodies]
        try:
            self._write(stream, messages)
        except CascadeMissing:
            create_streams(self._channel, self._options, self._publisher.cascade, [stream])
            self._write(stream, messages)

    def _write(self, stream: Stream, messages: Iterable[Outgoing]) -> None:
        with declare.translate_errors(self._publisher.cascade):
            try:
                for confirm in [self._channel.send(one) for one in messages]:
                    self._channel.wait(confirm)
            except NotRouted as exc:
                raise CascadeMissing(
                    f"the stream {stream.name!r} is missing, or its node is down: a worker with schedule=True creates "
                    "it when it starts, or `celery -A APP delay setup`"
                ) from exc
            except (InternalError, ResourceError) as exc:  # the stream has no leader, or has lost its data
                raise StreamUnavailable(f"the stream {stream.name!r} cannot be written now: {exc}") from exc
        self._known.add(stream)

    def outgoing(self, stream: Stream, body: bytes) -> Outgoing:
        """Return a message for a stream."""
        return Outgoing(Message(body, delivery_mode=2), self._publisher.cascade.ingest, stream.routing_key)


def record_of(plan: Plan, message: Message) -> Record | None:
    """Return the record of a message as it is sent; None if it is too large, with a warning."""
    id_ = message_id(message.properties, plan.headers)
    record = Record(plan.due_ms, plan.ticket.number if plan.ticket else 0, id_, *upstream.serialize(message))
    if record.size > _LARGEST:
        logger.warning("The message %r is sent without being recorded: it is too large to record", id_)
        return None
    return record
