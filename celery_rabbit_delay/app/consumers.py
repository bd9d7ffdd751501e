"""What the workers of an app consume with."""

from __future__ import annotations

import logging

import kombu

from ..amqp.destinations import destinations_of
from ..core.errors import NotPermitted

logger = logging.getLogger(__name__)


class DelayedConsumer(kombu.Consumer):  # type: ignore[misc]
    """Makes sure that the cascade is there and leads to the worker's queues when it begins to consume.

    No caller waits then for the cascade to be declared, and what still waits for a queue that was deleted and is
    declared again reaches it.
    """

    def declare(self) -> None:
        super().declare()
        for queue in self.queues:
            self._ensure_routes(queue)

    def add_queue(self, queue: kombu.Queue) -> kombu.Queue:
        added = super().add_queue(queue)
        self._ensure_routes(added)
        return added

    def _ensure_routes(self, queue: kombu.Queue) -> None:
        publisher = self.channel.connection.publisher_for()
        if publisher.options.declare == "passive":
            return
        try:
            for destination in destinations_of(queue):
                publisher.rebind(destination)
        except NotPermitted as exc:  # no reason not to consume
            logger.warning(
                "This worker may not create the cascade or lead it to %r, so whoever publishes has to: %s",
                queue.name,
                exc,
            )
