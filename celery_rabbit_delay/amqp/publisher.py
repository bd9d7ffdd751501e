"""Publishes delayed messages into a cascade, and makes sure before that it is there and leads to their destination."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from amqp.exceptions import AccessRefused, NotFound

from ..core import headers as headers_
from ..core import routing_key
from ..core.destination import Destination
from ..core.errors import CascadeMissing, NotRouted
from ..core.options import Options
from ..core.topology import Cascade
from . import declare
from .confirms import Answered, ConfirmedChannel, Outgoing
from .create import create_cascade
from .journal import Journal
from .pending import PendingMessage, now, with_headers

#: Destinations that a connection remembers. Reply queues may be without number.
_MAX_BOUND = 10_000


#: What is published, by any names.
Messages = dict[Any, Outgoing]


class DelayedPublisher:
    """What one AMQP connection needs to publish into one cascade: made with the connection, gone with it."""

    def __init__(self, connection: Any, cascade: Cascade, options: Options) -> None:
        self.options = options
        self.cascade = cascade
        self.shards = options.shards_of(cascade)
        # By turns; many processes that publish one message each must not all begin with the first.
        self._turns = itertools.count(random.randrange(len(self.shards)))
        self._connection = connection
        self._channel = ConfirmedChannel(connection, options.confirm)
        self._unawaited = ConfirmedChannel(connection)
        self.journal = Journal(connection, cascade, options)
        self._sent: Outgoing
        self._ensured = False
        self._bound: set[Destination] = set()

    def publish(self, pending: PendingMessage) -> None:
        """Send a message into the cascade; with `confirm`, return once the broker has stored it.

        Raises `DelayError` when the broker refuses it, `NotStored` when it cannot store it now, and
        connection errors and time-outs as py-amqp does. The next publish starts afresh after any of them.

        The key of a message is told once it is stored, for the one before must not give way to one that is not. It is
        stored, too, where that raises `CascadeConflict`, `CascadeMissing`, `NotPermitted` or `StreamUnavailable`.
        """
        if pending.entry:
            self.journal.prepare([pending])
        with self._exclusively():
            try:
                unrecorded = self._publish(pending)
            except (CascadeMissing, NotRouted):
                # Somebody deleted a part of the cascade that this connection, or whoever made it, has seen complete.
                if self.options.declare == "passive":
                    raise
                self.repair()
                unrecorded = self._publish(pending)
        if pending.entry:
            self.journal.store(unrecorded)
            self.journal.write_keys([pending])

    def repair(self) -> None:
        """Declare all of the cascade. Raises what `create_cascade` does."""
        with self._exclusively(), self._reset_on_error():
            create_cascade(self._channel, self.shards)

    def submit(self, pending: PendingMessage, answered: Answered) -> None:
        """Send a message, to a bound destination, without waiting for the broker's answer.

        Reading from the connection calls `answered`: with None when the message is stored, or else with what `publish`
        would raise. It is always confirmed, whatever the options say.
        """
        with self._connection.exclusively(self._unawaited, self.options.confirm_timeout):  # while a channel is opened
            self._unawaited.send(*self._outgoing(pending), answered)

    def record(self, pending: PendingMessage) -> None:
        """Return once the record of a message that is submitted next is stored, if it is to have one, or warn."""
        self.journal.store(self.journal.records([(pending.entry, pending.message)]))

    def refuse_submitted(self, channel: Any, exc: Exception) -> bool:
        """Take the blame if the broker has closed the channel of what was submitted; return whether it has."""
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
        """Send all messages, to bound destinations, before waiting for any answer.

        Removes those from `messages` that are stored, also if it raises; those with a key once that is told, for until
        then they may give way to an earlier one. What is left in the end was refused, or has the key of one that was:
        publish it again, one by one and in this order, to learn why.
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
        refused = {pending.key for pending in unsent.values()}  # published again, they would count as sent last
        told = {name: pending for name, pending in messages.items() if pending.key not in refused}
        self.journal.write_keys(told.values())
        for name in told:
            del messages[name]

    def is_bound(self, destination: Destination) -> bool:
        """Return whether this connection has seen the cascade complete and bound to a destination."""
        return destination in self._bound

    def bind(self, destination: Destination) -> None:
        """Make sure that the cascade is there and leads to a destination, once for each connection."""
        if self.is_bound(destination):
            return
        with self._exclusively(), self._reset_on_error():
            channel = self._channel.get_channel()
            if self.options.declare == "auto":
                try:
                    declare.ensure_route(channel, self.shards, destination, check=not self._ensured)
                except CascadeMissing:
                    create_cascade(self._channel, self.shards)
                    declare.bind_destination(channel, self.shards, destination)
            else:
                if not self._ensured:
                    for shard in self.shards:
                        declare.require_cascade(channel, shard)
                declare.require_route(channel, self.shards, destination)
            self._ensured = True
            if len(self._bound) >= _MAX_BOUND:
                self._bound.clear()
            self._bound.add(destination)

    def forget(self, name: str) -> None:
        """Lead to a queue or exchange again before the next message for it: a new one of that name has no bindings."""
        self._bound -= {one for one in self._bound if name == one.exchange or name in one.queues}

    def lead_back(self, destination: Destination) -> None:
        """Lead what still waits for a destination to it: its bindings went with it if it was deleted.

        Creates the cascade where it is missing, but outboxes only for queues: those of an exchange come when they are
        needed. Raises as `bind`.
        """
        if not destination.exchange:
            self._bound.discard(destination)
            self.bind(destination)
            return
        with self._exclusively(), self._reset_on_error():
            declare.bind_exit(self._channel.get_channel(), self.cascade, destination)

    def _publish(self, pending: PendingMessage) -> Messages:
        self.bind(pending.destination)
        messages = {None: pending}
        unrecorded = self._send(messages)
        if messages:
            self._reset()
            returned = self._channel.refusal(self._sent.exchange, self._sent.key)
            raise NotRouted(f"no level of the cascade took the message: {returned}")
        return unrecorded

    def _send(self, messages: dict[Any, PendingMessage]) -> Messages:
        """Send messages, after their records; return the records that no stream took.

        Removes those from `messages` that are stored, also if it raises.
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
            self.journal.pause(unsent, exc)  # only streams have not answered
            unsent.clear()
        finally:
            for name in messages.keys() - unsent.keys():
                del messages[name]
        return {name: record for name, record in records.items() if name in unsent}

    def _outgoing(self, pending: PendingMessage) -> Outgoing:
        """Return a message for what is left of its delay: declaring, or a batch, may have taken a while."""
        shard = self.shards[next(self._turns) % len(self.shards)]
        first, *later = routing_key.steps(self.options.route(self.cascade, pending.due - now(), pending.delay))
        message = with_headers(pending.message, headers_.addressed(pending.headers, pending.destination, later))
        message.properties.pop("expiration", None)  # RabbitMQ would let it expire in its first level
        return Outgoing(message, shard.ingest, first)

    def _exclusively(self) -> AbstractContextManager[None]:
        exclusively: AbstractContextManager[None] = self._connection.exclusively(
            self._channel, self.options.confirm_timeout
        )
        return exclusively

    @contextmanager
    def _translate_refusals(self) -> Iterator[None]:
        """Raise refusals to publish as errors that say what to do; what else there is is about the message itself."""
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
        self._bound.clear()
        self._channel.reset()
