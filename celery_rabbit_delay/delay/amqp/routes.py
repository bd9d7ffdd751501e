"""What a process knows of a cascade on a broker: to which destinations it leads, and which outboxes were missing.

All connections of the process share it. It is learned once, by looking; what has changed since is the broker's answer
to a message.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from ..core.destination import Destination
from ..core.errors import DelayError
from ..core.options import Options
from ..core.topology import Cascade
from . import declare
from .confirms import ConfirmedChannel
from .create import create_cascade

logger = logging.getLogger(__name__)

#: Seconds for which messages do without an outbox that has returned one, and how many of them make a process create it.
AGAIN, OFTEN = 300.0, 4


class _Missing:
    """Outboxes that messages do without: one that has returned a message, or those that many delays may end in."""

    def __init__(self, outboxes: tuple[int, ...]) -> None:
        self.outboxes = outboxes
        self.until = time.monotonic() + AGAIN  # when one is tried again
        self.uses = 0  # by messages that came since
        self.is_declared: bool | None = None  # False: that was refused


class _Known:
    """A destination that a process leads to."""

    def __init__(self, combined: tuple[int, ...], missing: _Missing | None, started: float) -> None:
        self.combined = combined  # its outboxes that delays which are not round may end in, in ticks
        self.missing = missing  # these, until they are there
        self.started = started  # nothing may arrive there before this moment; `time.monotonic`


class Routes:
    """What a process knows of a cascade on a broker. Whoever has a turn of a `Sender` uses it, in any thread.

    An outbox is bound only once RabbitMQ has saved it to its disk. So whoever sees that it takes a message need not
    know when, and by whom, it was created.
    """

    def __init__(self, cascade: Cascade, options: Options) -> None:
        self._cascade, self._options = cascade, options
        self._has_cascade = False
        self._known: dict[Destination, _Known] = {}
        #: By destination and ticks, each an outbox that has returned a message.
        self._missing: dict[tuple[Destination, int], _Missing] = {}

    def ensure(self, channel: ConfirmedChannel, destination: Destination) -> float:
        """Lead to a destination, and create what is missing; once per process.

        Returns the moment (`time.monotonic`) before which nothing may arrive there. Raises `DestinationNotFound`,
        `InvalidDestination`, and the errors of `create_cascade`; with `declare="passive"` those of
        `declare.require_cascade` and `declare.require_route`.
        """
        if known := self._known.get(destination):
            return known.started
        if not self._has_cascade:
            if self._options.declare == "passive":
                declare.require_cascade(channel.get_channel(), self._cascade)
            elif not declare.exists(declare.passive_declare, channel.get_channel(), self._cascade.marker):
                create_cascade(channel, self._cascade)
            self._has_cascade = True
        declare.require_destination(channel.get_channel(), destination)
        if destination.is_short_lived:  # there is no end of those, and they share an outbox
            return 0
        known = self._known[destination] = self._lead(channel, destination)
        return known.started

    def _lead(self, channel: ConfirmedChannel, destination: Destination) -> _Known:
        """Create the outbox without a delay, or look for it."""
        combined = self._options.combined_in(self._cascade)
        missing = None
        if self._options.declare == "passive":
            combined = declare.require_route(channel.get_channel(), self._cascade, destination, combined)
        else:
            has_returned = self._missing.pop((destination, 0), None) is not None
            if has_returned or not self._cascade.by_time:
                declare.lead_to(channel.get_channel(), self._cascade, destination, self._cascade.by_time)
            combined, missing = (), _Missing(combined) if combined else None
        # Another process may just have created the outbox without a delay.
        shows = channel.server_version >= declare.SHOWS_WHAT_STARTED
        return _Known(combined, missing, 0 if shows else time.monotonic() + declare.STARTED_AFTER)

    def combined(self, channel: ConfirmedChannel, destination: Destination) -> tuple[int, ...]:
        """Return the outboxes that delays which are not round may end in, in ticks.

        A process that sends to a destination often creates them, and uses them once they are safe.
        """
        known = self._known.get(destination)
        if known and (missing := known.missing) and self._is_over(channel, destination, missing):
            if missing.is_declared:
                known.combined, known.missing = missing.outboxes, None
            else:
                known.missing = _Missing(missing.outboxes)
        return known.combined if known else ()

    def takes(self, channel: ConfirmedChannel, destination: Destination, ticks: int) -> bool:
        """Return whether to send a message to the outbox with just its delay: unless that has returned one of late."""
        if ticks not in self._options.outbox_ticks or self._cascade.by_time or destination not in self._known:
            return False
        missing = self._missing.get((destination, ticks))
        if missing and not self._is_over(channel, destination, missing):
            return False
        self._missing.pop((destination, ticks), None)
        return True

    def _is_over(self, channel: ConfirmedChannel, destination: Destination, one: _Missing) -> bool:
        """Return whether messages need not do without outboxes any more.

        A process that misses them often declares them. They are bound later, so that nobody sends to a queue that
        RabbitMQ has not completely started and saved. A batch waits for neither while its messages are unanswered.
        """
        cascade = self._cascade
        one.uses += 1
        if channel.unanswered > 1:  # one may be a record, whose answer is read later
            return False
        try:
            if time.monotonic() >= one.until:
                if one.is_declared:
                    declare.bind_outboxes(channel.get_channel(), cascade, destination, one.outboxes)
                return True
            if one.uses >= OFTEN and one.is_declared is None and self._options.declare == "auto":
                declare.declare_outboxes(channel.get_channel(), cascade, destination, one.outboxes)
                one.is_declared, one.until = True, time.monotonic() + declare.SAVED_AFTER
        except DelayError as exc:  # such as a limit of queues
            one.is_declared, one.until = False, time.monotonic() + AGAIN
            logger.warning("Outboxes of %s cannot be created, so messages take more hops: %s", destination, exc)
        return False

    def missed(self, destination: Destination, ticks: int) -> None:
        """Take note that an outbox has returned a message."""
        known = self._known.get(destination)
        if known and ticks and self._options.declare == "passive":
            known.combined = tuple(one for one in known.combined if one != ticks)
        elif known and (not ticks or ticks in known.combined):
            self._known.pop(destination, None)  # so that it is led to again
        self._missing[destination, ticks] = _Missing((ticks,))

    def forget(self) -> None:
        """Look at everything again: a part of the cascade was deleted."""
        self._has_cascade = False
        self._known.clear()
        self._missing.clear()


_all: dict[tuple[Any, ...], Routes] = {}


def routes_of(connection: Any, cascade: Cascade, options: Options) -> Routes:
    """Return what this process knows of a cascade on the broker of an `amqp.Connection`."""
    key = connection.host, connection.virtual_host, cascade, options.declare, options.outbox_ticks
    return _all.setdefault(key, Routes(cascade, options))
