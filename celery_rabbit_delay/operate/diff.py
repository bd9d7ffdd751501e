"""Compares a broker with a topology. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import kombu
from amqp.exceptions import AccessRefused, PreconditionFailed

from ..amqp import declare
from ..core.destination import Destination, decode
from ..core.routing_key import SENTINEL
from ..core.topology import Binding, Cascade, Exchange, Queue, Stream, Topology
from .management import Management

#: Policy keys that also affect queues with such arguments: the lower value applies, so that messages leave early, are
#: deleted with their queue, or are refused by a full one (https://www.rabbitmq.com/docs/parameters#policies).
_LIMITS = {"message-ttl", "expires", "max-length", "max-length-bytes"}

State = Literal["present", "missing", "different", "unexpected", "unknown"]


class Finding(NamedTuple):
    """The state of a part of a topology on the broker. `detail` explains other states than present and missing."""

    kind: Literal["exchange", "queue", "binding", "policy"]
    name: str
    state: State
    detail: str = ""
    on_demand: bool = False  # whether publishers and workers create a missing part when they need it


def diff(
    connection: kombu.Connection,
    wanted: Iterable[Cascade],
    destinations: Iterable[Destination] = (),
    management: Management | None = None,
    streams: Iterable[Stream] = (),
    known: Iterable[Cascade] = (),
    on_demand: bool = False,
) -> Iterator[Finding]:
    """Yield the state of each part of some cascades and of their streams on the broker.

    Cascades in `known`, which other processes may have declared, have no unexpected bindings either, but may lack some.
    With `on_demand`, one binding to a stream is enough: publishers create others when they need them.

    Only the management API shows bindings, and policies that change queues.

    Over AMQP, this detects different arguments by declaring a part again: RabbitMQ refuses other arguments, and does
    nothing for equal ones (https://www.rabbitmq.com/docs/queues#property-equivalence).
    """
    wanted, streams, known = list(wanted), list(streams), list(known)
    topology = Topology.of(wanted, destinations, streams)
    channel = connection.default_channel
    for exchange in topology.exchanges.values():
        yield _finding(channel, "exchange", exchange, declare.exchange_exists, declare.declare_exchange)
    for queue in topology.queues.values():
        yield _finding(channel, "queue", queue, declare.queue_exists, declare.declare_queue)
    if management is None:
        return
    existing = management.bindings()
    to_streams = {(stream.name, stream.routing_key) for stream in streams}
    led_to = {(binding.destination, binding.routing_key) for binding in topology.bindings.keys() & existing}
    for binding in topology.bindings:
        way = (binding.destination, binding.routing_key)
        if on_demand and way in to_streams and way in led_to and binding not in existing:
            continue
        yield Finding("binding", _name(binding), "present" if binding in existing else "missing")
    for binding in _unexpected(existing - topology.bindings.keys(), [*wanted, *known], to_streams):
        yield Finding("binding", _name(binding), "unexpected", "messages may arrive twice: remove it")
    rows = management.queues()
    for name in topology.queues:
        row = rows.get(name, {})
        who = row.get("policy") or row.get("operator_policy")
        for limit in sorted(_LIMITS.intersection(row.get("effective_policy_definition") or {})):
            detail = f"{who!r} sets {limit}: give the level queues a policy of higher priority that does not set it"
            yield Finding("policy", name, "unexpected", detail)


def _unexpected(
    bindings: Iterable[Binding], cascades: Iterable[Cascade], to_streams: Iterable[tuple[str, str]]
) -> Iterator[Binding]:
    """Yield the bindings of exchanges of some cascades that the package does not create.

    A user who may bind his queue may have created them, to get copies of the messages of others, or to hold these up.
    """
    cascades = list(cascades)
    topology = Topology.of(cascades)
    leading = {name: cascade for cascade in cascades for name in (cascade.done, *cascade.exits)}
    for binding in sorted(set(bindings) - topology.bindings.keys()):
        if binding.source in leading:
            expected = _leads_to_its_address(binding, leading[binding.source])
        else:
            expected = (binding.destination, binding.routing_key) in to_streams
        if binding.source in topology.exchanges and not expected:
            yield binding


def _leads_to_its_address(binding: Binding, cascade: Cascade) -> bool:
    """Return whether a binding of `done` or an exit leads to the destination that its routing key is the address of."""
    text = binding.routing_key.removeprefix(f"{SENTINEL}.")
    if text.startswith("!") and binding.source == cascade.done:  # a hash, which the name of the outbox repeats
        return binding == Binding(cascade.done, cascade.outbox_prefix + text, "queue", f"{SENTINEL}.{text}")
    if text.startswith(("!", "=!")):
        return True  # it does not show what it stands for
    exchange, *names = decode(binding.routing_key) or ("",)
    destinations = [Destination("", tuple(names), short_lived=text.startswith("="))]
    if exchange:
        destinations = [Destination(exchange, key="".join(names) or None), Destination(exchange, fanout=True)]
    return any(binding in cascade.destination_bindings(destination) for destination in destinations)


def _finding(
    channel: Any, kind: Any, part: Exchange | Queue, exists: Callable[..., bool], declare_again: Callable[..., None]
) -> Finding:
    try:
        if not exists(channel, part.name):
            return Finding(kind, part.name, "missing")
        declare_again(channel, part)
    except PreconditionFailed as exc:
        return Finding(kind, part.name, "different", exc.reply_text)
    except AccessRefused as exc:
        return Finding(kind, part.name, "unknown", exc.reply_text)
    return Finding(kind, part.name, "present")


def _name(binding: Binding) -> str:
    return f"{binding.source} -> {binding.destination} ({binding.routing_key})"
