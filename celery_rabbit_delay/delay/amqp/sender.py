"""The AMQP connection of our own on which delayed messages go out: opened, given to threads in turn, and dropped.

The user's connection has consumers, and channels of his own: while we waited there for a confirm, we would read what is
for them, and an interrupt in the middle of a frame would end his connection. An alarm blocks connections that publish,
and a worker must go on to consume.

So delayed messages, their records and cancellations, and the declarations for them have a connection of their own,
which nobody else reads. Whatever is not an answer of the broker closes it: a lost connection, a time-out, and an
interrupt such as a soft time limit. Nothing of it is repaired; the next message opens another one.

It has no heartbeats, as the connections on which plain Celery publishes: nobody would send them while the program does
something else. The keep-alive packets of TCP, which py-amqp switches on, keep it open, and show both sides when the
other one is gone. What the broker has closed meanwhile is noticed before anything is sent.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from typing import Any

from amqp import Message
from amqp.exceptions import AMQPError, RecoverableConnectionError

from ... import upstream
from ..core.destination import Destination
from ..core.errors import DestinationNotFound, UnsupportedConfiguration
from ..core.options import Options
from ..core.plan import Plan
from .confirms import ANSWERS
from .connecting import connect, copy_of
from .limited import ANSWER_WITHIN, NO_ANSWER, LimitedConnection
from .publisher import DelayedPublisher

#: All that live. A forked process has none of its parent's.
_of_this_process: weakref.WeakSet[Sender] = weakref.WeakSet()
os.register_at_fork(after_in_child=_of_this_process.clear)


def settle() -> None:
    """Wait for the answers to all records of this process: whoever reads the journal, or ends, calls this."""
    for one in list(_of_this_process):
        one.settle()


atexit.register(settle)


class _Thread(threading.local):
    patience: float | None = None


_this_thread = _Thread()


def limit_this_thread(seconds: float | None) -> None:
    """Let calls in this thread wait for the broker for so long at most: its event loop has heartbeats to send.

    A process that is forked from an event loop, as those of a pool are that replace others, has none.
    """
    _this_thread.patience = seconds


os.register_at_fork(after_in_child=partial(limit_this_thread, None))


class Sender:
    """Sends what one connection of the user delays. One thread has its turn at a time."""

    def __init__(self, user: Any) -> None:
        """For a `Connection` of the user."""
        self._interceptor = user.interceptor  # an error if the connection is closed
        self.options: Options = user.delay_options
        self._user = weakref.ref(user)
        self._client = copy_of(user.client, "publisher")
        self._connect_timeout: float | None = self._client.connect_timeout
        self._lock = threading.RLock()
        _of_this_process.add(self)
        #: By whether their messages have to pass levels.
        self._publishers: dict[bool, DelayedPublisher] = {}

    def publish(self, plan: Plan, seconds: float | None = None) -> None:
        """Send a message into the cascade; return once the broker has stored it.

        Raises as `DelayedPublisher.publish`.
        """
        with Turn(self, seconds):
            self.publisher(plan.came_early).publish(plan)

    def publish_now(self, message: Message, exchange: str, key: str) -> str | None:
        """Publish a message without a delay. Returns and raises as `ConfirmedChannel.publish`."""
        with Turn(self):
            return self.publisher().channel.publish(message, exchange, key)

    def lead_to(self, destination: Destination) -> None:
        """Create what a destination lacks, before a message is sent there. Raises as `Routes.ensure`."""
        with Turn(self):
            self.publisher().routes.ensure(self.publisher().channel, destination)

    def publisher(self, through_levels: bool = False) -> DelayedPublisher:
        """Return what publishes on the connection. For a block of `Turn`. Raises `UnsupportedConfiguration`."""
        publisher = self._publishers.get(through_levels)
        if publisher is None:
            connection: LimitedConnection = self._client.connection
            if connection.server_version < (3, 10):
                raise UnsupportedConfiguration(
                    "RabbitMQ before 3.10 lacks at-least-once dead lettering, without which delayed messages get lost. "
                    f"This is {connection.server_properties.get('version')}: upgrade it"
                )
            publisher = self._publishers[through_levels] = DelayedPublisher(
                connection, self.options, through_levels, self._interceptor
            )
        return publisher

    def settle(self, seconds: float | None = ANSWER_WITHIN) -> None:
        """Wait so long at most until the broker has answered all, also the records, of which only the log tells."""
        if self.unanswered:
            with suppress(AMQPError, OSError), Turn(self, seconds) as connection:
                connection.wait_until(lambda: not self.unanswered)

    @property
    def unanswered(self) -> int:
        """The number of messages that the broker has not answered yet."""
        return sum(publisher.channel.unanswered for publisher in self._publishers.values())

    def has_lost_user(self) -> bool:
        """Return whether the user's connection was lost, as if his broker had restarted, and nobody has noticed yet.

        What he declared on it may be gone. Kombu connects and declares it again after an error of the connection.
        """
        user = self._user()
        return user is not None and upstream.is_ended(user)

    def close_if_left(self) -> None:
        """Close the connection if that of the user is closed: without a pool, Celery closes it after each task."""
        user = self._user()
        if user is None or not user.connected:
            self.close()

    def close(self, reason: Exception | None = None) -> None:
        """Close the connection, and wait for nothing. What the broker has not answered counts as not stored."""
        publishers = list(self._publishers.values())
        self._publishers = {}
        is_lost = reason is not None
        if self._client.connected:
            is_lost |= upstream.is_ended(self._client.connection)
            self._client.connection.abandon()
        self._client.collect()
        for publisher in publishers:
            if is_lost:
                publisher.routes.forget()  # the broker may have come back without something
            publisher.channel.refuse_all(reason or RecoverableConnectionError("the connection was closed"))

    def _ready(self, end: float | None) -> LimitedConnection:
        """Return the connection once it is open, by a moment (`time.monotonic`): the broker may have closed it."""
        if self._client.connected:
            connection: LimitedConnection = self._client.connection
            try:
                connection.read_all()
                return connection
            except (AMQPError, OSError) as exc:
                self.close(exc)
        else:
            self.close()  # what belongs to the last one
        left = end and max(end - time.monotonic(), 0)
        self._client.connect_timeout = min(filter(None, (self._connect_timeout, left)), default=None)
        try:
            connect(self._client)
        except TimeoutError as exc:
            raise TimeoutError(NO_ANSWER) from exc
        opened: LimitedConnection = self._client.connection
        return opened


class Turn:
    """A `with` block for which a thread has the connection of a sender, and yields it."""

    def __init__(self, sender: Sender, seconds: float | None = None) -> None:
        """Let the block wait for the broker so long at most, and for no longer than the option `confirm_timeout`."""
        limits = (seconds, sender.options.confirm_timeout, _this_thread.patience)
        self._seconds = min(filter(None, limits), default=None)
        self._sender, self._lock = sender, sender._lock

    def __enter__(self) -> LimitedConnection:
        sender, seconds, is_mine = self._sender, self._seconds, False
        end = seconds and time.monotonic() + seconds
        try:
            if self._lock._is_owned():  # type: ignore[attr-defined]  # interrupted before this thread released it
                sender.close()
                self._lock.release()
            is_mine = self._lock.acquire(timeout=-1 if seconds is None else seconds)
            if is_mine and self._lock is not sender._lock:  # somebody was interrupted while this thread waited
                raise RecoverableConnectionError("the connection was closed")
            if is_mine:
                connection = sender._ready(end)
                connection.limit(seconds, end)
                return connection
        except BaseException as exc:
            if not is_mine:  # an interrupt may have come just after the lock was taken: nobody uses it again
                self._lock = sender._lock = threading.RLock()
            if self._lock is sender._lock:
                sender.close(exc if isinstance(exc, Exception) else None)
            if is_mine:
                self._lock.release()
            raise
        raise TimeoutError("another thread has been publishing for too long")

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, traceback: Any) -> None:
        try:
            if exc is not None and not isinstance(exc, ANSWERS):
                self._sender.close(exc if isinstance(exc, Exception) else None)
        finally:
            with suppress(RuntimeError):  # a signal handler has had a turn within this one, and ended it
                self._lock.release()
        if isinstance(exc, DestinationNotFound) and self._sender.has_lost_user():
            raise RecoverableConnectionError("the connection is lost") from exc
