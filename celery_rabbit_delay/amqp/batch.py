"""Sends many delayed messages in one round trip: it sends all of them before it waits for the broker's first answer.

Kombu 5.7 has `Producer.batch` for this; `collect` does the same with every Kombu, and also reconnects.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError, ChannelError, RecoverableConnectionError
from kombu.exceptions import KombuError

from ..core.errors import DelayError, DestinationNotFound, InvalidDestination, NotPermitted, UnsupportedConfiguration
from .clients import PerClient

try:
    from kombu.exceptions import BatchPublishError
except ImportError:  # before Kombu 5.7
    from kombu.exceptions import KombuError as BatchPublishError

if TYPE_CHECKING:
    import kombu

    from ..core.plan import Plan
    from .publisher import DelayedPublisher

#: The number of messages that a batch holds before it sends them.
MAX_SIZE = 1000


#: The batches that collect what a `kombu.Connection` publishes, the innermost last.
batches_of: PerClient[list[Batch]] = PerClient(list)


class BatchFailed(DelayError, BatchPublishError):  # type: ignore[misc]
    """Some messages of a batch, or their keys, may not be stored: `ids` lists them. All others are stored."""

    def __init__(self, message: str, ids: list[str | None]) -> None:
        super().__init__(message, ids)  # both, so that it can be pickled
        #: Celery's task ids; None for a message that is not a task.
        self.ids = ids

    def __str__(self) -> str:
        return str(self.args[0])


class Batch:
    """Holds delayed messages of one Kombu connection until they are sent. The connection may reconnect in between."""

    def __init__(self, max_size: int = MAX_SIZE) -> None:
        self.max_size = max_size
        self._serial = itertools.count()
        self._plans: dict[int, Plan] = {}
        self._refused: set[int] = set()  # those of them that wait for `flush` to say why

    def add(self, connection: Any, plan: Plan) -> None:
        """Add a message; first send the messages of a full batch.

        Raises the same errors as `flush`, except those about single messages; the message is not added then.
        """
        if len(self._plans) - len(self._refused) >= self.max_size:
            self._send(connection, {n: one for n, one in self._plans.items() if n not in self._refused})
        self._plans[next(self._serial)] = plan

    def flush(self, connection: Any) -> None:
        """Send all messages, and return once the broker has stored them. After an error, the next call sends the rest.

        Raises the same errors as publishing one by one.
        """
        self._refused.clear()
        if failed := self._send(connection, self._plans):
            raise failed

    def _send(self, connection: Any, some: Mapping[int, Plan]) -> Exception | None:
        """Send some of the messages; return why others cannot be sent, if there are any. Raises as `flush`."""
        if connection is None:
            raise RecoverableConnectionError("the connection was lost")
        publishers: dict[DelayedPublisher, dict[int, Plan]] = {}
        for name, plan in some.items():
            publishers.setdefault(connection.publisher_for(plan.priority), {})[name] = plan
        failed: Exception | None = None
        for publisher, messages in publishers.items():
            unreachable = set()
            for plan in messages.values():
                if plan.destination in unreachable:
                    continue
                try:
                    publisher.prepare(plan)
                except (DestinationNotFound, InvalidDestination, NotPermitted) as exc:  # send the others
                    failed = exc
                    unreachable.add(plan.destination)
            reachable = {name: plan for name, plan in messages.items() if plan.destination not in unreachable}
            self._refused |= messages.keys() - reachable.keys()
            if not reachable:
                continue
            unsent = dict(reachable)
            try:
                with suppress(DelayError, ChannelError):
                    publisher.publish_all(unsent)
            finally:
                self._forget(reachable.keys() - unsent.keys())
            for name, plan in unsent.items():  # refused messages and keys: repairs the cascade, or raises the reason
                try:
                    publisher.publish(plan)
                except ChannelError as exc:  # it concerns that message alone, such as its size or its user_id
                    failed = exc
                    self._refused.add(name)
                else:
                    self._forget([name])
        return failed

    def discard(self) -> None:
        """Drop all messages that are not sent yet."""
        self._plans.clear()
        self._refused.clear()

    @property
    def ids(self) -> list[str | None]:
        """Celery's task ids of the messages that are not stored yet, or whose keys are not stored yet."""
        return [plan.message.properties.get("correlation_id") for plan in self._plans.values()]

    def _forget(self, names: Any) -> None:
        for name in names:
            del self._plans[name]

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
        self._batch = Batch(max_size)

    def publish(self, message: Any, **kwargs: Any) -> Any:
        with self._batch.collecting(self.channel.connection.client):
            return self.channel.basic_publish(message, **kwargs)

    def flush(self) -> None:
        """Send all messages. Raises `BatchFailed`."""
        with self._batch.failing():
            self._batch.flush(self.channel.connection)

    def discard(self) -> None:
        self._batch.discard()

    def close(self) -> None:
        pass


@contextmanager
def collect(producer: kombu.Producer, max_size: int = MAX_SIZE, retry: dict[str, Any] | None = None) -> Iterator[None]:
    """Let the delayed messages of a Kombu producer share round trips until the block ends.

    With `retry`, arguments for `kombu.Connection.ensure`, a lost connection is restored. Raises `BatchFailed`;
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
        if batch.ids:  # without messages there may be no broker: eager tasks have already run
            with batch.failing():
                if retry is None:
                    flush()
                else:
                    client.ensure(producer, flush, **retry)()
