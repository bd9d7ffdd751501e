"""Restores a message that comes out of the cascade. Pure: dicts in, dicts out.

Whoever makes up a message chooses what is in its headers, so nothing in them may stop a consumer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .headers import DEATHS, HEADER, X_DELIVERY_TIME, Delivery, Headers, State, items_of, read_state
from .routing_key import is_reserved

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
