"""Finds out whether a broker's quorum queues hold messages until a delivery time, and how far its clock is ahead.

RabbitMQ after 4.3 does (rabbitmq-server #16583). But it depends on the queue: one that was declared before, or in a
cluster of which a node is still older, ignores the time and passes messages on at once, whatever the release of the
node that the connection is to. So each connection sends a few messages to a queue of the cascade, and sees whether they
wait.
"""

from __future__ import annotations

import time
import uuid
from typing import NamedTuple

from amqp import Message
from amqp.exceptions import NotFound

from ..core.errors import CascadeMissing, NotRouted
from ..core.headers import X_DELIVERY_TIME
from ..core.topology import PROBE, Cascade
from .confirms import ConfirmedChannel, Outgoing
from .exclusive_reader import exclusive_reader
from .limited import LimitedConnection

#: Nanoseconds.
_MS = 1_000_000

#: Milliseconds that a message has to wait where messages wait at all, and those by which the clock of the broker may be
#: ahead: the first ones that suffice. Otherwise messages pass levels, which do not depend on a clock. What is held
#: beyond that leaves the queue by itself, because it has expired, or goes to the next one that asks, who ignores it.
_LONG, MARGINS = 60_000, (10, 25, 50, 100, 200, 400)

#: Seconds to wait for a message that is due, and so the most that the clock of the broker may be behind.
_PATIENCE = 2

#: Nanoseconds after which a connection asks again: two clocks that run freely differ by some milliseconds then.
_VALID = 600 * 1_000_000_000

#: Nanoseconds that may pass between two looks at clocks of the same host, and by which one may have been adjusted.
_STEP = 5 * _MS


class BrokerClock(NamedTuple):
    """What the clock of a broker says at most."""

    ahead: int  # nanoseconds by which it is at most ahead of `time.monotonic_ns`
    asked: int  # by that clock
    wall: int = 0  # nanoseconds by which the clock of this host's time was ahead of it

    def delivery_time(self, due: int) -> int:
        """Return what the broker's clock says at most, in milliseconds since 1970, at a moment of `time.monotonic_ns`.

        A message that it holds until then is not early by the clock of this host, however wrong either clock is.
        """
        return -(-(due + self.ahead) // _MS)

    @property
    def is_old(self) -> bool:
        """Whether to ask again: some time has passed, or this host was suspended, or its clock set."""
        return time.monotonic_ns() - self.asked > _VALID or abs(_wall() - self.wall) > _STEP


def ask(channel: ConfirmedChannel, cascade: Cascade) -> BrokerClock | None:
    """Return the broker's clock; None if it holds no messages, or if its clock is too far ahead.

    Sends messages with delivery times, and one without, which overtakes those that the queue holds: one that comes only
    afterwards has been held. The number of ready messages would prove nothing: RabbitMQ says 0 where it cannot ask the
    queue's leader. Raises `CascadeMissing`, and what the broker answers.
    """
    arrived: list[str] = []
    with exclusive_reader(channel.get_channel(), cascade.probe) as is_alone:
        if not is_alone:
            return None
        consuming = channel.get_channel()
        try:
            tag = consuming.basic_consume(
                cascade.probe, no_ack=True, callback=lambda message: arrived.append(message.correlation_id)
            )
        except NotFound as exc:
            raise CascadeMissing(exc.reply_text) from exc
        try:
            return _ask(channel, cascade, arrived)
        finally:
            if channel.get_channel() is consuming:  # a refusal closes it
                consuming.basic_cancel(tag)


def _ask(channel: ConfirmedChannel, cascade: Cascade, arrived: list[str]) -> BrokerClock | None:
    connection: LimitedConnection = channel.get_channel().connection
    now, ahead, name = time.monotonic_ns(), _wall(), uuid.uuid4().hex
    wall = now + ahead
    names = {delay: f"{name} {delay}" for delay in (_LONG, *reversed(MARGINS))}
    messages = [_message(names[delay], {X_DELIVERY_TIME: wall // _MS + delay}) for delay in names]
    messages.append(_message(name, {}))
    try:
        for confirm in [channel.send(Outgoing(message, cascade.outbox_ingest, PROBE)) for message in messages]:
            channel.wait(confirm)
    except NotRouted as exc:
        raise CascadeMissing(f"{cascade.probe!r} takes no message: {exc}") from exc
    if not connection.wait_until(lambda: name in arrived, _PATIENCE):
        return None
    not_held = arrived[: arrived.index(name)]
    margin = next((delay for delay in MARGINS if names[delay] not in not_held), None)
    if names[_LONG] in not_held or margin is None:
        return None
    if not connection.wait_until(lambda: names[margin] in arrived, _PATIENCE):
        return None
    return BrokerClock((wall // _MS + margin) * _MS - now, now, ahead)


def _wall() -> int:
    """Return by how many nanoseconds the clock of this host's time is ahead, though a pause may part two readings."""
    return max(time.time_ns() - time.monotonic_ns() for _ in range(3))


def _message(name: str, headers: dict[str, int]) -> Message:
    return Message("", correlation_id=name, expiration=str(_LONG), delivery_mode=2, application_headers=headers)
