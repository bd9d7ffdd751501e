"""Publishes delayed messages by their plans: chooses the way, sends, waits, and sends again what RabbitMQ refuses."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any

from amqp import Message
from amqp.exceptions import AccessRefused, ChannelError, FrameError, NotFound

from ..core import headers as headers_
from ..core.destination import Destination
from ..core.due import to_ticks
from ..core.errors import CascadeMissing, DelayError, MessageRefused, NotRouted
from ..core.options import Options
from ..core.plan import Plan
from ..core.topology import MAX_NORMAL_PRIORITY, Cascade
from . import create, declare
from .confirms import ConfirmedChannel, NotStored, Outgoing, with_headers
from .connecting import Patience
from .delivery_time import BrokerClock
from .interceptor import Interceptor
from .limited import LimitedConnection
from .routes import routes_of

logger = logging.getLogger(__name__)

#: Seconds for which a refused message is published again. RabbitMQ refuses at once what comes before the leader of a
#: queue is up (rabbit_fifo_client, `enqueue`): another process may just be creating the queue, or its node may have
#: started just now.
RETRIED_FOR = 3

#: How often a message is sent again because a part of the cascade was missing, before that is an error.
REPAIRS = 2

#: Is called with None once the broker has stored a message, or else with the reason, as `publish` would raise it.
Answered = Callable[[Exception | None], None]


class DelayedPublisher:
    """Publishes into one cascade through one AMQP connection of ours, and lives as long as the connection.

    For blocks of `Turn`, which limit its waits, and close the connection on whatever is not the broker's answer.
    """

    def __init__(
        self, connection: LimitedConnection, options: Options, through_levels: bool, interceptor: Interceptor
    ) -> None:
        """Choose the cascade: where the broker shows that it holds messages, and not `through_levels`, without levels.

        Raises as `create.choose`.
        """
        self.connection, self.options, self.interceptor = connection, options, interceptor
        self.channel = ConfirmedChannel(connection)
        self.kept: Any = None  # by the interceptor, for as long as the connection
        #: The broker's, if its queues hold each message until it is due.
        self.clock: BrokerClock | None = None
        self._use(options.cascade)
        self._tick = self.cascade.tick // timedelta(microseconds=1) * 1000  # nanoseconds
        #: Quorum queues of these releases know two priorities, and look for expired messages only at the head.
        self._caps_priority = (4, 0) <= connection.server_version < (4, 3)
        self._ways = lru_cache(maxsize=1024)(self._find_way)
        #: Whether to ask before each message if the queues of the broker hold messages until they are due.
        self._asks = not through_levels and options.may_wait_by_time(connection.server_version)
        if self._asks:
            self._choose_way()

    def _choose_way(self) -> None:
        """Let messages wait for their delivery time, if the broker shows that it holds them, or else in levels."""
        cascade, self.clock = create.choose(self.channel, self.options, self.options.cascade)
        if cascade != self.cascade:
            self._use(cascade)

    def _use(self, cascade: Cascade) -> None:
        self.cascade = cascade
        #: What this process knows of the cascade.
        self.routes = routes_of(self.connection, cascade, self.options)

    def publish(self, plan: Plan) -> None:
        """Send a message into the cascade; return once the broker has stored it.

        Raises `DelayError` if the broker refuses it, `NotStored` if the broker cannot store it now, and py-amqp's
        connection errors and time-outs.
        """
        tries: Patience | None = None
        failures = 0
        while True:
            enters, is_alone = None, not self.channel.unanswered
            try:
                enters, outgoing = self._outgoing(plan)
                confirm = self.channel.send(outgoing)
                try:
                    self.channel.wait(confirm)
                except (ChannelError, FrameError) as exc:
                    if not is_alone and isinstance(exc, ChannelError):
                        continue  # RabbitMQ may have closed the channel for the record before it, such as for its size
                    raise self._translated(exc) from None
                if plan.ticket:
                    self.interceptor.stored(self, [(plan, outgoing.message)])
                return
            except NotStored:
                tries = tries or Patience(RETRIED_FOR)
                goes_on = tries.pause()
                self.connection.read_all()  # the answers to records
                # A queue may seem full to a channel after it has room again (rabbit_fifo_client, `reject_publish`).
                if not self.channel.unanswered:
                    self.channel.reset()
                if not goes_on:
                    raise
            except (CascadeMissing, NotRouted) as exc:
                failures += 1
                if failures > REPAIRS or not self._goes_on_without(plan, enters, exc):
                    if isinstance(exc, CascadeMissing):
                        raise
                    raise CascadeMissing(f"no level of the cascade accepted the message ({exc}): run `setup`") from exc

    def _goes_on_without(self, plan: Plan, enters: int | None, exc: Exception) -> bool:
        """Do without the outbox that has returned a message, or repair the cascade; return whether to try again."""
        if enters is not None and isinstance(exc, NotRouted):
            self.routes.missed(plan.destination, enters)
            return True
        self.routes.forget()
        if self.options.declare == "passive":
            return False
        create.create_cascade(self.channel, self.cascade)
        return True

    def submit(self, plan: Plan, answered: Answered) -> Message:
        """Send a message, and return it; a later turn, which reads the broker's answer, calls `answered`.

        Waits where the cascade or the route has to be made first. Raises as `publish`.
        """
        enters, outgoing = self._outgoing(plan)

        def on_answer(refusal: Exception | None) -> None:
            if enters is not None and isinstance(refusal, NotRouted):
                self.routes.missed(plan.destination, enters)
            answered(refusal if refusal is None else self._translated(refusal))

        self.channel.send(outgoing, on_answer)
        return outgoing.message

    def _find_way(
        self, cascade: Cascade, destination: Destination, ticks: int, combined: tuple[int, ...], exact: bool
    ) -> tuple[int | None, str, str, list[str]]:
        """Return the ticks of an outbox that the message enters, the exchange, its routing key, and others for CC."""
        route = self.options.route(cascade, ticks, combined, exact)
        exchange, (key, *more) = cascade.entry(route, destination)
        if destination.is_short_lived:  # their outbox dead-letters with no key of its own
            more.append(destination.key or "")
        return None if route.levels else route.outbox, exchange, key, more

    def _outgoing(self, plan: Plan) -> tuple[int | None, Outgoing]:
        """Lead to the destination of a message, and wait if it could arrive in an outbox that was just created.

        Return the ticks of the outbox that it enters, None for a level, and the message as it is sent.
        """
        if self._asks:
            self._choose_way()
        routes, destination = self.routes, plan.destination
        if started := routes.ensure(self.channel, destination):
            time.sleep(max(0, started - max(plan.due / 10**9, time.monotonic())))
        ticks = max(1, to_ticks(plan.due - time.monotonic_ns(), self._tick))
        is_exact = routes.takes(self.channel, destination, ticks)
        combined = () if is_exact else routes.combined(self.channel, destination)
        enters, exchange, key, more = self._ways(self.cascade, destination, ticks, combined, is_exact)
        if destination.key is None:  # the outbox of an exchange keeps no key, so the message carries its own
            more = [*more, plan.headers[headers_.HEADER]["routing_key"]]
        headers = {**plan.headers, "CC": more} if more else dict(plan.headers)
        if self.clock:
            headers[headers_.X_DELIVERY_TIME] = self.clock.delivery_time(plan.due)
        message = with_headers(plan.message, headers)
        message.properties.pop("expiration", None)  # RabbitMQ would let it expire in its first queue
        if self._caps_priority and (message.properties.get("priority") or 0) > MAX_NORMAL_PRIORITY:
            _tell_of_cap()
            message.properties["priority"] = MAX_NORMAL_PRIORITY
        return enters, Outgoing(message, exchange, key)

    def _translated(self, refusal: Exception) -> Exception:
        """Return a refusal as `publish` raises it: as an error that says what to do."""
        try:
            if isinstance(refusal, (AccessRefused, NotFound)):
                with declare.translate_errors(self.cascade):
                    raise refusal
        except DelayError as exc:
            return exc
        if isinstance(refusal, (ChannelError, FrameError)):  # the message itself, such as its size or its user_id
            return MessageRefused(f"RabbitMQ refuses this message: {refusal}")
        return refusal


@lru_cache
def _tell_of_cap() -> None:
    """Warn, once."""
    logger.warning(
        "On RabbitMQ 4.0 to 4.2, delayed messages with a priority above %d get just that, for others would wait behind "
        "them: upgrade to 4.3 or later",
        MAX_NORMAL_PRIORITY,
    )
