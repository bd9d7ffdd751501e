"""Puts a `Cascade` on a broker. I/O over one AMQP channel; knows no Celery.

Every function takes a channel that may be closed and opened again by the broker's answer, as py-amqp does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed, ResourceLocked

from .exceptions import CascadeConflict, CascadeMissing, DestinationNotFound, InvalidDestination, NotPermitted
from .routing_key import Destination
from .topology import Binding, Cascade, Exchange, Queue

Channel = Any  # an amqp.Channel; py-amqp has no type hints


def require(channel: Channel, cascade: Cascade) -> None:
    """Raises `CascadeMissing`, naming what is missing, unless the cascade is there. `NotPermitted`."""
    with translated(cascade):
        if exchange_exists(channel, cascade.complete):
            return
    lacking = list(missing(channel, cascade))
    more = f" and {len(lacking) - 4} more" if len(lacking) > 4 else ""
    raise CascadeMissing(
        f'declare="passive", and the broker lacks {", ".join(lacking[:4])}{more}: run a worker or a publisher with '
        f'declare="auto" once, as a user who may configure, write and read ^{cascade.prefix}\\.'
    )


def lead(channel: Channel, cascade: Cascade, destination: Destination, check: bool) -> None:
    """Makes sure that a cascade leads to a destination, with `check` also that it is there: one round trip if it is.

    Raises what `create` and `bind_destination` do.
    """
    try:
        if check:  # its answer, if there is one, comes before that to the binding
            _look_at(channel, cascade.complete, nowait=True)
        bind_destination(channel, cascade, destination)
    except CascadeMissing:
        create(channel, cascade)
        bind_destination(channel, cascade, destination)


def create(channel: Channel, cascade: Cascade) -> None:
    """Declares all of the cascade, whatever of it is there already. Raises `CascadeConflict`, `NotPermitted`.

    Safe in many processes at once: declaring is idempotent, and the exchange that says `complete` comes last.
    Nothing is waited for but that one, so it takes about as long as the broker needs to store ~600 entities.
    """
    with translated(cascade):
        try:
            _declare(channel, cascade)
        except NotFound:
            # RabbitMQ with Mnesia looks for a queue in two tables, one after the other. One that somebody else creates
            # in between is, it says, on a node that is down (rabbit_amqqueue:not_found_or_absent_dirty).
            _declare(channel, cascade)


def _declare(channel: Channel, cascade: Cascade) -> None:
    *exchanges, complete = cascade.exchanges()
    for exchange in exchanges:
        declare_exchange(channel, exchange, nowait=True)
    for queue in cascade.queues():
        declare_queue(channel, queue, nowait=True)
    for binding in cascade.bindings():
        bind(channel, binding, nowait=True)
    declare_exchange(channel, complete)


def bind_destination(channel: Channel, cascade: Cascade, destination: Destination) -> None:
    """Leads what is due to a destination.

    Raises `DestinationNotFound`, `InvalidDestination` (an exclusive queue), `CascadeMissing`, `NotPermitted`.
    """
    with translated(cascade):
        *others, last = cascade.destination_bindings(destination)
        for binding in others:
            bind(channel, binding, nowait=True)
        bind(channel, last)


def bind(channel: Channel, binding: Binding, nowait: bool = False) -> None:
    method = channel.queue_bind if binding.kind == "queue" else channel.exchange_bind
    method(binding.target, binding.source, binding.routing_key, nowait=nowait)


def missing(channel: Channel, cascade: Cascade) -> Iterator[str]:
    """The names of exchanges and queues of the cascade that the broker lacks.

    Bindings cannot be seen over AMQP, nor, from RabbitMQ 4.3, what the user has no permission on.
    """
    parts = [(exchange_exists, exchange.name) for exchange in cascade.exchanges()]
    parts += [(queue_exists, queue.name) for queue in cascade.queues()]
    for exists, name in parts:
        with suppress(AccessRefused):
            if not exists(channel, name):
                yield name


def exchange_exists(channel: Channel, name: str) -> bool:
    try:
        _look_at(channel, name)
    except NotFound:
        return False
    return True


def _look_at(channel: Channel, exchange: str, nowait: bool = False) -> None:
    channel.exchange_declare(exchange, "topic", passive=True, durable=True, auto_delete=False, nowait=nowait)


def queue_exists(channel: Channel, name: str) -> bool:
    return ready(channel, name) is not None


def ready(channel: Channel, name: str) -> int | None:
    """How many messages wait in a queue; None if it does not exist."""
    try:
        return int(channel.queue_declare(name, passive=True).message_count)
    except NotFound:
        return None


def declare_exchange(channel: Channel, exchange: Exchange, nowait: bool = False) -> None:
    channel.exchange_declare(
        exchange.name,
        exchange.type,
        durable=True,
        auto_delete=False,
        arguments=dict(exchange.arguments),
        nowait=nowait,
    )


def declare_queue(channel: Channel, queue: Queue, nowait: bool = False) -> None:
    channel.queue_declare(queue.name, durable=True, auto_delete=False, arguments=dict(queue.arguments), nowait=nowait)


@contextmanager
def translated(cascade: Cascade) -> Iterator[None]:
    """The broker's refusals as errors that say what to do."""
    try:
        yield
    except PreconditionFailed as exc:
        raise CascadeConflict(
            f"prefix={cascade.prefix!r} is taken by a cascade with other parameters ({exc.reply_text}): use the tick, "
            "max_delay and queue_type that it was made with, or another prefix, beside which it delivers what it holds"
        ) from exc
    except AccessRefused as exc:
        raise NotPermitted(
            f"the broker refused it ({exc.reply_text}): grant the permission (the documentation lists them under "
            '"Operations"), or create everything as another user and set declare="passive"'
        ) from exc
    except ResourceLocked as exc:
        raise InvalidDestination(
            f"the queue is exclusive to another connection, which alone may bind it ({exc.reply_text}): "
            "have it bound to an exchange of yours, and send the message there"
        ) from exc
    except NotFound as exc:
        if f"'{cascade.prefix}." in exc.reply_text:
            raise CascadeMissing(f"a part of the cascade is gone ({exc.reply_text})") from exc
        raise DestinationNotFound(
            f"the message is for something that does not exist ({exc.reply_text}): declare it before you publish"
        ) from exc
