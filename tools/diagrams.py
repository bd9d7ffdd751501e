"""Draws the bars in docs/diagrams/cpu.svg from what was measured: `make diagrams`. Other diagrams are text."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "diagrams" / "cpu.svg"

#: Contenders, and how the picture's legend shows them.
KINDS = {"celery-rabbit-delay": "exchange", "native delayed delivery": "queue", "no delay": "other"}

ROWS = {
    "everyday_cpu_confirmed": "delays of 5, 10 or 15 s, confirmed one by one",
    "broker_cpu_confirmed": "delays of 1 to 15 s, confirmed one by one",
    "broker_cpu": "delays of 1 to 15 s in a burst, unconfirmed",
}


def bars() -> str:
    """Return the broker's CPU for a message, against that of native delayed delivery in the same run, as elements."""
    results = json.loads((ROOT / "evidence" / "benchmarks" / "results.json").read_text())
    lines, y = [], 16
    for row, how in ROWS.items():
        for release, found in results.items():
            figures = found["rows"][row]
            y += 34
            lines.append(f'<text class="name" x="20" y="{y}">RabbitMQ {release}, {how}</text>')
            for name, kind in KINDS.items():
                part = figures[name]["median"] / figures["native delayed delivery"]["median"]
                y += 17
                lines.append(f'<rect class="{kind}" x="20" y="{y - 10}" width="{480 * part:.1f}" height="12" rx="2"/>')
                lines.append(f'<text class="note" x="{28 + 480 * part:.1f}" y="{y}">{100 * part:.0f} %</text>')
    return "\n".join(lines)


def drawn(picture: str) -> str:
    return re.sub(r'(?<=<g id="bars">\n).*?(?=\n</g>)', bars(), picture, flags=re.DOTALL)


if __name__ == "__main__":
    PICTURE.write_text(drawn(PICTURE.read_text()))
