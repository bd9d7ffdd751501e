"""Leads from a cascade to destinations, each once per connection, and creates the cascade if it is missing."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import filterfalse

from amqp.exceptions import ChannelError, IrrecoverableConnectionError, RecoverableConnectionError, ResourceError

from ..core.destination import Destination
from ..core.errors import CascadeMissing, DelayError, DestinationNotFound, InvalidDestination
from ..core.options import Options, Wanted
from ..core.topology import Cascade
from . import declare
from .confirms import ConfirmedChannel
from .create import create_cascade

logger = logging.getLogger(__name__)

#: The number of destinations that a connection remembers. The number of reply queues has no limit.
_MAX_KNOWN = 10_000

#: Messages with the same delay after which a destination is judged by the later ones, and those after which a delay may
#: have an outbox that no other may end in: with fewer, each process of many would create others.
_REMEMBERED, _OFTEN = 64, 4

#: Seconds for which a process does without an outbox that could not be created.
REFUSED_FOR = 300

#: Errors about the outbox itself, with which the broker closes the connection.
_REFUSALS = (IrrecoverableConnectionError, ResourceError)


class Process:
    """What this process knows of outboxes with a delay, whichever connections it has used."""

    def __init__(self) -> None:
        #: By broker, virtual host and name: the moment (`time.monotonic`) before which a broker that is killed may lose
        #: what the outbox holds: it may have been created by another process when this one first saw it.
        self.safe_from: dict[tuple[str, str, str], float] = {}
        #: By the same: the moment at which to try again to create the outbox.
        self.refused: dict[tuple[str, str, str], float] = {}
        #: By cascade and destination: the messages with the delay of each outbox, and by 0 those with other delays.
        self.used: defaultdict[tuple[str, Destination], Counter[int]] = defaultdict(Counter)


process = Process()


class Routes:
    """The routes from one cascade that a connection has made. For blocks of `Sender.turn`."""

    def __init__(self, channel: ConfirmedChannel, cascade: Cascade, options: Options) -> None:
        self._channel = channel
        self._cascade = cascade
        self._options = options
        #: Whether the cascade exists, as far as this connection knows.
        self.has_cascade = False
        #: By the destinations that the cascade leads to: the moment (`time.monotonic`) from which on each outbox with a
        #: delay, by its ticks, may be used; infinite for those that do not exist. By 0, until it has been waited for:
        #: the moment before which nothing may arrive in the outbox without a delay.
        self.known: dict[Destination, dict[int, float]] = {}

    def usable(self, destination: Destination) -> tuple[int, ...]:
        """Return the outboxes with a delay that a message for a destination may take now, by their ticks."""
        usable, now = [], time.monotonic()
        for ticks, since in self.known.get(destination, {}).items():
            if ticks and since <= now:
                usable.append(ticks)
        return tuple(usable)

    def lacking(self, destination: Destination, wanted: Wanted) -> tuple[int, ...]:
        """Take note of a message, and return the outboxes that it wants and this connection does not know.

        Delays that are not round are also those of outboxes at times. So one that no other delay may end in is created
        only where its delay is used often, and more than all that are not round.
        """
        if destination.short_lived or self._cascade.high:  # high priorities would hold up others in an outbox
            return ()
        if len(process.used) >= _MAX_KNOWN:
            process.used.clear()
        used = process.used[self._cascade.root, destination]
        used[wanted.exact] += 1
        if used[wanted.exact] >= _REMEMBERED:
            for delay in used:
                used[delay] //= 2
        if wanted.is_rare and self._options.declare == "auto" and used[wanted.exact] < max(_OFTEN, used[0] + 1):
            return ()
        return tuple(filterfalse(self.known.get(destination, {}).__contains__, wanted.outboxes))

    def ensure(self, destination: Destination, *outboxes: int) -> None:
        """Create the cascade, and lead to a destination, also through some outboxes with a delay in ticks.

        Does without those that cannot be created, and with `declare="passive"` without those that are missing. Raises
        the errors of `create_cascade`, `declare.bind_destination` or `declare.require_route`.
        """
        with self._reset_on_error():
            lead = self._create if self._options.declare == "auto" else self._check
            found = lead(destination, outboxes)
        self.has_cascade = True
        # From 4.1 on, levels alone keep messages from the outbox without a delay for long enough.
        may_be_early = self._cascade.by_time or self._channel.server_version < declare.SHOWS_WHAT_STARTED
        if may_be_early and destination not in self.known and not destination.short_lived:
            found[0] = self._safe_from(destination, 0)
        if len(self.known) >= _MAX_KNOWN:
            self.known.clear()
        self.known.setdefault(destination, {}).update({**dict.fromkeys(outboxes, math.inf), **found})

    def settle(self, destination: Destination, due: float) -> None:
        """Wait until a message may be sent that is due at a moment (`time.monotonic`), and in levels until then.

        Raises `TimeoutError` if that is beyond the limit of this turn: nothing was sent.
        """
        known = self.known.get(destination, {})  # another thread may make this connection forget it: see `forget`
        if since := known.get(0):
            arrival = 0 if self._cascade.by_time else due
            time.sleep(max(0, since - max(arrival, time.monotonic())))
            self._channel.get_channel().connection.seconds_left()
            if since <= time.monotonic():
                known.pop(0, None)

    def _check(self, destination: Destination, outboxes: Sequence[int]) -> dict[int, float]:
        """Check that there is a route to a destination; return the outboxes that exist, as in `known`."""
        channel = self._channel.get_channel()
        if not self.has_cascade:
            declare.require_cascade(channel, self._cascade)
        if destination not in self.known:
            declare.require_route(channel, self._cascade, destination)
        return {
            ticks: self._safe_from(destination, ticks)
            for ticks in outboxes
            if declare.outbox_exists(channel, self._cascade, destination, ticks)
        }

    def _create(self, destination: Destination, outboxes: Sequence[int]) -> dict[int, float]:
        """Lead to a destination, and create what is missing; return the outboxes that exist now, as in `known`."""
        now = time.monotonic()
        wanted = [ticks for ticks in outboxes if process.refused.get(self._key(destination, ticks), 0) <= now]
        own = [0] * (destination not in self.known)
        try:
            if own or wanted:
                self._declare(destination, [*own, *wanted])
        except (CascadeMissing, DestinationNotFound, InvalidDestination):
            raise
        except (DelayError, ChannelError) as exc:
            if not wanted:
                raise
            if own:
                self._declare(destination, own)  # raises, unless only the outboxes with a delay are refused
            wanted = self._create_some(destination, wanted, exc)
        except _REFUSALS as exc:
            if not wanted:
                raise
            self._refuse(destination, wanted, exc)
            raise RecoverableConnectionError(str(exc)) from exc  # Kombu connects and publishes again
        return {ticks: self._safe_from(destination, ticks) for ticks in wanted}

    def _create_some(self, destination: Destination, outboxes: Sequence[int], refusal: Exception) -> list[int]:
        """Create outboxes until one is refused, as one of several was; return those that exist now."""
        for number, ticks in enumerate(outboxes):
            try:
                if len(outboxes) > 1:
                    self._declare(destination, [ticks])
                    continue
            except (DelayError, ChannelError) as exc:
                refusal = exc
            self._refuse(destination, outboxes[number:], refusal)
            return list(outboxes[:number])
        return list(outboxes)

    def _refuse(self, destination: Destination, outboxes: Sequence[int], refusal: Exception) -> None:
        """Do without outboxes for a while."""
        until = time.monotonic() + REFUSED_FOR
        if len(process.refused) >= _MAX_KNOWN:
            process.refused.clear()
        process.refused.update({self._key(destination, ticks): until for ticks in outboxes})
        logger.warning(
            "%d outboxes of %s could not be created, so some delayed messages take more hops: %s",
            len(outboxes),
            destination,
            refusal,
        )

    def _declare(self, destination: Destination, outboxes: Sequence[int]) -> None:
        """Declare outboxes, and the cascade if it is missing."""
        channel, cascade = self._channel.get_channel(), self._cascade
        # Those that this process takes for old must not be created anew.
        seen = [ticks for ticks in outboxes if self._key(destination, ticks) in process.safe_from]
        try:
            declare.bind_destination(channel, cascade, destination, outboxes, True, seen)
        except CascadeMissing:
            self._forget_outboxes(destination)
            create_cascade(self._channel, cascade)
            declare.bind_destination(channel, cascade, destination, outboxes)

    def _key(self, destination: Destination, ticks: int) -> tuple[str, str, str]:
        connection = self._channel.get_channel().connection
        return connection.host, connection.virtual_host, self._cascade.outbox_name(destination, ticks)

    def _safe_from(self, destination: Destination, ticks: int) -> float:
        """Return the moment from which on an outbox that exists may be used."""
        if len(process.safe_from) >= _MAX_KNOWN:
            process.safe_from.clear()
        return process.safe_from.setdefault(self._key(destination, ticks), time.monotonic() + declare.SAVED_AFTER)

    def _forget_outboxes(self, destination: Destination) -> None:
        for ticks in (0, *self._options.outbox_ticks):
            process.safe_from.pop(self._key(destination, ticks), None)

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
            options = self._options
            had_some = [one for one in destinations if self.usable(one) or (one not in self.known and options.outboxes)]
            for one in had_some:
                self.known[one] = dict.fromkeys(self._options.outbox_ticks, math.inf)
            return bool(had_some)
        self.known.clear()
        for one in destinations:
            self._forget_outboxes(one)
        with self._reset_on_error():
            create_cascade(self._channel, self._cascade)
        return True

    def note(self, destination: Destination) -> None:
        """Take note that a destination was bound to the cascade, which has no outboxes for it."""
        self.has_cascade = True
        self.known[destination] = {}

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
