"""Finds the outboxes that exist on a broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import kombu
from amqp.exceptions import AccessRefused

from ..amqp import declare
from ..core.destination import Address, Destination
from ..core.options import Options
from ..core.parts import Binding, Queue
from ..core.topology import Cascade
from .management import Management

#: All outboxes of a delay are declared in the same way.
_ANY = Destination("", ("any",))


class Outbox(NamedTuple):
    """An outbox that exists, except for the one that short-lived queues share."""

    queue: str
    #: What its name says: the delay in milliseconds, and its destination.
    address: Address
    #: Its delay.
    ticks: int

    @property
    def delay(self) -> int:
        """Its delay in milliseconds; 0 for the outbox that each destination has."""
        return self.address.delay

    @property
    def destination(self) -> str | None:
        """The destination as text; None if the name does not say it."""
        exchange, *names = self.address.names or ("",)
        if not names:
            return None
        return str(Destination(exchange, key=names[0] or None) if exchange else Destination("", tuple(names)))

    def as_declared(self, cascade: Cascade) -> Queue:
        """Return the outbox with the arguments that a publisher declares it with."""
        return cascade.outbox(_ANY, self.ticks)._replace(name=self.queue)

    def bindings(self, cascade: Cascade) -> Iterator[Binding]:
        """Yield the bindings that lead to the outbox; none if its name does not say its address."""
        address = cascade.outbox_address(self.queue)
        for source in (cascade.outbox_ingest, cascade.done) if self.ticks else (cascade.done,):
            if address and self.address.names:
                yield Binding(source, self.queue, "queue", address)


def existing_outboxes(
    connection: kombu.Connection,
    destinations: Iterable[Destination] = (),
    management: Management | None = None,
) -> list[Outbox]:
    """Return the outboxes that exist, those without a delay first.

    AMQP does not list queues. Without the management API these are outboxes of `destinations`, with the delays of the
    option. RabbitMQ logs an error for each missing one that is asked for, so nothing more is asked where the outbox
    without a delay is missing.
    """
    options: Options = connection.transport.delay_options
    names = management.queues() if management else _asked_for(connection, options, destinations)
    found = filter(None, (outbox_named(options.cascade, name) for name in names))
    return sorted(found, key=lambda outbox: (outbox.ticks, outbox.queue))


def outbox_names(connection: kombu.Connection, destinations: Iterable[Destination]) -> list[str]:
    """Return the names of the outboxes with a delay that `setup` creates: of the option, for queues."""
    options: Options = connection.transport.delay_options
    queues = [one for one in destinations if not one.exchange and not one.short_lived]
    return [options.cascade.outbox_name(queue, ticks) for queue in queues for ticks in options.outbox_ticks]


def outbox_named(cascade: Cascade, queue: str) -> Outbox | None:
    """Return the outbox of a name; None if it is not that of an outbox."""
    address = cascade.outbox_of(queue)
    if address is None or address.mark == "=":
        return None
    ticks, rest = divmod(address.delay, cascade.milliseconds(1))
    return None if rest else Outbox(queue, address, ticks)


def _asked_for(connection: kombu.Connection, options: Options, destinations: Iterable[Destination]) -> Iterator[str]:
    for destination in destinations:
        if destination.short_lived:
            continue
        for ticks in (0, *options.outbox_ticks):
            name = options.cascade.outbox_name(destination, ticks)
            if _exists(connection, name):
                yield name
            elif not ticks:
                break


def _exists(connection: kombu.Connection, name: str) -> bool:
    try:
        return declare.queue_exists(connection.default_channel, name)
    except AccessRefused:  # RabbitMQ 4.3 hides it
        return False
