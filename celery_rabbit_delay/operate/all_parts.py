"""All parts of some cascades, with their destinations and streams, as data to verify, draw or export. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..delay.core.destination import Destination
from ..delay.core.topology import Binding, Cascade, Exchange, Queue, Stream


class Topology(NamedTuple):
    """All parts of some cascades and of their routes to some destinations, each once, by name."""

    exchanges: dict[str, Exchange]
    queues: dict[str, Queue]
    bindings: dict[Binding, None]

    @classmethod
    def of(
        cls,
        cascades: Iterable[Cascade],
        destinations: Iterable[Destination] = (),
        streams: Iterable[Stream] = (),
        outboxes: Iterable[int] = (),
    ) -> Topology:
        """Return the parts of some cascades, with outboxes of so many ticks besides those without a delay."""
        topology = cls({}, {}, {})
        destinations, streams, outboxes = list(destinations), list(streams), list(outboxes)
        for cascade in cascades:
            topology.exchanges.update((exchange.name, exchange) for exchange in cascade.exchanges())
            topology.queues.update((queue.name, queue) for queue in cascade.queues())
            topology.bindings.update(dict.fromkeys(cascade.bindings()))
            for destination in destinations:
                for ticks in (0, *outboxes) if not destination.is_short_lived else ():
                    outbox = cascade.outbox(destination, ticks)
                    topology.queues[outbox.name] = outbox
                    topology.bindings.update(dict.fromkeys(cascade.outbox_bindings(destination, ticks)))
            if streams:
                mark, binding = cascade.streams_mark
                topology.exchanges[mark.name], topology.bindings[binding] = mark, None
            for stream in streams:
                topology.queues[stream.name] = stream.queue
                topology.bindings[cascade.stream_binding(stream)] = None
        return topology
