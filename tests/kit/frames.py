"""What a connection says to the broker, and hears from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import kombu
from amqp.abstract_channel import AbstractChannel

from celery_rabbit_delay import upstream
from celery_rabbit_delay.delay.amqp.confirms import ConfirmedChannel, Outgoing
from celery_rabbit_delay.delay.amqp.sender import Turn


@contextmanager
def frames(connection: Any) -> Iterator[tuple[list[tuple[int, int]], list[tuple[int, int]]]]:
    """Yield the AMQP methods that are sent to publish a connection's delayed messages, and what is received."""
    sent: list[tuple[int, int]] = []
    received: list[tuple[int, int]] = []
    with Turn(connection.connection.sender, 60) as amqp:
        pass
    writer, dispatch = amqp.frame_writer, AbstractChannel.dispatch_method

    def recording(kind: int, channel: int, method: tuple[int, int], *rest: Any) -> Any:
        sent.append(method)
        return writer(kind, channel, method, *rest)

    def dispatching(self: Any, method: tuple[int, int], *rest: Any) -> Any:
        received.append(method)
        return dispatch(self, method, *rest)

    amqp.frame_writer = recording
    try:
        with patch.object(AbstractChannel, "dispatch_method", dispatching):
            yield sent, received
    finally:
        amqp.frame_writer = writer


@contextmanager
def routing_keys() -> Iterator[list[str]]:
    """Yield the routing keys of delayed messages and records, as they are sent while the block runs."""
    keys: list[str] = []
    send = ConfirmedChannel.send

    def sending(self: ConfirmedChannel, outgoing: Outgoing, *args: Any) -> Any:
        keys.append(outgoing.key)
        return send(self, outgoing, *args)

    with patch.object(ConfirmedChannel, "send", sending):
        yield keys


def has_input(connection: kombu.Connection) -> bool:
    """Return whether the broker has sent something that nobody has read."""
    return upstream.has_input(connection.connection)
