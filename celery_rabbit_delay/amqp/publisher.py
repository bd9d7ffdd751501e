"""Publishes delayed messages into a cascade, after it has created the cascade and its route to the destination."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from amqp.exceptions import AccessRefused, AMQPError, ChannelError, NotFound

from .. import upstream
from ..core import changes, routing_key, streams
from ..core import headers as headers_
from ..core.destination import Destination, without_delay
from ..core.errors import CascadeMissing, NotRouted
from ..core.levels import Route
from ..core.options import Options
from ..core.topology import Cascade
from . import declare
from .clocks import monotonic_us, utc_ms
from .confirms import Answered, ConfirmedChannel, Outgoing, patiently
from .create import create_cascade
from .journal import Journal
from .pending import PendingMessage, with_headers

#: The number of destinations that a connection remembers. The number of reply queues has no limit.
_MAX_BOUND = 10_000

#: The number of frames to read before a message that is not confirmed.
_MAX_READ = 100

logger = logging.getLogger(__name__)

#: The messages to publish, by arbitrary names.
Messages = dict[Any, Outgoing]


class DelayedPublisher:
    """Publishes into one cascade through one AMQP connection, and lives as long as the connection."""

    def __init__(self, connection: Any, cascade: Cascade, options: Options) -> None:
        self.options = options
        self.cascade = cascade
        self._connection = connection
        self._channel = ConfirmedChannel(connection, options.confirm, self._send_again)
        self._unawaited = ConfirmedChannel(connection)
        self.journal = Journal(connection, cascade, options)
        self._sent: Outgoing
        self._ensured = False
        self._bound: dict[Destination, tuple[int, ...]] = {}  # the outboxes with a delay that are known to exist
        self._usable: dict[Destination, tuple[int, ...]] = {}  # with `declare="passive"`, where some are missing

    def publish(self, pending: PendingMessage) -> None:
        """Send a message into the cascade; with `confirm`, return once the broker has stored it.

        Raises `DelayError` if the broker refuses it, `NotStored` if the broker cannot store it now, and py-amqp's
        connection errors and time-outs. After an error, the next publish uses a new channel.

        The key of a message is written only after the message is stored, because a message that is not stored must not
        replace an earlier one. So the message is stored even if writing the key raises `CascadeConflict`,
        `CascadeMissing`, `NotPermitted` or `StreamUnavailable`.
        """
        if pending.entry:
            self.journal.prepare([pending])
        with self._exclusively():
            try:
                unrecorded = self._publish(pending)
            except (CascadeMissing, NotRouted):
                # A part of the cascade, or an outbox, was deleted meanwhile.
                if not self.repair([pending.destination]):
                    raise
                unrecorded = self._publish(pending)
        if pending.entry:
            self.journal.store(unrecorded)
            self.journal.write_keys([pending])

    def repair(self, destinations: Iterable[Destination] = ()) -> bool:
        """Declare the whole cascade again; return whether a message to one of some destinations is worth repeating.

        With `declare="passive"`, do without their outboxes with a delay instead. Raises the errors of `create_cascade`.
        """
        if self.options.declare == "passive":
            return max(map(self._forget_outboxes, destinations), default=False)
        self._forget_all()
        with self._exclusively(), self._reset_on_error():
            create_cascade(self._channel, self.cascade)
        return True

    def _forget_outboxes(self, destination: Destination) -> bool:
        """Do without the outboxes with a delay of a destination; return whether there were any."""
        if not self._usable_outboxes(destination):
            return False
        self._usable[destination] = ()
        self._bound.pop(destination, None)
        return True

    def _send_again(self, returned: Outgoing) -> bool:
        """Send a message through levels whose outbox was deleted, without waiting; return whether it was for an outbox.

        Without `confirm` nobody waits for a message to be returned. The next one creates the outbox again.
        """
        state = headers_.read_state(returned.message.headers)
        if returned.exchange != self.cascade.outbox_ingest or state is None:
            return False
        self._forget_all()
        milliseconds = headers_.milliseconds(state.due) + 1 - utc_ms()  # this clock counts whole ones
        route = self.options.route(self.cascade, milliseconds * 1000, outboxes=())
        headers = headers_.addressed(returned.message.headers, [without_delay(returned.key)])
        message = with_headers(returned.message, headers)
        message.body = message.body or b""  # py-amqp leaves a text there, and the encoding may be that of no text
        with self._exclusively():
            self._channel.publish_all({None: Outgoing(message, self.cascade.ingest, routing_key.key(route.levels))})
        return True

    def submit(self, pending: PendingMessage, answered: Answered) -> None:
        """Send a message that was prepared, without waiting for the broker's answer.

        A later read of the connection calls `answered`: with None if the message is stored, or else with the error that
        `publish` would raise. The message is confirmed even without the option `confirm`.
        """
        with self._connection.exclusively(self._unawaited, self.options.confirm_timeout):  # while a channel is opened
            self._unawaited.send(*self._outgoing(pending), answered)

    def record(self, pending: PendingMessage) -> None:
        """Store the record of a message, if it needs one, before the message is submitted. Log a warning on failure."""
        if pending.entry is not None:
            self.journal.store(self.journal.records([(pending.entry, self._outgoing(pending).message)]))

    def void(self, pending: PendingMessage) -> None:
        """Mark the record of a refused message, if it has one, so that it is not listed. Does not wait for the broker.

        Not for a message that is sent again with the same number, and not for one with a key: it may be stored.
        """
        entry = pending.entry
        if entry and entry.stream and not pending.has_key:
            change = self.journal.outgoing(streams.changes(self.cascade), changes.void(entry.number, entry.due))
            with suppress(AMQPError, OSError), self._connection.within(self.options.confirm_timeout):
                self._unawaited.send(*change, answered=lambda refusal: None)

    def refuse_submitted(self, channel: Any, exc: Exception) -> bool:
        """Refuse all submitted messages if their channel was closed; return whether it was that channel."""
        if channel is None or self._unawaited.current is not channel:
            return False
        try:
            with self._translate_refusals():
                raise exc
        except Exception as translated:
            with self._connection.exclusively(self._unawaited, self.options.confirm_timeout):
                self._unawaited.refuse_all(translated)
        return True

    def publish_all(self, messages: dict[Any, PendingMessage]) -> None:
        """Send all messages, which were prepared, before waiting for any answer.

        Removes stored messages from `messages`, also if it raises; a message with a key only once the key is stored,
        because until then an earlier message may be delivered in its place. The messages that are left were refused,
        or have the key of a refused message: publish them again, one by one in this order, to learn the reason.
        """
        self.journal.prepare(messages.values())
        unsent = dict(messages)
        try:
            with self._exclusively():
                unrecorded = self._send(unsent)
        finally:
            for name, pending in list(messages.items()):
                if name not in unsent and not pending.has_key:
                    del messages[name]
        self.journal.store(unrecorded)
        refused = {pending.key for pending in unsent.values()}  # publishing them again would make them the last ones
        told = {name: pending for name, pending in messages.items() if pending.key not in refused}
        self.journal.write_keys(told.values())
        for name in told:
            del messages[name]

    def bind(self, destination: Destination) -> None:
        """Create the cascade and lead to a destination; with `declare="passive"` check both. Once per connection."""
        self._read_refusals()
        self._bind(destination)

    def prepare(self, pending: PendingMessage) -> None:
        """Bind the destination of a message, and create the outbox with a delay that suits it. Once per connection.

        With `declare="passive"`, look for that outbox, and do without it if it is missing.
        """
        self._read_refusals()
        self._prepare(pending)

    def _prepare(self, pending: PendingMessage) -> None:
        self._bind(pending.destination, self._route(pending, self._usable_outboxes(pending.destination)).outbox)

    def _usable_outboxes(self, destination: Destination) -> tuple[int, ...]:
        if destination.short_lived or self.cascade.high:  # high priorities would hold up others in an outbox
            return ()
        return self._usable.get(destination, self.options.outbox_ticks)

    def _route(self, pending: PendingMessage, outboxes: tuple[int, ...]) -> Route:
        """Return the route for the remaining delay: declaring, or a batch, may have taken time."""
        return self.options.route(self.cascade, pending.due - monotonic_us(), pending.delay, outboxes)

    def _bind(self, destination: Destination, outbox: int = 0) -> None:
        known = self._bound.get(destination)
        if known is not None and (outbox == 0 or outbox in known):
            return
        with self._exclusively(), self._reset_on_error():
            channel = self._channel.get_channel()
            if self.options.declare == "auto":
                outboxes = [0] * (known is None) + [outbox] * (outbox > 0)
                try:
                    declare.ensure_route(channel, self.cascade, destination, outboxes, check=not self._ensured)
                except CascadeMissing:
                    create_cascade(self._channel, self.cascade)
                    declare.bind_destination(channel, self.cascade, destination, outboxes)
            else:
                if not self._ensured:
                    declare.require_cascade(channel, self.cascade)
                if known is None:
                    declare.require_route(channel, self.cascade, destination)
                if outbox and not declare.outbox_exists(channel, self.cascade, destination, outbox):
                    self._usable[destination] = tuple(n for n in self._usable_outboxes(destination) if n != outbox)
                    outbox = 0
            self._ensured = True
            if len(self._bound) >= _MAX_BOUND:
                self._forget_all()
            self._bound[destination] = (known or ()) + ((outbox,) if outbox else ())

    def forget(self, name: str) -> None:
        """Lead to a queue or exchange again before the next message for it: a new one of that name has no bindings."""
        for destination in [one for one in self._bound if name == one.exchange or name in one.queues]:
            del self._bound[destination]

    def lead_back(self, destination: Destination) -> None:
        """Bind a destination again that may have been deleted with its bindings, for the messages that wait for it.

        Creates the cascade if it is missing, but outboxes only for queues: publishers create those of an exchange.
        Raises as `bind`.
        """
        if not destination.exchange:
            self._bound.pop(destination, None)
            self.bind(destination)
            return
        with self._exclusively(), self._reset_on_error():
            try:
                declare.bind_exit(self._channel.get_channel(), self.cascade, destination)
            except CascadeMissing:
                create_cascade(self._channel, self.cascade)
                declare.bind_exit(self._channel.get_channel(), self.cascade, destination)

    def _read_refusals(self) -> None:
        """Read what the broker has sent since the last message, if no publish waits for it.

        Otherwise nobody would notice that the connection is lost, or that the broker has closed the channel and drops
        everything that is sent through it. Declares a deleted cascade again. Raises `NotPermitted`, with
        `declare="passive"` `CascadeMissing`, and the errors of a lost connection.
        """
        if self.options.confirm or not upstream.has_input(self._connection.transport):
            return
        try:
            with self._connection.hold_deliveries(), suppress(TimeoutError):
                for _ in range(_MAX_READ):
                    self._connection.drain_events(timeout=0)
        except ChannelError as exc:
            channel = getattr(exc, "channel", None)
            if channel is None or not self._channel.owns(channel):
                self._connection.raise_later(exc)
                return
            logger.error("RabbitMQ has refused a delayed message, and those sent after it are lost: %s", exc)
            self._reset()
            if isinstance(exc, NotFound) and self.options.declare == "auto":
                self.repair()
            elif isinstance(exc, (AccessRefused, NotFound)):  # others concern that message alone
                with self._translate_refusals():
                    raise

    def _publish(self, pending: PendingMessage) -> Messages:
        return patiently(lambda: self._publish_once(pending))

    def _publish_once(self, pending: PendingMessage) -> Messages:
        self._prepare(pending)
        messages = {None: pending}
        unrecorded = self._send(messages)
        if messages:
            self._reset()
            returned = self._channel.refusal(self._sent.exchange, self._sent.key)
            raise NotRouted(f"no level of the cascade accepted the message: {returned}")
        return unrecorded

    def _send(self, messages: dict[Any, PendingMessage]) -> Messages:
        """Send the records of messages, then the messages; return the records that no stream took.

        Removes stored messages from `messages`, also if it raises.
        """
        last = next(reversed(messages.values()))
        outgoing = {name: self._outgoing(pending) for name, pending in messages.items()}
        self._sent = next(reversed(outgoing.values()))
        entries = [(pending.entry, outgoing[name].message) for name, pending in messages.items() if pending.entry]
        records = self.journal.records(entries) if entries else {}
        unsent = {**records, **outgoing}
        try:
            self._channel.publish_all(unsent, last.timeout, last.confirm_timeout)
        except BaseException as exc:
            self._reset()
            if not isinstance(exc, TimeoutError) or not records or messages.keys() & unsent.keys():
                with self._translate_refusals(), self.journal.recording(records):
                    raise
            self.journal.pause(unsent, exc)  # only answers of streams are missing
            unsent.clear()
        finally:
            for name in messages.keys() - unsent.keys():
                del messages[name]
        return {name: record for name, record in records.items() if name in unsent}

    def _outgoing(self, pending: PendingMessage) -> Outgoing:
        route = self._route(pending, self._bound.get(pending.destination, ()))
        exchange, (key, *others) = self.cascade.entry(route, pending.destination)
        message = with_headers(pending.message, headers_.addressed(pending.headers, others))
        message.properties.pop("expiration", None)  # RabbitMQ would let it expire in its first queue
        return Outgoing(message, exchange, key)

    def _exclusively(self) -> AbstractContextManager[None]:
        exclusively: AbstractContextManager[None] = self._connection.exclusively(
            self._channel, self.options.confirm_timeout
        )
        return exclusively

    @contextmanager
    def _translate_refusals(self) -> Iterator[None]:
        """Translate refusals to publish into errors that say what to do. Other errors concern the message itself."""
        try:
            yield
        except (AccessRefused, NotFound):
            with declare.translate_errors(self.cascade):
                raise

    @contextmanager
    def _reset_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._reset()
            raise

    def _reset(self) -> None:
        self._ensured = False
        self._forget_all()
        self._channel.reset()

    def _forget_all(self) -> None:
        self._bound.clear()
        self._usable.clear()
