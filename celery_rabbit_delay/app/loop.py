"""A worker's start, and its event loop, which must not wait for long."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps

from ..amqp.sender import limit_this_thread
from ..core.options import DRIVER_TYPE

logger = logging.getLogger(__name__)

#: Seconds for which publishing in a worker's event loop waits for the broker, then `TimeoutError`: the loop sends the
#: heartbeats of the worker's connection.
PATIENCE = 5.0


def has_loop(consumer: Any) -> bool:
    """Return whether a worker's timers run in the thread that reads its connection; otherwise in another one."""
    return bool(consumer.hub or getattr(consumer.pool, "is_green", False))


class LimitLoop(bootsteps.StartStopStep):  # type: ignore[misc]
    """Limits how long the event loop of a worker waits for the broker when it publishes."""

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
            limit_this_thread(PATIENCE)

    def stop(self, consumer: Any) -> None:
        limit_this_thread(None)
