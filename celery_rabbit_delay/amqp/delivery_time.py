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
from .limited import LimitedConnection

#: Nanoseconds.
_MS = 1_000_000

#: Milliseconds: what a message has to wait where messages wait at all, and after which a "no" is asked again; and those
#: by which the broker's clock may be ahead, of which the first that suffices counts. Otherwise messages pass levels,
#: which depend on no clock.
_LONG, MARGINS = 60_000, (10, 40, 160, 640)

#: Seconds to wait for a message that is due, and so the most that the clock of the broker may be behind.
_PATIENCE = 2

#: Nanoseconds after which the clock is asked for again: two that run freely differ by some milliseconds then.
_VALID = 600 * 1_000_000_000

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
        valid = _LONG * _MS if self.ahead is None else _VALID
        return time.monotonic_ns() - self.asked > valid or abs(_wall() - self.wall) > _STEP


#: What this process knows of brokers, by their host and port, virtual host, and the root of the cascade.
known: dict[tuple[str, str, str], BrokerClock] = {}


def ask(channel: ConfirmedChannel, cascade: Cascade) -> BrokerClock:
    """Return the broker's clock, and so whether messages may wait by it.

    Sends messages with delivery times, and one without, which overtakes those that the queue holds: the broker's clock
    had not reached the time of one that comes after it. Many may ask at once, each through a queue of its own. Raises
    `CascadeMissing`, `NotPermitted`, and what else the broker answers.
    """
    asking = channel.get_channel()
    connection: LimitedConnection = asking.connection
    arrived: list[int] = []
    with declare.translate_errors(cascade):
        reply = asking.queue_declare(f"{cascade.probe}.{uuid.uuid4().hex}", exclusive=True, auto_delete=True).queue
        declare.bind(asking, Binding(cascade.probe, reply, "queue", reply))
    tag = asking.basic_consume(reply, no_ack=True, callback=lambda message: arrived.append(int(message.body)))
    clock = unknown()
    now = (clock.asked + clock.wall) // _MS

    def message(delay: int) -> Message:
        headers = {"CC": [reply], **({X_DELIVERY_TIME: now + delay} if delay else {})}
        return Message(str(delay), delivery_mode=2, application_headers=headers)

    def comes(delay: int) -> bool:
        return connection.wait_until(lambda: delay in arrived, _PATIENCE)

    for delay in (_LONG, *MARGINS, 0):
        channel.send(Outgoing(message(delay), cascade.outbox_ingest, PROBE))
    if comes(0):
        held = set(MARGINS).difference(arrived[: arrived.index(0)])
        if held and comes(margin := min(held)) and _LONG not in arrived:
            clock = clock._replace(ahead=(now + margin) * _MS - clock.asked)
    asking.basic_cancel(tag)  # and RabbitMQ deletes the queue
    return clock


def unknown() -> BrokerClock:
    """Return the answer of a broker that shows nothing, at this moment."""
    return BrokerClock(None, time.monotonic_ns(), _wall())


def _wall() -> int:
    """Return by how many nanoseconds the clock of this host's time is ahead, though a pause may part two readings."""
    return max(time.time_ns() - time.monotonic_ns() for _ in range(3))
