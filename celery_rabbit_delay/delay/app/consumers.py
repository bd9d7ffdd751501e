"""The consumer class of workers: how they begin to consume, consume more for a grown pool, and get each task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import kombu
from amqp.exceptions import NotAllowed

from ... import upstream
from ..amqp.confirms import NotStored
from ..amqp.queue_destinations import destinations_of
from ..amqp.transport import Channel, DeliveredMessage, UserConnection
from ..core.errors import DelayError, DestinationNotFound, NotPermitted
from .handing_on import HandingOn

logger = logging.getLogger(__name__)

#: Queues that this process may not create outboxes of and has warned about; a reconnect creates a new consumer.
_refused: set[str] = set()


class DelayedConsumer(kombu.Consumer):  # type: ignore[misc]
    """Creates the cascade and the outboxes of the worker's queues, and hands on tasks that are not due yet.

    It creates them when it begins to consume, so that no caller has to wait for the declarations.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.handing_on = HandingOn(self)
        #: The prefetch count of each queue, where RabbitMQ has one for each consumer.
        self.fetches = 0
        super().__init__(*args, **kwargs)

    @property
    def on_message(self) -> Callable[[Any], Any] | None:
        """The callback that Kombu calls with each message. Celery's worker sets it to its task handler."""
        keep = self.handing_on.keep
        return partial(self._offer, keep) if keep and self.is_ours else keep

    @on_message.setter
    def on_message(self, keep: Callable[[Any], Any] | None) -> None:
        self.handing_on.keep = keep

    def _offer(self, keep: Callable[[Any], Any], message: DeliveredMessage) -> Any:
        return None if self.handing_on.offer(message) else keep(message)

    def set_prefetch_count(self, prefetch_count: int) -> None:
        """Let RabbitMQ send more messages of each queue ahead, to a further consumer; never fewer.

        RabbitMQ applies a count only to consumers that come later. One that ends could give back what is on its way to
        it, which comes again, and not in order. A further consumer of a stream would receive all again.
        """
        more, self.fetches = prefetch_count - self.fetches, max(prefetch_count, self.fetches)
        if more <= 0:
            return
        self.qos(prefetch_count=more)
        for queue in self.queues:
            arguments = queue.queue_arguments or {}
            if not arguments.get("x-single-active-consumer") and arguments.get("x-queue-type") != "stream":
                upstream.consume_also(self, queue)
        self.qos(prefetch_count=self.fetches)  # for queues that are added
        self.channel.connection.read_soon()  # what came with the answer, as after the first basic.consume

    def cancel_by_queue(self, queue: Any) -> None:
        super().cancel_by_queue(queue)
        upstream.cancel_also(self, queue)

    def consume(self, no_ack: bool | None = None) -> None:
        self.handing_on.is_over = False
        super().consume(no_ack)

    def cancel(self) -> None:
        super().cancel()
        self.handing_on.is_over = True

    def declare(self) -> None:
        super().declare()
        self._ensure_routes(self.queues)

    def add_queue(self, queue: kombu.Queue) -> kombu.Queue:
        added = super().add_queue(queue)
        self._ensure_routes([added])
        return added

    @property
    def is_ours(self) -> bool:
        """Whether messages come through our transport; a test suite may use the in-memory transport."""
        return isinstance(self.channel, Channel)

    def _ensure_routes(self, queues: Iterable[kombu.Queue]) -> None:
        if not self.is_ours:
            return
        connection: UserConnection = self.channel.connection
        if connection.delay_options.declare == "passive":
            return
        refused: dict[str, Exception] = {}
        for queue in queues:
            try:
                for destination in destinations_of(queue, with_namesake=False):
                    with suppress(DestinationNotFound):  # a `no_declare` queue may name an exchange that does not exist
                        connection.sender.lead_to(destination)
            except (DelayError, NotStored, NotAllowed) as exc:  # the worker can still consume
                refused[queue.name] = exc
        if not refused.keys() <= _refused:
            _refused.update(name for name, exc in refused.items() if isinstance(exc, NotPermitted))
            logger.warning(
                "This worker cannot create the cascade or the outboxes of %s, so publishers have to: %s",
                ", ".join(map(repr, refused)),
                next(iter(refused.values())),
            )
