"""The headers of a message in the cascade. Pure: dicts in, dicts out.

The original routing key and addresses of the destination travel in the CC header (sender-selected distribution,
https://www.rabbitmq.com/docs/sender-selected), which RabbitMQ carries through every dead-lettering as long as no
`x-dead-letter-routing-key` is set. The other values that `unwrap` needs travel in the header `HEADER`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, NamedTuple

from .destination import check_key
from .due import aware, microseconds_until, parse_eta, parse_x_delay
from .errors import InvalidDestination
from .routing_key import SENTINEL, is_reserved
from .sent import Sent

#: The package's header: {"prefix": str, "exchange": str, "due": int}, and optionally "deaths": dict, "n": int,
#: "routing_key": str, "CC": list (see `State`).
HEADER = "x-celery-rabbit-delay"

X_DELAY = "x-delay"

#: In a delivered task with the header below, the task that it belongs to: its "id". A task may pass its headers on.
X_DELAY_OF = "x-delay-of"

#: When a message was sent: a cancellation counts for what was sent before it. Retries and moved copies keep it.
X_DELAY_SENT = "x-delay-sent"

#: When RabbitMQ lets a message out of a quorum queue, in milliseconds since 1970 by the clock of the queue's leader.
#: Any other type than a whole number has no effect. It stays on the message.
X_DELIVERY_TIME = "x-opt-delivery-time"

Headers = Mapping[str, Any]

#: What RabbitMQ adds at a dead-lettering.
DEATHS = {
    "x-death",
    *(f"x-{which}-death-{what}" for which in ("first", "last") for what in ("exchange", "queue", "reason")),
}
_NOT_WRAPPED = {X_DELAY, X_DELIVERY_TIME, *DEATHS}
_MICROSECOND, _MILLISECOND = timedelta(microseconds=1), timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class State(NamedTuple):
    """The contents of the package's header in a message of the cascade."""

    root: str  # of its cascade
    exchange: str  # that the message was sent to
    due: datetime  # in UTC
    deaths: Headers  # x-death headers from before it was sent
    routing_key: str | None = None  # that it was sent with, if it returns to one queue
    cc: Sequence[str] = ()  # the same
    number: int | None = None  # identifies a copy of the message, if it is in the journal


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


def with_time_sent(headers: Headers, sent: Sent) -> Headers:
    """Return the headers of a message that is sent for the first time then: they say so."""
    if headers.get("retries") or X_DELAY_SENT in headers:
        return headers
    return {**headers, X_DELAY_SENT: str(sent)}


def own(headers: Headers) -> Headers:
    """Return the headers of a message to publish, without those of this package that belong to another message."""
    if X_DELAY_OF not in headers:
        return headers
    of = headers.get(X_DELAY_OF)
    if isinstance(of, Mapping) and of.get("id") == headers.get("id"):
        return headers
    return {name: value for name, value in headers.items() if name not in (X_DELAY_OF, X_DELAY_SENT)}


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

    Headers from an earlier dead-lettering travel inside the package's header: RabbitMQ before 4.0.1 would take them for
    the message's own history, and drop the message as a dead-letter cycle
    (https://www.rabbitmq.com/docs/dlx#automatic-dead-lettering-cycles).
    """
    wrapped = dict(headers)
    deaths = {}
    for name in _NOT_WRAPPED.intersection(headers):
        value = wrapped.pop(name)
        if name in DEATHS:
            deaths[name] = value
    keys = wrapped["CC"] = [routing_key, *cc_keys(headers, "CC")]
    check_key(exchange, "exchange")
    for key in (*keys, *cc_keys(headers, "BCC")):
        _check_own_key(key)
    ours = wrapped[HEADER] = {"prefix": root, "exchange": exchange, "due": milliseconds_due(due)}
    if number is not None:
        ours["n"] = number
    if deaths:
        ours["deaths"] = deaths
    return wrapped


@lru_cache(maxsize=1024)
def _check_own_key(key: str) -> None:
    check_key(key)
    if is_reserved(key):
        raise InvalidDestination(
            f"the routing key {key!r} begins with the word {SENTINEL!r}, which delayed messages use themselves: "
            "choose another routing key, or send it without a delay"
        )


def wrap_for_return(
    delivery: Delivery, root: str, queue: str, due: datetime, number: int | None = None
) -> dict[str, Any]:
    """Return the headers with which a delivered message returns to its queue in the same form.

    No other queue gets a copy: the original exchange and keys travel only in the package's header. Raises
    `InvalidDestination`.
    """
    wrapped = wrap(
        {name: value for name, value in delivery.headers.items() if name not in ("CC", "BCC")},
        root,
        delivery.exchange,
        queue,
        due,
        number,
    )
    wrapped[HEADER]["routing_key"] = delivery.routing_key
    if cc := cc_keys(delivery.headers, "CC"):
        wrapped[HEADER]["CC"] = list(cc)
    return wrapped


def microseconds(moment: datetime) -> int:
    """Return the microseconds from 1970 to an aware datetime."""
    return (moment - _EPOCH) // _MICROSECOND


def milliseconds(moment: datetime) -> int:
    """Return the milliseconds from 1970 to an aware datetime."""
    return (moment - _EPOCH) // _MILLISECOND


def milliseconds_due(moment: datetime) -> int:
    """Return the same rounded up, for a due time: who sends the message again by it must not send it early."""
    return -((_EPOCH - moment) // _MILLISECOND)


def moment(milliseconds: int) -> datetime:
    """Return the datetime, in UTC, of milliseconds since 1970. Raises `OverflowError` beyond the year 9999."""
    return _EPOCH + milliseconds * _MILLISECOND


def addressed(wrapped: Headers, addresses: Iterable[str]) -> dict[str, Any]:
    """Return the headers of a wrapped message with the addresses of its destination."""
    return {**wrapped, "CC": [*wrapped["CC"], *addresses]}


def cc_keys(headers: Headers, name: str) -> Sequence[str]:
    """Return the routing keys in a sender's own CC or BCC header. Raises `InvalidDestination` where RabbitMQ would."""
    value = headers.get(name)
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(key, str) for key in value):
        raise InvalidDestination(f"the header {name}={value!r} must be a list of routing keys")
    return value


def original_key(headers: Headers) -> str:
    """Return the routing key that a message in the cascade was sent with, or the name of the queue that it returns to.

    Raises `LookupError` without one, and `TypeError` if a sender wrote something else than a list.
    """
    return str(headers["CC"][0])


def read_state(headers: Headers) -> State | None:
    """Return the contents of the package's header; None if there is none, or if it is malformed."""
    ours = headers.get(HEADER)
    if not isinstance(ours, Mapping):
        return None
    get = ours.get
    root, exchange, due, deaths, number = get("prefix"), get("exchange"), get("due"), get("deaths"), get("n")
    if not isinstance(root, str) or not isinstance(exchange, str) or not isinstance(due, int) or due < 0:
        return None
    routing_key = get("routing_key")
    try:
        return State(
            root,
            exchange,
            moment(due),
            deaths if isinstance(deaths, Mapping) else {},
            routing_key if isinstance(routing_key, str) else None,
            tuple(items_of(get("CC"))),
            number if isinstance(number, int) and 0 <= number < 1 << 63 else None,
        )
    except OverflowError:  # a year beyond 9999
        return None


def items_of(value: object) -> list[Any]:
    """Return a list's items; none if a sender wrote something else, because no message may stop a consumer."""
    return list(value) if isinstance(value, (list, tuple)) else []
