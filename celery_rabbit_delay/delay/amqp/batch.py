"""Sends many delayed messages without waiting for each of the broker's answers."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from amqp import Message
from amqp.exceptions import AMQPError

from ..core.destination import Destination
from ..core.errors import CascadeMissing, DelayError, MessageRefused, NotRouted
from ..core.plan import Plan
from .confirms import NotStored
from .sender import Sender, Turn

logger = logging.getLogger(__name__)

#: The number of messages that a batch sends before it waits for answers.
MAX_SIZE = 1000

#: A message that was refused with these is sent again alone: it may have been another one, with which RabbitMQ closed
#: the channel or the connection, or a part of the cascade was missing.
_AGAIN = (CascadeMissing, NotStored, MessageRefused)

#: For so many messages a destination that is full is waited for, not for each: that takes seconds.
_PATIENT = 3


class BatchFailed(DelayError):
    """Some messages of a batch may not be stored: `ids` lists them. All others are stored."""

    def __init__(self, message: str, ids: list[str | None]) -> None:
        super().__init__(message, ids)  # both, so that it can be pickled
        #: Celery's task ids; None for a message that is not a task.
        self.ids = ids

    def __str__(self) -> str:
        return str(self.args[0])


class Batch:
    """What one thread publishes with a delay in a block of `collecting`, over whichever connections."""

    def __init__(self, max_size: int) -> None:
        """Let at most `max_size` messages be unanswered. Raises `ValueError`."""
        if type(max_size) is not int or max_size < 1:
            raise ValueError(f"max_size={max_size!r}: use a whole number, 1 or more")
        self.amount = 0
        self.process = os.getpid()
        self._max_size = max_size
        self._sent: dict[int, tuple[Sender, Plan, Message]] = {}  # what the broker has not answered
        self._stored: list[tuple[Sender, Plan, Message]] = []  # those with tickets
        self._returned: list[tuple[Sender, Plan]] = []  # by a missing outbox: they take levels the next time
        self._again: list[tuple[Sender, Plan]] = []
        self._failed: list[tuple[Plan, Exception]] = []

    def add(self, sender: Sender, plan: Plan) -> None:
        """Send a message; first wait until there is room for it. Raises what keeps it from being sent."""
        if len(self._sent) >= self._max_size:
            self.settle()
        self._send(sender, plan)

    def _send(self, sender: Sender, plan: Plan) -> None:
        with Turn(sender):
            message = sender.publisher().submit(plan, partial(self._on_answer, self.amount))
            self._sent[self.amount] = sender, plan, message
            self.amount += 1

    def _on_answer(self, number: int, refusal: Exception | None) -> None:
        if number not in self._sent:  # it was not sent, and its caller knows
            return
        sender, plan, message = self._sent.pop(number)
        if isinstance(refusal, NotRouted):
            self._returned.append((sender, plan))
        elif isinstance(refusal, _AGAIN):
            self._again.append((sender, plan))
        elif refusal is not None:
            self._failed.append((plan, refusal))
        elif plan.ticket:
            self._stored.append((sender, plan, message))

    def settle(self) -> None:
        """Wait until no message is unanswered, and tell the interceptor of those that are stored.

        Only then, because it closes the connection if it cannot record them.
        """
        for one in list(dict.fromkeys(sender for sender, *_ in self._sent.values())):
            one.settle(None)  # after an error of the connection, all that it has not answered is refused with that
        for one in list(dict.fromkeys(sender for sender, *_ in self._stored)):
            its = [(plan, message) for sender, plan, message in self._stored if sender is one]
            try:
                with Turn(one):
                    one.publisher().interceptor.stored(one.publisher(), its)
            except (AMQPError, OSError, DelayError) as exc:
                logger.warning("%d messages of a batch are stored, but not recorded: %s", len(its), exc)
            self._stored = [stored for stored in self._stored if stored[0] is not one]

    def finish(self) -> None:
        """Return once the broker has stored all messages. Raises `BatchFailed`."""
        self.settle()
        returned, self._returned = self._returned, []
        for sender, plan in returned:
            try:
                self._send(sender, plan)
            except (DelayError, AMQPError, OSError):
                self._again.append((sender, plan))
        self.settle()
        self._again += self._returned
        # An interrupt may have come between an answer and our note of it.
        self._again += [(sender, plan) for sender, plan, _ in self._sent.values()]
        self._sent.clear()
        full: dict[Destination, list[Exception]] = {}
        for sender, plan in self._again:
            if len(refusals := full.get(plan.destination, [])) >= _PATIENT:
                self._failed.append((plan, refusals[0]))
                continue
            try:
                sender.publish(plan)
            except (DelayError, AMQPError, OSError) as exc:
                self._failed.append((plan, exc))
                if isinstance(exc, NotStored):
                    full.setdefault(plan.destination, []).append(exc)
        for sender in {sender for sender, _ in (*returned, *self._again)}:
            sender.close_if_left()
        if self._failed:
            ids = [plan.message.properties.get("correlation_id") for plan, _ in self._failed]
            reason = self._failed[0][1]
            raise BatchFailed(
                f"{len(ids)} delayed messages may not be stored, send them again: {reason}", ids
            ) from reason


class _Thread(threading.local):
    batch: Batch | None = None


_this_thread = _Thread()


def current() -> Batch | None:
    """Return the batch that collects what this thread publishes. A forked process does not inherit it."""
    batch = _this_thread.batch
    return batch if batch is not None and batch.process == os.getpid() else None


@contextmanager
def collecting(max_size: int) -> Iterator[None]:
    """Let the delayed messages of this thread wait together for the broker until the block ends, also if it raises.

    In nested blocks the innermost one collects. Raises `BatchFailed`, `ValueError`.
    """
    batch, outer = Batch(max_size), _this_thread.batch
    _this_thread.batch = batch
    try:
        yield
    finally:
        _this_thread.batch = outer
        batch.finish()
    if not batch.amount:
        logger.warning("A batch has collected nothing: this thread has published no task with a delay in its block")
