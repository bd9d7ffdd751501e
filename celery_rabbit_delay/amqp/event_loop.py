"""Publishes in the thread of a worker's event loop, which must not wait longer than its heartbeats allow.

Celery publishes there itself, such as the retry of a task whose process was killed (`task_retry_on_worker_lost`), and
so do signal handlers and boot steps. While an alarm blocks publishers, a worker that waited for the broker's answer
would do nothing else, lose its connection, and run tasks twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from amqp.exceptions import AMQPError

from ..core.errors import DelayError, NotRouted
from ..core.plan import Plan
from .confirms import NotStored
from .sender import Sender

logger = logging.getLogger(__name__)

#: Seconds that a call in the event loop may wait for the broker, and until the worker looks for its answer again.
PATIENCE, LOOK = 2.0, 0.5


class _Waiting:
    """A message that the broker has not answered yet."""

    def __init__(self, sender: Sender, plan: Plan) -> None:
        self.sender = sender
        self.plan = plan
        self.is_answered = False
        self.refusal: Exception | None = None

    def answer(self, refusal: Exception | None) -> None:
        self.is_answered, self.refusal = True, refusal


class EventLoop:
    """The event loop of a worker. `call_later` calls a function there after some seconds."""

    def __init__(self, call_later: Callable[[float, Callable[[], Any]], Any]) -> None:
        self.process = os.getpid()
        self.call_later = call_later
        self._waiting: list[_Waiting] = []

    def publish(self, sender: Sender, plan: Plan) -> None:
        """Publish as `Sender.publish`, but do not wait for the broker's answer if it does not come soon.

        The worker then goes on, reads the answer later, and sends the message again if its connection was lost.
        """
        one = _Waiting(sender, plan)
        sender.submit(plan, one.answer, PATIENCE)
        until = time.monotonic() + PATIENCE
        while not one.is_answered and not sender.is_blocked and (left := until - time.monotonic()) > 0:
            sender.read(left)
        if isinstance(one.refusal, (NotRouted, NotStored)):  # repairs the cascade
            sender.publish(plan, PATIENCE)
        elif one.refusal is not None:
            raise one.refusal
        elif not one.is_answered:
            logger.warning(
                "RabbitMQ has not yet confirmed the delayed message %r: does an alarm block publishers? The worker "
                "goes on, because it must not wait here. If it stops before the confirm, the message may be lost",
                plan.id,
            )
            self._waiting.append(one)
            if len(self._waiting) == 1:
                self.call_later(LOOK, self._look)

    def _look(self) -> None:
        """Read the answers; send again what is not stored."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            try:
                if not one.is_answered:
                    one.sender.read()
                if one.refusal is not None:
                    one.sender.publish(one.plan, PATIENCE)
                    one.refusal = None
            except DelayError as exc:
                logger.error("The delayed message %r is lost, because RabbitMQ refuses it: %s", one.plan.id, exc)
                continue
            except (AMQPError, OSError) as exc:
                one.answer(exc)
            if not one.is_answered or one.refusal is not None:
                self._waiting.append(one)
        if self._waiting:
            self.call_later(LOOK, self._look)


class _Thread(threading.local):
    loop: EventLoop | None = None


_this_thread = _Thread()


def enter(call_later: Callable[[float, Callable[[], Any]], Any]) -> None:
    """Take note that this thread runs an event loop."""
    if current() is None:
        _this_thread.loop = EventLoop(call_later)


def leave() -> None:
    """Take note that the event loop of this thread has ended."""
    _this_thread.loop = None


def current() -> EventLoop | None:
    """Return the event loop of this thread; None if it has none. A forked process does not inherit it."""
    loop = _this_thread.loop
    return loop if loop is not None and loop.process == os.getpid() else None
