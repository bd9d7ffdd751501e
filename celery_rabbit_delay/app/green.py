"""The event loop of gevent and eventlet workers."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from .. import upstream
from ..core.options import DRIVER_TYPE


class ImpatientDrain:
    """A mixin for a `kombu.Connection` that is read only for heartbeats: it never waits for data."""

    def drain_events(self, **kwargs: Any) -> Any:
        return super().drain_events(**{**kwargs, "timeout": 0})  # type: ignore[misc]


class FullSpeed(bootsteps.StartStopStep):  # type: ignore[misc]
    """Keeps Celery 5.7's loop for green pools from waiting 0.1 s for heartbeats after each message.

    The loop drains the connection for events, on which nothing else arrives (celery.worker.loops.synloop).
    """

    requires = ("celery.worker.consumer.events:Events",)

    def include_if(self, c: Any) -> bool:
        return bool(getattr(c.pool, "is_green", False))

    def start(self, c: Any) -> None:
        connection = c.event_dispatcher and c.event_dispatcher.connection
        if connection and c.connection.transport.driver_type == DRIVER_TYPE:
            upstream.mix_in(connection, ImpatientDrain)
