"""An AMQP connection with limits for its waits: for all, if this package opens it, or for a user's as it closes."""

from __future__ import annotations

import math
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from amqp import spec
from amqp.exceptions import AMQPError, NotAllowed
from kombu.transport import pyamqp
from kombu.utils.text import version_string_as_tuple

from ... import upstream
from ..core.options import Options

#: The message of errors.
NO_ANSWER = "RabbitMQ has not answered in time: is it reachable, and does an alarm block publishers?"


#: What is added to RabbitMQ's refusal because of a limit of a user, of a virtual host or of a node.
LIMITED = (
    "A process that delays tasks needs one more connection for each on which it publishes, with up to 5 channels, and "
    "a worker another one, with one for each stream that it follows: raise the limit, as with `rabbitmqctl "
    'set_user_limits USER \'{"max-connections": 500, "max-channels": 5000}\'` or `rabbitmqctl set_vhost_limits -p '
    "VHOST '{\"max-connections\": 500}'`; -1 is none"
)


#: Seconds that whoever has other work waits for an answer: a consumer, an event loop with heartbeats to send, and who
#: closes. After an error Kombu's pools close connections, so that a call would never raise its own error while nobody
#: answers. And seconds until what had no answer is tried again.
ANSWER_WITHIN, PAUSE = 5.0, 10.0

#: The factor by which a wait may be longer than asked for: to tell the socket its limit takes two system calls a frame.
_INEXACT = 1.02

#: The frame with the method `connection.close`, without a reason (AMQP 0-9-1, clause 1.4.2.10). py-amqp would write it
#: under a lock, which an interrupt may have left taken.
_CLOSE = struct.pack(">BHIHHHBHHB", 1, 0, 11, *spec.Connection.Close, 0, 0, 0, 0, 0xCE)


class LimitedConnection(pyamqp.Connection):  # type: ignore[misc]
    """An `amqp.Connection` with a limit for all waits of a `with` block, for one thread at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._process = os.getpid()
        self._end: float | None = None  # of the innermost block of `within`, by `time.monotonic`
        #: Seconds that a single wait takes at most without a block of `within`; None: no limit.
        self.patience: float | None = None

    @cached_property
    def delay_options(self) -> Options:
        options: Options = self.client.transport.delay_options
        return options

    @cached_property
    def server_version(self) -> tuple[Any, ...]:
        """The broker's version."""
        version: tuple[Any, ...] = version_string_as_tuple(self.server_properties.get("version") or "0")
        return version

    def limit(self, seconds: float | None, end: float | None) -> None:
        """Limit all waits for the broker to a moment (`time.monotonic`), and each for room in the socket's buffer.

        Until the next call.
        """
        self._end = end
        if self.transport.sock.gettimeout() != seconds:
            self.transport.sock.settimeout(seconds)

    @contextmanager
    def within(self, seconds: float | None) -> Iterator[None]:
        """Limit the total time that a `with` block waits. Blocks may be nested. Raises `TimeoutError`.

        py-amqp's time-outs apply to single frames, so they never expire while a broker sends heartbeats.
        """
        sock = self.transport.sock if self.connected else None
        outer, before = self._end, sock and sock.gettimeout()
        if seconds is not None:
            self._end = min(time.monotonic() + seconds, math.inf if outer is None else outer)
        try:
            yield
        finally:
            self._end = outer
            if sock and self.connected:
                sock.settimeout(before)  # it also holds for what is written

    def drain_events(self, timeout: float | None = None) -> Any:
        if self._end is None and (timeout is not None or self.patience is None):
            return super().drain_events(timeout)
        if timeout is not None or self._end is None:
            with self.within(self.patience if timeout is None else timeout):
                return self.drain_events()
        while (left := self._end - time.monotonic()) > 0:
            sock = self.transport.sock
            if not left <= (sock.gettimeout() or 0) <= left * _INEXACT:
                sock.settimeout(left)
            try:
                frame = self.transport.read_frame()
            except TimeoutError:
                continue
            if self.on_inbound_frame(frame):  # a heartbeat is not an answer
                return None
        raise TimeoutError(NO_ANSWER)

    def wait_until(self, is_done: Callable[[], bool], seconds: float | None = None) -> bool:
        """Read what comes until something is true, or for so many seconds; return whether it is.

        Raises `TimeoutError` after the limit of a block around it if it has none itself.
        """
        try:
            with self.within(seconds):
                while not is_done():
                    self.drain_events()
        except TimeoutError:
            if seconds is None:
                raise
        return is_done()

    def close(self, *args: Any, **kwargs: Any) -> None:
        """Close. A broker that does not answer is left alone after `ANSWER_WITHIN` seconds, also by Kombu's pools."""
        with self.within(ANSWER_WITHIN):
            super().close(*args, **kwargs)

    def read_all(self) -> None:
        """Read what has come, and wait for nothing. Raises the error with which the broker closed the connection."""
        with suppress(TimeoutError):
            while upstream.has_input(self):  # which costs a tenth of a read that finds nothing
                self.blocking_read(0)

    def _on_close(self, code: int, text: str, *method: int) -> Any:
        """Raise why RabbitMQ closes this connection, with what is needed if it is a limit of connections or channels.

        It is an error of a connection all the same, after which Celery and Kombu try again.
        """
        if code == NotAllowed.code and re.search(r"limit (of )?\(?\d", text):
            text = f"{text}. {LIMITED}"
        return super()._on_close(code, text, *method)

    def collect(self) -> None:
        if self._process != os.getpid():
            upstream.close_socket(self)  # py-amqp would shut the socket down, for the parent as well
        else:
            upstream.stop_waiting(self)
        super().collect()

    def abandon(self) -> None:
        """Close, and wait for nothing. The broker is told, so that it logs no error."""
        if self.connected and self._process == os.getpid():
            with suppress(OSError, AMQPError):
                upstream.stop_waiting(self)
                self.transport.write(_CLOSE)
        self.collect()
