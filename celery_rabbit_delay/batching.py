"""Many delayed messages for one round trip: all are sent before the broker's first answer is waited for.

Kombu 5.7 has a place for this, `Producer.batch`; `batch` does the same with every Kombu, and connects again if need be.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import kombu
from amqp.exceptions import RecoverableConnectionError

from . import routing_key
from .exceptions import BatchFailed, DelayError, UnsupportedConfiguration
from .routing_key import Destination

if TYPE_CHECKING:  # every `celery` command imports this module
    from celery import Celery

    from .publish import DelayedPublisher

#: Messages that a batch holds before it sends them.
MAX_SIZE = 1000


class Delayed(NamedTuple):
    message: Any  # an amqp.Message, diverted
    due: datetime  # aware
    destination: Destination
    timeout: float | None  # seconds, as for `kombu.Producer.publish`
    confirm_timeout: float | None


class Batch:
    """Delayed messages of one Kombu connection that are still to be sent. It may connect again meanwhile."""

    def __init__(self, max_size: int = MAX_SIZE) -> None:
        self.max_size = max_size
        self._serial = itertools.count()
        self._pending: dict[int, Delayed] = {}

    def add(self, connection: Any, delayed: Delayed) -> None:
        """Sends first what is there if that is enough. Raises what `flush` does; `delayed` is not taken then."""
        if len(self._pending) >= self.max_size:
            self.flush(connection)
        self._pending[next(self._serial)] = delayed

    def flush(self, connection: Any) -> None:
        """Returns once the broker has stored all. What an error leaves is sent by the next call.

        Raises what publishing one by one raises.
        """
        if connection is None:
            raise RecoverableConnectionError("the connection was lost")
        publishers: dict[DelayedPublisher, list[int]] = {}
        for name, delayed in self._pending.items():
            publishers.setdefault(connection.delayed(delayed.message.properties.get("priority")), []).append(name)
        for publisher, names in publishers.items():
            for destination in {self._pending[name].destination for name in names}:
                publisher.bind(destination)
            self._send(publisher, names)
            for name in names:
                if name in self._pending:  # refused: repairs the cascade, or says why
                    message, due, destination, *timeouts = self._pending[name]
                    publisher.publish(message, _ticks(publisher, due), destination, *timeouts)
                    del self._pending[name]

    def discard(self) -> None:
        self._pending.clear()

    @property
    def ids(self) -> list[str | None]:
        """Of the messages that are not stored yet: Celery's task ids."""
        return [delayed.message.properties.get("correlation_id") for delayed in self._pending.values()]

    def _send(self, publisher: DelayedPublisher, names: list[int]) -> None:
        unsent = {}
        for name in names:
            message, due, _, *timeouts = self._pending[name]
            unsent[name] = message, routing_key.encode(_ticks(publisher, due))
        try:
            with suppress(DelayError):
                publisher.publish_all(unsent, *timeouts)
        finally:
            for name in set(names) - unsent.keys():
                del self._pending[name]


def _ticks(publisher: DelayedPublisher, due: datetime) -> int:
    """From now: the message may have waited in the batch for a while."""
    return publisher.options.ticks_until(due, datetime.now(timezone.utc))


class PublishBatch:
    """What `kombu.Producer.batch` wants of a channel (kombu.messaging)."""

    def __init__(self, channel: Any, max_size: int) -> None:
        self.channel = channel
        self._batch = Batch(max_size)

    def publish(self, message: Any, **kwargs: Any) -> Any:
        with _collecting(self.channel.connection.client, self._batch):
            return self.channel.basic_publish(message, **kwargs)

    def flush(self) -> None:
        """Raises `BatchFailed`."""
        with _failing(self._batch):
            self._batch.flush(self.channel.connection)

    def discard(self) -> None:
        self._batch.discard()

    def close(self) -> None:
        pass


@contextmanager
def batch(app: Celery | kombu.Producer, max_size: int = MAX_SIZE) -> Iterator[kombu.Producer]:
    """Lets delayed tasks share round trips: pass the producer that it yields to `apply_async`, `send_task`, a group.

        with celery_rabbit_delay.batch(app) as producer:
            for order in orders:
                ask_for_review.apply_async((order,), countdown=3600, producer=producer)

    Delayed tasks are sent whenever there are `max_size` of them, and at the end of the block, also if it raises; the
    block ends when the broker has stored all. A lost connection is made again as the app's `task_publish_retry` and
    `task_publish_retry_policy` say. Messages without a delay are sent at once, as ever. `app` may be a producer, for
    Kombu without Celery; there is no retry then.

    Raises `BatchFailed` with the ids of the tasks that are not stored; `UnsupportedConfiguration` without `install`.
    """
    if isinstance(app, kombu.Producer):
        with _batch(app, max_size, retry=None):
            yield app
        return
    retry = dict(app.conf.task_publish_retry_policy or {}) if app.conf.task_publish_retry else None
    with app.producer_or_acquire() as producer, _batch(producer, max_size, retry):
        yield producer


@contextmanager
def _batch(producer: kombu.Producer, max_size: int, retry: dict[str, Any] | None) -> Iterator[None]:
    client = producer.connection
    if not hasattr(client.transport, "delay_options"):
        raise UnsupportedConfiguration("batch() is for delayed tasks in RabbitMQ: call install(app) first")
    collected = Batch(max_size)

    def flush() -> None:
        collected.flush(producer.channel.connection)

    try:
        with _collecting(client, collected):
            yield
    finally:
        with _failing(collected):
            if retry is None:
                flush()
            else:
                client.ensure(producer, flush, **retry)()


@contextmanager
def _collecting(client: kombu.Connection, batch: Batch) -> Iterator[None]:
    client.delayed_batch = batch
    try:
        yield
    finally:
        client.delayed_batch = None


@contextmanager
def _failing(batch: Batch) -> Iterator[None]:
    try:
        yield
    except Exception as exc:
        ids = batch.ids
        raise BatchFailed(f"{len(ids)} delayed messages are not stored, send them again: {exc}", ids) from exc
