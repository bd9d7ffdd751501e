"""Declares the parts of a cascade, and looks for them: I/O over one AMQP channel.

Each function takes a channel. The broker may close it in its answer; py-amqp then reopens it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from amqp.exceptions import AccessRefused, InternalError, NotFound, PreconditionFailed, ResourceLocked

from ..core.destination import Destination
from ..core.errors import (
    PERMISSIONS,
    CascadeConflict,
    CascadeMissing,
    DestinationNotFound,
    InvalidDestination,
    LayoutMismatch,
    LimitReached,
    NotPermitted,
    UnsupportedConfiguration,
)
from ..core.levels import MOST_COMBINED
from ..core.topology import LAYOUT, Binding, Cascade, Exchange, Queue, Stream

#: Seconds after which RabbitMQ reports a quorum queue as empty if its leader has not answered (rabbit_quorum_queue,
#: `stat`). To trust that answer would mean to delete a queue that holds messages.
_UNKNOWN_AFTER = 0.25

#: Seconds until RabbitMQ has written the name of a new quorum queue to its disk. If it is killed before, it loses what
#: the queue holds, although it has confirmed it. It looks every half second, and writes once no name was added since
#: the last look, as a rule after a second (rabbitmq/ra, ra_directory.erl: `names.dets`; Erlang, dets: `auto_save`).
#: By then it has also started the queue completely: see `SHOWS_WHAT_STARTED`.
SAVED_AFTER = 1.5

#: The first release that tells other connections of a new queue once it can be used. Earlier ones tell them some
#: milliseconds before they give a quorum queue its TTL (rabbit_quorum_queue, `start_cluster`: `update_machine_state`):
#: what these send to it in between never expires, and holds up all that follows. Nor has a stream a leader then: before
#: 4.0.6, RabbitMQ closes the connection of whoever sends to it (rabbitmq-server #12969).
SHOWS_WHAT_STARTED = (4, 1)

Channel = Any  # an amqp.Channel; py-amqp has no type hints


def require_cascade(channel: Channel, cascade: Cascade) -> None:
    """Check that the cascade exists. Raises `CascadeMissing`, `LayoutMismatch`, `NotPermitted`."""
    with translate_errors(cascade):
        if exchange_exists(channel, cascade.marker):
            return
    lacking = list(missing(channel, cascade))
    more = f" and {len(lacking) - 4} more" if len(lacking) > 4 else ""
    if others := other_layouts(channel, cascade):
        newest = others[-1]
        advice = (
            'which declare="passive" does not create: run `celery -A APP delay setup` of this release'
            if newest < LAYOUT
            else "because it is older: upgrade this process"
        )
        raise LayoutMismatch(
            f"the broker has layout {newest} of the cascade {cascade.prefix!r}, and this release of "
            f"celery-rabbit-delay needs layout {LAYOUT}, {advice}"
        )
    raise CascadeMissing(
        f'declare="passive", and the broker lacks {", ".join(lacking[:4])}{more}: run `celery -A APP delay setup`, or '
        f'a worker or publisher with declare="auto", as a user who may configure, write and read ^{cascade.prefix}\\.'
    )


def require_route(channel: Channel, cascade: Cascade, destination: Destination) -> None:
    """Check by its outbox without a delay and by the destination itself that a cascade leads to a destination.

    On RabbitMQ 4.3, a user without any permission on one of them cannot see it: then its check passes. Raises
    `DestinationNotFound`, `InvalidDestination` (an exclusive queue).
    """
    parts: list[tuple[Callable[[Channel, str], Any], str]]
    parts = [(passive_declare_queue, name) for name in (cascade.outbox_name(destination), *destination.queues)]
    if destination.exchange:
        parts.append((passive_declare, destination.exchange))
    with translate_errors(cascade):
        for ask_for, name in parts:
            try:
                with suppress(AccessRefused):
                    ask_for(channel, name)
            except NotFound as exc:
                if "no queue" in exc.reply_text or "no exchange" in exc.reply_text:  # nor is it on a node that is down
                    raise DestinationNotFound(
                        f'declare="passive", and nothing leads to {destination}: create it, and then run `celery -A '
                        "APP delay setup`, or `celery-rabbit-delay --queue … setup`"
                    ) from None


def outbox_exists(channel: Channel, cascade: Cascade, destination: Destination, outbox: int) -> bool:
    """Return whether a destination has an outbox with a delay in ticks, as far as this user may see it."""
    try:
        return queue_exists(channel, cascade.outbox_name(destination, outbox))
    except AccessRefused:
        return False


def other_layouts(channel: Channel, cascade: Cascade) -> list[int]:
    """Return the layouts of other releases under the cascade's prefix, the oldest first, if this user may see them."""
    found = []
    for layout in range(2, LAYOUT + 5):
        with suppress(AccessRefused):
            if layout != LAYOUT and exchange_exists(channel, cascade.root_of(layout)):
                found.append(layout)
    return found


def bind_destination(
    channel: Channel,
    cascade: Cascade,
    destination: Destination,
    outboxes: Sequence[int] = (0,),
    check: bool = False,
    seen: Sequence[int] = (),
) -> None:
    """Create outboxes of a destination, with delays in ticks, and lead through them to it: one round trip.

    Does not create those that were `seen`: raises `CascadeMissing` if one does not exist any more. With `check`, raises
    `CascadeMissing` if the cascade does not exist before. Raises `DestinationNotFound`,
    `InvalidDestination` (an exclusive queue), `CascadeMissing`, `NotPermitted`.
    """
    if check:  # the broker answers only if it fails, and before it answers to the binding
        passive_declare(channel, cascade.marker, nowait=True)
    # If the destination does not exist, no outbox is created: after an error the broker ignores the rest.
    parts: list[tuple[Callable[..., Any], Any]] = [(bind, one) for one in cascade.exit_bindings(destination)]
    for ticks in outboxes if not destination.short_lived else ():
        if ticks in seen:
            parts.append((passive_declare_queue, cascade.outbox_name(destination, ticks)))
        else:
            parts.append((declare_queue, cascade.outbox(destination, ticks)))
        parts += [(bind, binding) for binding in cascade.outbox_bindings(destination, ticks)]
    with translate_errors(cascade):
        for number, (ask_for, part) in enumerate(parts, start=1):
            ask_for(channel, part, nowait=number < len(parts))


def bind_stream(channel: Channel, cascade: Cascade, stream: Stream, pause: float = 0) -> None:
    """Create a stream and lead to it from ingest; pause in between, for some seconds, if RabbitMQ counts no messages.

    Raises `CascadeMissing`, also while another process is creating the cascade, and `NotPermitted`;
    `UnsupportedConfiguration` if the broker cannot create streams, for which it closes the connection.
    """
    with translate_errors(cascade):
        try:
            passive_declare(channel, cascade.marker, nowait=True)
            declared = declare_queue(channel, stream.queue, nowait=not pause)
            if pause and not declared.message_count:
                time.sleep(pause)
            bind(channel, cascade.stream_binding(stream))
        except PreconditionFailed as exc:
            if _is_limit(exc):
                raise
            raise CascadeConflict(
                f"the stream {stream.name!r} exists, but keeps its messages for another time ({exc.reply_text}): give "
                "apps with the same prefix the same `max_delay` if one is longer than a year, or another prefix"
            ) from None
        except InternalError as exc:
            raise UnsupportedConfiguration(
                f"RabbitMQ cannot create the stream {stream.name!r} ({exc}). If it has no streams, set the option "
                "streams=False: then delayed tasks work, but none can be listed, cancelled or moved"
            ) from None


def bind_exit(channel: Channel, cascade: Cascade, destination: Destination) -> None:
    """Bind a destination to `exit` again, for the messages in its outboxes. Raises as `bind_destination`."""
    with translate_errors(cascade):
        for binding in cascade.exit_bindings(destination):
            bind(channel, binding)


def bind(channel: Channel, binding: Binding, nowait: bool = False) -> None:
    method = channel.queue_bind if binding.destination_type == "queue" else channel.exchange_bind
    method(binding.destination, binding.source, binding.routing_key, nowait=nowait)


def missing(channel: Channel, cascade: Cascade) -> Iterator[str]:
    """Yield the names of exchanges and queues of the cascade that the broker lacks.

    AMQP does not show bindings. From RabbitMQ 4.3 on, it does not show parts without permission either.
    """
    parts = [(exchange_exists, exchange.name) for exchange in cascade.exchanges()]
    parts += [(queue_exists, queue.name) for queue in cascade.queues()]
    for exists, name in parts:
        with suppress(AccessRefused):
            if not exists(channel, name):
                yield name


def exchange_exists(channel: Channel, name: str) -> bool:
    try:
        passive_declare(channel, name)
    except NotFound:
        return False
    return True


def passive_declare(channel: Channel, exchange: str, nowait: bool = False) -> None:
    channel.exchange_declare(exchange, "topic", passive=True, durable=True, auto_delete=False, nowait=nowait)


def queue_exists(channel: Channel, name: str) -> bool:
    return message_count(channel, name) is not None


def message_count(channel: Channel, name: str) -> int | None:
    """Return how many messages are ready in a queue; None if it does not exist.

    Asks again if RabbitMQ reports an empty queue so late that its leader may not have answered.
    """
    count = 0
    for _ in range(3):
        asked = time.monotonic()
        try:
            count = int(passive_declare_queue(channel, name).message_count)
        except NotFound:
            return None
        if count or time.monotonic() - asked < _UNKNOWN_AFTER:
            break
    return count


def passive_declare_queue(channel: Channel, name: str, nowait: bool = False) -> Any:
    return channel.queue_declare(name, passive=True, nowait=nowait)


def declare_exchange(channel: Channel, exchange: Exchange, nowait: bool = False) -> None:
    channel.exchange_declare(
        exchange.name,
        exchange.type,
        durable=True,
        auto_delete=False,
        arguments=dict(exchange.arguments),
        nowait=nowait,
    )


def declare_queue(channel: Channel, queue: Queue, nowait: bool = False) -> Any:
    arguments = dict(queue.arguments)
    return channel.queue_declare(queue.name, durable=True, auto_delete=False, arguments=arguments, nowait=nowait)


def _is_limit(exc: PreconditionFailed) -> bool:
    """Return whether a limit was reached: of a virtual host or a node, and of queues or exchanges (4.0 and later)."""
    return "limit" in exc.reply_text and "reached" in exc.reply_text


def _limit_reached(exc: PreconditionFailed, cascade: Cascade) -> LimitReached:
    queues, exchanges = len(list(cascade.queues())), len(list(cascade.exchanges()))
    return LimitReached(
        f"a limit of the broker is reached ({exc.reply_text}). The cascade {cascade.prefix!r} needs {queues} queues "
        f"and {exchanges} exchanges, at most nine streams besides, and 1 to {1 + MOST_COMBINED} queues for each queue "
        "that delayed tasks go to, and one more for each round delay in use. Raise the limit, as with `rabbitmqctl "
        "set_vhost_limits -p VHOST '{\"max-queues\": 200}'`, or set a smaller `max_delay`, which needs fewer. What was "
        "created so far is used then, or deleted by `celery -A APP delay teardown`"
    )


@contextmanager
def translate_errors(cascade: Cascade) -> Iterator[None]:
    """Translate the broker's refusals to declare or route into errors that say what to do."""
    try:
        yield
    except PreconditionFailed as exc:
        if "max size" in exc.reply_text:  # it is about a message
            raise
        if _is_limit(exc):
            raise _limit_reached(exc, cascade) from exc
        raise CascadeConflict(
            f"something else has the name of a part of the cascade {cascade.prefix!r} ({exc.reply_text}): use another "
            "prefix, or delete the queue or exchange with that name if it is not needed"
        ) from None
    except AccessRefused as exc:
        raise NotPermitted(
            f"permission denied ({exc.reply_text}): grant the permission, see {PERMISSIONS}, or create everything as "
            'another user with `celery -A APP delay setup`, and set declare="passive"'
        ) from None
    except ResourceLocked as exc:
        raise InvalidDestination(
            f"the queue is exclusive to another connection, and only that one may bind it ({exc.reply_text}): "
            "bind it to your own exchange, and send the message there"
        ) from None
    except NotFound as exc:
        if f"'{cascade.root}." in exc.reply_text or f"'{cascade.root}'" in exc.reply_text:
            raise CascadeMissing(
                f"a part of the cascade is gone ({exc.reply_text}): run `celery -A APP delay setup`"
            ) from None
        raise DestinationNotFound(
            f"the destination does not exist ({exc.reply_text}): declare it before you publish"
        ) from None
