"""Declares the parts of a cascade, looks for them, and makes errors of RabbitMQ's refusals, over one AMQP channel.

Each function takes a channel. The broker may close it in its answer; py-amqp then reopens it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed, ResourceLocked

from ..core.destination import Destination
from ..core.errors import (
    PERMISSIONS,
    CascadeConflict,
    CascadeMissing,
    DestinationNotFound,
    LimitReached,
    NotPermitted,
)
from ..core.levels import MOST_COMBINED
from ..core.topology import Binding, Cascade, Exchange, Queue

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
#: what these send to it in between never expires, and holds up all that follows.
SHOWS_WHAT_STARTED = (4, 1)

#: Seconds after which these have, too.
STARTED_AFTER = 0.3

Channel = Any  # an amqp.Channel; py-amqp has no type hints


def require_cascade(channel: Channel, cascade: Cascade) -> None:
    """Check that the cascade exists. Raises `CascadeMissing`, `NotPermitted`."""
    with translate_errors(cascade):
        if exchange_exists(channel, cascade.marker):
            return
    lacking = list(missing(channel, cascade))
    more = f" and {len(lacking) - 4} more" if len(lacking) > 4 else ""
    raise CascadeMissing(
        f'declare="passive", and the broker lacks {", ".join(lacking[:4])}{more}: run `celery -A APP delay setup`, or '
        f'a worker or publisher with declare="auto", as a user who may configure, write and read ^{cascade.prefix}\\.'
    )


def require_destination(channel: Channel, destination: Destination) -> None:
    """Check that a destination exists, as far as this user may see it. Raises `DestinationNotFound`."""
    if destination.exchange:
        found = exists(passive_declare, channel, destination.exchange)
    else:
        found = exists(passive_declare_queue, channel, destination.key or "")
    if not found:
        raise DestinationNotFound(f"the {destination} does not exist: declare it before you publish")


def require_route(
    channel: Channel, cascade: Cascade, destination: Destination, outboxes: Sequence[int]
) -> tuple[int, ...]:
    """Check that a destination has an outbox without a delay; return those with some delays that exist, in ticks.

    Raises `DestinationNotFound`.
    """
    if not exists(passive_declare_queue, channel, cascade.outbox_name(destination)):
        raise DestinationNotFound(
            f'declare="passive", and nothing leads to {destination}: run `celery -A APP delay setup`, or '
            "`celery-rabbit-delay --queue … setup`"
        )
    names = {ticks: cascade.outbox_name(destination, ticks) for ticks in outboxes}
    return tuple(ticks for ticks, name in names.items() if exists(passive_declare_queue, channel, name))


def exists(ask_for: Callable[[Channel, str], Any], channel: Channel, name: str) -> bool:
    """Return whether a queue or an exchange exists. What this user may not see, or is on a node that is down, does."""
    try:
        ask_for(channel, name)
    except NotFound as exc:
        return "no queue" not in exc.reply_text and "no exchange" not in exc.reply_text
    except (AccessRefused, ResourceLocked):  # it is hidden, or exclusive to another connection
        pass
    return True


def lead_to(channel: Channel, cascade: Cascade, destination: Destination, safely: bool = False) -> None:
    """Create the outbox of a destination without a delay, if it is missing, and bind it, `safely` once it is saved.

    Raises as `translate_errors`.
    """
    with translate_errors(cascade):
        declare_queue(channel, cascade.outbox(destination), nowait=True)
        if safely:
            save(channel, cascade)
        bind_outboxes(channel, cascade, destination, (0,))


def declare_outboxes(channel: Channel, cascade: Cascade, destination: Destination, outboxes: Sequence[int]) -> None:
    """Create outboxes of a destination with delays in ticks. Raises as `translate_errors`."""
    with translate_errors(cascade):
        for ticks in outboxes:
            declare_queue(channel, cascade.outbox(destination, ticks), nowait=ticks != outboxes[-1])


def bind_outboxes(channel: Channel, cascade: Cascade, destination: Destination, outboxes: Sequence[int]) -> None:
    """Bind outboxes of a destination with delays in ticks. Raises as `translate_errors`."""
    *bindings, last = [one for ticks in outboxes for one in cascade.outbox_bindings(destination, ticks)]
    with translate_errors(cascade):
        for binding in bindings:
            bind(channel, binding, nowait=True)
        bind(channel, last)


def save(channel: Channel, cascade: Cascade) -> None:
    """Let RabbitMQ write down the names of the quorum queues that were declared until now.

    It does so when it looks for the name of the next one that it starts (ra_directory.erl, `register_name`; Erlang,
    dets: a look-up writes what is cached). That one serves for nothing else, so it may also be refused.
    """
    name = f"{cascade.root}.saved.{uuid.uuid4().hex}"
    try:
        declare_queue(channel, Queue(name, {"x-queue-type": "quorum", "x-expires": 60_000}))
        channel.queue_delete(name, nowait=True)
    except (AccessRefused, PreconditionFailed):
        time.sleep(SAVED_AFTER)


def bind(channel: Channel, binding: Binding, nowait: bool = False) -> None:
    method = channel.queue_bind if binding.destination_type == "queue" else channel.exchange_bind
    method(binding.destination, binding.source, binding.routing_key, nowait=nowait)


def missing(channel: Channel, cascade: Cascade) -> Iterator[str]:
    """Yield the names of exchanges and queues of the cascade that the broker lacks.

    AMQP does not show bindings. From RabbitMQ 4.3 on, it does not show parts without permission either.
    """
    parts = [(exchange_exists, exchange.name) for exchange in cascade.exchanges()]
    parts += [(queue_exists, queue.name) for queue in cascade.queues()]
    for is_there, name in parts:
        with suppress(AccessRefused):
            if not is_there(channel, name):
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


def is_limit(exc: PreconditionFailed) -> bool:
    """Return whether a limit was reached: of a virtual host or a node, and of queues or exchanges (4.0 and later)."""
    return "limit" in exc.reply_text and "reached" in exc.reply_text


def _limit_reached(exc: PreconditionFailed, cascade: Cascade) -> LimitReached:
    queues, exchanges = len(list(cascade.queues())), len(list(cascade.exchanges()))
    return LimitReached(
        f"a limit of the broker is reached ({exc.reply_text}). The cascade {cascade.prefix!r} needs {queues} queues "
        f"and {exchanges} exchanges, at most nine streams with an exchange besides, and {1 + MOST_COMBINED} queues for "
        "each queue that delayed tasks go to, and one more for each round delay in use. Raise the limit, as with "
        "`rabbitmqctl set_vhost_limits -p VHOST '{\"max-queues\": 200}'`, or set a smaller `max_delay`, which needs "
        "fewer. What was created so far is used then, or deleted by `celery -A APP delay teardown`"
    )


@contextmanager
def translate_errors(cascade: Cascade) -> Iterator[None]:
    """Translate the broker's refusals to declare or route into errors that say what to do."""
    try:
        yield
    except PreconditionFailed as exc:
        if "max size" in exc.reply_text:  # it is about a message
            raise
        if is_limit(exc):
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
    except NotFound as exc:
        if f"'{cascade.root}." in exc.reply_text or f"'{cascade.root}'" in exc.reply_text:
            raise CascadeMissing(
                f"a part of the cascade is gone ({exc.reply_text}): run `celery -A APP delay setup`"
            ) from None
        raise DestinationNotFound(
            f"the destination does not exist ({exc.reply_text}): declare it before you publish"
        ) from None
