"""Limits of time, turns and interrupts: the `with` blocks of a connection, and its writes."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from amqp.exceptions import AMQPError, MessageNacked, RecoverableConnectionError

from ..core.errors import DelayError

#: What py-amqp and this package raise. Whatever else leaves a read, a write or a wait has interrupted it: an exception
#: of a signal handler, such as `SoftTimeLimitExceeded` and `KeyboardInterrupt`, or a time-out of green threads.
OWN_ERRORS = (AMQPError, MessageNacked, OSError, DelayError)

#: Seconds to try to send what needs no answer, when there is no time left.
SENDING = 1


class GivingUp:
    """Gives a connection up if the `with` block is interrupted."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        if kind is not None and not issubclass(kind, OWN_ERRORS):
            self._connection.give_up()


class Deadline(threading.local):
    """When a thread's innermost block of `Connection.within` ends, by `time.monotonic`.

    Each thread, also a green one, has its own: they may leave their blocks in any order.
    """

    end: float | None = None


class Within:
    """A block of `Connection.within`: as a class, for a `contextmanager` costs six times as much."""

    def __init__(self, deadline: Deadline, seconds: float) -> None:
        self._deadline = deadline
        self._seconds = seconds

    def __enter__(self) -> None:
        self._outer = outer = self._deadline.end
        end = time.monotonic() + self._seconds
        self._deadline.end = end if outer is None else min(outer, end)

    def __exit__(self, *exc_info: object) -> None:
        self._deadline.end = self._outer


class Exclusively:
    """A block of `Connection.exclusively`, in one thread at a time. What interrupts it gives the connection up.

    Otherwise deliveries could be held for ever, and nobody would know whose answer comes next.
    """

    def __init__(self, connection: Any, channel: Any, seconds: float | None) -> None:
        self._connection = connection
        self._channel = channel
        self._seconds = seconds

    def __enter__(self) -> None:
        connection, is_mine = self._connection, False
        try:
            self._outer = end = connection.deadline.end
            if self._seconds is not None:
                end = min(time.monotonic() + self._seconds, math.inf if end is None else end)
            is_mine = connection.turns.acquire(timeout=-1 if end is None else max(end - time.monotonic(), 0))
            if not is_mine:
                raise RecoverableConnectionError("another thread has been publishing for too long")
            connection.deadline.end = end
            connection.deliveries.holds += 1
            connection.exclusive.append(self._channel)
        except BaseException as exc:
            if is_mine or not isinstance(exc, OWN_ERRORS):
                connection.give_up()
            if is_mine:
                connection.turns.release()
            raise

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        connection = self._connection
        try:
            if kind is not None and not issubclass(kind, OWN_ERRORS):
                connection.give_up()
            connection.deadline.end = self._outer
            connection.exclusive.remove(self._channel)
            connection.deliveries.holds -= 1
        except BaseException:
            connection.give_up()
            raise
        finally:
            connection.turns.release()
        if connection.deliveries.waiting:
            connection.deliveries.flush()  # calls consumers


class FrameWriter:
    """Wraps py-amqp's function that writes a frame.

    Writes one frame at a time, within the limit of `Connection.within`. If a frame is sent in part, the connection is
    given up: the broker would take the next one for the rest.
    """

    def __init__(self, frame_writer: Any, connection: Any, transport: Any) -> None:
        self._connection = connection
        self._transport = transport
        self._is_begun = False
        self._write = frame_writer(connection, self)  # which takes nothing from a transport but `write`

    def write(self, data: Any) -> None:
        self._is_begun = True
        self._transport.write(data)

    def __call__(self, *frame: Any) -> None:
        connection, lock, is_mine = self._connection, self._connection.write_lock, False
        if not connection.connected:
            raise RecoverableConnectionError("connection already closed")
        end = connection.deadline.end
        seconds = None if end is None else max(end - time.monotonic(), SENDING)
        try:
            is_mine = lock.acquire(timeout=-1 if seconds is None else seconds)
            if not is_mine:
                raise RecoverableConnectionError("another thread has been sending for too long")
            self._is_begun = False
            with self._transport.having_timeout(seconds):
                self._write(*frame)
        except BaseException as exc:
            if self._is_begun if is_mine else not isinstance(exc, OWN_ERRORS):  # the lock may be taken for ever
                connection.give_up()
            raise
        finally:
            if is_mine:
                lock.release()
