"""Moves what waits into another cascade."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

import kombu
from amqp import Message

from ..core.headers import X_DELAY, State, read_state
from ..core.layouts import Layout1
from ..core.topology import Cascade
from .messages import take, unwrapped


def migrate(source: kombu.Connection, target: kombu.Connection, cascades: Iterable[Cascade | Layout1]) -> Iterator[str]:
    """Move what waits in cascades of `source` into that of `target`; each message keeps its due time.

    Yields the level's queue for each one moved. What becomes due meanwhile is delivered by `source`. Interrupted at any
    point, nothing is lost, and it can be started again; the message that was being moved may be delivered twice.
    Raises what publishing with a delay raises, such as `InvalidDelay` beyond the `max_delay` of `target`.
    """
    channel = source.channel()
    try:
        for cascade in reversed(list(cascades)):
            for level in reversed(cascade.levels):  # down, as messages go
                for message in take(channel, level.queue):
                    state = read_state(message.headers)
                    if state is None:
                        continue  # put there by somebody else
                    _send(message, state, target)
                    channel.basic_ack(message.delivery_tag)
                    yield level.queue
    finally:
        channel.close()


def _send(message: Message, state: State, target: kombu.Connection) -> None:
    """Publish a message as it was sent, with what is left of its delay."""
    copy, exchange, routing_key = unwrapped(message)
    left = (state.due - datetime.now(timezone.utc)).total_seconds()
    copy.headers[X_DELAY] = max(1, math.ceil(left * 1000))  # a message that is due takes one tick, and is confirmed
    target.default_channel.basic_publish(copy, exchange, routing_key)
