"""The consumer of a worker, which takes nothing from queues that are paused."""

from __future__ import annotations

import logging
from typing import Any

import kombu
from amqp.exceptions import ChannelError, RecoverableConnectionError

from ...delay.app.consumers import DelayedConsumer
from ...operate.queue_names import may_pause
from ..amqp.waiting_tasks import utc_ms
from ..interceptor import known_to

logger = logging.getLogger(__name__)


class PausingConsumer(DelayedConsumer):
    """Stops consuming from queues that are paused, in the thread, or the greenlet, that reads the connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.paused: dict[str, kombu.Queue] = {}
        super().__init__(*args, **kwargs)

    def cancel_by_queue(self, queue: Any) -> None:
        self.paused.pop(getattr(queue, "name", queue), None)
        super().cancel_by_queue(queue)

    def consume(self, no_ack: bool | None = None) -> None:
        self.handing_on.is_over = False
        self.follow_pauses()
        super().consume(no_ack)

    def follow_pauses(self) -> None:
        """Stop consuming from queues that are paused, and consume again from those that no longer are.

        What was taken from a queue stays with the worker: given back, it would come again, and not in order.
        """
        if self.handing_on.is_over or not self.is_ours or self.connection is None:  # it is being closed
            return
        paused = known_to[self.connection].changes.paused(utc_ms())
        new = [queue for queue in self.queues if queue.name in paused and may_pause(queue)]
        for queue in new:
            self.cancel_by_queue(queue.name)
            self.paused[queue.name] = queue
            logger.info("The queue %r is paused: this worker takes no more from it", queue.name)
        over = [queue for name, queue in self.paused.items() if name not in paused]
        for queue in over:
            del self.paused[queue.name]
            kombu.Consumer.add_queue(self, queue)
            logger.info("The queue %r is no longer paused", queue.name)
        if over:
            kombu.Consumer.consume(self)
        if new or over:
            self.channel.connection.read_soon()  # what came with the answers, as after the first basic.consume


def follow_pauses(consumer: Any) -> None:
    if consumer.task_consumer is not None:
        try:
            consumer.task_consumer.follow_pauses()
        except ChannelError as exc:  # the queue is another one by now: Celery declares it again
            raise RecoverableConnectionError(f"a queue that was paused cannot be consumed: {exc}") from exc
