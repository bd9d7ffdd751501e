"""Runs the measurements and writes `results.json`; `make bench` then draws the docs from it.

python -m benchmarks                       everything, on RabbitMQ 3.10 and 4.3
python -m benchmarks --rabbitmq 4.3 --row publish_rate --scale 0.1 --out /tmp/results.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from testkit.meter import about
from testkit.node import Node, find_server

from .report import RESULTS
from .rows import ROWS

#: The management plug-in makes the vhosts; counting messages for its pages would be measured as well.
CONF = "management_agent.disable_metrics_collector = true"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--rabbitmq", nargs="+", default=["3.10", "4.3"], help="names for tools/get-rabbitmq")
    parser.add_argument("--row", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="ROW")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="how much of it: 0.01 takes a minute and means nothing"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS, help="added to, row by row")
    arguments = parser.parse_args()
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in arguments.rabbitmq:
        with Node(find_server(name), ("rabbitmq_management",), CONF) as node:
            found = results.setdefault(name, {"rows": {}})
            found["about"] = about(node)
            for row in arguments.row:
                log(f"RabbitMQ {found['about']['rabbitmq']}: {row}")
                found["rows"][row] = ROWS[row](node, arguments.scale, arguments.repeats, log)
                arguments.out.write_text(json.dumps(results, indent=2) + "\n")


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
