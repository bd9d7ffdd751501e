"""The main job, side by side without and with the package, on a private RabbitMQ node. Run it with `make demo`.

It shows the stall of a plain worker, which needs RabbitMQ 4. `RABBITMQ` names the server as for the tests; by default
4.3 is installed beside the system, where that is possible, and otherwise this machine's own is taken.

Twice the same program: ten tasks with a countdown, then three without, to one worker with default settings. The picture
shows where they wait, the table when they ran.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import kombu
from amqp.exceptions import NotFound
from celery import Celery
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import celery_rabbit_delay
from celery_rabbit_delay import Options
from celery_rabbit_delay.core.destination import Destination
from tests.kit import background, ledger
from tests.kit.node import Node, NodeFailed, find_server

ROOT = Path(__file__).parents[1]
SIDES = ("without", "with")
COUNTDOWNS = [8 + n / 2 for n in range(10)]
IMMEDIATE = 3
STALLS = "4.3"  # the RabbitMQ to show it on
LIMIT = 45.0  # seconds until the demo gives up
OPTIONS = Options()


NO_STALL = """\
This RabbitMQ is older than 4: the worker without the package fetches all tasks into its memory.
On RabbitMQ 4 it fetches eight, and stands still until the first is due. To see that, run
RABBITMQ=4.3 make demo (as root on Debian) or RABBITMQ=docker:4.3 make demo."""


class Side:
    """One of the two programs: its app, its worker and what became of its tasks."""

    def __init__(self, name: str, broker: str, directory: Path) -> None:
        self.name = name
        self.ledger = directory / f"{name}.ledger"
        self.ledger.touch()
        self.due: dict[str, float] = {}
        self.most_held = 0
        self.app = Celery("demo", broker=broker, set_as_current=False)
        self.app.conf.task_default_queue = name
        if name == "with":
            celery_rabbit_delay.install(self.app)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment |= {"DEMO_BROKER": broker, "DEMO_SIDE": name, "DEMO_LEDGER": str(self.ledger)}
        self.log = directory / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-A", "tools.demo_app", "worker", "-c", "2", "-n", f"{name}@demo"]
        self.worker = background.start([*command, "--loglevel", "INFO"], self.log, directory, environment)

    def is_ready(self) -> bool:
        if self.worker.poll() is not None:
            raise SystemExit(f"The worker did not start:\n{self.log.read_text()[-3000:]}")
        return " ready." in self.log.read_text()

    def send(self, name: str, countdown: float | None = None) -> None:
        self.due[name] = time.time() + (countdown or 0)
        self.app.send_task("tools.demo_app.run", (name,), countdown=countdown)

    def ran(self) -> dict[str, float]:
        """Return when each task ran, in seconds after its due time."""
        return {name: at - self.due[name] for name, at in ledger.read(self.ledger)}

    def close(self) -> None:
        background.kill(self.worker)
        self.app.close()


def count(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).message_count)


def waiting_places(connection: kombu.Connection) -> list[str]:
    """Return the queues in which the tasks may wait, in the order of their way: none is missed while one looks.

    A publisher has created the outboxes that its tasks need.
    """
    cascade, longest = OPTIONS.cascade, 1000 * COUNTDOWNS[-1]
    destination = Destination("", ("with",))
    outboxes = [cascade.outbox_name(destination, ticks) for ticks in (0, *OPTIONS.outbox_ticks)]
    found = [level.queue for level in reversed(cascade.levels) if level.ttl <= longest]
    for name in outboxes:
        with connection.channel() as channel, suppress(NotFound):
            count(channel, name)
            found.append(name)
    return found


def bar(amount: int, color: str) -> Text:
    return Text("■ " * amount, color) if amount else Text("·", "dim")


def picture(sides: list[Side], channel: Any, places: list[str], started: float) -> Table:
    """Return a picture of where the tasks are now."""
    table = Table(title=f"{time.time() - started:4.1f} s after sending", title_justify="left", min_width=78)
    table.add_column("")
    rows: dict[str, list[Text]] = {"wait in RabbitMQ": [], "held by the worker": [], "in the task queue": [], "ran": []}
    for side in sides:
        table.add_column(f"{side.name} celery-rabbit-delay", min_width=30)
        ran = side.ran()
        queued = count(channel, side.name)
        waiting = sum(count(channel, place) for place in places) if side.name == "with" else 0
        not_due = sum(due > time.time() for due in side.due.values())
        behind = sum(name not in ran for name in side.due if name.startswith("immediate"))
        held = max(0, not_due - waiting - max(0, queued - behind))
        side.most_held = max(side.most_held, held)
        rows["wait in RabbitMQ"].append(bar(waiting, "green"))
        rows["in the task queue"].append(bar(queued, "yellow"))
        rows["held by the worker"].append(bar(held, "red"))
        rows["ran"].append(bar(len(ran), "blue"))
    for label, cells in rows.items():
        table.add_row(label, *cells)
    return table


def verdict(sides: list[Side]) -> Table:
    """Return a table of the runs against the due times."""
    table = Table(title="When each task ran, against its due time", title_justify="left", min_width=78)
    table.add_column("task")
    for side in sides:
        table.add_column(f"{side.name} celery-rabbit-delay", justify="right", min_width=30)
    results = [side.ran() for side in sides]
    for name in sides[0].due:
        cells = []
        for result in results:
            late = result.get(name)
            color = "red" if late is None or late > 1 or late < 0 else "green"
            cells.append(Text("never" if late is None else f"{1000 * late:+,.0f} ms", color))
        table.add_row(name, *cells)
    table.add_section()
    held = [Text(str(side.most_held), "red" if side.most_held > IMMEDIATE else "green") for side in sides]
    table.add_row("tasks the worker held at most", *held)
    return table


def demo(console: Console, node: Node) -> bool:
    sides = [Side(name, node.url(), node.data) for name in SIDES]
    try:
        with kombu.Connection(node.url()) as connection:
            version = connection.connection.server_properties["version"]
            with console.status(f"RabbitMQ {version} is up, starting two workers"):
                while not all(side.is_ready() for side in sides):
                    time.sleep(0.1)
            console.print(
                f"RabbitMQ {version}. To each of two default workers (-c 2): {len(COUNTDOWNS)} tasks with a countdown\n"
                f"of {COUNTDOWNS[0]:.0f} to {COUNTDOWNS[-1]:.1f} s, then {IMMEDIATE} without.\n"
            )
            stalls = int(version.split(".")[0]) >= 4
            if not stalls:
                console.print(f"[yellow]{NO_STALL}[/]\n")
            for side in sides:
                for countdown in COUNTDOWNS:
                    side.send(f"countdown={countdown:.1f}", countdown)
                for n in range(IMMEDIATE):
                    side.send(f"immediate {n + 1}")
            started = time.time()
            places = waiting_places(connection)
            channel = connection.default_channel
            with Live(console=console, refresh_per_second=8, transient=True) as live:
                snapshots = [1.0, COUNTDOWNS[0] / 2, COUNTDOWNS[4]]
                while any(len(side.ran()) < len(side.due) for side in sides) and time.time() < started + LIMIT:
                    table = picture(sides, channel, places, started)
                    live.update(table)
                    if snapshots and time.time() >= started + snapshots[0]:
                        snapshots.pop(0)
                        live.console.print(table)
                    time.sleep(0.1)
        console.print(verdict(sides))
        plain, ours = sides
        late = list(ours.ran().values())
        # Held by the worker may seem as many as are on their way at once.
        good = len(late) == len(ours.due) and min(late) >= 0 and ours.most_held <= IMMEDIATE
        if stalls:
            behind = [late for name, late in plain.ran().items() if name.startswith("immediate")]
            ran = f"ran {max(behind):.0f} s late" if behind else "never ran"
            console.print(f"[red]Without the package, the tasks without a countdown {ran}, behind those with one.[/]")
        if good:
            console.print(
                f"[green]With the package, every task ran, none early, none over {1000 * max(late):,.0f} ms late; "
                "none waited in the worker.[/]"
            )
        else:
            console.print("[red]That is not what should have happened: please report it.[/]")
        return good
    finally:
        for side in sides:
            side.close()


def started(console: Console) -> Node:
    """Yield a running node, with RabbitMQ 4 if available. Raises `NodeFailed`."""
    servers: list[str | None] = [None] if os.environ.get("RABBITMQ") else [STALLS, ""]
    for server in servers:
        name = f"RabbitMQ {server}, which the first time is installed beside the system" if server else "RabbitMQ"
        node = None
        try:
            with console.status(f"Starting a private node of {name}"):
                node = Node(find_server(server))
                node.start()
            return node
        except NodeFailed as exc:
            if node:
                node.remove()
            if server == servers[-1]:
                raise
            console.print(f"[dim]No RabbitMQ {server} here: {str(exc).splitlines()[-1]}[/]", soft_wrap=True)
    raise AssertionError("the last server starts or raises")


def main() -> int:
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    try:
        node = started(console)
    except NodeFailed as exc:
        console.print(f"[red]{exc}[/]")
        return 1
    try:
        return 0 if demo(console, node) else 1
    finally:
        node.remove()


if __name__ == "__main__":
    sys.exit(main())
