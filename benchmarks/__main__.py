"""Runs the measurements and writes `results.json` and `schedule.json`; `make bench` then draws the docs from them.

python -m benchmarks                       everything, on RabbitMQ 3.10 and 4.3
python -m benchmarks --rabbitmq 4.3 --row publish_rate --scale 0.1 --out /tmp/results.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from testkit.meter import about
from testkit.node import Node, find_server

from . import schedule
from .report import RESULTS, SCHEDULE
from .rows import ROWS

#: Where the results of each row go.
FILES = dict.fromkeys(ROWS, RESULTS) | dict.fromkeys(schedule.ROWS, SCHEDULE)

#: The management plug-in makes the vhosts; counting messages for its pages would be measured as well.
CONF = "management_agent.disable_metrics_collector = true"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--rabbitmq", nargs="+", default=["3.10", "4.3"], help="names for tools/get-rabbitmq")
    parser.add_argument("--row", nargs="+", default=list(FILES), choices=list(FILES), metavar="ROW")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="how much of it: 0.01 takes a minute and means nothing"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="instead of the files that the docs are drawn from")
    arguments = parser.parse_args()
    rows = {**ROWS, **schedule.ROWS}
    for name in arguments.rabbitmq:
        with Node(find_server(name), ("rabbitmq_management",), CONF) as node:
            for row in arguments.row:
                log(f"RabbitMQ {name}: {row}")
                measured = rows[row](node, arguments.scale, arguments.repeats, log)
                add(arguments.out or FILES[row], name, row, measured, about(node))


def add(path: Path, broker: str, row: str, measured: dict[str, Any], about: dict[str, Any]) -> None:
    """Write a row into a file of results, beside those that it has."""
    results = json.loads(path.read_text()) if path.exists() else {}
    found = results.setdefault(broker, {"rows": {}})
    found["about"] = about
    found["rows"][row] = measured
    path.write_text(json.dumps(results, indent=2) + "\n")


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
