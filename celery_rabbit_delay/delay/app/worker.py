"""The boot steps of a worker: what it logs at its start, a limit for its event loop, and a count for a grown pool.

The prefetch count of a worker, where RabbitMQ has one for each consumer, is the count with which it began to consume.
Celery, made for a count of the whole channel that can be changed at any time, changes it in three cases. A pool that
grows is followed here, by further consumers. Tasks that it holds until their etas are not: with this package they are
few, and such a count would have to be taken back soon. After a reconnect with running tasks, Celery before 5.7 begins
with a smaller count, and can raise it again only where the channel has one.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps
from kombu.common import QoS

from ..amqp.limited import ANSWER_WITHIN
from ..amqp.sender import limit_this_thread
from ..core.options import DRIVER_TYPE

logger = logging.getLogger(__name__)


def has_loop(consumer: Any) -> bool:
    """Return whether a worker's timers run in the thread that reads its connection; otherwise in another one."""
    return bool(consumer.hub or getattr(consumer.pool, "is_green", False))


class LimitLoop(bootsteps.StartStopStep):  # type: ignore[misc]
    """Limits how long the event loop of a worker waits for the broker when it publishes: it also sends heartbeats."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._has_begun = False

    def start(self, consumer: Any) -> None:
        transport = consumer.connection.transport
        if transport.driver_type != DRIVER_TYPE:
            return
        if not self._has_begun:  # each reconnect calls this again
            logger.info("Delayed tasks wait in RabbitMQ: %s", transport.delay_options.summary)
        self._has_begun = True
        if has_loop(consumer):
            limit_this_thread(ANSWER_WITHIN)

    def stop(self, consumer: Any) -> None:
        limit_this_thread(None)


class PoolQoS(QoS):  # type: ignore[misc]
    """The prefetch count of a pool, as Celery calculates it.

    Celery passes no amount for a task that it holds until its eta, or holds no longer. Its event loop applies a change.
    """

    def increment_eventually(self, n: int | None = None) -> Any:
        return self.value if n is None else super().increment_eventually(n)

    def decrement_eventually(self, n: int | None = None) -> Any:
        return self.value if n is None else super().decrement_eventually(n)


class FollowPool(bootsteps.StartStopStep):  # type: ignore[misc]
    """Gives a worker its full prefetch count, also after a reconnect and when its pool has grown."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        connection = c.connection
        if connection.transport.driver_type != DRIVER_TYPE or not connection.qos_semantics_matches_spec:
            return
        c.app.conf.worker_enable_prefetch_count_reduction = False
        c.qos = PoolQoS(c.task_consumer.set_prefetch_count, c.qos.value)
        c.qos.prev = c.task_consumer.fetches = c.qos.value  # Celery has just sent it
