"""Publishes in the thread of a worker's event loop, which must not wait longer than its heartbeats allow.

Celery publishes there itself, such as the retry of a task whose process was killed (`task_retry_on_worker_lost`), and
so do signal handlers and boot steps. While an alarm blocks publishers, a worker that waited for the broker's answer
would do nothing else, lose its connection, and run tasks twice.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from amqp.exceptions import AMQPError

from ..core.errors import DelayError, NotRouted
from ..core.plan import Plan
from .confirms import NotStored
from .limited import NothingSent
from .publisher import Answered
from .sender import Sender

logger = logging.getLogger(__name__)

#: Seconds that a call in the event loop may wait for the broker; until what was refused is sent again.
PATIENCE, AGAIN = 2.0, 0.5

#: Seconds until the loop looks for the broker's answers, which double up to the longest while none comes.
LOOK, LONGEST = 0.002, 0.05


class EventLoop:
    """The event loop of a worker. `call_later` calls a function there after some seconds.

    One timer looks for the answers to all that was sent without waiting, as long as some are missing.
    """

    def __init__(self, call_later: Callable[[float, Callable[[], Any]], Any]) -> None:
        self.process = os.getpid()
        self.call_later = call_later
        self._senders: list[Sender] = []  # whose answers are missing
        self._answers: deque[tuple[Answered, Exception | None]] = deque()  # that have come, and whom they are for
        self._after: list[Callable[[], None]] = []  # what to do after the next look
        self._pause = LOOK
        self.is_looking = False  # whether the timer runs

    def publish(self, sender: Sender, plan: Plan) -> None:
        """Publish as `Sender.publish`, but do not wait for the broker's answer if it does not come soon.

        The worker then goes on, reads the answer later, and sends the message again if its connection was lost.
        """
        answers: list[Exception | None] = []
        takers: list[Answered] = [answers.append]
        try:
            sender.submit(plan, lambda refusal: takers[-1](refusal), PATIENCE)
            with sender.turn(PATIENCE) as connection:
                connection.wait_until(lambda: bool(answers) or connection.is_blocked, PATIENCE)
        except NothingSent as exc:
            self.call_later(AGAIN, partial(self._store, sender, plan, exc))
        else:
            if not answers:
                takers.append(self._later(partial(self._store, sender, plan)))  # it takes the answer from now on
        if not answers:
            logger.warning(
                "RabbitMQ has not yet confirmed the delayed message %r: does an alarm block publishers? The worker "
                "goes on, because it must not wait here. If it stops before the confirm, the message may be lost",
                plan.id,
            )
        elif isinstance(answers[0], (NotRouted, NotStored)):  # repairs the cascade
            sender.publish(plan, PATIENCE)
        elif answers[0] is not None:
            raise answers[0]
        if sender.unanswered or sender.has_records:
            self._look_for(sender)

    def submit(self, sender: Sender, plan: Plan, answered: Answered) -> None:
        """Send a message as `Sender.submit`; `answered` is called when this thread has ended its turn with the sender.

        Raises as `Sender.submit`, but not if the message went out: then `answered` is called, if only with that error.
        """
        try:
            sender.submit(plan, self._later(answered), PATIENCE)
        except (DelayError, AMQPError, OSError):
            if all(one is not answered for one, _ in self._answers):
                raise
        self._look_for(sender)

    def follow(self, sender: Sender, seconds: float = 0) -> bool:
        """Read a sender's answers, wait so long for the first one, and act on all; return whether any has come."""
        with suppress(AMQPError, OSError):  # it is closed then, and the messages are refused
            sender.read(seconds)
        has_come = bool(self._answers)
        while self._answers:
            answered, refusal = self._answers.popleft()
            answered(refusal)
        return has_come

    def after_look(self, call: Callable[[], None]) -> None:
        """Call a function after the next look."""
        if call not in self._after:
            self._after.append(call)
        self._look_later()

    def _later(self, answered: Answered) -> Answered:
        return lambda refusal: self._answers.append((answered, refusal))

    def _look_for(self, sender: Sender) -> None:
        if sender not in self._senders:
            self._senders.append(sender)
        self._look_later()

    def _look_later(self) -> None:
        if not self.is_looking:
            self.is_looking = True
            self.call_later(self._pause, self._look)

    def _look(self) -> None:
        self.is_looking = False
        senders, self._senders = self._senders, []
        have_come = [self.follow(sender) for sender in senders]
        self._pause = LOOK if any(have_come) else min(2 * self._pause, LONGEST)
        after, self._after = self._after, []
        for call in after:
            call()
        for sender in senders:
            if sender.unanswered or self._answers:
                self._look_for(sender)

    def _store(self, sender: Sender, plan: Plan, refusal: Exception | None) -> None:
        """Send a message again that was refused, until it is stored.

        It waits for nothing that an alarm keeps RabbitMQ from: else each try would leave a copy in a socket.
        """
        try:
            if isinstance(refusal, (NotRouted, NotStored)):  # repairs the cascade
                sender.publish(plan, PATIENCE)
            elif refusal is not None:
                self.submit(sender, plan, partial(self._store, sender, plan))
        except DelayError as exc:
            logger.error("The delayed message %r is lost, because RabbitMQ refuses it: %s", plan.id, exc)
        except (AMQPError, OSError) as exc:
            self.call_later(AGAIN, partial(self._store, sender, plan, exc))


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
