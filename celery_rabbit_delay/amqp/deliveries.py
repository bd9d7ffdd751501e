"""Defers deliveries while a connection waits for the broker's answer, and reads those that py-amqp cannot read."""

from __future__ import annotations

import re
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from amqp import Message, spec
from amqp.exceptions import FrameSyntaxError
from amqp.serialization import dumps, loads

from .. import upstream

#: channel id, method, payload, content: the arguments of `amqp.Connection.on_inbound_method`.
Method = tuple[int, Any, Any, Any]

#: Seconds after which held deliveries give way to the event loop: without a prefetch limit there may be thousands.
TURN = 0.05

#: What py-amqp raises for text that is not UTF-8, for times that Python cannot represent, and for other properties that
#: RabbitMQ lets publishers send. Not `Exception`: an interrupt, such as a soft time limit, is one.
MALFORMED = (
    FrameSyntaxError,
    ArithmeticError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)

#: The header that marks a message as a placeholder for an unreadable one, and the one that RabbitMQ adds in a stream.
_UNREADABLE, _OFFSET = "x-unreadable", "x-stream-offset"
_OFFSET_BYTES = re.compile(rb"\x0fx-stream-offset[lL](.{8})", re.DOTALL)

#: The size of class, weight and length in a content header, before the properties (AMQP 0-9-1, clause 4.2.6.1).
_SIZES = 12

#: The arguments before exchange and routing key of the methods that bring a message; basic.get-ok has a number after.
_ARGUMENTS = {spec.Basic.Deliver: "sLb", spec.Basic.GetOk: "Lb"}
_NUMBER = bytes(4)


class DeferredDeliveries:
    """Holds deliveries back, and passes them on one by one.

    While py-amqp waits for the broker's answer, it calls consumers for incoming messages. A consumer that publishes
    with a delay would also wait, and so on: the recursion could be as deep as the consumer's prefetch count.

    `on_left` is called when some are left: the next read of the connection passes them on, and no new message may come
    that would make an event loop read.
    """

    def __init__(self, deliver: Callable[[Method], None]) -> None:
        self._deliver = deliver
        self.waiting: deque[Method] = deque()
        #: The number of blocks in which deliveries are being held.
        self.holds = 0
        #: The channel whose deliveries are passed on all the same.
        self.passed: int | None = None
        self.on_left: Callable[[], object] = lambda: None
        self._delivering = False

    def hold(self) -> DeferredDeliveries:
        """Hold deliveries until the `with` block ends. Blocks may be nested."""
        return self

    def __enter__(self) -> None:
        self.holds += 1

    def __exit__(self, *exc_info: object) -> None:
        self.holds -= 1
        self.flush()

    @contextmanager
    def passing(self, channel_id: int) -> Iterator[None]:
        """Pass on the deliveries of a channel of ours until the block ends, whatever is held."""
        self.passed = channel_id
        try:
            yield
        finally:
            self.passed = None

    def add(self, delivery: Method) -> None:
        """Take a delivery while deliveries are being held."""
        self.waiting.append(delivery)

    def flush(self) -> bool:
        """Pass on the held deliveries, unless they are still being held; return whether there were any.

        What does not pass on within `TURN` seconds is left for the next call, or a worker with a long queue would do
        nothing else until it is empty. If a consumer raises an error, the rest is left as well.
        """
        if self.holds or self._delivering or not self.waiting:
            return False
        try:
            self._delivering = True  # a consumer called from here must not call the next one
            until = time.monotonic() + TURN
            for _ in range(len(self.waiting)):
                self._deliver(self.waiting.popleft())
                if time.monotonic() > until:
                    break
        finally:
            self._delivering = False
            if self.waiting:
                self.on_left()
        return True


def take_anything(channel: Any) -> None:
    """Make one of our channels also receive messages that py-amqp cannot read, and bodies as raw bytes.

    py-amqp would raise an error at a read of the connection, which would be lost. Use `is_unreadable` instead.
    """
    channel.takes_anything = True
    channel.auto_decode = False


def is_unreadable(message: Any) -> bool:
    """Return whether an `amqp.Message` is a placeholder for one with unreadable properties or routing key.

    A placeholder has the original body, and no properties.
    """
    return _UNREADABLE in (message.headers or {})


def without_properties(header: bytes) -> bytes:
    """Return a content header of a placeholder; it keeps the offset in a stream unless the sender wrote one, too."""
    offsets = _OFFSET_BYTES.findall(header)
    known = {_OFFSET: int.from_bytes(offsets[0], "big")} if len(offsets) == 1 else {}
    properties, _ = upstream.serialize(Message(b"", application_headers={_UNREADABLE: True, **known}))
    return header[:_SIZES] + properties


def with_text(method: Any, arguments: bytes, content: Any) -> bytes:
    """Return the arguments of a method that brings a message, with names that are text.

    If its exchange or its routing key is not UTF-8, both become "", and the message becomes a placeholder.
    """
    before = _ARGUMENTS.get(method)
    if before is None:
        return arguments
    try:
        loads(f"{before}ss", arguments, 4)
        return arguments
    except UnicodeDecodeError:
        known = {name: value for name, value in (content.headers or {}).items() if name == _OFFSET}
        content.properties = {"application_headers": {_UNREADABLE: True, **known}}
        values, _ = loads(before, arguments, 4)
        return arguments[:4] + bytes(dumps(f"{before}ss", [*values, "", ""])) + _NUMBER
