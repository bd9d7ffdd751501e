"""Publishes delayed messages by their plans: ensures cascade and route, sends, waits for the confirm, and repairs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, NamedTuple

from amqp.exceptions import AccessRefused, AMQPError, ChannelError, NotFound

from ..core import headers as headers_
from ..core import routing_key, streams
from ..core.destination import Destination, without_delay
from ..core.due import to_ticks
from ..core.errors import CascadeMissing, NotRouted
from ..core.options import Options
from ..core.plan import Plan
from ..core.topology import Cascade
from . import declare
from .clocks import utc_ms
from .confirms import Answered, ConfirmedChannel, NotStored, Outgoing, with_headers
from .routes import Routes
from .stream_writer import StreamWriter

#: Seconds for which a refused message is published again, and seconds until the first attempt, which double for each
#: further one. RabbitMQ refuses at once what comes before the leader of a queue is up (rabbit_fifo_client, `enqueue`):
#: another process may just be creating the queue, or its node may just have started.
PATIENCE, PAUSE = 3, 0.1

#: The number of frames to read before a message that is not confirmed.
_MAX_READ = 100

logger = logging.getLogger(__name__)


class Way(NamedTuple):
    """Where to publish a message to, and the addresses behind its routing key."""

    exchange: str
    key: str
    addresses: tuple[str, ...]


class DelayedPublisher:
    """Publishes into one cascade through one AMQP connection, and lives as long as the connection."""

    def __init__(self, connection: Any, cascade: Cascade, options: Options) -> None:
        self.options = options
        self.cascade = cascade
        self.streams = StreamWriter(connection, cascade, options)
        self._connection = connection
        self._channel = ConfirmedChannel(connection, options.confirm, self._send_again)
        self._exclusively: Callable[[], AbstractContextManager[None]] = partial(
            connection.exclusively, self._channel, options.confirm_timeout
        )
        self._unawaited = ConfirmedChannel(connection)
        self._unrecorded: dict[Any, Outgoing] = {}  # refused records of submitted messages
        self.routes = Routes(self._channel, cascade, options)
        self._tick = cascade.tick // timedelta(microseconds=1) * 1000  # nanoseconds
        self._wanted = lru_cache(maxsize=1024)(options.wanted)
        self._ways = lru_cache(maxsize=1024)(self._find_way)

    def publish(self, plan: Plan) -> None:
        """Send a message into the cascade; with `confirm`, return once the broker has stored it.

        Raises `DelayError` if the broker refuses it, `NotStored` if the broker cannot store it now, and py-amqp's
        connection errors and time-outs. After an error, the next publish uses a new channel.

        The key of a message is written only after the message is stored, because a message that is not stored must not
        replace an earlier one. So the message is stored even if writing the key raises `CascadeConflict`,
        `CascadeMissing`, `NotPermitted` or `StreamUnavailable`.
        """
        if plan.stream or plan.key:
            self.streams.prepare([plan])
        deadline, pause, is_repaired = time.monotonic() + PATIENCE, PAUSE, False
        with self._exclusively():
            self._read_refusals()
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
        """Send the record of a message that was prepared, if it needs one, and the message, and wait for no answer.

        A later read of the connection calls `answered`: with None if the message is stored, or else with the error that
        `publish` would raise. The message is confirmed even without the option `confirm`.
        """
        outgoing = self._outgoing(plan)
        records = self.streams.records([(plan, outgoing.message)]) if plan.stream else {}
        with self._connection.exclusively(self._unawaited, self.options.confirm_timeout):
            for (stream, _), record in records.items():
                self._unawaited.send(record, partial(self._recorded, (stream, plan.number), record))
            self._unawaited.send(outgoing, answered)

    def _recorded(self, name: Any, record: Outgoing, refusal: Exception | None) -> None:
        """Store a record again that was refused, for its stream may be missing, and then all that were meanwhile."""
        if refusal is None:
            return
        is_storing = bool(self._unrecorded)
        self._unrecorded[name] = record
        while self._unrecorded and not is_storing:
            records = dict(self._unrecorded)
            self.streams.store(records)  # reads the connection, and so calls this
            for stored in records:
                del self._unrecorded[stored]

    def void(self, plan: Plan) -> None:
        """Mark the record of a refused message, if it has one, so that it is not listed. Does not wait for the broker.

        See `Plan.void`.
        """
        if change := plan.void:
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
            self._read_refusals()
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
        lacking = self.routes.lacking(destination, self._wanted(*self._ticks(plan)))
        if lacking or destination not in self.routes.known or not self.routes.has_cascade:
            self.routes.ensure(destination, *lacking)

    def _ticks(self, plan: Plan) -> tuple[int, int]:
        """Return the ticks of the remaining delay, for declaring, or a batch, may have taken time; and of the delay."""
        ticks, asked = to_ticks(plan.due - time.monotonic_ns(), self._tick), to_ticks(plan.delay * 1000, self._tick)
        return max(1, ticks), asked

    def _find_way(self, destination: Destination, ticks: int, asked: int, outboxes: tuple[int, ...]) -> Way:
        route = self.options.route(self.cascade, ticks, asked, outboxes)
        exchange, (key, *addresses) = self.cascade.entry(route, destination)
        return Way(exchange, key, tuple(addresses))

    def _outgoing(self, plan: Plan) -> Outgoing:
        usable = self.routes.usable(plan.destination)
        exchange, key, addresses = self._ways(plan.destination, *self._ticks(plan), usable)
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
            self.streams.pause({stream for stream, _ in unsent}, exc)  # only answers of streams are missing
            unsent.clear()
        finally:
            for name in outgoing:
                if name not in unsent:
                    del plans[name]
        return unsent

    def _send_again(self, returned: Outgoing) -> bool:
        """Send a message through levels whose outbox was deleted, without waiting; return whether it was for an outbox.

        Without `confirm` nobody waits for a message to be returned. The next one creates the outbox again.
        """
        state = headers_.read_state(returned.message.headers)
        if returned.exchange != self.cascade.outbox_ingest or state is None:
            return False
        self.routes.known.clear()
        milliseconds = headers_.milliseconds(state.due) + 1 - utc_ms()  # this clock counts whole ones
        ticks = max(1, to_ticks(milliseconds * 1_000_000, self._tick))
        route = self.options.route(self.cascade, ticks, outboxes=())
        headers = headers_.addressed(returned.message.headers, [without_delay(returned.key)])
        message = with_headers(returned.message, headers)
        message.body = message.body or b""  # py-amqp leaves a text there, and the encoding may be that of no text
        with self._exclusively():
            self._channel.publish_all({None: Outgoing(message, self.cascade.ingest, routing_key.key(route.levels))})
        return True

    def _read_refusals(self) -> None:
        """Read what the broker has sent since the last message, if no publish waits for it: without `confirm`.

        Otherwise nobody would notice that the connection is lost, or that the broker has closed the channel and drops
        everything that is sent through it. Declares a deleted cascade again. Raises `NotPermitted`, with
        `declare="passive"` `CascadeMissing`, and the errors of a lost connection.
        """
        if self.options.confirm:
            return
        try:
            with suppress(TimeoutError):
                for _ in range(_MAX_READ):
                    self._connection.blocking_read(0)
        except ChannelError as exc:
            channel = getattr(exc, "channel", None)
            if channel is None or not self._channel.owns(channel):
                self._connection.raise_later(exc)
                return
            logger.error("RabbitMQ has refused a delayed message, and those sent after it are lost: %s", exc)
            self.routes.reset()
            if isinstance(exc, NotFound) and self.options.declare == "auto":
                self.routes.repair()
            elif isinstance(exc, (AccessRefused, NotFound)):  # others concern that message alone
                with self._translate_refusals():
                    raise

    @contextmanager
    def _translate_refusals(self) -> Iterator[None]:
        """Translate refusals to publish into errors that say what to do. Other errors concern the message itself."""
        try:
            yield
        except (AccessRefused, NotFound):
            with declare.translate_errors(self.cascade):
                raise
