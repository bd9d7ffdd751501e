"""Compares a broker with a topology. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import kombu
from amqp.exceptions import AccessRefused, PreconditionFailed

from ..amqp import declare
from ..core.destination import Destination, read
from ..core.parts import Binding, Exchange, Queue, Stream
from ..core.topology import Cascade, Topology
from .management import Management
from .outboxes import Outbox

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
    outboxes: Iterable[Outbox] = (),
) -> Iterator[Finding]:
    """Yield the state of each part of some cascades, of their streams and of some `outboxes` on the broker.

    Cascades in `known`, which other processes may have declared, have no unexpected bindings either, but may lack some.
    With `on_demand`, one binding to a stream is enough: publishers create others when they need them.

    Only the management API shows bindings, and policies that change queues.

    Over AMQP, this detects different arguments by declaring a part again: RabbitMQ refuses other arguments, and does
    nothing for equal ones (https://www.rabbitmq.com/docs/queues#property-equivalence).
    """
    wanted, streams, known = list(wanted), list(streams), list(known)
    topology = Topology.of(wanted, destinations, streams)
    for outbox in outboxes:
        topology.queues[outbox.queue] = outbox.as_declared(wanted[0])
        topology.bindings.update(dict.fromkeys(outbox.bindings(wanted[0])))
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
    leading = {name: cascade for cascade in cascades for name in (cascade.outbox_ingest, cascade.done, *cascade.exits)}
    for binding in sorted(set(bindings) - topology.bindings.keys()):
        if binding.source in leading:
            expected = _leads_to_its_address(binding, leading[binding.source])
        else:
            expected = (binding.destination, binding.routing_key) in to_streams
        if binding.source in topology.exchanges and not expected:
            yield binding


def _leads_to_its_address(binding: Binding, cascade: Cascade) -> bool:
    """Return whether a binding leads to the outbox or the destination that its routing key is the address of."""
    address = read(binding.routing_key)
    if address is None:
        return False
    ticks, rest = divmod(address.delay, cascade.milliseconds(1))
    if address.names is None:  # a hash
        if binding.source in cascade.exits:
            return address.mark == "="  # it does not show what it stands for
        of_delay = binding.source == cascade.done or ticks > 0
        return of_delay and not rest and cascade.outbox_address(binding.destination) == binding.routing_key
    exchange, *names = address.names
    destinations = [Destination("", tuple(names)), Destination("", tuple(names), short_lived=True)]
    if exchange:
        destinations = [Destination(exchange, key="".join(names) or None), Destination(exchange, fanout=True)]
    return any(
        binding in (*cascade.outbox_bindings(destination, ticks), *cascade.exit_bindings(destination))
        for destination in destinations
    )


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
