"""Leads from a cascade to destinations, each once per connection, and creates the cascade if it is missing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ..core.destination import Destination
from ..core.errors import CascadeMissing
from ..core.options import Options
from ..core.topology import Cascade
from . import declare
from .confirms import ConfirmedChannel
from .create import create_cascade

#: The number of destinations that a connection remembers. The number of reply queues has no limit.
_MAX_KNOWN = 10_000


class Outboxes(NamedTuple):
    """The outboxes with a delay of a destination, by their ticks."""

    existing: tuple[int, ...]
    #: With `declare="passive"`, those that are missing are not usable.
    usable: tuple[int, ...]
    #: The moment by `time.monotonic` before which a broker that is killed may lose what they hold.
    safe_from: float = 0


class Routes:
    """The routes from one cascade that a connection has made. For blocks of `Sender.turn`."""

    def __init__(self, channel: ConfirmedChannel, cascade: Cascade, options: Options) -> None:
        self._channel = channel
        self._cascade = cascade
        self._options = options
        #: Whether the cascade exists, as far as this connection knows.
        self.has_cascade = False
        #: By the destinations that the cascade leads to.
        self.known: dict[Destination, Outboxes] = {}

    def usable_outboxes(self, destination: Destination) -> tuple[int, ...]:
        """Return the outboxes with a delay that a destination may have, before anything is known of it."""
        # High priorities would hold up others in an outbox.
        return () if destination.short_lived or self._cascade.high else self._options.outbox_ticks

    def ensure(self, destination: Destination, outbox: int = 0) -> None:
        """Create the cascade, and lead to a destination, also through an outbox with a delay in ticks if there is one.

        With `declare="passive"`, check them, and do without an outbox that is missing. Raises the errors of
        `create_cascade`, `declare.bind_destination` or `declare.require_route`.
        """
        known = self.known.get(destination)
        existing, usable, safe_from = known or Outboxes((), self.usable_outboxes(destination))
        with self._reset_on_error():
            if self._options.declare == "auto":
                self._create(destination, [0] * (known is None) + [outbox] * (outbox > 0))
            else:
                channel = self._channel.get_channel()
                if not self.has_cascade:
                    declare.require_cascade(channel, self._cascade)
                if known is None:
                    declare.require_route(channel, self._cascade, destination)
                if outbox and not declare.outbox_exists(channel, self._cascade, destination, outbox):
                    usable = tuple(ticks for ticks in usable if ticks != outbox)
                    outbox = 0
        self.has_cascade = True
        if outbox:
            existing += (outbox,)
            # Another process may have created it just now.
            safe_from = time.monotonic() + declare.SAVED_AFTER
        if len(self.known) >= _MAX_KNOWN:
            self.known.clear()
        self.known[destination] = Outboxes(existing, usable, safe_from)

    def _create(self, destination: Destination, outboxes: list[int]) -> None:
        """Lead to a destination, and create what is missing."""
        channel, cascade = self._channel.get_channel(), self._cascade
        try:
            declare.bind_destination(channel, cascade, destination, outboxes, check=True)
        except CascadeMissing:
            create_cascade(self._channel, cascade)
            declare.bind_destination(channel, cascade, destination, outboxes)

    def lead_back(self, destination: Destination) -> None:
        """Bind a destination again that may have been deleted with its bindings, for the messages that wait for it.

        Creates the cascade if it is missing, but outboxes only for queues: publishers create those of an exchange.
        Raises as `ensure`.
        """
        if not destination.exchange:
            self.known.pop(destination, None)
            self.ensure(destination)
            return
        with self._reset_on_error():
            try:
                declare.bind_exit(self._channel.get_channel(), self._cascade, destination)
            except CascadeMissing:
                create_cascade(self._channel, self._cascade)
                declare.bind_exit(self._channel.get_channel(), self._cascade, destination)

    def repair(self, *destinations: Destination) -> bool:
        """Declare the whole cascade again; return whether a message to one of some destinations is worth repeating.

        With `declare="passive"`, do without their outboxes with a delay instead. Raises the errors of `create_cascade`.
        """
        if self._options.declare == "passive":
            had_some = [
                one for one in destinations if self.known.get(one, Outboxes((), self.usable_outboxes(one))).usable
            ]
            self.known.update(dict.fromkeys(had_some, Outboxes((), ())))
            return bool(had_some)
        self.known.clear()
        with self._reset_on_error():
            create_cascade(self._channel, self._cascade)
        return True

    def note(self, destination: Destination) -> None:
        """Take note that a destination was bound to the cascade, which has no outboxes for it."""
        self.has_cascade = True
        self.known[destination] = Outboxes((), ())

    def forget(self, name: str) -> None:
        """Lead to a queue or exchange again before the next message for it: a new one of that name has no bindings."""
        for destination in [one for one in list(self.known) if name == one.exchange or name in one.queues]:
            del self.known[destination]

    def reset(self) -> None:
        """Forget everything."""
        self.has_cascade = False
        self.known.clear()

    @contextmanager
    def _reset_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.reset()
            raise
