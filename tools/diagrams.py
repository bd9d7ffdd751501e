"""Draws diagrams from the topology data into the marked places of the documentation: `make diagrams`.

A place is `<!-- diagram: NAME -->` followed by a mermaid block, which is replaced. A test checks that they are current.
"""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from pathlib import Path

from celery_rabbit_delay import routing_key
from celery_rabbit_delay.routing_key import Destination
from celery_rabbit_delay.topology import Binding, Cascade

DOCS = Path(__file__).parents[1] / "docs"

#: Small enough to look at, with ticks of an eighth of a second as by default.
CASCADE = Cascade("p", timedelta(milliseconds=125), levels=4)
QUEUE = Destination("", ("celery",))


def node(name: str, kind: str) -> str:
    """A mermaid node: round for an exchange, a cylinder for a queue."""
    identity = re.sub(r"\W", "_", f"{kind} {name}")
    return f'{identity}[("{name}")]' if kind == "queue" else f'{identity}(["{name}"])'


def edge(binding: Binding, style: str = "-->") -> str:
    label = f'|"{binding.routing_key}"|' if binding.routing_key else ""
    return f"    {node(binding.source, 'exchange')} {style}{label} {node(binding.target, binding.kind)}"


def dead_letters(cascade: Cascade) -> list[str]:
    """From each level's queue to the exchange that it dead-letters into, labelled with how long it holds a message."""
    return [
        f'    {node(queue.name, "queue")} -. "{int(queue.arguments["x-message-ttl"]) / 1000:g} s" .-> '
        f"{node(str(queue.arguments['x-dead-letter-exchange']), 'exchange')}"
        for queue in cascade.queues()
        if "x-dead-letter-exchange" in queue.arguments
    ]


def topology() -> str:
    """All exchanges, queues and bindings of a cascade of four levels, and one destination."""
    bindings = [*CASCADE.bindings(), *CASCADE.destination_bindings(QUEUE)]
    lines = ["flowchart LR", *map(edge, bindings), *dead_letters(CASCADE)]
    lines.append(f"    {node(CASCADE.done, 'exchange')} -. no binding .-> {node(CASCADE.orphans, 'exchange')}")
    return "\n".join(lines)


def journey(ticks: int = 10) -> str:
    """What one message passes through."""
    key = routing_key.encode(ticks, QUEUE)
    levels = [level for level in reversed(range(CASCADE.levels)) if ticks >> level & 1]
    lines = [
        "sequenceDiagram",
        "    participant P as publisher",
        f"    participant I as {CASCADE.ingest}",
        *(f"    participant L{level} as {CASCADE.delay(level)}" for level in levels),
        f"    participant D as {CASCADE.done}",
        "    participant Q as celery",
        f"    P->>I: {key}<br/>CC: celery",
    ]
    here = "I"
    for level in levels:
        pattern = next(
            b.routing_key
            for b in CASCADE.bindings()
            if b.target == CASCADE.delay(level) and (b.source == CASCADE.ingest) == (here == "I") and _matches(b, key)
        )
        lines += [f"    {here}->>L{level}: {pattern}", f"    Note over L{level}: {CASCADE.ttl(level) / 1000:g} s"]
        here = f"L{level}"
    lines.append(f"    {here}->>D: {routing_key.last_pattern(levels[-1])}")
    lines.append(f"    D->>Q: {routing_key.destination_pattern(QUEUE)}")
    return "\n".join(lines).replace("#", "#35;")  # a comment, else


def _matches(binding: Binding, key: str) -> bool:
    pattern = re.escape(binding.routing_key).replace(r"\*", r"[^.]+").replace(r"\#", ".*")
    return re.fullmatch(pattern, key) is not None


DIAGRAMS = {"topology": topology, "journey": journey}


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
