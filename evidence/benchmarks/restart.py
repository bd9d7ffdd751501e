"""When tasks come that are due around a crash of the only node. Writes `restart.json`, which `make diagrams` draws.

python -m evidence.benchmarks.restart             on RabbitMQ 4.3, with a retry interval of ten seconds; a minute
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.kit import meter
from tests.kit.node import Node, dead_letters_again, find_server

from .at_length import send_all
from .backlog import receive
from .contenders import Ours

RESULTS = Path(__file__).with_name("restart.json")

#: Tasks, how many a second are due, and seconds from the first until the node is killed, and until it is started again.
TASKS, RATE, KILLED, STARTED = 48, 2, 8, 10


def main() -> None:
    with Node(find_server("4.3"), advanced=dead_letters_again(10)) as node, ThreadPoolExecutor() as pool:
        Ours(node.url()).close()
        first, began = time.time() + 5, time.monotonic() + 5
        dues = [first + number / RATE for number in range(TASKS)]
        send_all(node.url(), dues, processes=1)
        assert time.time() < first, "it took too long to send them"
        receiving = pool.submit(receive, node.url(), {repr(due) for due in dues}, began)
        time.sleep(began + KILLED - time.monotonic())
        node.kill()
        time.sleep(began + STARTED - time.monotonic())
        node.start()
        down = [KILLED, round(time.monotonic() - began, 2)]
        _, times = receiving.result()
        runs = [[round(due - first, 2), round(times[repr(due)], 2)] for due in dues]
        RESULTS.write_text(json.dumps({"about": meter.about(node), "down": down, "runs": runs}) + "\n")


if __name__ == "__main__":
    main()
