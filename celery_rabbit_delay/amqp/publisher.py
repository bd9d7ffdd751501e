"""Publishes delayed messages by their plans: ensures cascade and route, sends, waits for the confirm, and repairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, NamedTuple

from amqp.exceptions import AccessRefused, AMQPError, NotFound

from ..core import changes, streams
from ..core import headers as headers_
from ..core.destination import Destination
from ..core.due import to_ticks
from ..core.errors import CascadeMissing, NotRouted
from ..core.options import Options
from ..core.plan import Plan
from ..core.topology import Cascade
from . import declare
from .confirms import Answered, ConfirmedChannel, NotStored, Outgoing, with_headers
from .routes import Routes
from .stream_writer import StreamWriter

#: Seconds for which a refused message is published again, and seconds until the first attempt, which double for each
#: further one. RabbitMQ refuses at once what comes before the leader of a queue is up (rabbit_fifo_client, `enqueue`):
#: another process may just be creating the queue, or its node may just have started.
PATIENCE, PAUSE = 3, 0.1


class Way(NamedTuple):
    """Where to publish a message to, the addresses behind its routing key, and the delay of its outbox in ticks."""

    exchange: str
    key: str
    addresses: tuple[str, ...]
    outbox: int


class DelayedPublisher:
    """Publishes into one cascade through one AMQP connection, and lives as long as the connection."""

    def __init__(self, connection: Any, cascade: Cascade, options: Options) -> None:
        self.options = options
        self.cascade = cascade
        self.streams = StreamWriter(connection, cascade, options)
        self._connection = connection
        self._channel = ConfirmedChannel(connection)
        self._exclusively: Callable[[], AbstractContextManager[None]] = partial(
            connection.exclusively, self._channel, options.confirm_timeout
        )
        self._unawaited = ConfirmedChannel(connection)
        self.routes = Routes(self._channel, cascade, options)
        self._tick = cascade.tick // timedelta(microseconds=1) * 1000  # nanoseconds
        self._ways = lru_cache(maxsize=1024)(self._find_way)

    def publish(self, plan: Plan) -> None:
        """Send a message into the cascade; return once the broker has stored it.

        Raises `DelayError` if the broker refuses it, `NotStored` if the broker cannot store it now, and py-amqp's
        connection errors and time-outs. After an error, the next publish uses a new channel.

        The key of a message is written only after the message is stored, because a message that is not stored must not
        replace an earlier one. So the message is stored even if writing the key raises `CascadeConflict`,
        `CascadeMissing`, `NotPermitted` or `StreamUnavailable`.
        """
        if plan.key:
            self.streams.prepare([plan])
        deadline, pause, is_repaired = time.monotonic() + PATIENCE, PAUSE, False
        with self._exclusively():
            while True:
                try:
                    self._ensure(plan)
                    left = self._send({None: plan})
                    if None not in left:
                        break
                    self._refuse(left[None])
                except NotStored:
                    if time.monotonic() >= deadline:
                        raise
                    time.sleep(pause)
                    pause *= 2
                except (CascadeMissing, NotRouted):
                    # A part of the cascade, or an outbox, was deleted meanwhile.
                    if is_repaired or not self.routes.repair(plan.destination):
                        raise
                    is_repaired = True
        if plan.stream:
            self.streams.store(left)
        if plan.key:
            self.streams.write_keys([plan])

    def _refuse(self, refused: Outgoing) -> None:
        self.routes.reset()
        returned = self._channel.refusal(refused.exchange, refused.key)
        raise NotRouted(f"no level of the cascade accepted the message: {returned}")

    def publish_all(self, plans: dict[Any, Plan]) -> None:
        """Send all messages, which were prepared, before waiting for any answer.

        Removes stored messages from `plans`, also if it raises; a message with a key only once the key is stored,
        because until then an earlier message may be delivered in its place. The messages that are left were refused,
        or have the key of a refused message: publish them again, one by one in this order, to learn the reason.
        """
        self.streams.prepare(plans.values())
        unsent = dict(plans)
        try:
            with self._exclusively():
                left = self._send(unsent)
        finally:
            for name, plan in list(plans.items()):
                if name not in unsent and plan.key is None:
                    del plans[name]
        self.streams.store({name: record for name, record in left.items() if name not in unsent})
        refused = {plan.key for plan in unsent.values()}  # publishing them again would make them the last ones
        told = {name: plan for name, plan in plans.items() if plan.key not in refused}
        self.streams.write_keys(told.values())
        for name in told:
            del plans[name]

    def submit(self, plan: Plan, answered: Answered) -> None:
        """Send a message that was prepared, without waiting for the broker's answer.

        A later read of the connection calls `answered`: with None if the message is stored, or else with the error that
        `publish` would raise.
        """
        with self._connection.exclusively(self._unawaited, self.options.confirm_timeout):
            self._unawaited.send(self._outgoing(plan), answered)

    def record(self, plan: Plan) -> None:
        """Store the record of a message, if it needs one, before the message is submitted. Log a warning on failure."""
        if plan.stream:
            self.streams.store(self.streams.records([(plan, self._outgoing(plan).message)]))

    def void(self, plan: Plan) -> None:
        """Mark the record of a refused message, if it has one, so that it is not listed. Does not wait for the broker.

        Not for a message that is sent again with the same number, and not for one with a key: it may be stored.
        """
        if plan.stream and plan.key is None:
            change = changes.void(plan.number, plan.due_ms)
            outgoing = self.streams.outgoing(streams.changes(self.cascade), change)
            exclusively = self._connection.exclusively(self._unawaited, self.options.confirm_timeout)
            with suppress(AMQPError, OSError), exclusively:
                self._unawaited.send(outgoing, lambda refusal: None)

    def refuse_submitted(self, channel: Any, exc: Exception) -> bool:
        """Refuse all submitted messages if their channel was closed; return whether it was that channel."""
        if channel is None or not self._unawaited.owns(channel):
            return False
        try:
            with self._translate_refusals():
                raise exc
        except Exception as translated:
            with self._connection.exclusively(self._unawaited, self.options.confirm_timeout):
                self._unawaited.refuse_all(translated)
        return True

    def prepare(self, plan: Plan) -> None:
        """Lead to the destination of a message, through the outbox with a delay that suits it. Once per connection.

        With `declare="passive"`, look for that outbox, and do without it if it is missing.
        """
        with self._exclusively():
            self._ensure(plan)

    def lead_back(self, destination: Destination) -> None:
        """See `Routes.lead_back`."""
        with self._exclusively():
            self.routes.lead_back(destination)

    def repair(self, *destinations: Destination) -> bool:
        """See `Routes.repair`."""
        with self._exclusively():
            return self.routes.repair(*destinations)

    def _ensure(self, plan: Plan) -> None:
        destination = plan.destination
        known = self.routes.known.get(destination)
        outbox = self._way(plan, known.usable if known else self.routes.usable_outboxes(destination)).outbox
        if known is None or not self.routes.has_cascade or (outbox and outbox not in known.existing):
            self.routes.ensure(destination, outbox)

    def _way(self, plan: Plan, outboxes: tuple[int, ...]) -> Way:
        """Return the way for the remaining delay: declaring, or a batch, may have taken time."""
        ticks, asked = to_ticks(plan.due - time.monotonic_ns(), self._tick), to_ticks(plan.delay * 1000, self._tick)
        return self._ways(plan.destination, max(1, ticks), asked, outboxes)

    def _find_way(self, destination: Destination, ticks: int, asked: int, outboxes: tuple[int, ...]) -> Way:
        route = self.options.route(self.cascade, ticks, asked, outboxes)
        exchange, (key, *addresses) = self.cascade.entry(route, destination)
        return Way(exchange, key, tuple(addresses), route.outbox)

    def _outgoing(self, plan: Plan) -> Outgoing:
        known = self.routes.known.get(plan.destination)
        outboxes = known.existing if known and known.safe_from <= time.monotonic() else ()
        exchange, key, addresses, _ = self._way(plan, outboxes)
        message = with_headers(plan.message, headers_.addressed(plan.headers, addresses))
        message.properties.pop("expiration", None)  # RabbitMQ would let it expire in its first queue
        return Outgoing(message, exchange, key)

    def _send(self, plans: dict[Any, Plan]) -> dict[Any, Outgoing]:
        """Send the records of messages, then the messages; return what was refused: by its name, or a record.

        Removes stored messages from `plans`, also if it raises.
        """
        outgoing, recorded = {}, []
        for name, plan in plans.items():
            outgoing[name] = self._outgoing(plan)
            if plan.stream:
                recorded.append((plan, outgoing[name].message))
        records = self.streams.records(recorded) if recorded else {}
        unsent = {**records, **outgoing}
        try:
            self._channel.publish_all(unsent, plan.timeout, plan.confirm_timeout)
        except BaseException as exc:
            self.routes.reset()
            if not isinstance(exc, TimeoutError) or not records or plans.keys() & unsent.keys():
                with self._translate_refusals(), self.streams.recording(records):
                    raise
            self.streams.pause(unsent, exc)  # only answers of streams are missing
            unsent.clear()
        finally:
            for name in outgoing:
                if name not in unsent:
                    del plans[name]
        return unsent

    @contextmanager
    def _translate_refusals(self) -> Iterator[None]:
        """Translate refusals to publish into errors that say what to do. Other errors concern the message itself."""
        try:
            yield
        except (AccessRefused, NotFound):
            with declare.translate_errors(self.cascade):
                raise
