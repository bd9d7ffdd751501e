"""Moves what waits into another cascade."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import NamedTuple

import kombu
from amqp import Message

from ..amqp.connecting import own_channel
from ..amqp.receiving import learn
from ..amqp.schedule import write_changes
from ..amqp.waiting import Allowed, send_on, take
from ..core import journal
from ..core.due import x_delay_until
from ..core.headers import X_DELAY, State, milliseconds, read_state
from ..core.layouts import Layout1
from ..core.topology import Cascade


class Moved(NamedTuple):
    """A message that was looked at, in a level's queue. `refused` says why it stays, if it does."""

    queue: str
    refused: str | None


def migrate(
    source: kombu.Connection, target: kombu.Connection, cascades: Iterable[Cascade | Layout1], allowed: Allowed
) -> Iterator[Moved]:
    """Move what waits in cascades of `source` into that of `target`; each message keeps its due time.

    What becomes due meanwhile is delivered by `source`. Interrupted at any point, nothing is lost, and it can be
    started again; the message that was being moved may be delivered twice. A message that cannot move stays, and the
    others go on. What was cancelled, moved or replaced is dropped.
    """
    learn(source)
    moved: list[State] = []  # the states of those that are in the journal
    try:
        with own_channel(source) as channel:
            for cascade in reversed(list(cascades)):
                for level in reversed(cascade.levels):  # down, as messages go
                    for message in take(channel, level.queue):
                        refused = _move(message, target, allowed)
                        if refused is None:
                            channel.basic_ack(message.delivery_tag)
                            state = read_state(message.headers)
                            moved += [state] if state and state.number is not None else []
                        if len(moved) >= 100:
                            _forget(source, moved)
                        yield Moved(level.queue, refused)
    finally:
        _forget(source, moved)


def _forget(source: kombu.Connection, moved: list[State]) -> None:
    """Say in the journal of the source that messages are not there any more."""
    if moved:
        voids = [journal.void(state.number, milliseconds(state.due)) for state in moved if state.number is not None]
        write_changes(source, voids)
        moved.clear()


def _move(message: Message, target: kombu.Connection, allowed: Allowed) -> str | None:
    """Publish a message as it was sent, with what is left of its delay; return why that cannot be done."""
    state = read_state(message.headers or {})

    def publish(copy: Message, exchange: str, routing_key: str) -> None:
        assert state is not None  # or else it is not sent on
        # What is due takes a tick: it is confirmed, as any delay.
        copy.headers[X_DELAY] = x_delay_until(state.due, datetime.now(timezone.utc))
        target.default_channel.basic_publish(copy, exchange, routing_key)

    return send_on(message, allowed, publish)
