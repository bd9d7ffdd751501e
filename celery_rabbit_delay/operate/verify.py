"""Compares the broker with the expected cascade, and sends test messages through it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any, Literal, NamedTuple

import kombu
from amqp import Message
from amqp.exceptions import AccessRefused, PreconditionFailed

from ..delay.amqp import declare, delivery_time
from ..delay.amqp.confirms import ConfirmedChannel
from ..delay.core.destination import Destination
from ..delay.core.levels import Level, Route
from ..delay.core.options import Options
from ..delay.core.routing_key import SENTINEL
from ..delay.core.topology import Binding, Cascade, Exchange, Queue, Stream
from .addresses import outbox_of
from .all_parts import Topology
from .cascades import cascades, existing_outboxes, with_longer_levels
from .management import Snapshot

#: Policy keys that also affect queues with such arguments: the lower value applies, so that messages leave early, are
#: deleted with their queue, or are refused by a full one (https://www.rabbitmq.com/docs/parameters#policies).
_LIMITS = {"message-ttl", "expires", "max-length", "max-length-bytes", "max-age"}

Kind = Literal["exchange", "queue", "binding", "policy"]
State = Literal["present", "missing", "different", "unexpected", "unknown"]


class Finding(NamedTuple):
    """The state of a part of a topology on the broker. `detail` explains other states than present and missing."""

    kind: Kind
    name: str
    state: State
    detail: str = ""


def compare(
    connection: kombu.Connection, destinations: Iterable[Destination], snapshot: Snapshot | None = None
) -> list[Finding]:
    """Return the state of each part of the cascades that the options ask for, and of the known outboxes that exist.

    Parts that publishers and workers create on demand, or do without, are not reported as missing. Only a snapshot of
    the management API shows bindings, and policies that change queues. Changes nothing.
    """
    options: Options = connection.transport.delay_options
    is_passive, wanted, beside = options.declare == "passive", cascades(connection), _existing_streams(connection)
    needed = connection.connection.interceptor.streams(wanted=True)
    streams = dict.fromkeys([*beside, *needed] if is_passive else beside)
    topology = _expected(connection, wanted, list(destinations), streams, snapshot)
    found = list(_parts(connection.default_channel, topology))
    if snapshot:
        # One binding is enough for a stream in which this app records nothing: that of another cascade.
        led = {(binding.destination, binding.routing_key) for binding in snapshot.bindings}
        others = {(stream.name, stream.routing_key) for stream in beside if stream not in needed}
        optional = others & led | {(options.cascade.root, "")}
        found += _bindings(topology, snapshot.bindings, set() if is_passive else optional)
        # Other processes may have declared longer levels: these have no unexpected bindings, but may lack some.
        # What a try has left of another one is harmless.
        known = [options.by_time_cascade, *wanted, *(with_longer_levels(connection, cascade) for cascade in wanted)]
        for binding in unexpected(snapshot.bindings - topology.bindings.keys(), known):
            found.append(Finding("binding", _name(binding), "unexpected", "messages may arrive twice: remove it"))
        found += _policies(options, snapshot)
    return found


def _existing_streams(connection: kombu.Connection) -> list[Stream]:
    channel, every = connection.default_channel, connection.connection.interceptor.streams()
    return [stream for stream in every if declare.message_count(channel, stream.name) is not None]


def _expected(
    connection: kombu.Connection,
    wanted: list[Cascade],
    destinations: list[Destination],
    beside: Iterable[Stream],
    snapshot: Snapshot | None,
) -> Topology:
    """Return what should stand on the broker, with the outboxes that exist."""
    # A publisher creates the outboxes of a destination on demand, unless it is passive.
    options: Options = connection.transport.delay_options
    needed = destinations if options.declare == "passive" else ()
    topology = Topology.of(wanted, needed, beside, options.combined_in(wanted[0]))
    for outbox in existing_outboxes(connection, destinations, snapshot):
        topology.queues[outbox.queue] = wanted[0].outbox(outbox.destination, outbox.ticks)
        topology.bindings.update(dict.fromkeys(wanted[-1].outbox_bindings(outbox.destination, outbox.ticks)))
    return topology


def _parts(channel: Any, topology: Topology) -> Iterator[Finding]:
    """Yield the state of each exchange and queue.

    This detects different arguments by declaring a part again: RabbitMQ refuses other arguments, and does nothing for
    equal ones (https://www.rabbitmq.com/docs/queues#property-equivalence).
    """
    for exchange in topology.exchanges.values():
        state = _part(channel, exchange, declare.exchange_exists, declare.declare_exchange)
        yield Finding("exchange", exchange.name, *state)
    for queue in topology.queues.values():
        yield Finding("queue", queue.name, *_part(channel, queue, declare.queue_exists, declare.declare_queue))


def _part(
    channel: Any, part: Exchange | Queue, exists: Callable[..., bool], declare_again: Callable[..., None]
) -> tuple[State, str]:
    """Return the state of a part, and a detail."""
    try:
        if not exists(channel, part.name):
            return "missing", ""
        declare_again(channel, part)
    except PreconditionFailed as exc:
        return "different", exc.reply_text
    except AccessRefused as exc:
        return "unknown", exc.reply_text
    return "present", ""


def _bindings(topology: Topology, existing: set[Binding], optional: set[tuple[str, str]]) -> Iterator[Finding]:
    """Yield the state of each binding, but for missing ones to an `optional` destination with a key."""
    for binding in topology.bindings:
        if binding in existing:
            yield Finding("binding", _name(binding), "present")
        elif (binding.destination, binding.routing_key) not in optional:
            yield Finding("binding", _name(binding), "missing")


def _name(binding: Binding) -> str:
    return f"{binding.source} -> {binding.destination} ({binding.routing_key})"


def _policies(options: Options, snapshot: Snapshot) -> Iterator[Finding]:
    ours = f"{options.prefix}."  # also the queues of a beat
    for name, row in sorted(snapshot.queues.items()):
        who = row.get("policy") or row.get("operator_policy")
        for limit in sorted(_LIMITS.intersection(row.get("effective_policy_definition") or {})):
            if name.startswith(ours):
                detail = f"{who!r} sets {limit}: give the cascade a policy of higher priority that does not set it"
                yield Finding("policy", name, "unexpected", detail)


def unexpected(bindings: Iterable[Binding], cascades: Iterable[Cascade]) -> list[Binding]:
    """Return the bindings of exchanges of some cascades that the package does not create.

    A user who may bind his queue may have created them, to get copies of the messages of others, or to hold these up.
    """
    cascades = list(cascades)
    topology = Topology.of(cascades)
    leading = {name: cascade for cascade in cascades for name in (cascade.outbox_ingest, cascade.done)}
    return [
        binding
        for binding in sorted(set(bindings) - topology.bindings.keys())
        if binding.source in topology.exchanges
        and not (binding.source in leading and _leads_to_its_address(binding, leading[binding.source]))
        and binding.destination not in {_stream(cascade, binding.routing_key) for cascade in cascades}
    ]


def _stream(cascade: Cascade, routing_key: str) -> str:
    """Return the name of the stream that a routing key leads to: who looks may not know that others have a schedule."""
    return f"{cascade.streams_root}.{routing_key.removeprefix(f'{SENTINEL}.')}"


def _leads_to_its_address(binding: Binding, cascade: Cascade) -> bool:
    """Return whether a binding leads to the outbox that its routing key is the address of."""
    found = outbox_of(cascade, binding.destination)
    if found is None:
        return False
    return binding in replace(cascade, by_time=True).outbox_bindings(found.destination, found.ticks)


def can_try_out(findings: Iterable[Finding]) -> bool:
    """Return whether test messages can be sent: only bindings may be wrong, which the messages test."""
    return all(finding.kind == "binding" for finding in findings if finding.state != "present")


def try_out(connection: kombu.Connection) -> Iterator[str]:
    """Send test messages through the short levels and read the streams; yield problems. Raises as `probe`."""
    for cascade in cascades(connection):
        yield from probe(connection, cascade)
    yield from connection.connection.interceptor.problems()


def probe(connection: kombu.Connection, cascade: Cascade, seconds: float = 2, patience: float = 15) -> Iterator[str]:
    """Send messages through every level of at most `seconds`, and from each of these to each that may follow.

    In a cascade `by_time`, ask whether RabbitMQ holds messages. Yields problems. The messages come back to a queue that
    exists only for this connection; they may be `patience` seconds late. Raises `NotPermitted`, `CascadeMissing`, and
    `TimeoutError` if the broker does not confirm a message.
    """
    channel = connection.channel()
    queue = channel.queue_declare(f"{cascade.prefix}.probe.{uuid.uuid4()}", exclusive=True, auto_delete=True).queue
    destination = Destination("", queue)
    confirmed = ConfirmedChannel(connection.connection)
    timeout = connection.transport.delay_options.confirm_timeout
    levels = [level for level in cascade.levels if level.ttl <= seconds * 1000]
    routes: list[tuple[Level, ...]] = [(level,) for level in levels]
    routes += [(second, first) for first, second in combinations(levels, 2)]
    if cascade.by_time and delivery_time.ask(confirmed, cascade, is_proved=False).ahead is None:
        yield "RabbitMQ does not hold messages, or its clock is too far from that of this host: they pass levels"
    arrived: dict[int, float] = {}
    channel.basic_consume(
        queue, no_ack=True, callback=lambda message: arrived.setdefault(int(message.body), time.monotonic())
    )
    sent: dict[int, float] = {}
    for number, route in enumerate(routes):
        exchange, (key, *_) = cascade.entry(Route(route, 0), destination)
        message = Message(str(number), application_headers={"CC": [queue, destination.address()]})
        sent[number] = time.monotonic()
        with declare.translate_errors(cascade), connection.connection.within(timeout):
            returned = confirmed.publish(message, exchange, key)
        if returned is not None:
            yield f"{exchange} accepts no message for {_named(route)}"
            del sent[number]
    connection.connection.wait_until(lambda: not arrived.keys() < sent.keys(), 2 * seconds + patience)
    for number, at in sent.items():
        due = at + sum(level.ttl for level in routes[number]) / 1000
        if number not in arrived:
            yield f"a message through {_named(routes[number])} has not come back"
        elif arrived[number] < due:
            yield f"a message through {_named(routes[number])} came {due - arrived[number]:.3f} s early"
    confirmed.reset()
    channel.close()


def _named(route: Iterable[Level]) -> str:
    return " and ".join(level.queue for level in route)
