"""What is checked and decided before a delayed message is sent: its delay, headers, destination, record. Pure.

Messages that are published, moved, handed on, or sent again as orphans enter the cascade by a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ...text import duration
from . import destination as destination_
from .destination import Destination
from .due import MICROSECOND
from .errors import InvalidDelay, InvalidDestination
from .headers import HEADER, Delivery, Headers, State, wrap
from .options import Options
from .topology import Stream


class Ticket(NamedTuple):
    """What an add-on wants of a message that is about to enter the cascade."""

    number: int  # travels in our header, and tells this copy of the message from others; below 2 ** 53
    stream: Stream  # for its record


#: Returns it for the headers of a message and its delay in microseconds; None: nothing. See `Interceptor.ticket`.
GetTicket = Callable[[Headers, int], Ticket | None]


class Plan(NamedTuple):
    """A message that is ready to enter the cascade."""

    message: Any  # with the properties and the body to send
    headers: dict[str, Any]  # wrapped
    destination: Destination
    due: int  # in nanoseconds, by the clock of `Now.monotonic`
    ticket: Ticket | None = None
    #: Whether it came before its delivery time: so it does not wait for that once more, but in levels.
    came_early: bool = False

    @property
    def due_ms(self) -> int:
        """When it is due, in milliseconds since 1970."""
        return int(self.headers[HEADER]["due"])


class Now(NamedTuple):
    """A moment by two clocks. Read them in this order: a pause between them makes a message late, not early."""

    utc: datetime
    monotonic: int  # nanoseconds


def of_new(
    message: Any,
    headers: Headers,
    exchange: str,
    routing_key: str,
    delay: int,
    now: Now,
    options: Options,
    bound: Container[tuple[str, str]] = (),
    get_ticket: GetTicket = lambda headers, delay: None,
) -> Plan:
    """Plan a message that is published to an exchange with its headers and a delay in microseconds.

    `bound` is as in `destination.of`. Raises `InvalidDelay`, `InvalidDestination`.
    """
    _check_delay(delay, options)
    priority = message.properties.get("priority")
    if priority is not None and not (isinstance(priority, int) and 0 <= priority <= 255):
        raise InvalidDestination(f"priority={priority!r}: use a whole number from 0 to 255")
    ticket = get_ticket(headers, delay)
    due = now.utc + timedelta(microseconds=delay)
    wrapped = wrap(headers, options.cascade.root, exchange, routing_key, due, ticket and ticket.number)
    destination = destination_.of(exchange, routing_key, bound)
    return Plan(message, wrapped, destination, now.monotonic + delay * 1000, ticket)


def of_received(
    message: Any,
    received: Delivery,
    queue: str,
    due: datetime,
    now: Now,
    options: Options,
    early: State | None = None,
    get_ticket: GetTicket = lambda headers, delay: None,
) -> Plan:
    """Plan the return of a message, which was received from a queue before it is due, to that queue alone.

    One that came out of the cascade `early` has its number already. Raises as `of_new`.
    """
    delay = (due - now.utc) // MICROSECOND
    _check_delay(delay, options)
    ticket = None if early is not None else get_ticket(received.headers, delay)
    number = early.number if early else ticket and ticket.number
    wrapped = wrap(received.headers, options.cascade.root, received.exchange, received.routing_key, due, number)
    wrapped[HEADER]["queue"] = queue
    due_ns = now.monotonic + delay * 1000
    return Plan(message, wrapped, Destination("", queue), due_ns, ticket, early is not None)


def of_orphan(message: Any, state: State, delay: int, now: Now, options: Options) -> Plan:
    """Plan an orphan that waits once more, for a delay in microseconds: with its number, for its record stays valid.

    Raises as `of_new`.
    """
    _check_delay(delay, options)
    wrapped = wrap(message.headers, options.cascade.root, state.exchange, state.routing_key, state.due, state.number)
    if state.queue is not None:
        wrapped[HEADER]["queue"] = state.queue
    return Plan(message, wrapped, destination_.of(*state.destination), now.monotonic + delay * 1000)


def _check_delay(delay: int, options: Options) -> None:
    if delay > options.max_delay * 1_000_000:
        raise InvalidDelay(
            f"a delay of {duration(delay / 1_000_000)} is more than the option max_delay, "
            f"{duration(options.max_delay)}: choose an earlier eta or a larger max_delay"
        )
