"""The AMQP connection of our own on which the delayed messages of a user's connection go out.

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

import os
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from amqp import Message
from amqp.exceptions import AMQPError, RecoverableConnectionError

from .. import upstream
from ..core.destination import Destination
from ..core.errors import DestinationNotFound, UnsupportedConfiguration
from ..core.options import Options
from ..core.plan import Plan
from ..core.topology import Cascade, Stream
from . import declare
from .confirms import ANSWERS
from .connecting import connect, copy_of
from .limited import NO_ANSWER, LimitedConnection
from .publisher import Answered, DelayedPublisher
from .stream_writer import paused_of, records_of

#: Seconds to wait for the broker while records are stored behind messages that have been answered.
RECORDING = 5

#: Seconds that are left in a turn at least once it has begun.
_LEAST = 0.001


class Sender:
    """Sends what one connection of the user delays. One thread has its turn at a time."""

    def __init__(self, user: LimitedConnection) -> None:
        self.options: Options = user.delay_options
        self._user = weakref.ref(user)
        self._process = os.getpid()
        self._client = copy_of(user.client, "publisher")
        self._connect_timeout: float | None = self._client.connect_timeout
        paused_of[self._client] = paused_of[user.client]
        self._lock = threading.Lock()
        #: By whether their cascade is the high one, and whether it has to have levels.
        self._publishers: dict[tuple[bool, bool], DelayedPublisher] = {}

    def publish(self, plan: Plan, seconds: float | None = None) -> None:
        """Send a message into the cascade; return once the broker has stored it.

        Raises as `DelayedPublisher.publish`.
        """
        with Turn(self, min(filter(None, (seconds, self.options.confirm_timeout)), default=None)):
            self.publisher_for(plan.priority, plan.came_early).publish(plan)

    def submit(self, plan: Plan, answered: Answered, seconds: float) -> None:
        """Send a message and its record, and wait for no answer to them; waits for declarations, but not for longer.

        Raises `NothingSent` if it has to be declared first where it is to go, and an alarm is on.
        """
        with self.turn(seconds) as connection:
            connection.raises_if_blocked = True
            publisher = self.publisher_for(plan.priority, plan.came_early)
            record = publisher.submit(plan, answered)
            if plan.stream and record:
                publisher.writer.submit([(plan.stream, record)])

    def write(self, stream: Stream, bodies: Iterable[bytes], seconds: float | None = None) -> None:
        """Store messages in a stream beside the cascade. Raises as `StreamWriter.write`.

        With a limit in seconds, raise `TimeoutError` as soon as the broker says that an alarm blocks this connection.
        """
        with self.turn(self.options.confirm_timeout if seconds is None else seconds):
            self._client.connection.raises_if_blocked = seconds is not None
            self.publisher_for().writer.write(stream, bodies)

    def publish_now(self, message: Message, exchange: str, key: str) -> str | None:
        """Publish a message without a delay. Returns and raises as `ConfirmedChannel.publish`."""
        with self.turn(self.options.confirm_timeout):
            return self.publisher_for().channel.publish(message, exchange, key)

    def lead_back(self, destination: Destination) -> None:
        """See `Routes.lead_back`."""
        with self.turn(self.options.confirm_timeout):
            self.publisher_for().routes.lead_back(destination)

    def on_declared(self, name: str) -> None:
        """Take note that a queue or exchange of that name may be a new one."""
        for publisher in list(self._publishers.values()):
            publisher.routes.forget(name)

    def turn(self, seconds: float | None) -> Turn:
        """Give this thread the connection for a `with` block, which waits for the broker so long at most."""
        return Turn(self, seconds)

    def publisher_for(self, priority: int | None = None, through_levels: bool = False) -> DelayedPublisher:
        """Return the publisher for messages of a priority. For a block of `turn`. Raises `UnsupportedConfiguration`."""
        connection: LimitedConnection = self._client.connection
        cascade = self.options.cascade_for(priority, connection.server_version)
        publisher = self._publishers.get((cascade.high, through_levels))
        if publisher is None:
            if connection.server_version < (3, 10):
                raise UnsupportedConfiguration(
                    "RabbitMQ before 3.10 lacks at-least-once dead lettering, without which delayed messages get lost. "
                    f"This is {connection.server_properties.get('version')}: upgrade it"
                )
            publisher = DelayedPublisher(connection, cascade, self.options, self._bind_for_user)
            publisher.chooses = not through_levels and self.options.may_wait_by_time(cascade, connection.server_version)
            if publisher.chooses:
                publisher.choose_way()
            self._publishers[cascade.high, through_levels] = publisher
        return publisher

    def read(self, seconds: float = 0) -> None:
        """Read the broker's answers; wait so many seconds for the first one. Raises what ends the connection.

        Without seconds, a turn alone reads what has come.
        """
        if not self._client.connected:
            return
        with self.turn(max(seconds, 1)), suppress(TimeoutError):  # an answer may come later
            if seconds:
                self._client.connection.drain_events(timeout=seconds)
        if self.has_records and not self.unanswered:
            with self.turn(RECORDING) as connection:
                connection.raises_if_blocked = True
                self.publisher_for().writer.store_records()

    @property
    def has_records(self) -> bool:
        """Whether records wait for their stream, see `StreamWriter.submit`."""
        return bool(records_of[self._client])

    @property
    def is_blocked(self) -> bool:
        """Whether the broker does not read this connection, because of an alarm."""
        return bool(self._client.connected and self._client.connection.is_blocked)

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

    def close(self, reason: Exception | None = None) -> None:
        """Close the connection, and wait for nothing. What the broker has not answered counts as not stored."""
        publishers = list(self._publishers.values())
        self._publishers = {}
        if self._client.connected:
            self._client.connection.abandon()
        self._client.collect()
        for publisher in publishers:
            publisher.channel.refuse_all(reason or RecoverableConnectionError("the connection was closed"))

    def _ready(self, seconds: float | None) -> LimitedConnection:
        """Return the connection once it is open. The broker may have closed it since the last turn."""
        if self._client.connected:
            connection: LimitedConnection = self._client.connection
            try:
                connection.read_all()
                return connection
            except (AMQPError, OSError) as exc:
                self.close(exc)
        else:
            self.close()  # forgets what was known through the last one
        self._client.connect_timeout = min(filter(None, (self._connect_timeout, seconds)), default=None)
        try:
            connect(self._client)
        except TimeoutError as exc:
            raise TimeoutError(NO_ANSWER) from exc
        opened: LimitedConnection = self._client.connection
        return opened

    def _bind_for_user(self, cascade: Cascade, destination: Destination) -> None:
        """Bind a queue that is exclusive to the user's connection. Raises `InvalidDestination`."""
        user = self._user()
        if user is None or not user.connected:
            raise RecoverableConnectionError("the connection is closed")
        channel = user.channel()
        try:
            declare.bind_exit(channel, cascade, destination)
        finally:
            channel.close()


class Turn:
    """A block of `Sender.turn`."""

    def __init__(self, sender: Sender, seconds: float | None) -> None:
        self._sender, self._seconds, self._lock = sender, seconds, sender._lock

    def __enter__(self) -> LimitedConnection:
        sender, seconds, is_mine, began = self._sender, self._seconds, False, time.monotonic()
        try:
            is_mine = self._lock.acquire(timeout=-1 if seconds is None else seconds)
            if is_mine:
                connection = sender._ready(seconds and max(began + seconds - time.monotonic(), _LEAST))
                connection.limit(seconds and max(began + seconds - time.monotonic(), _LEAST))
                return connection
        except BaseException as exc:
            # An interrupt may have come just after the lock was taken: nobody can tell, so nobody uses it again.
            sender._lock = threading.Lock()
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
            self._lock.release()
        if isinstance(exc, DestinationNotFound) and self._sender.has_lost_user():
            raise RecoverableConnectionError("the connection is lost") from exc
