"""Draws diagrams from the topology data into the marked places of the documentation: `make diagrams`.

A place is `<!-- diagram: NAME -->` followed by a mermaid block, which is replaced. A test checks that they are current.
"""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from pathlib import Path

from celery_rabbit_delay.core import routing_key
from celery_rabbit_delay.core.destination import Destination
from celery_rabbit_delay.core.topology import Cascade, Topology
from celery_rabbit_delay.operate import export
from testkit.broker_model import topic_matches

DOCS = Path(__file__).parents[1] / "docs"

#: Small enough to look at, with ticks of an eighth of a second as by default.
CASCADE = Cascade("p", timedelta(milliseconds=125), powers=4)
WITH_LANES = Cascade("p", timedelta(milliseconds=125), powers=10, lanes=(120, 480))
QUEUE = Destination("", ("celery",))


def topology() -> str:
    """All exchanges, queues and bindings of a cascade of four levels, and one destination."""
    return export.mermaid(Topology.of([CASCADE], [QUEUE])).strip()


def journey(cascade: Cascade = CASCADE, ticks: int = 10) -> str:
    """What one message passes through, followed from binding to binding."""
    keys = routing_key.encode(cascade.route(ticks, 0)), QUEUE.outbox_address, QUEUE.address
    bindings = [*cascade.bindings(), *cascade.destination_bindings(QUEUE)]
    queues = {queue.name: queue for queue in [*cascade.queues(), cascade.outbox(QUEUE)]}
    names = ["publisher", cascade.ingest]
    lines = [f"    publisher->>{_alias(cascade.ingest)}: {keys[0]}<br/>CC: celery, {keys[1]}, {keys[2]}"]
    exchange = cascade.ingest
    while True:
        [binding] = [
            b for b in bindings if b.source == exchange and any(topic_matches(b.routing_key, key) for key in keys)
        ]
        here, there = names[-1], binding.destination
        bit = "first level" if exchange == cascade.ingest else "next level"
        outbox = cascade.outbox_name(QUEUE)
        whys = {"celery": "destination", outbox: "outbox of the destination", cascade.done: "no level left"}
        whys[cascade.lanes_done] = "no lane left"
        why = whys.get(there, bit)
        lines.append(f"    {_alias(here)}->>{_alias(there)}: {why}")
        names.append(there)
        if there not in queues and binding.destination_type == "queue":
            break
        if binding.destination_type == "queue":
            if there != outbox:
                lines.append(f"    Note over {_alias(there)}: {queues[there].seconds:g} s")
            exchange = str(queues[there].arguments["x-dead-letter-exchange"])
        else:
            exchange = there
    participants = [f"    participant {_alias(name)} as {name}" for name in names]
    return "\n".join(["sequenceDiagram", *participants, *lines])


def _alias(name: str) -> str:
    return re.sub(r"\W", "_", name)


def lanes() -> str:
    """The journey of 75.5 s, through the lanes of 60 s and 15 s and a power of two."""
    return journey(WITH_LANES, 604)


DIAGRAMS = {"topology": topology, "journey": journey, "lanes": lanes}


def drawn(text: str) -> str:
    """A document with its diagrams as the topology has them now."""
    return re.sub(
        r"(<!-- diagram: (\w+) -->\n```mermaid\n).*?^```$",
        lambda match: f"{match[1]}{DIAGRAMS[match[2]]()}\n```",
        text,
        flags=re.DOTALL | re.MULTILINE,
    )


def main() -> int:
    for path in DOCS.glob("*.md"):
        path.write_text(drawn(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
