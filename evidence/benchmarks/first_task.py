"""How long the first task of a process takes, and the first to another queue: each against Celery's own, confirmed.

python -m evidence.benchmarks.first_task URL ours 60 1    prints milliseconds, as a process of its own
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.kit.node import Node

from .. import meter
from .contenders import vhost
from .rows import running_app

PLAIN, OURS = "plain eta, confirmed", "celery-rabbit-delay"


def first_task(node: Node, scale: float, repeats: int, log: Callable[[str], None]) -> dict[str, Any]:
    """Measure milliseconds of the first `apply_async` of a process, with connecting.

    On a broker that has everything; to another new queue, which is created; and on a fresh virtual host.
    """
    repeats, found = max(1, int(3 * repeats * scale)), dict[str, Any]()
    with vhost(node) as url:
        for what, queues in (("to a queue", 1), ("to a further queue", 5)):
            runs = {f"{PLAIN}, {what}": partial(ask, url, PLAIN, 60, queues)}
            runs |= {f"{OURS}, {seconds} s, {what}": partial(ask, url, OURS, seconds, queues) for seconds in (1, 60)}
            for run in runs.values():
                run()
            time.sleep(2)  # all is saved, and as old as that of other processes
            found |= meter.interleaved(runs, repeats, log, next(iter(runs)))
    runs = {f"{name}, on a fresh virtual host": partial(on_fresh, node, name) for name in (PLAIN, OURS)}
    return found | meter.interleaved(runs, repeats, log, next(iter(runs)))


def on_fresh(node: Node, name: str) -> float:
    with vhost(node) as url:
        return ask(url, name, 60, 1)


def ask(url: str, name: str, seconds: float, queues: int) -> float:
    """Return the milliseconds that a new process needs for its first task to the last of some queues."""
    command = [sys.executable, "-m", __name__, url, name, str(seconds), str(queues)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main(url: str, name: str, seconds: str, queues: str) -> None:
    with running_app(url, {} if name == OURS else None) as app:
        if name == PLAIN:
            app.conf.broker_transport_options = {"confirm_publish": True}
        took = []
        for number in range(int(queues)):
            started = time.perf_counter()
            app.send_task(
                "bench.nothing", countdown=float(seconds), **({"queue": uuid.uuid4().hex[:7]} if number else {})
            )
            took.append(1000 * (time.perf_counter() - started))
        print(statistics.median(took[1:] or took))


if __name__ == "__main__":
    main(*sys.argv[1:])
