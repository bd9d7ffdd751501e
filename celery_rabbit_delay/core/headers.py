"""The headers of a message in the cascade. Pure: dicts in, dicts out.

The address of its outbox travels in the CC header (sender-selected distribution,
https://www.rabbitmq.com/docs/sender-selected), which RabbitMQ carries through every dead-lettering as long as no
`x-dead-letter-routing-key` is set. What `unwrap` needs travels in the header `HEADER`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from .due import aware, microseconds_until, parse_eta, parse_x_delay
from .errors import InvalidDestination

#: The package's header: {"prefix": str, "exchange": str, "routing_key": str, "due": int}, and optionally "n": int and
#: "queue": str (see `State`).
HEADER = "x-celery-rabbit-delay"

X_DELAY = "x-delay"

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


def is_delayed(headers: Headers | None) -> bool:
    """Return whether the headers ask for a delay: an eta of Celery's task protocol 2, or `x-delay`."""
    return headers is not None and bool((headers.get("eta") and "task" in headers) or headers.get(X_DELAY) is not None)


def delay_of(headers: Headers, now: datetime) -> int:
    """Return the delay that headers ask for, in microseconds, ≤ 0 if past. Raises `InvalidDelay`.

    With both an eta and an `x-delay`, the later one applies.
    """
    delays = []
    if headers.get("eta") and "task" in headers:
        delays.append(microseconds_until(aware(parse_eta(headers["eta"])), now))
    if headers.get(X_DELAY) is not None:
        delays.append(parse_x_delay(headers[X_DELAY]))
    return max(delays)


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
