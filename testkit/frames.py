"""What a connection says to the broker, and hears from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from amqp import spec
from amqp.abstract_channel import AbstractChannel

from celery_rabbit_delay.amqp.writing import MessageWriter


@contextmanager
def frames(connection: Any) -> Iterator[tuple[list[tuple[int, int]], list[tuple[int, int]]]]:
    """Yield the AMQP methods that a connection sends and receives while the block runs."""
    sent: list[tuple[int, int]] = []
    received: list[tuple[int, int]] = []
    amqp = connection.connection
    writer, dispatch, add = amqp.frame_writer, AbstractChannel.dispatch_method, MessageWriter.add

    def recording(kind: int, channel: int, method: tuple[int, int], *rest: Any) -> Any:
        sent.append(method)
        return writer(kind, channel, method, *rest)

    def adding(self: MessageWriter, *message: Any) -> None:
        sent.append(spec.Basic.Publish)
        add(self, *message)

    def dispatching(self: Any, method: tuple[int, int], *rest: Any) -> Any:
        received.append(method)
        return dispatch(self, method, *rest)

    amqp.frame_writer = recording
    try:
        with (
            patch.object(AbstractChannel, "dispatch_method", dispatching),
            patch.object(MessageWriter, "add", adding),
        ):
            yield sent, received
    finally:
        amqp.frame_writer = writer


@contextmanager
def routing_keys() -> Iterator[list[str]]:
    """Yield the routing keys of delayed messages and records, as they are sent while the block runs."""
    keys: list[str] = []
    add = MessageWriter.add

    def adding(self: MessageWriter, channel: Any, message: Any, exchange: str, key: str, *rest: Any) -> None:
        keys.append(key)
        add(self, channel, message, exchange, key, *rest)

    with patch.object(MessageWriter, "add", adding):
        yield keys
