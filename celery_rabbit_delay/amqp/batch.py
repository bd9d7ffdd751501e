"""Many delayed messages for one round trip: all are sent before the broker's first answer is waited for.

Kombu 5.7 has a place for this, `Producer.batch`; `collect` does the same with every Kombu, and connects again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError, RecoverableConnectionError
from kombu.exceptions import KombuError

from ..core.errors import DelayError, DestinationNotFound, InvalidDestination, NotPermitted, UnsupportedConfiguration
from .clients import client_of

try:
    from kombu.exceptions import BatchPublishError
except ImportError:  # before Kombu 5.7
    from kombu.exceptions import KombuError as BatchPublishError

if TYPE_CHECKING:
    import kombu

    from .pending import PendingMessage
    from .publisher import DelayedPublisher

#: Messages that a batch holds before it sends them.
MAX_SIZE = 1000


class BatchFailed(DelayError, BatchPublishError):  # type: ignore[misc]
    """The messages of a batch that `ids` names may not be stored, or not be the last of their keys; all others are."""

    def __init__(self, message: str, ids: list[str | None]) -> None:
        super().__init__(message, ids)  # both, so that it can be pickled
        #: Celery's task ids; None for a message that is no task.
        self.ids = ids

    def __str__(self) -> str:
        return str(self.args[0])


class Batch:
    """Delayed messages of one Kombu connection that are still to be sent. It may connect again meanwhile."""

    def __init__(self, max_size: int = MAX_SIZE) -> None:
        self.max_size = max_size
        self._serial = itertools.count()
        self._pending: dict[int, PendingMessage] = {}
        self._unreachable: set[int] = set()  # those of them that wait for `flush` to say why

    def add(self, connection: Any, pending: PendingMessage) -> None:
        """Take a message, after sending those that are there if that is enough of them.

        Raises what `flush` does, but nothing about other messages' destinations; the message is not taken then.
        """
        if len(self._pending) - len(self._unreachable) >= self.max_size:
            self._send(connection, {n: one for n, one in self._pending.items() if n not in self._unreachable})
        self._pending[next(self._serial)] = pending

    def flush(self, connection: Any) -> None:
        """Return once the broker has stored all. What an error leaves is sent by the next call.

        Raises what publishing one by one raises.
        """
        self._unreachable.clear()
        if failed := self._send(connection, self._pending):
            raise failed

    def _send(self, connection: Any, some: Mapping[int, PendingMessage]) -> DelayError | None:
        """Send some of the messages; return why others have no way to their destination. Raises as `flush`."""
        if connection is None:
            raise RecoverableConnectionError("the connection was lost")
        publishers: dict[DelayedPublisher, dict[int, PendingMessage]] = {}
        for name, pending in some.items():
            publishers.setdefault(connection.publisher_for(pending.priority), {})[name] = pending
        failed: DelayError | None = None
        for publisher, messages in publishers.items():
            unreachable = set()
            for destination in {pending.destination for pending in messages.values()}:
                try:
                    publisher.bind(destination)
                except (
                    DestinationNotFound,
                    InvalidDestination,
                    NotPermitted,
                ) as exc:  # the others are sent all the same
                    failed = exc
                    unreachable.add(destination)
            reachable = {name: pending for name, pending in messages.items() if pending.destination not in unreachable}
            self._unreachable |= messages.keys() - reachable.keys()
            if not reachable:
                continue
            unsent = dict(reachable)
            try:
                with suppress(DelayError):
                    publisher.publish_all(unsent)
            finally:
                self._forget(reachable.keys() - unsent.keys())
            for name, pending in unsent.items():  # refused, or its key is: repairs the cascade, or says why
                publisher.publish(pending)
                self._forget([name])
        return failed

    def discard(self) -> None:
        """Forget all messages that are not sent yet."""
        self._pending.clear()
        self._unreachable.clear()

    @property
    def ids(self) -> list[str | None]:
        """Celery's task ids of the messages that are not stored yet, or whose keys are not told yet."""
        return [pending.message.properties.get("correlation_id") for pending in self._pending.values()]

    def _forget(self, names: Any) -> None:
        for name in names:
            del self._pending[name]

    @contextmanager
    def collecting(self, client: kombu.Connection) -> Iterator[None]:
        """Collect the delayed messages of a Kombu connection. Blocks may be nested: the innermost batch collects."""
        batches = client_of(client).batches
        batches.append(self)
        try:
            yield
        finally:
            batches.remove(self)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Raise what RabbitMQ or the connection to it says as `BatchFailed`. An interrupt of the caller stays one."""
        try:
            yield
        except (DelayError, AMQPError, KombuError, OSError) as exc:
            ids = self.ids
            raise BatchFailed(f"{len(ids)} delayed messages are not stored, send them again: {exc}", ids) from exc


class PublishBatch:
    """What `kombu.Producer.batch` wants of a channel (kombu.messaging)."""

    def __init__(self, channel: Any, max_size: int) -> None:
        self.channel = channel
        self._batch = Batch(max_size)

    def publish(self, message: Any, **kwargs: Any) -> Any:
        with self._batch.collecting(self.channel.connection.client):
            return self.channel.basic_publish(message, **kwargs)

    def flush(self) -> None:
        """Send all. Raises `BatchFailed`."""
        with self._batch.failing():
            self._batch.flush(self.channel.connection)

    def discard(self) -> None:
        self._batch.discard()

    def close(self) -> None:
        pass


@contextmanager
def collect(producer: kombu.Producer, max_size: int = MAX_SIZE, retry: dict[str, Any] | None = None) -> Iterator[None]:
    """Let the delayed messages of a Kombu producer share round trips until the block ends.

    With `retry`, arguments for `kombu.Connection.ensure`, a lost connection is made again. Raises `BatchFailed`;
    `UnsupportedConfiguration` if the producer's connection does not delay messages.
    """
    client = producer.connection
    if not hasattr(client.transport, "delay_options"):
        raise UnsupportedConfiguration("batch() is for delayed tasks in RabbitMQ: call install(app) first")
    batch = Batch(max_size)

    def flush() -> None:
        batch.flush(producer.channel.connection)

    try:
        with batch.collecting(client):
            yield
    finally:
        if batch.ids:  # or else there may be no broker: eager tasks have run already
            with batch.failing():
                if retry is None:
                    flush()
                else:
                    client.ensure(producer, flush, **retry)()
