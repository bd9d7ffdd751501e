"""Finds out whether a broker's quorum queues hold messages until a delivery time, and how far its clock is ahead.

RabbitMQ after 4.3 does (rabbitmq-server #16583). But it depends on the queue: one that was declared before, or in a
cluster of which a node is still older, ignores the time and passes messages on at once, whatever the release of the
node that the connection is to. So each connection sends a few messages to a queue of the cascade, and sees whether they
wait.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from amqp import Message

from ..core.errors import CascadeMissing
from ..core.headers import X_DELIVERY_TIME
from ..core.parts import EXPIRY_MARGIN_MS
from ..core.topology import PROBE, Cascade
from . import declare
from .confirms import ConfirmedChannel

#: Nanoseconds.
_MS = 1_000_000

#: Milliseconds that a message has to wait where messages wait at all, and those by which the clock of the broker may be
#: ahead: the first ones that suffice. Otherwise messages pass levels, which do not depend on a clock.
_LONG, MARGINS = 60_000, (10, 25, 50, 100, 200, 400)

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
        now = time.monotonic_ns()
        return now - self.asked > _VALID or abs(time.time_ns() - now - self.wall) > _STEP


def ask(channel: ConfirmedChannel, cascade: Cascade) -> BrokerClock | None:
    """Return the broker's clock; None if it holds no messages, or if its clock is too far ahead or it is too slow.

    Raises `CascadeMissing`, and what the broker answers.
    """
    if _try(channel, cascade, _LONG) is None:
        return None
    for margin in MARGINS:
        if clock := _try(channel, cascade, margin):
            return clock
        time.sleep(margin / 1000)  # until it has expired, and does not count any more
    return None


def _try(channel: ConfirmedChannel, cascade: Cascade, milliseconds: int) -> BrokerClock | None:
    """Return the broker's clock if a message is proved to wait that is due in so many milliseconds.

    If the queue did not hold it, it would be ready until it expires, at the earliest so many milliseconds after it was
    sent. Messages of others only add to the number of those that are ready. They leave the queue by themselves, when
    they are due and have expired.
    """
    sent, wall = time.monotonic_ns(), time.time_ns()
    until = wall // _MS + milliseconds
    message = Message("", expiration=str(milliseconds), delivery_mode=2, application_headers={X_DELIVERY_TIME: until})
    if (reason := channel.publish(message, cascade.outbox_ingest, PROBE)) is not None:
        raise CascadeMissing(f"{cascade.probe!r} takes no message: {reason}")
    asked = time.monotonic_ns()
    ready = declare.passive_declare_queue(channel.get_channel(), cascade.probe).message_count
    now = time.monotonic_ns()
    is_answer = now - asked < declare.UNKNOWN_AFTER * 1_000_000_000
    if ready or not is_answer or now - sent >= (milliseconds - EXPIRY_MARGIN_MS) * _MS:
        return None
    return BrokerClock(until * _MS - asked, now, wall - sent)
