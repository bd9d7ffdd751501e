"""Deliveries that wait while a connection waits for the broker's answer, and how they are decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from amqp import Message

from .. import upstream
from ..core import frames
from ..core.headers import HEADER, State, decode_delayed

#: Our header is in a content header if this is, as a rule.
_NAME = HEADER.encode()

#: channel id, method, payload, content: what `amqp.Connection.on_inbound_method` is called with.
Delivery = tuple[int, Any, Any, Any]


class DeferredDeliveries:
    """Holds deliveries back, and hands them on one after the other.

    Waiting for the broker's answer, py-amqp calls consumers for whatever comes in meanwhile. One that publishes with a
    delay itself would wait in its turn, and so on, as deep as the consumer's prefetch count.
    """

    def __init__(self, deliver: Callable[[Delivery], None]) -> None:
        self._deliver = deliver
        self._waiting: deque[Delivery] = deque()
        self._holds = 0
        self._delivering = False

    def hold(self) -> DeferredDeliveries:
        """Keep deliveries until the block of a `with` ends. Blocks may be nested."""
        return self

    def __enter__(self) -> None:
        self._holds += 1

    def __exit__(self, *exc_info: object) -> None:
        self._holds -= 1
        self.flush()

    def offer(self, delivery: Delivery) -> bool:
        """Take a delivery if they are being held; return whether it was taken."""
        if self._holds:
            self._waiting.append(delivery)
        return bool(self._holds)

    def flush(self) -> bool:
        """Hand on what waits, unless that must wait longer; return whether there was anything.

        A consumer that raises leaves the others for the next call.
        """
        if self._holds or self._delivering or not self._waiting:
            return False
        self._delivering = True  # a consumer called from here must not call the next one
        try:
            while self._waiting:
                self._deliver(self._waiting.popleft())
        finally:
            self._delivering = False
        return True


def take_anything(channel: Any) -> None:
    """Make an `amqp.Channel` of ours get messages that py-amqp cannot read as well, and bodies as the bytes they are.

    py-amqp raises an error wherever the connection is read, which is lost then. Here `is_unreadable` says it.
    """
    channel.takes_anything = True
    channel.auto_decode = False


def is_unreadable(message: Any) -> bool:
    """Return whether an `amqp.Message` stands for one whose properties or routing key nobody can read.

    It has the body of that, and no properties.
    """
    return frames.UNREADABLE in (message.headers or {})


class TolerantFrames:
    """Handles frames as another handler does; on channels that take anything, also those that this one could not.

    It decodes the properties of delayed messages itself: py-amqp needs twice as long.
    """

    def __init__(self, frame_handler: Callable[..., Callable[[Any], Any]], connection: Any, callback: Any) -> None:
        self._connection = connection
        self._callback = callback
        self._handle = frame_handler(connection, self._complete)
        self._misnamed: set[int] = set()  # ids of channels, until the rest of the message comes
        self._decoded: dict[int, tuple[dict[str, Any], State]] = {}  # by the ids of channels, the same

    def __call__(self, frame: tuple[int, int, bytes]) -> Any:
        kind, channel_id, payload = frame
        if kind in (frames.METHOD, frames.HEADER):
            channel = (self._connection.channels or {}).get(channel_id)
            if getattr(channel, "takes_anything", False):
                return self._handle((kind, channel_id, self._readable(kind, channel_id, payload)))
            if kind == frames.HEADER and _NAME in payload:
                decoded = decode_delayed(frames.properties_of(payload))
                if decoded is not None:
                    self._decoded[channel_id] = decoded
                    return self._handle((kind, channel_id, frames.bare(payload)))
        return self._handle(frame)

    def _complete(self, channel_id: int, method: Any, payload: bytes, content: Any) -> Any:
        if content is not None and channel_id in self._decoded:
            content.properties, content.delay_state = self._decoded.pop(channel_id)
        return self._callback(channel_id, method, payload, content)

    def _readable(self, kind: int, channel_id: int, payload: bytes) -> bytes:
        if kind == frames.METHOD:
            readable = frames.with_text(payload)
            if readable != payload:
                self._misnamed.add(channel_id)
            return readable
        if channel_id in self._misnamed or not _is_readable(frames.properties_of(payload)):
            self._misnamed.discard(channel_id)
            return frames.without_properties(payload)
        return payload


def _is_readable(properties: bytes) -> bool:
    try:
        upstream.deserialize(Message(), properties)
    except Exception:  # of many kinds: whoever may publish chooses one
        return False
    return True
