"""Publishes delayed messages by their plans: ensures cascade and route, sends, waits for the confirm, and repairs."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache

from amqp.exceptions import AccessRefused, ChannelError, FrameError, NotFound

from ..core import headers as headers_
from ..core import streams
from ..core.destination import Destination
from ..core.due import to_ticks
from ..core.errors import CascadeMissing, DelayError, InvalidDestination, MessageRefused, NotRouted
from ..core.journal import Record
from ..core.options import Options
from ..core.plan import Plan
from ..core.topology import Cascade
from . import create, declare
from .confirms import ConfirmedChannel, NotStored, Outgoing, with_headers
from .delivery_time import BrokerClock
from .limited import LimitedConnection, NothingSent
from .patience import Patience
from .routes import Routes
from .stream_writer import StreamWriter, record_of

#: Seconds for which a refused message is published again. RabbitMQ refuses at once what comes before the leader of a
#: queue is up (rabbit_fifo_client, `enqueue`): another process may just be creating the queue, or its node may have
#: started just now.
PATIENCE = 3

#: Binds a queue to the cascade that only the user's connection may bind, because it is exclusive to that.
BindForUser = Callable[[Cascade, Destination], None]

#: Is called with None once the broker has stored a message, or else with the reason, as `publish` would raise it.
Answered = Callable[[Exception | None], None]


class DelayedPublisher:
    """Publishes into one cascade through one AMQP connection of ours, and lives as long as the connection.

    For blocks of `Sender.turn`, which limit its waits, and close the connection on whatever is not the broker's answer.
    """

    def __init__(
        self, connection: LimitedConnection, cascade: Cascade, options: Options, bind_for_user: BindForUser
    ) -> None:
        self._connection = connection
        self.options = options
        self.cascade = self._with_levels = cascade
        self.channel = ConfirmedChannel(connection)
        self.writer = StreamWriter(connection, self.channel, cascade, options)
        self.routes = Routes(self.channel, cascade, options)
        self._bind_for_user = bind_for_user
        self._tick = cascade.tick // timedelta(microseconds=1) * 1000  # nanoseconds
        self._wanted = lru_cache(maxsize=1024)(options.wanted)
        self._ways = lru_cache(maxsize=1024)(self._find_way)
        #: The broker's, if its queues hold each message until it is due.
        self.clock: BrokerClock | None = None
        #: Whether to ask whether they do.
        self.chooses = False

    def choose_way(self) -> None:
        """Let messages wait for their delivery time, if the broker shows that it holds them, or else in levels."""
        cascade, self.clock = create.choose(self.channel, self.options, self._with_levels)
        if cascade != self.cascade:
            self.cascade = self.writer.cascade = cascade
            self.routes = Routes(self.channel, cascade, self.options)

    def publish(self, plan: Plan) -> None:
        """Send a message into the cascade; return once the broker has stored it.

        Raises `DelayError` if the broker refuses it, `NotStored` if the broker cannot store it now, and py-amqp's
        connection errors and time-outs.

        The record of a message follows it on the same channel: what raises here is in no list.
        """
        tries: Patience | None = None
        is_repaired = False
        while True:
            try:
                self.ensure(plan)
                outgoing = self._outgoing(plan)
                confirm = self.channel.send(outgoing)
                recorded = self.writer.send(plan, outgoing.message) if plan.stream else None
                try:
                    self.channel.wait(confirm)
                except (ChannelError, FrameError) as exc:
                    raise self._translated(exc) from None
                if plan.stream:
                    self.writer.finish(plan, outgoing.message, recorded)
                return
            except NotStored:
                tries = tries or Patience(PATIENCE)
                goes_on = tries.pause()
                self._connection.read_all()  # the answer to its record
                # A queue may seem full to a channel after it has room again (rabbit_fifo_client, `reject_publish`).
                if not self.channel.unanswered:
                    self.channel.reset()
                if not goes_on:
                    self.void(plan)
                    raise
            except (CascadeMissing, NotRouted) as exc:  # a part of the cascade, or an outbox, was deleted meanwhile
                self.routes.reset()
                if is_repaired or not self.routes.repair(plan.destination):
                    if isinstance(exc, CascadeMissing):
                        raise
                    self.void(plan)
                    raise NotRouted(f"no level of the cascade accepted the message: {exc}") from exc
                is_repaired = True

    def submit(self, plan: Plan, answered: Answered) -> Record | None:
        """Send a message without waiting for the broker's answer: a later turn calls `answered`. Return its record.

        Waits where the cascade or the route has to be made first. Raises as `publish`.
        """
        self.ensure(plan)
        outgoing = self._outgoing(plan)

        self.channel.send(outgoing, lambda refusal: answered(refusal if refusal is None else self._translated(refusal)))
        return record_of(plan, outgoing.message) if plan.stream else None

    def void(self, plan: Plan) -> None:
        """Mark the record of a refused message, if it was sent, so that it is not listed. Does not wait for the broker.

        See `Plan.void`.
        """
        if plan.stream and self.writer.takes(plan.stream) and (change := plan.void):
            self.channel.send(self.writer.outgoing(streams.changes(self.cascade), change))

    def ensure(self, plan: Plan) -> None:
        """Lead to the destination of a message, through the outbox with a delay that suits it. Once per connection.

        With `declare="passive"`, look for that outbox, and do without it if it is missing. Wait up to
        `declare.SAVED_AFTER` if the message could arrive in an outbox that is just being created.
        """
        destination, must_not_wait = plan.destination, self._connection.must_not_wait
        if self.chooses and not must_not_wait:
            self.choose_way()
        lacking = self.routes.lacking(destination, self._wanted(self.cascade, *self._ticks(plan)))
        is_known = destination in self.routes.known and self.routes.has_cascade
        if must_not_wait and not is_known:
            raise NothingSent
        if not is_known or (lacking and not must_not_wait):
            try:
                self.routes.ensure(destination, *lacking)
            except InvalidDestination:  # an exclusive queue
                self._bind_for_user(self.cascade, destination)
                self.routes.note(destination)
        if 0 in self.routes.known.get(destination, ()):
            self.routes.settle(destination, plan.due / 10**9)

    def _ticks(self, plan: Plan) -> tuple[int, int]:
        """Return the ticks of the remaining delay, for declaring, or a batch, may have taken time; and of the delay."""
        ticks, asked = to_ticks(plan.due - time.monotonic_ns(), self._tick), to_ticks(plan.delay * 1000, self._tick)
        return max(1, ticks), asked

    def _find_way(
        self, cascade: Cascade, destination: Destination, ticks: int, asked: int, outboxes: tuple[int, ...]
    ) -> tuple[str, tuple[str, ...]]:
        return cascade.entry(self.options.route(cascade, ticks, asked, outboxes), destination)

    def _outgoing(self, plan: Plan) -> Outgoing:
        usable = self.routes.usable(plan.destination)
        exchange, (key, *addresses) = self._ways(self.cascade, plan.destination, *self._ticks(plan), usable)
        headers = headers_.addressed(plan.headers, addresses)
        if self.clock:
            headers[headers_.X_DELIVERY_TIME] = self.clock.delivery_time(plan.due)
        message = with_headers(plan.message, headers)
        message.properties.pop("expiration", None)  # RabbitMQ would let it expire in its first queue
        return Outgoing(message, exchange, key)

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
