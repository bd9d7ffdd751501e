"""Runs the measurements and writes `results.json`, of which README.md tells.

python -m evidence.benchmarks                       on RabbitMQ 3.10 and 4.3, an hour on two CPUs
python -m evidence.benchmarks --rabbitmq 4.3 --row warm --scale 0.1 --out /tmp/results.json
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from celery_rabbit_delay.delay.amqp import declare
from celery_rabbit_delay.delay.core.names import LAYOUT
from evidence import meter
from tests.kit.node import Node, find_server

from . import publishing, rows, schedule

RESULTS = Path(__file__).with_name("results.json")

ROWS = {**publishing.ROWS, **rows.ROWS, **schedule.ROWS}

#: The management plug-in makes the vhosts; counting messages for its pages would be measured as well.
CONF = "management_agent.disable_metrics_collector = true"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m evidence.benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--rabbitmq", nargs="+", default=["3.10", "4.3"], help="names for tools/get-rabbitmq")
    parser.add_argument("--row", nargs="+", choices=ROWS, metavar="ROW", help=f"any of {', '.join(ROWS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="how much of it: 0.01 is quick and means nothing")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each row; a few rows take more, by themselves")
    parser.add_argument("--out", type=Path, default=RESULTS, help="instead of the file that the docs tell of")
    arguments = parser.parse_args()
    declare.SAVED_AFTER = 0.0  # as after the first second of a connection
    for name in arguments.rabbitmq:
        with Node(find_server(name), ("rabbitmq_management",), CONF) as node:
            for row in arguments.row or ROWS:
                log(f"RabbitMQ {name}: {row}")
                started = time.monotonic()
                measured = ROWS[row](node, arguments.scale, arguments.repeats, log)
                about: dict[str, Any] = meter.about(node)
                about |= {"scale": arguments.scale, "repeats": arguments.repeats, "layout": LAYOUT}
                about |= {"seconds": round(time.monotonic() - started)}
                add(arguments.out, name, row, measured, about)


def add(path: Path, broker: str, row: str, measured: dict[str, Any], about: dict[str, Any]) -> None:
    """Write a row, and when and how it was measured, into a file of results, beside those that it has."""
    results = json.loads(path.read_text()) if path.exists() else {}
    found = results.setdefault(broker, {"rows": {}, "about": {}})
    found["rows"][row] = measured
    found["about"][row] = about
    text = json.dumps(results, indent=2)
    path.write_text(re.sub(r"{[^{}]*}", lambda figures: " ".join(figures[0].split()), text) + "\n")


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
