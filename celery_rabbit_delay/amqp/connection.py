"""An AMQP connection with its publishers and its knowledge of the broker."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property, partial
from typing import Any

from amqp import spec
from amqp.exceptions import AMQPError, ChannelError, RecoverableConnectionError, UnexpectedFrame
from kombu.transport import pyamqp
from kombu.utils.text import version_string_as_tuple

from .. import upstream
from ..core import faults
from ..core.destination import Declarations
from ..core.errors import UnsupportedConfiguration
from ..core.options import Options
from .batch import Batch, batches_of
from .blocks import OWN_ERRORS, SENDING, Deadline, Exclusively, FrameWriter, GivingUp, Within
from .confirms import ConfirmedChannel
from .deliveries import MALFORMED, DeferredDeliveries, Method, with_text, without_properties
from .publisher import DelayedPublisher
from .reasons import with_readable_reason
from .receiving import Known, known_to
from .subscription import Subscription

#: Seconds to wait for the answer to a question to the broker, such as a declaration; to the last one, when a connection
#: or a channel closes.
ANSWERING, CLOSING = 300, 10

_GIVEN_UP = "the connection was given up, because something interrupted it"

#: The type of a frame with the properties of a message.
_HEADER = 2


class Connection(pyamqp.Connection):  # type: ignore[misc]
    """An `amqp.Connection` that can defer deliveries and has a publisher for each cascade."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.frame_writer_cls: Any = partial(FrameWriter, self.frame_writer_cls)
        #: For writes: threads, also green ones, may share a connection, and no frame may come into another.
        self.write_lock = threading.Lock()  # looked up now: gevent and eventlet may have replaced it since the import
        #: For blocks of `exclusively`: each waits for answers, which another thread must not read.
        self.turns = threading.RLock()
        self._process = os.getpid()
        self.declarations = Declarations()
        #: Name of a stream -> the time (`time.monotonic`) to try again to read it, or to renew its subscription.
        self.followed: dict[str, float] = {}
        self.failing: dict[str, float] = {}  # the time at which the first attempt to read it began that failed
        self.subscriptions: dict[str, Subscription] = {}
        self._publishers: dict[bool, DelayedPublisher] = {}  # by whether their cascade is the high one
        self._by_priority: dict[int | None, DelayedPublisher] = {}
        self.deliveries = DeferredDeliveries(self._deliver)
        self._errors: deque[AMQPError] = deque()
        #: Whether the broker has last not answered in time, as during an alarm. Then nothing waits for it to close.
        self.is_silent = False
        self.exclusive: list[ConfirmedChannel] = []  # of the blocks of `exclusively` that are running
        self.deadline = Deadline()
        self._is_given_up = False
        self._is_reading = False  # a frame has been begun, and is not handed over in whole

    def give_up(self) -> None:
        """Close without a word to the broker, after an interrupt that may have torn what is read or written.

        py-amqp would take the rest of a frame for the header of the next one, and wait for as many bytes as that says.
        """
        self._is_given_up = True  # first, for this may be interrupted as well
        self.collect()

    @property
    def connected(self) -> bool:
        return not self._is_given_up and bool(super().connected)

    def connect(self, callback: Any = None) -> Any:
        if self._is_given_up:  # py-amqp would connect again, as soon as a closed connection is used
            raise RecoverableConnectionError(_GIVEN_UP)
        with GivingUp(self):
            return super().connect(callback)

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        with GivingUp(self), self.within(ANSWERING):
            return super().wait(*args, **kwargs)

    def blocking_read(self, timeout: float | None = None) -> Any:
        if self._is_given_up:
            raise RecoverableConnectionError(_GIVEN_UP)
        transport = self.transport
        began, self._is_reading = time.monotonic(), False
        try:
            with transport.having_timeout(timeout):
                if timeout != 0:
                    upstream.await_input(transport)  # takes nothing: a wait that is interrupted may go on later
                self._is_reading = True
                frame = transport.read_frame()
            try:
                return self.on_inbound_frame(frame)
            except MALFORMED as exc:
                kind, channel_id, payload = frame
                channel = (self.channels or {}).get(channel_id)
                is_consumers = not self._is_reading or isinstance(exc, TimeoutError)  # or that of a signal handler
                if is_consumers or kind != _HEADER or not getattr(channel, "takes_anything", False):
                    raise
                return self.on_inbound_frame((kind, channel_id, without_properties(payload)))
        except BaseException as exc:
            if self._is_reading and self._is_torn(exc, timeout, time.monotonic() - began):
                self.give_up()
            raise

    def _is_torn(self, exc: BaseException, timeout: float | None, seconds: float) -> bool:
        """Return whether a frame is lost in whole or in part by an exception after some seconds of reading.

        py-amqp can go on after its own time-outs. But signal handlers like to raise `TimeoutError` as well; a time-out
        of the socket does not come before its time.
        """
        if isinstance(exc, TimeoutError):
            return self.read_timeout is None and (timeout is None or seconds < timeout - 0.1)
        return isinstance(exc, UnexpectedFrame) or not isinstance(exc, OWN_ERRORS)

    def collect(self) -> None:
        if self._process != os.getpid():
            upstream.close_socket(self)  # py-amqp would shut the socket down, for the parent as well
        else:
            upstream.stop_waiting(self)
        super().collect()

    def close(self, *args: Any, **kwargs: Any) -> None:
        if self.is_silent:
            self.abandon()
        elif not self.connected:  # there is nobody to tell
            self.collect()
        else:
            with self.within(CLOSING):
                super().close(*args, **kwargs)

    def abandon(self) -> None:
        """Close, and wait for nothing. The broker is told, so that it logs no error."""
        with suppress(OSError, AMQPError), self.within(SENDING):
            self.send_method(spec.Connection.Close, "BsBB", (0, "", 0, 0))
        self.collect()

    def _deliver(self, delivery: Method) -> None:
        channel_id, *method = delivery
        if channel_id in (self.channels or ()):  # if the channel was closed, the broker delivers the message again
            super().on_inbound_method(channel_id, *method)

    def on_inbound_method(self, channel_id: int, method_sig: Any, payload: Any, content: Any) -> Any:
        self.is_silent = self._is_reading = False  # from here on, errors are those of methods and consumers
        channel = (self.channels or {}).get(channel_id)
        payload = with_readable_reason(method_sig, payload)
        if content is not None and getattr(channel, "takes_anything", False):
            payload = with_text(method_sig, payload, content)
        if method_sig == spec.Basic.Deliver and self.deliveries.holds and channel_id != self.deliveries.passed:
            return self.deliveries.add((channel_id, method_sig, payload, content))
        try:
            return super().on_inbound_method(channel_id, method_sig, payload, content)
        except ChannelError as exc:  # the code that reads the connection does not know about submitted messages
            if not any(publisher.refuse_submitted(channel, exc) for publisher in list(self._publishers.values())):
                raise

    def drain_events(self, timeout: float | None = None) -> Any:
        if self.deliveries.waiting and self.deliveries.flush():  # what is left after a consumer raised an error
            return None
        if not self.exclusive:
            if self._errors:
                raise self._errors.popleft()
            if self.deadline.end is None:
                return super().drain_events(timeout)
        elif timeout == 0:  # py-amqp asks before it sends a message, but its channel must not be closed then
            raise TimeoutError
        with self.within(timeout):
            while True:
                seconds = self.seconds_left()
                try:
                    if self.blocking_read(seconds):  # a heartbeat is not an answer
                        return None
                except TimeoutError:
                    self.seconds_left()  # raises an error that names possible causes
                    raise
                except AMQPError as exc:
                    channel = getattr(exc, "channel", None)
                    if not self.exclusive or channel is None or any(own.owns(channel) for own in self.exclusive):
                        raise
                    self.raise_later(exc)
                    return None  # py-amqp has reopened that channel, and may have read the answer in the meantime

    def raise_later(self, exc: AMQPError) -> None:
        """Raise an error at the next read that no publisher of the cascade waits for."""
        self._errors.append(exc)

    def seconds_left(self) -> float | None:
        """Return the seconds until the deadline; None without one. Raises `TimeoutError` after the deadline."""
        if self.deadline.end is None:
            return None
        left = self.deadline.end - time.monotonic()
        if left <= 0:
            self.is_silent = True
            raise TimeoutError(
                "RabbitMQ has not answered in time: is it reachable, and does an alarm block publishers?"
            )
        return left

    def within(self, seconds: float | None) -> AbstractContextManager[None]:
        """Limit the total time that a `with` block waits. Blocks may be nested. Raises `TimeoutError`.

        py-amqp's time-outs apply to single frames, so they never expire while a broker sends heartbeats.
        """
        return nullcontext() if seconds is None else Within(self.deadline, seconds)

    def exclusively(self, channel: ConfirmedChannel, seconds: float | None) -> Exclusively:
        """Process only answers to one channel in a `with` block, and limit its total time.

        In nested blocks, the channels are those of all of them. Deliveries are deferred. Errors with which the broker
        closes other channels are raised at the next read after the block. Raises `TimeoutError`.
        """
        return Exclusively(self, channel, seconds)

    @cached_property
    def known(self) -> Known:
        """What the streams have said about messages that this connection may receive."""
        return known_to[self.client]

    @cached_property
    def delay_options(self) -> Options:
        options: Options = self.client.transport.delay_options
        return options

    @cached_property
    def server_version(self) -> tuple[Any, ...]:
        """The broker's version."""
        version: tuple[Any, ...] = version_string_as_tuple(self.server_properties.get("version") or "0")
        return version

    @cached_property
    def batches(self) -> list[Batch]:
        """The batches that collect what is published, the innermost last; those of all connections of a client."""
        return batches_of[self.client]

    def on_declared(self, name: str) -> None:
        """Take note that a queue or exchange of that name may be a new one."""
        for publisher in self._publishers.values():
            publisher.routes.forget(name)

    def publisher_for(self, priority: int | None = None) -> DelayedPublisher:
        """Return the publisher for messages of a priority.

        Raises `UnsupportedConfiguration`; in a forked child of the process that connected,
        `amqp.RecoverableConnectionError`, after which Kombu reconnects.
        """
        if self._process != os.getpid():  # parent and child would read each other's answers
            raise RecoverableConnectionError("the connection is that of the process that forked this one")
        known = self._by_priority.get(priority)
        if known is not None:
            return known
        cascade = self.delay_options.cascade_for(priority, self.server_version)
        if self.server_version < (3, 10):
            raise UnsupportedConfiguration(
                "RabbitMQ before 3.10 lacks at-least-once dead lettering, without which delayed messages get lost. "
                f"This is {self.server_properties.get('version')}: upgrade it"
            )
        if cascade.high not in self._publishers:
            self._publishers[cascade.high] = DelayedPublisher(self, cascade, self.delay_options)
        self._by_priority[priority] = self._publishers[cascade.high]
        return self._publishers[cascade.high]


def warning_of_release(connection: Any) -> str | None:
    """Return why the broker's release must not be used, from an `amqp.Connection`; None if it may be."""
    return faults.warning(_release(connection))


def advice_on_release(connection: Any) -> str | None:
    """Return what to say of the broker's release, from an `amqp.Connection` with our options; None for nothing."""
    return faults.advice(_release(connection))


def _release(connection: Any) -> str:
    return str(connection.server_properties.get("version") or "")
