"""How long a worker takes to hand on a backlog: tasks with an eta an hour ahead, sent by plain Celery.

python -m evidence.benchmarks.handing_on              50,000 tasks on RabbitMQ 3.10 and 4.3, prefetch counts 8 and 16
python -m evidence.benchmarks.handing_on --rabbitmq 4.3 --amount 1000 --prefetch 8

The seconds of CPU tell more on a machine that others use as well.
"""

from __future__ import annotations

import argparse
import time

from tests.kit import meter
from tests.kit.node import Node, find_server
from tests.kit.wait import wait_until

from .__main__ import CONF
from .contenders import QUEUE, Ours, vhost
from .rows import running_app, running_worker


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m evidence.benchmarks.handing_on", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rabbitmq", nargs="+", default=["3.10", "4.3"], help="names for tools/get-rabbitmq")
    parser.add_argument("--amount", type=int, default=50_000)
    parser.add_argument("--prefetch", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    for name in arguments.rabbitmq:
        with Node(find_server(name), ("rabbitmq_management",), CONF) as node:
            for prefetch in arguments.prefetch * arguments.repeats:
                taken = hand_on(node, arguments.amount, prefetch)
                print(f"RabbitMQ {name}, {arguments.amount:,} tasks, prefetch count {prefetch}: {taken}", flush=True)


def hand_on(node: Node, amount: int, prefetch: int) -> str:
    """Return the time from the worker's first task until its queue is empty, and the CPU time that it took."""
    arguments = ("-c", "1", "--prefetch-multiplier", str(prefetch))
    with vhost(node) as url, running_app(url, None) as app, app.connection_for_write() as connection:
        queue = app.amqp.queues[QUEUE](connection.default_channel)
        queue.declare()

        def left() -> int:
            return int(queue.queue_declare(passive=True).message_count)

        for _ in range(amount):
            app.send_task("bench.nothing", countdown=3600)
        wait_until(lambda: left() == amount, "the backlog is there")
        with running_worker(url, Ours.name, node.data, *arguments) as worker:
            app.control.add_consumer(QUEUE, exchange=app.conf.task_default_exchange)
            wait_until(lambda: left() < amount, "the worker begins, which takes Celery up to ten seconds")
            started, before = time.perf_counter(), [meter.cpu(pid) for pid in (worker, meter.pid(node))]
            wait_until(lambda: not left(), "all are handed on", timeout=600)
            taken = time.perf_counter() - started
            cpu = [meter.cpu(pid) - used for pid, used in zip((worker, meter.pid(node)), before, strict=True)]
            wait_until(lambda: waiting(node, url) == amount, "each waits, once")
    return f"{taken:.1f} s; CPU of the worker {cpu[0]:.1f} s, of the broker {cpu[1]:.1f} s"


def waiting(node: Node, url: str) -> int:
    queues = node.ctl("list_queues", "--quiet", "--no-table-headers", "-p", url.rpartition("/")[2], "name", "messages")
    return sum(int(amount) for name, amount in map(str.split, queues.splitlines()) if ".delay." in name)


if __name__ == "__main__":
    main()
