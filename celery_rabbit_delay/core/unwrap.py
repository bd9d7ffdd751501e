"""Restores a message that comes out of the cascade. Pure: dicts in, dicts out.

Whoever makes up a message chooses what is in its headers, so nothing in them may stop a consumer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from .destination import SHORT_LIVED, encode, read
from .headers import (
    DEATHS,
    HEADER,
    X_DELAY_OF,
    X_DELAY_SENT,
    X_DELIVERY_TIME,
    Delivery,
    Headers,
    State,
    items_of,
    read_state,
)
from .routing_key import SENTINEL, is_reserved

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
    ours = f"{state.root}."
    from_exit = exchange.startswith(ours)
    # No exit of the cascade has another binding for keys that begin so.
    has_delay_key = routing_key.startswith(SENTINEL) if from_exit else is_reserved(routing_key)
    expected = state.exchange if state.routing_key is None else ""  # it comes back through the default exchange
    keys, plausible = _keys_of_sender(expected, tuple(key for key in items_of(headers.get("CC")) if type(key) is str))
    if (from_exit or has_delay_key) and not plausible:
        return delivery
    original, *cc = keys or [routing_key]
    if state.routing_key is not None:
        original, cc = state.routing_key, [key for key in state.cc if not is_reserved(str(key))]
    unwrapped = {name: value for name, value in headers.items() if name not in _NOT_UNWRAPPED}
    if cc:
        unwrapped["CC"] = cc
    if "task" not in headers:  # only tasks are retried
        unwrapped.pop(X_DELAY_SENT, None)
    unwrapped |= _x_death_history(headers, state, ours)
    if "id" in headers and X_DELAY_SENT in headers:
        unwrapped[X_DELAY_OF] = {"id": headers["id"]}
    return Delivery(state.exchange if from_exit else exchange, original if has_delay_key else routing_key, unwrapped)


def without_native_delay(delivery: Delivery, queue: str | None) -> Delivery:
    """Return a delivery from a queue as if it had come through the default exchange, if it came natively delayed.

    A retry goes where its task came from: without this, once more through the queues of native delayed delivery, or if
    it waits with us, to an exchange that may be gone by then.
    """
    if not queue or not _NATIVE(delivery.exchange) or not _NATIVE_KEY(delivery.routing_key):
        return delivery
    return delivery._replace(exchange="", routing_key=queue)


def resent(delivery: Delivery) -> Delivery:
    """Return what to publish so that a message in the cascade goes to its destination again, without our headers."""
    unwrapped = unwrap(delivery)
    if X_DELAY_SENT in delivery.headers:
        unwrapped.headers[X_DELAY_SENT] = delivery.headers[X_DELAY_SENT]
    state = read_state(delivery.headers)
    if state is None or state.routing_key is None:
        return unwrapped
    queue, *_ = items_of(delivery.headers.get("CC")) or [state.routing_key]
    return Delivery("", str(queue), {name: value for name, value in unwrapped.headers.items() if name != "CC"})


@lru_cache(maxsize=256)  # few destinations get most messages
def _keys_of_sender(exchange: str, cc: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
    """Return the sender's own routing keys in a CC header, and whether its addresses lead to these and an exchange.

    Otherwise the message is forged, and a retry would go to a destination of the forger's choice.
    """
    keys = tuple(key for key in cc if not is_reserved(key))
    addresses = [key for key in cc if is_reserved(key) and key != SHORT_LIVED]
    return keys, bool(keys and addresses) and all(_leads_to(address, exchange, keys) for address in addresses)


def _leads_to(address: str, exchange: str, keys: tuple[str, ...]) -> bool:
    found = read(address)
    if found is None:
        return False
    if found.names is None:  # a hash
        of_queues, of_exchange, of_key = (exchange, *keys), (exchange, ""), (exchange, keys[0])
        return address in [encode(*names, mark=found.mark) for names in (of_queues, of_exchange, of_key)]
    if exchange:
        return found.names[0] == exchange
    return found.names[0] == "" and set(keys) <= set(found.names[1:])  # BCC keys are gone by now


def _x_death_history(headers: Headers, state: State, ours: str) -> Headers:
    """Return the x-death headers from before and after the delay, without those of the cascade's queues.

    `ours` is the prefix of the names of the cascade's queues and exchanges.
    """
    later = [
        {
            **death,
            "exchange": state.exchange if str(death.get("exchange")).startswith(ours) else death.get("exchange"),
            "routing-keys": [key for key in items_of(death.get("routing-keys")) if not is_reserved(str(key))],
        }
        for death in _tables(headers.get("x-death"))
        if not str(death.get("queue")).startswith(ours)
    ]
    if not later:
        return state.deaths
    history = dict(state.deaths)
    deaths = history["x-death"] = [*later, *_tables(state.deaths.get("x-death"))]  # the most recent first
    for which, death in (("first", deaths[-1]), ("last", deaths[0])):
        if f"x-{which}-death-queue" in headers:
            history |= {f"x-{which}-death-{part}": death.get(part) for part in ("exchange", "queue", "reason")}
    return history


def _tables(value: object) -> list[Mapping[str, object]]:
    return [item for item in items_of(value) if isinstance(item, Mapping)]
