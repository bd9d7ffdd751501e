"""Defers deliveries while a connection waits for the broker's answer, and decodes deliveries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from amqp import Message

from .. import upstream
from ..core import frames
from ..core.headers import HEADER, State, decode_delayed, read_state

#: Our header is in a content header if this is, as a rule.
_NAME = HEADER.encode()

#: channel id, method, payload, content: the arguments of `amqp.Connection.on_inbound_method`.
Delivery = tuple[int, Any, Any, Any]


class DeferredDeliveries:
    """Holds deliveries back, and passes them on one by one.

    While py-amqp waits for the broker's answer, it calls consumers for incoming messages. A consumer that publishes
    with a delay would also wait, and so on: the recursion could be as deep as the consumer's prefetch count.
    """

    def __init__(self, deliver: Callable[[Delivery], None]) -> None:
        self._deliver = deliver
        self.waiting: deque[Delivery] = deque()
        self.holds = 0
        self._delivering = False

    def hold(self) -> DeferredDeliveries:
        """Hold deliveries until the `with` block ends. Blocks may be nested."""
        return self

    def __enter__(self) -> None:
        self.holds += 1

    def __exit__(self, *exc_info: object) -> None:
        self.release()
        self.flush()

    def release(self) -> None:
        """End a block, but do not pass on what it has held."""
        self.holds -= 1

    def offer(self, delivery: Delivery) -> bool:
        """Take a delivery if deliveries are being held; return whether it was taken."""
        if self.holds:
            self.waiting.append(delivery)
        return bool(self.holds)

    def flush(self) -> bool:
        """Pass on all held deliveries, unless they are still being held; return whether there were any.

        If a consumer raises an error, the next call passes on the rest.
        """
        if self.holds or self._delivering or not self.waiting:
            return False
        try:
            self._delivering = True  # a consumer called from here must not call the next one
            while self.waiting:
                self._deliver(self.waiting.popleft())
        finally:
            self._delivering = False
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
    return frames.UNREADABLE in (message.headers or {})


def state_of(message: Any) -> State | None:
    """Return what the package's header of an `amqp.Message` says; None if there is none, or if it is malformed."""
    headers = message.headers
    if not headers or HEADER not in headers:
        return None
    known = vars(message)
    if "delay_state" not in known:
        message.delay_state = read_state(headers)
    state: State | None = known["delay_state"]
    return state


class TolerantFrames:
    """Wraps a frame handler. On channels that take anything, also handles frames that the wrapped one cannot read.

    It decodes the properties of delayed messages itself: py-amqp needs twice as long.
    """

    def __init__(self, frame_handler: Callable[..., Callable[[Any], Any]], connection: Any, callback: Any) -> None:
        self._connection = connection
        self._callback = callback
        self._handle = frame_handler(connection, self._complete)
        self._misnamed: set[int] = set()  # ids of channels, until the next frame of the message arrives
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
    except Exception:  # a malformed message may cause many kinds of errors
        return False
    return True
