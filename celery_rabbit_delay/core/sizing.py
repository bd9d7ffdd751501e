"""What a load of delayed tasks takes on RabbitMQ, from what was measured (docs/sizing.md). Pure."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from .levels import Level
from .options import Options

#: Microseconds of CPU with which a node stores a message in a quorum queue and hands it on, at least and at most, if
#: messages come one by one: machines differ. It takes less where many come at once.
CPU_PER_HOP = 200, 1000

#: Bytes of memory and of disk that a waiting message takes on each node that stores it, its body apart.
MEMORY, DISK = 640, 550

#: Nodes that store the messages of a quorum queue (https://www.rabbitmq.com/docs/quorum-queues#replication).
MEMBERS = 3

#: RabbitMQ advises against longer queues (https://www.rabbitmq.com/docs/quorum-queues#use-cases).
LONG_QUEUE = 5_000_000

#: The number of delays that stand for all up to the longest.
_SAMPLE = 2000


class Load(NamedTuple):
    """Delayed tasks, and where they wait."""

    rate: float  # tasks a second
    delay: float  # seconds
    is_spread: bool = False  # whether the delays are spread evenly up to `delay`
    body: int = 1000  # bytes
    destinations: int = 1
    nodes: int = 3


class Size(NamedTuple):
    """What a load takes."""

    hops: float  # the mean of the queues that a task waits in before its own
    cascade: int  # queues
    outboxes: int  # queues of each destination
    cpus: tuple[float, float]  # of each node, at least and at most
    waiting: int
    longest: int  # messages in the longest queue
    memory: int  # bytes of each node
    disk: int  # bytes of each node


def size(load: Load, options: Options) -> Size:
    """Return what a load takes with some options."""
    longest = round(load.delay * 1_000_000)
    delays = [longest * number // _SAMPLE or 1 for number in range(1, _SAMPLE + 1)] if load.is_spread else [longest]
    outboxes = options.combined if load.is_spread else options.outbox_ticks
    cascade, *_ = options.ahead()
    routes = [options.route(cascade, options.ticks(delay), outboxes=outboxes) for delay in delays]
    hops = sum(len(route.levels) + 1 for route in routes) / len(routes)
    members = min(load.nodes, MEMBERS)
    least, most = (load.rate * hops * cpu / 1_000_000 * members / load.nodes for cpu in CPU_PER_HOP)
    waiting = round(load.rate * load.delay / (2 if load.is_spread else 1))
    stays = Counter[int | Level]()  # ticks in each outbox and level
    for route in routes:
        stays[route.outbox] += route.outbox // load.destinations
        stays.update({level: level.ticks for level in route.levels})
    return Size(
        hops,
        len(list(cascade.queues())),
        len({route.outbox for route in routes} | {0}),
        (least, most),
        waiting,
        waiting // load.destinations
        if cascade.by_time
        else round(load.rate * max(stays.values()) / len(routes) * options.tick),
        waiting * MEMORY * members // load.nodes,
        waiting * (load.body + DISK) * members // load.nodes,
    )
