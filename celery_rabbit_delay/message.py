"""The headers of a message on its way through the cascade. Pure: dicts in, dicts out.

The original routing key and the destination's address travel in the CC header (sender-selected distribution,
https://www.rabbitmq.com/docs/sender-selected), which RabbitMQ carries through every dead-lettering as long as no
`x-dead-letter-routing-key` is set. What else `restore` needs travels in a header of our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, NamedTuple

from .eta import microseconds_until, parse_eta, parse_x_delay
from .exceptions import InvalidDestination
from .routing_key import SENTINEL, Destination, address, is_reserved

#: {"prefix": of the levels, "exchange": it was sent to, "due": milliseconds since 1970 in UTC},
#: and "deaths": headers, if there are any
HEADER = "x-celery-rabbit-delay"

X_DELAY = "x-delay"

Headers = Mapping[str, Any]

_DEATHS = ("x-death", "x-first-death-", "x-last-death-")
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Delivery(NamedTuple):
    """What a consumer is told of a message besides its properties."""

    exchange: str
    routing_key: str
    headers: dict[str, Any]


def is_delayed(headers: Headers | None) -> bool:
    """Whether the headers ask for a delay: an eta of Celery's task protocol 2, or `x-delay`."""
    return headers is not None and bool((headers.get("eta") and "task" in headers) or headers.get(X_DELAY) is not None)


def delay_of(headers: Headers, now: datetime, naive_in: tzinfo) -> tuple[int, Headers]:
    """The delay that headers ask for, in microseconds, ≤ 0 if past, and the headers to publish with.

    An eta and an `x-delay` together mean the later of the two. A naive eta is meant in `naive_in` and made aware, for
    Celery's worker would read it as UTC. Raises `InvalidDelay`.
    """
    delays = []
    if headers.get("eta") and "task" in headers:
        eta = parse_eta(headers["eta"])
        due = eta if eta.tzinfo else eta.replace(tzinfo=naive_in)
        delays.append(microseconds_until(due, now))
        if due is not eta:
            headers = {**headers, "eta": due.isoformat()}
    if headers.get(X_DELAY) is not None:
        delays.append(parse_x_delay(headers[X_DELAY]))
    return max(delays), headers


def divert(headers: Headers, prefix: str, exchange: str, routing_key: str, due: datetime) -> dict[str, Any]:
    """The headers of a delayed message on its way, which `restore` undoes. Raises `InvalidDestination`.

    Headers left from an earlier dead-lettering travel in ours: RabbitMQ before 4.0.1 takes them for the message's own
    history, and drops what it believes to go round in circles (https://www.rabbitmq.com/docs/dlx#automatic-dead-lettering-cycles).
    """
    diverted, deaths = {}, {}
    for name, value in headers.items():
        if name.startswith(_DEATHS):
            deaths[name] = value
        elif name != X_DELAY:
            diverted[name] = value
    diverted["CC"] = [routing_key, *copies(headers, "CC")]
    for key in (*diverted["CC"], *copies(headers, "BCC")):
        if is_reserved(key):
            raise InvalidDestination(
                f"the routing key {key!r} begins with the word {SENTINEL!r}, which delayed messages use themselves: "
                "choose another routing key, or send it without a delay"
            )
    diverted[HEADER] = {"prefix": prefix, "exchange": exchange, "due": (due - _EPOCH) // _MILLISECOND}
    if deaths:
        diverted[HEADER]["deaths"] = deaths
    return diverted


def addressed(diverted: Headers, destination: Destination) -> dict[str, Any]:
    """The headers of a diverted message with what leads it from `done` to its destination."""
    return {**diverted, "CC": [*diverted["CC"], address(destination)]}


def copies(headers: Headers, name: str) -> Sequence[str]:
    """The routing keys in a sender's own CC or BCC header. Raises `InvalidDestination` where RabbitMQ would."""
    value = headers.get(name)
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(key, str) for key in value):
        raise InvalidDestination(f"the header {name}={value!r} must be a list of routing keys")
    return value


def restore(delivery: Delivery) -> Delivery:
    """What the consumer would have been told had the message been sent without a delay.

    Where a queue of the user dead-lettered it further, what that added stays.
    """
    exchange, routing_key, headers = delivery
    ours = headers.get(HEADER)
    if not isinstance(ours, Mapping):
        return delivery
    levels = f"{ours.get('prefix')}.delay."
    sent_to = str(ours.get("exchange", ""))
    original, *cc = _items(headers.get("CC")) or [routing_key]
    restored = {k: v for k, v in headers.items() if k not in (HEADER, "CC") and not k.startswith(_DEATHS)}
    if cc := [key for key in cc if not is_reserved(str(key))]:
        restored["CC"] = cc
    earlier = ours.get("deaths")
    earlier = earlier if isinstance(earlier, Mapping) else {}
    later = [
        {
            **death,
            "exchange": sent_to if str(death.get("exchange")).startswith(levels) else death.get("exchange"),
            "routing-keys": [key for key in _items(death.get("routing-keys")) if not is_reserved(str(key))],
        }
        for death in _tables(headers.get("x-death"))
        if not str(death.get("queue")).startswith(levels)
    ]
    restored |= earlier
    if later:
        deaths = restored["x-death"] = [*later, *_tables(earlier.get("x-death"))]  # the most recent first
        for which, death in (("first", deaths[-1]), ("last", deaths[0])):
            if f"x-{which}-death-queue" in headers:
                restored |= {f"x-{which}-death-{part}": death.get(part) for part in ("exchange", "queue", "reason")}
    return Delivery(
        sent_to if exchange.startswith(levels) else exchange,
        str(original) if is_reserved(routing_key) else routing_key,
        restored,
    )


def _items(value: object) -> list[Any]:
    """A list's items, none where a sender has put something else: no message may stop a consumer."""
    return list(value) if isinstance(value, (list, tuple)) else []


def _tables(value: object) -> list[Mapping[str, Any]]:
    return [item for item in _items(value) if isinstance(item, Mapping)]
