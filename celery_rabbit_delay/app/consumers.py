"""What the workers of an app consume with."""

from __future__ import annotations

import logging
from contextlib import closing, suppress

import kombu
from amqp.exceptions import AccessRefused

from ..amqp import declare
from ..amqp.destinations import destinations_of
from ..amqp.waiting import Allowed, replay
from ..core.errors import NotPermitted
from ..core.topology import Cascade

logger = logging.getLogger(__name__)

#: Orphans that a worker looks through when it starts.
MAX_ORPHANS = 10_000


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
                publisher.lead_back(destination)
        except NotPermitted as exc:  # no reason not to consume
            logger.warning(
                "This worker may not create the cascade or lead it to %r, so publishers have to: %s", queue.name, exc
            )
            return
        self._replay_orphans(queue, publisher.cascade)

    def _replay_orphans(self, queue: kombu.Queue, cascade: Cascade) -> None:
        """Bring what came due while the queue was deleted."""
        connection = self.channel.connection
        with suppress(NotPermitted, AccessRefused), closing(connection.channel()) as channel:
            if not declare.message_count(channel, cascade.orphans):
                return
            results = [refused for _, refused in replay(connection, cascade, Allowed([queue]), MAX_ORPHANS)]
            if sent := results.count(None):
                logger.info("%d delayed tasks that were due while %r did not exist are in it now", sent, queue.name)
