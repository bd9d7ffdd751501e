"""Sends many delayed messages without waiting for each of the broker's answers.

Kombu 5.7 has `Producer.batch` for this; `collect` does the same with every Kombu, and also reconnects.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError, FrameError, RecoverableConnectionError
from kombu.exceptions import KombuError

from ..core import streams
from ..core.errors import DelayError, MessageRefused, UnsupportedConfiguration
from .clients import PerClient
from .stream_writer import is_full

try:
    from kombu.exceptions import BatchPublishError
except ImportError:  # before Kombu 5.7
    from kombu.exceptions import KombuError as BatchPublishError

if TYPE_CHECKING:
    import kombu

    from ..core.journal import Record
    from ..core.plan import Plan
    from ..core.topology import Stream
    from .limited import LimitedConnection
    from .sender import Sender

#: The number of messages that a batch sends before it waits for answers.
MAX_SIZE = 1000

#: After these, messages may be stored, and are sent again; others were refused, or are in the way of a refused one.
_LOST = (RecoverableConnectionError, OSError)

#: With these, RabbitMQ closes a channel or the connection because of one message.
_REFUSALS = (MessageRefused, FrameError)


#: The batches that collect what a `kombu.Connection` publishes, the innermost last.
batches_of: PerClient[list[Batch]] = PerClient(list)


class BatchFailed(DelayError, BatchPublishError):  # type: ignore[misc]
    """Some messages of a batch may not be stored: `ids` lists them. All others are stored."""

    def __init__(self, message: str, ids: list[str | None]) -> None:
        super().__init__(message, ids)  # both, so that it can be pickled
        #: Celery's task ids; None for a message that is not a task.
        self.ids = ids

    def __str__(self) -> str:
        return str(self.args[0])


class Batch:
    """Sends delayed messages of one Kombu connection as they come, with at most `max_size` that are unanswered.

    The connection may be lost and made again in between: messages that are not known to be stored are sent again.
    """

    def __init__(self, max_size: int = MAX_SIZE, holds: bool = False) -> None:
        """With `holds`, keep messages until there are `max_size` of them, or until `flush`. Raises `ValueError`."""
        if type(max_size) is not int or max_size < 1:
            raise ValueError(f"max_size={max_size!r}: use a whole number, 1 or more")
        self.max_size = max_size
        self._holds = holds
        self._serial = itertools.count()
        self._plans: dict[int, Plan] = {}  # what is not stored yet
        self._sent: set[int] = set()  # those of them that the broker has not answered
        self._refused: set[int] = set()  # those of them to send alone, to repair the cascade or to learn why
        self._records: list[tuple[int | None, Stream, Record]] = []  # with the priority of the message

    def add(self, sender: Sender, plan: Plan) -> None:
        """Send a message; first wait until there is room for it.

        Raises what keeps it from being sent, and the errors of a lost connection; the message is not added then.
        """
        if sender.has_records or len(self._plans) >= 10 * self.max_size:  # the latter were refused
            self._settle(sender, 0)
        elif len(self._plans) - len(self._refused) >= self.max_size:
            self._settle(sender, self.max_size // 2)
        name = next(self._serial)
        self._plans[name] = plan
        try:
            with sender.turn(sender.options.confirm_timeout):
                if self._holds:
                    sender.publisher_for(plan.priority).ensure(plan)
                else:
                    self._send(sender, name, plan)
        except Exception:
            self._forget(name)
            raise

    def flush(self, sender: Sender) -> None:
        """Return once the broker has stored all messages. After an error, the next call sends the rest.

        Raises the same errors as publishing one by one.
        """
        self._settle(sender, 0)
        failed: Exception | None = None
        for name, plan in list(self._plans.items()):
            try:
                sender.publish(plan)
            except DelayError as exc:  # it concerns that message alone, such as its destination or its size
                failed = exc
                if change := plan.void:  # its record may be stored
                    with suppress(DelayError, AMQPError, OSError):
                        sender.write(streams.changes(sender.options.cascade), [change])
            else:
                self._forget(name)
        if sender.has_records:
            with sender.turn(sender.options.confirm_timeout):
                sender.publisher_for().writer.store_records()
        if failed:
            raise failed

    def _settle(self, sender: Sender, most: int) -> None:
        """Send what a lost connection has left, and wait until at most so many messages are unanswered."""
        try:
            with sender.turn(sender.options.confirm_timeout) as connection:
                for name, plan in list(self._plans.items()):
                    if name not in self._sent and name not in self._refused:
                        self._send(sender, name, plan)
                self._send_records(sender)
                connection.wait_until(lambda: len(self._sent) <= most or not sender.unanswered)
                if not sender.unanswered:  # an interrupt may have come between an answer and our note of it
                    self._sent.clear()
                if not most:
                    self._finish(sender, connection)
        except _REFUSALS:  # of one message, but of which?
            pass

    def _finish(self, sender: Sender, connection: LimitedConnection) -> None:
        """Wait for the records, and write those that are left."""
        with suppress(TimeoutError):
            connection.wait_until(lambda: not sender.unanswered)
        if sender.has_records:
            sender.publisher_for().writer.store_records()

    def _send(self, sender: Sender, name: int, plan: Plan) -> None:
        publisher = sender.publisher_for(plan.priority)
        record = publisher.submit(plan, partial(self._answer, name))
        self._sent.add(name)
        if plan.stream and record:
            self._records.append((plan.priority, plan.stream, record))
            if is_full(record for _, _, record in self._records):
                self._send_records(sender)

    def _send_records(self, sender: Sender) -> None:
        records, self._records = self._records, []
        for priority, some in itertools.groupby(records, lambda one: one[0]):
            sender.publisher_for(priority).writer.submit((stream, record) for _, stream, record in some)

    def _answer(self, name: int, refusal: Exception | None) -> None:
        self._sent.discard(name)
        if name not in self._plans:  # it was discarded
            return
        if refusal is None:
            self._forget(name)
        elif not isinstance(refusal, _LOST):
            self._refused.add(name)

    def discard(self) -> None:
        """Drop all messages that are not sent yet."""
        for name in list(self._plans):
            self._forget(name)

    @property
    def ids(self) -> list[str | None]:
        """Celery's task ids of the messages that are not stored yet."""
        return [plan.message.properties.get("correlation_id") for plan in self._plans.values()]

    def _forget(self, name: int) -> None:
        del self._plans[name]
        self._sent.discard(name)
        self._refused.discard(name)

    @contextmanager
    def collecting(self, client: kombu.Connection) -> Iterator[None]:
        """Collect the delayed messages of a Kombu connection. In nested blocks the innermost batch collects them."""
        batches = batches_of[client]
        try:
            batches.append(self)
            yield
        finally:
            if self in batches:  # not if it was interrupted before
                batches.remove(self)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Raise errors of RabbitMQ and of the connection as `BatchFailed`. Interrupts of the caller pass unchanged."""
        try:
            yield
        except (DelayError, AMQPError, KombuError, OSError) as exc:
            ids = self.ids
            raise BatchFailed(f"{len(ids)} delayed messages are not stored, send them again: {exc}", ids) from exc


class PublishBatch:
    """Implements the channel's part of `kombu.Producer.batch` (kombu.messaging)."""

    def __init__(self, channel: Any, max_size: int) -> None:
        self.channel = channel
        self._batch = Batch(max_size, holds=True)

    def publish(self, message: Any, **kwargs: Any) -> Any:
        with self._batch.collecting(self.channel.connection.client):
            return self.channel.basic_publish(message, **kwargs)

    def flush(self) -> None:
        """Send all messages. Raises `BatchFailed`."""
        with self._batch.failing():
            self._batch.flush(_sender_of(self.channel))

    def discard(self) -> None:
        self._batch.discard()

    def close(self) -> None:
        pass


def _sender_of(channel: Any) -> Sender:
    if channel.connection is None:
        raise RecoverableConnectionError("the connection was lost")
    sender: Sender = channel.connection.sender
    return sender


@contextmanager
def collect(producer: kombu.Producer, max_size: int = MAX_SIZE, retry: dict[str, Any] | None = None) -> Iterator[None]:
    """Let the delayed messages of a Kombu producer wait together for the broker until the block ends.

    With `retry`, arguments for `kombu.Connection.ensure`, a lost connection is restored. Raises `BatchFailed`;
    `UnsupportedConfiguration` if the producer's connection does not delay messages; `ValueError`.
    """
    client = producer.connection
    if not hasattr(client.transport, "delay_options"):
        raise UnsupportedConfiguration("batch() is for delayed tasks in RabbitMQ: call install(app) first")
    batch = Batch(max_size)

    def flush() -> None:
        batch.flush(_sender_of(producer.channel))

    try:
        with batch.collecting(client):
            yield
    finally:
        if batch.ids:  # without messages there may be no broker: eager tasks have already run
            with batch.failing():
                if retry is None:
                    flush()
                else:
                    client.ensure(producer, flush, **retry)()
