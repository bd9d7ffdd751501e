"""A message that is ready to enter the cascade, with its entry for the streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from amqp import Message

from .. import upstream
from ..core import wire
from ..core.destination import Destination
from ..core.topology import Stream


class OwnMessage(upstream.EncodesProperties, Message):  # type: ignore[misc]
    """A message in the cascade."""

    encode_properties = staticmethod(wire.encode_properties)


def with_headers(msg: Any, headers: Mapping[str, Any]) -> Any:
    """Return a copy of an `amqp.Message` with other headers. The user's objects do not change."""
    copy = OwnMessage(msg.body)
    copy.properties = {**msg.properties, "application_headers": headers}
    return copy


class Entry(NamedTuple):
    """What the streams store about a delayed message."""

    number: int
    due: int  # milliseconds since 1970
    id: str
    stream: Stream | None  # for its record; None: it is not recorded
    key: str | None  # the `x-delay-key` whose last message it becomes


class PendingMessage(NamedTuple):
    """A message that is ready to enter the cascade."""

    message: Any  # the amqp.Message without a delay
    headers: Mapping[str, Any]  # wrapped
    due: int  # by the clock `now`
    delay: int  # the original one, in microseconds
    destination: Destination
    timeout: float | None = None  # seconds, as for `kombu.Producer.publish`
    confirm_timeout: float | None = None
    entry: Entry | None = None  # for the streams

    @property
    def key(self) -> str | None:
        """The `x-delay-key` whose last message it becomes."""
        return self.entry and self.entry.key

    @property
    def has_key(self) -> bool:
        return self.key is not None

    @property
    def priority(self) -> int | None:
        priority: int | None = self.message.properties.get("priority")
        return priority
