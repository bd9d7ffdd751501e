"""Compares a broker with a topology. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import kombu
from amqp.exceptions import AccessRefused, PreconditionFailed

from ..amqp import declare
from ..core.destination import Destination
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

    Bindings of the cascades in `known`, which other processes may have declared, do not count as unexpected. With
    `on_demand`, one binding to a stream is enough: publishers create others when they need them.

    Only the management API shows bindings, and policies that change queues.

    Over AMQP, this detects different arguments by declaring a part again: RabbitMQ refuses other arguments, and does
    nothing for equal ones (https://www.rabbitmq.com/docs/queues#property-equivalence).
    """
    wanted, streams = list(wanted), list(streams)
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
    # Bindings of `done` and the exits lead to destinations; an unknown binding of another exchange multiplies messages.
    inner = topology.exchanges.keys() - {name for cascade in wanted for name in (cascade.done, *cascade.exits)}
    for binding in sorted(existing - topology.bindings.keys() - Topology.of(known).bindings.keys()):
        if binding.source in inner and (binding.destination, binding.routing_key) not in to_streams:
            yield Finding("binding", _name(binding), "unexpected", "messages may arrive twice: remove it")
    rows = management.queues()
    for name in topology.queues:
        row = rows.get(name, {})
        who = row.get("policy") or row.get("operator_policy")
        for limit in sorted(_LIMITS.intersection(row.get("effective_policy_definition") or {})):
            detail = f"{who!r} sets {limit}: give the level queues a policy of higher priority that does not set it"
            yield Finding("policy", name, "unexpected", detail)


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
