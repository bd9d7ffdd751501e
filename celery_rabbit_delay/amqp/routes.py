"""What a process knows of a cascade on a broker: to which destinations it leads, and which outboxes were missing.

All connections of the process share it. It is learned once, by looking; what has changed since is the broker's answer
to a message.
"""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple

from ..core.destination import Destination
from ..core.errors import DelayError, LimitReached, NotPermitted
from ..core.options import Options
from ..core.topology import Cascade
from . import declare
from .confirms import ConfirmedChannel
from .create import create_cascade

logger = logging.getLogger(__name__)

#: Seconds for which messages do without an outbox that has returned one, and how many of them make a process create it.
AGAIN, OFTEN = 300.0, 4


class _Known(NamedTuple):
    """A destination that a process leads to."""

    combined: tuple[int, ...]  # its outboxes that delays which are not round may end in, in ticks
    safe_from: float  # a broker that is killed loses nothing that its outboxes get from then on; `time.monotonic`


class _Missing:
    """An outbox that has returned a message."""

    def __init__(self) -> None:
        self.until = time.monotonic() + AGAIN  # when it is tried again
        self.uses = 0  # the message that it has returned asks again
        self.is_declared = False


_NOTHING = _Known((), 0)


class Routes:
    """What a process knows of a cascade on a broker. Whoever has a turn of a `Sender` uses it, in any thread."""

    def __init__(self, cascade: Cascade, options: Options) -> None:
        self._cascade, self._options = cascade, options
        self._has_cascade = False
        self._known: dict[Destination, _Known] = {}
        self._missing: dict[tuple[Destination, int], _Missing] = {}

    def ensure(self, channel: ConfirmedChannel, destination: Destination) -> float:
        """Lead to a destination, and create what is missing; once per process.

        Returns the moment (`time.monotonic`) before which nothing may arrive there. Raises `DestinationNotFound`,
        `InvalidDestination`, and the errors of `create_cascade`; with `declare="passive"` those of
        `declare.require_cascade` and `declare.require_route`.
        """
        if known := self._known.get(destination):
            if time.monotonic() >= known.safe_from:
                return 0
            # From 4.1 on, levels keep messages from the outbox without a delay for long enough.
            may_be_early = self._cascade.by_time or channel.server_version < declare.SHOWS_WHAT_STARTED
            return known.safe_from if may_be_early else 0
        if not self._has_cascade:
            if self._options.declare == "passive":
                declare.require_cascade(channel.get_channel(), self._cascade)
            elif not declare.exists(declare.passive_declare, channel.get_channel(), self._cascade.marker):
                create_cascade(channel, self._cascade)
            self._has_cascade = True
        declare.require_destination(channel.get_channel(), destination)
        if not destination.is_short_lived:  # there is no end of those, and they share an outbox
            combined = self._lead(channel, destination)
            # Another process may just have created them.
            self._known[destination] = _Known(combined, time.monotonic() + declare.SAVED_AFTER)
            return self.ensure(channel, destination)
        return 0

    def _lead(self, channel: ConfirmedChannel, destination: Destination) -> tuple[int, ...]:
        """Create outboxes, or look for them; return those that delays which are not round may end in."""
        combined = self._options.combined_in(self._cascade)
        if self._options.declare == "passive":
            return declare.require_route(channel.get_channel(), self._cascade, destination, combined)
        try:
            declare.lead_to(channel, self._cascade, destination, (0, *combined))
            return combined
        except (LimitReached, NotPermitted) as exc:
            declare.lead_to(channel, self._cascade, destination, (0,))  # raises, unless only the others are refused
            logger.warning("Outboxes of %s cannot be created, so messages take more hops: %s", destination, exc)
            return ()

    def combined(self, destination: Destination) -> tuple[int, ...]:
        """Return the outboxes that delays which are not round may end in, in ticks, once that is safe."""
        known = self._known.get(destination)
        return known.combined if known and time.monotonic() >= known.safe_from else ()

    def takes(self, channel: ConfirmedChannel, destination: Destination, ticks: int) -> bool:
        """Return whether to send a message to the outbox with just its delay: unless that has returned one of late.

        A process that misses an outbox often declares it. It is bound later, so that nobody sends to a queue that
        RabbitMQ has not completely started and saved.
        """
        known = self._known.get(destination)
        if known is None or ticks not in self._options.outbox_ticks or self._cascade.by_time:
            return False
        if ticks in known.combined and time.monotonic() < known.safe_from:
            return False
        one = self._missing.get((destination, ticks))
        if one is None:
            return True
        try:
            if time.monotonic() >= one.until:
                if one.is_declared:
                    with declare.translate_errors(self._cascade):
                        declare.bind_outbox(channel.get_channel(), self._cascade, destination, ticks)
                self._missing.pop((destination, ticks), None)
                return True
            one.uses += 1
            if one.uses == OFTEN and self._options.declare == "auto":
                with declare.translate_errors(self._cascade):
                    declare.declare_queue(channel.get_channel(), self._cascade.outbox(destination, ticks))
                one.is_declared, one.until = True, time.monotonic() + declare.SAVED_AFTER
        except DelayError as exc:  # such as a limit of queues
            one.is_declared, one.until = False, time.monotonic() + AGAIN
            logger.warning("An outbox of %s cannot be created, so messages take more hops: %s", destination, exc)
        return False

    def missed(self, destination: Destination, ticks: int) -> None:
        """Take note that an outbox has returned a message: one that each destination has is looked for again."""
        known = self._known.get(destination, _NOTHING)
        if ticks and self._options.declare == "passive":
            combined = tuple(one for one in known.combined if one != ticks)
            self._known[destination] = known._replace(combined=combined)
        elif ticks in (0, *known.combined):
            self._known.pop(destination, None)
            return
        self._missing[destination, ticks] = _Missing()

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
