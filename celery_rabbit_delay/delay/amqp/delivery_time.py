"""Finds out whether a broker's quorum queues hold messages until a delivery time, and how far its clock is ahead.

Those of RabbitMQ 4.4 do (rabbitmq-server #16583), but in a cluster only once its last node is upgraded, whatever the
release of the node that the connection is to. So a process sends a few messages through a queue of the cascade that
passes on at once what it does not hold, to a queue of its own, and sees which ones wait.
"""

from __future__ import annotations

import time
import uuid
from typing import NamedTuple

from amqp import Message

from ..core.headers import X_DELIVERY_TIME
from ..core.topology import PROBE, Binding, Cascade
from . import declare
from .confirms import ConfirmedChannel, Outgoing
from .limited import ANSWER_WITHIN, LimitedConnection

#: Nanoseconds.
_MS = 1_000_000

#: Milliseconds by which the broker's clock may be ahead, of which the first that suffices counts, and behind. Otherwise
#: messages pass levels, which depend on no clock.
MARGINS, BEHIND = (10, 40, 160, 640), 2_000

#: Nanoseconds after which the broker is asked again: two clocks that run freely differ by some milliseconds then.
_VALID = 300 * 1_000_000_000

#: Nanoseconds that may pass between two looks at clocks of the same host, and by which one may have been adjusted.
_STEP = 5 * _MS


class BrokerClock(NamedTuple):
    """What the clock of a broker says at most, or that its queues do not hold messages, or not reliably."""

    ahead: int | None  # nanoseconds by which it is at most ahead of `time.monotonic_ns`; None: no message waits by it
    asked: int  # by that clock
    wall: int  # nanoseconds by which the clock of this host's time was ahead of it

    def delivery_time(self, due: int) -> int:
        """Return what the broker's clock says at most, in milliseconds since 1970, at a moment of `time.monotonic_ns`.

        A message that it holds until then is not early by the clock of this host, however wrong either clock is.
        """
        assert self.ahead is not None
        return -(-(due + self.ahead) // _MS)

    @property
    def is_old(self) -> bool:
        """Whether to ask again: some time has passed, or this host was suspended, or its clock set."""
        return time.monotonic_ns() - self.asked > _VALID or abs(_wall() - self.wall) > _STEP


#: What this process knows of brokers, by their host and port, virtual host, and the root of the cascade.
known: dict[tuple[str, str, str], BrokerClock] = {}


def ask(channel: ConfirmedChannel, cascade: Cascade, is_proved: bool) -> BrokerClock:
    """Return the broker's clock, and so whether messages may wait by it.

    Sends messages with delivery times, and one without, which overtakes those that the queue holds: the broker's clock
    had not reached the time of one that comes after it. Unless it `is_proved` that such a one comes, waits for it.
    Many may ask at once, each through a queue of its own. Raises `CascadeMissing`, `NotPermitted`, and what else the
    broker answers.
    """
    asking, reply = channel.get_channel(), f"{cascade.probe}.{uuid.uuid4().hex}"
    connection: LimitedConnection = asking.connection
    arrived: list[int] = []
    with declare.translate_errors(cascade):
        asking.queue_declare(reply, exclusive=True, auto_delete=True, nowait=True)
        declare.bind(asking, Binding(cascade.probe, reply, "queue", reply), nowait=True)
        tag = asking.basic_consume(reply, no_ack=True, callback=lambda message: arrived.append(int(message.body)))
    clock = unknown()
    now = (clock.asked + clock.wall) // _MS
    for delay in (*MARGINS, -BEHIND, 0):
        headers = {"CC": [reply], **({X_DELIVERY_TIME: now + delay} if delay else {})}
        probe = Message(str(delay), delivery_mode=2, application_headers=headers)
        channel.send(Outgoing(probe, cascade.outbox_ingest, PROBE))
    if connection.wait_until(lambda: 0 in arrived, ANSWER_WITHIN):
        passed = arrived[: arrived.index(0)]
        held = min(set(MARGINS).difference(passed), default=None)
        is_due = held and (is_proved or connection.wait_until(lambda: held in arrived, ANSWER_WITHIN))
        if held and is_due and -BEHIND in passed:
            clock = clock._replace(ahead=(now + held) * _MS - clock.asked)
    asking.basic_cancel(tag, nowait=True)  # and RabbitMQ deletes the queue
    return clock


def unknown() -> BrokerClock:
    """Return the answer of a broker that shows nothing, at this moment."""
    return BrokerClock(None, time.monotonic_ns(), _wall())


def _wall() -> int:
    """Return by how many nanoseconds the clock of this host's time is ahead, though a pause may part two readings."""
    return max(time.time_ns() - time.monotonic_ns() for _ in range(3))
