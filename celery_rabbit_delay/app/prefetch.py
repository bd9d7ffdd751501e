"""The prefetch count of a worker where RabbitMQ has one for each consumer: the count with which it began to consume.

Celery, made for a count of the whole channel that can be changed at any time, changes it in three cases. A pool that
grows is followed here, by further consumers. Tasks that it holds until their etas are not: with this package they are
few, and such a count would have to be taken back soon. After a reconnect with running tasks, Celery before 5.7 begins
with a smaller count, and can raise it again only where the channel has one.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from kombu.common import QoS

from ..core.options import DRIVER_TYPE


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
