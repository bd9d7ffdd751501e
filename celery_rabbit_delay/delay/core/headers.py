"""The headers of a message while it waits in the cascade, and how they are taken off again. Pure: dicts in, dicts out.

The address of its outbox is its routing key, or where that names levels, travels in the CC header (sender-selected
distribution, https://www.rabbitmq.com/docs/sender-selected), which RabbitMQ carries through every dead-lettering as
long as no `x-dead-letter-routing-key` is set. What `unwrap` needs travels in the header `HEADER`.

Whoever makes up a message chooses what is in its headers, so nothing in them may stop a consumer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from .due import X_DELAY
from .errors import InvalidDestination
from .routing_key import is_reserved

#: The package's header: {"prefix": str, "exchange": str, "routing_key": str, "due": int}, and optionally "n": int and
#: "queue": str (see `State`).
HEADER = "x-celery-rabbit-delay"

#: When RabbitMQ lets a message out of a quorum queue, in milliseconds since 1970 by the clock of the queue's leader.
#: Any other type than a whole number has no effect. It stays on the message.
X_DELIVERY_TIME = "x-opt-delivery-time"

Headers = Mapping[str, Any]

#: What RabbitMQ adds at a dead-lettering.
DEATHS = {
    "x-death",
    *(f"x-{which}-death-{what}" for which in ("first", "last") for what in ("exchange", "queue", "reason")),
}
_COPIES = {"CC", "BCC"}
_NOT_WRAPPED = {X_DELAY, X_DELIVERY_TIME, *_COPIES, *DEATHS}
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class State(NamedTuple):
    """The contents of the package's header in a message of the cascade."""

    root: str  # of its cascade
    exchange: str  # that the message was sent to
    routing_key: str  # that it was sent with
    due: datetime  # in UTC
    number: int | None = None  # identifies a copy of the message, if it is in the journal
    queue: str | None = None  # that it returns to, because it was received from that before it was due

    @property
    def destination(self) -> tuple[str, str]:
        """The exchange and the routing key with which it reaches its destination."""
        return (self.exchange, self.routing_key) if self.queue is None else ("", self.queue)


class Delivery(NamedTuple):
    """What a consumer receives with a message besides its properties."""

    exchange: str
    routing_key: str
    headers: dict[str, Any]


def message_id(properties: Headers, headers: Headers) -> str:
    """Return Celery's id of a task, or another message's correlation id or message id, or ""."""
    for value in (headers.get("id"), properties.get("correlation_id"), properties.get("message_id")):
        if value:
            return str(value)
    return ""


def wrap(
    headers: Headers, root: str, exchange: str, routing_key: str, due: datetime, number: int | None = None
) -> dict[str, Any]:
    """Return the headers of a message in the cascade, which `unwrap` undoes. Raises `InvalidDestination`.

    Headers of an earlier dead-lettering are left out: RabbitMQ before 4.0.1 would take them for the message's own
    history, and drop the message as a dead-letter cycle
    (https://www.rabbitmq.com/docs/dlx#automatic-dead-lettering-cycles).
    """
    for name in _COPIES.intersection(headers):
        if headers[name]:
            raise InvalidDestination(
                f"a delayed message goes to one queue or exchange, without the header {name}={headers[name]!r}: "
                "send a message to each, or send it to an exchange that all these queues are bound to"
            )
    wrapped = {name: value for name, value in headers.items() if name not in _NOT_WRAPPED}
    ours = wrapped[HEADER] = {
        "prefix": root,
        "exchange": exchange,
        "routing_key": routing_key,
        "due": milliseconds_due(due),
    }
    if number is not None:
        ours["n"] = number
    return wrapped


def milliseconds(moment: datetime) -> int:
    """Return the milliseconds from 1970 to an aware datetime."""
    return (moment - _EPOCH) // _MILLISECOND


def milliseconds_due(moment: datetime) -> int:
    """Return the same rounded up, for a due time: who sends the message again by it must not send it early."""
    return -((_EPOCH - moment) // _MILLISECOND)


def moment(milliseconds: int) -> datetime:
    """Return the datetime, in UTC, of milliseconds since 1970. Raises `OverflowError` beyond the year 9999."""
    return _EPOCH + milliseconds * _MILLISECOND


def read_state(headers: Headers) -> State | None:
    """Return the contents of the package's header; None if there is none, or if it is malformed."""
    ours = headers.get(HEADER)
    if not isinstance(ours, Mapping):
        return None
    get = ours.get
    root, exchange, routing_key, due, number, queue = map(
        get, ("prefix", "exchange", "routing_key", "due", "n", "queue")
    )
    if not (isinstance(root, str) and isinstance(exchange, str) and isinstance(routing_key, str)):
        return None
    if not isinstance(due, int) or due < 0:
        return None
    try:
        return State(
            root,
            exchange,
            routing_key,
            moment(due),
            number if isinstance(number, int) and 0 <= number < 1 << 63 else None,
            queue if isinstance(queue, str) else None,
        )
    except OverflowError:  # a year beyond 9999
        return None


def items_of(value: object) -> list[Any]:
    """Return a list's items; none if a sender wrote something else, because no message may stop a consumer."""
    return list(value) if isinstance(value, (list, tuple)) else []


#: An exchange of Celery's native delayed delivery, and a key with the 28 bits of a delay (kombu,
#: native_delayed_delivery.py).
_NATIVE = re.compile(r"(?:.*_)?celery_delayed_[0-9]+", re.ASCII | re.DOTALL).fullmatch
_NATIVE_KEY = re.compile(r"(?:[01][.]){28}").match

_NOT_UNWRAPPED = {HEADER, "CC", X_DELIVERY_TIME, *DEATHS}


def unwrap(delivery: Delivery, state: State | None = None) -> Delivery:
    """Return what a consumer would receive if the message had been sent without a delay.

    If a queue of the user dead-lettered the message later, the headers of that dead-lettering stay. `state` is the
    result of `read_state`, if known.
    """
    exchange, routing_key, headers = delivery
    state = state or read_state(headers)
    if state is None:
        return delivery
    unwrapped = {name: value for name, value in headers.items() if name not in _NOT_UNWRAPPED}
    unwrapped |= _later_deaths(headers, f"{state.root}.")
    # That of its levels or of its outbox. The outbox of a queue hands on with the message's own key.
    has_ours = routing_key != state.routing_key and is_reserved(routing_key)
    if state.queue is not None and not exchange and (has_ours or routing_key == state.queue):
        return Delivery(state.exchange, state.routing_key, unwrapped)
    return Delivery(exchange, state.routing_key if has_ours else routing_key, unwrapped)


def without_native_delay(delivery: Delivery, queue: str | None) -> Delivery:
    """Return a delivery from a queue as if it had come through the default exchange, if it came natively delayed.

    A retry goes where its task came from: without this, once more through the queues of native delayed delivery, or if
    it waits with us, to an exchange that may be gone by then.
    """
    if not queue or not _NATIVE(delivery.exchange) or not _NATIVE_KEY(delivery.routing_key):
        return delivery
    return delivery._replace(exchange="", routing_key=queue)


def resent(headers: Headers, state: State) -> Delivery:
    """Return what to publish so that a message in the cascade goes to its destination again, without our headers."""
    unwrapped = unwrap(Delivery(state.exchange, state.routing_key, dict(headers)), state)
    return Delivery(*state.destination, unwrapped.headers)


def _later_deaths(headers: Headers, ours: str) -> Headers:
    """Return the x-death headers without those of the cascade's queues, whose names begin with `ours`."""
    deaths = [
        {**death, "routing-keys": [key for key in items_of(death.get("routing-keys")) if not is_reserved(str(key))]}
        for death in items_of(headers.get("x-death"))
        if isinstance(death, Mapping) and not str(death.get("queue")).startswith(ours)
    ]
    if not deaths:
        return {}
    history: dict[str, object] = {"x-death": deaths}  # the most recent first
    for which, death in (("first", deaths[-1]), ("last", deaths[0])):
        if f"x-{which}-death-queue" in headers:
            history |= {f"x-{which}-death-{part}": death.get(part) for part in ("exchange", "queue", "reason")}
    return history
