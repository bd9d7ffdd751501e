"""What the workers of an app consume with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import Any

import kombu
from amqp.exceptions import AccessRefused, AMQPError
from kombu.exceptions import OperationalError

from ..amqp import declare
from ..amqp.clients import share
from ..amqp.destinations import destinations_of
from ..amqp.transport import Channel, DeliveredMessage
from ..amqp.waiting import Allowed, replay
from ..core.errors import DelayError, DestinationNotFound, NotPermitted
from ..core.topology import Cascade
from .handing_on import HandingOn

logger = logging.getLogger(__name__)

#: Orphans that a worker looks through when it starts.
MAX_ORPHANS = 10_000

#: Queues that this process may not lead the cascade to, and has said so: each lost connection makes a new consumer.
_refused: set[str] = set()


class DelayedConsumer(kombu.Consumer):  # type: ignore[misc]
    """Makes sure that the cascade is there and leads to the worker's queues, and hands on what is not due yet.

    It does the former when it begins to consume. No caller waits then for the cascade to be declared, and what still
    waits for a queue that was deleted and is declared again reaches it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.handing_on = HandingOn(self)
        super().__init__(*args, **kwargs)

    @property
    def on_message(self) -> Callable[[Any], Any] | None:
        """What Kombu calls with each message. Celery's worker sets it to what runs tasks."""
        return self._offer if self.handing_on.keep and self._is_ours else self.handing_on.keep

    @on_message.setter
    def on_message(self, keep: Callable[[Any], Any] | None) -> None:
        self.handing_on.keep = keep

    def _offer(self, message: DeliveredMessage) -> Any:
        if self.handing_on.offer(message) or self.handing_on.keep is None:
            return None
        return self.handing_on.keep(message)

    def cancel(self) -> None:
        super().cancel()
        self.handing_on.finish()

    def declare(self) -> None:
        super().declare()
        self._ensure_routes(self.queues)

    def add_queue(self, queue: kombu.Queue) -> kombu.Queue:
        added = super().add_queue(queue)
        self._ensure_routes([added])
        return added

    @property
    def _is_ours(self) -> bool:
        """Whether messages come through our transport: a test suite may have none but the one in memory."""
        return isinstance(self.channel, Channel)

    def _ensure_routes(self, queues: Iterable[kombu.Queue]) -> None:
        if not self._is_ours:
            return
        publisher = self.channel.connection.publisher_for()
        if publisher.options.declare == "passive":
            return
        refused: dict[str, NotPermitted] = {}
        for queue in queues:
            try:
                for destination in destinations_of(queue):
                    with suppress(DestinationNotFound):  # an exchange that Celery never needs, with `no_declare`
                        publisher.lead_back(destination)
            except NotPermitted as exc:  # no reason not to consume
                refused[queue.name] = exc
            else:
                self._replay_orphans(queue, publisher.cascade)
        if not refused.keys() <= _refused:
            _refused.update(refused)
            logger.warning(
                "This worker may not create the cascade or lead it to %s, so publishers have to: %s",
                ", ".join(map(repr, refused)),
                next(iter(refused.values())),
            )

    def _replay_orphans(self, queue: kombu.Queue, cascade: Cascade) -> None:
        """Bring what came due while the queue was deleted.

        On a connection of its own: RabbitMQ blocks who publishes during an alarm, and this worker has to consume.
        """
        with suppress(NotPermitted, AccessRefused), closing(self.channel.connection.channel()) as channel:
            if not declare.message_count(channel, cascade.orphans):
                return
        connection = self.connection.clone()
        share(connection, self.connection)
        try:
            results = [refused for _, refused in replay(connection.connection, cascade, Allowed([queue]), MAX_ORPHANS)]
            connection.release()
            if sent := results.count(None):
                logger.info("%d delayed tasks that were due while %r did not exist are in it now", sent, queue.name)
        except (NotPermitted, AccessRefused):
            pass
        except (AMQPError, DelayError, OperationalError, OSError) as exc:
            logger.warning("What was due while %r did not exist stays with the orphans: %s", queue.name, exc)
        finally:
            connection.collect()  # waits for nothing: the broker may not answer
