"""The main job, side by side without and with the package, on a private RabbitMQ node. Run it with `make demo`.

It shows the stall of a plain worker, which needs RabbitMQ 4. `RABBITMQ` names the server as for the tests; by default
4.3 is installed beside the system, where that is possible, and otherwise this machine's own is taken.

Twice the same program: ten tasks with a countdown, then three without, to one worker with default settings. The picture
shows where they wait, the table when they ran. Then two tasks of an app with the schedule are listed, and one is
cancelled.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import celery_rabbit_delay
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.operate.cascades import existing, existing_outboxes
from tests.kit import background, ledger
from tests.kit.node import Node, NodeFailed, find_server

ROOT = Path(__file__).parents[1]
SIDES = ("without", "with")
SCHEDULE = "schedule"  # the name of the third app, its queue and its worker
COUNTDOWNS = [8 + n / 2 for n in range(10)]
IMMEDIATE = 3
STALLS = "4.3"  # the RabbitMQ to show it on
LIMIT = 45.0  # seconds until the demo gives up

NO_STALL = """\
This RabbitMQ is older than 4: the worker without the package fetches all tasks into its memory.
On RabbitMQ 4 it fetches eight, and stands still until the first is due. To see that, run
RABBITMQ=4.3 make demo (as root on Debian) or RABBITMQ=docker:4.3 make demo."""


def make_app(side: str, broker: str) -> Celery:
    app = Celery("demo", broker=broker, set_as_current=False)
    app.conf.update(
        task_default_queue=side,
        broker_connection_retry_on_startup=True,
        control_queue_exclusive=True,  # RabbitMQ 4.3 denies the shared ones that Celery before 5.7 makes
        event_queue_exclusive=True,
    )
    if side == "with":
        celery_rabbit_delay.install(app)
    elif side == SCHEDULE:
        celery_rabbit_delay.install(app, schedule=True, journal=1)
    return app


if "DEMO_SIDE" in os.environ:  # a worker
    app = make_app(os.environ["DEMO_SIDE"], os.environ["DEMO_BROKER"])

    @app.task(name="tools.demo.run")
    def run(name: str) -> None:
        ledger.append(os.environ["DEMO_LEDGER"], [name, time.time()])


class Side:
    """One of the two programs: its app, its worker and what became of its tasks."""

    def __init__(self, name: str, broker: str, directory: Path) -> None:
        self.name = name
        self.app = make_app(name, broker)
        self.ledger = directory / f"{name}.ledger"
        self.ledger.touch()
        self.due: dict[str, float] = {}
        self.delays: list[str] = []  # queues in which its tasks may wait
        self.most_held = 0
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment |= {"DEMO_BROKER": broker, "DEMO_SIDE": name, "DEMO_LEDGER": str(self.ledger)}
        self.log = directory / f"{name}.log"
        command = [sys.executable, "-m", "celery", "-A", "tools.demo", "worker", "-c", "2", "-n", f"{name}@demo"]
        self.worker = background.start([*command, "--loglevel", "INFO"], self.log, directory, environment)

    def is_ready(self) -> bool:
        """Return whether the worker is up. Ends the demo if it has ended."""
        if self.worker.poll() is not None:
            raise SystemExit(f"The worker did not start:\n{self.log.read_text()[-3000:]}")
        return " ready." in self.log.read_text()

    def send(self, name: str, countdown: float) -> str:
        """Send a task, and return its id."""
        self.due[name] = time.time() + countdown
        return str(self.app.send_task("tools.demo.run", (name,), countdown=countdown or None).id)

    def send_all(self) -> None:
        tasks = [(f"countdown={countdown:.1f}", countdown) for countdown in COUNTDOWNS]
        for name, countdown in [*tasks, *((f"immediate {n + 1}", 0) for n in range(IMMEDIATE))]:
            self.send(name, countdown)

    def ran(self) -> dict[str, float]:
        """Return when each task ran, in seconds after its due time."""
        return {name: at - self.due[name] for name, at in ledger.read(self.ledger)}

    def where(self, channel: Any) -> dict[str, Text]:
        """Return where its tasks are now."""

        def count(queue: str) -> int:
            return int(channel.queue_declare(queue, passive=True).message_count)

        ran, queued, waiting = self.ran(), count(self.name), sum(map(count, self.delays))
        not_due = sum(due > time.time() for due in self.due.values())
        behind = IMMEDIATE - sum(name.startswith("immediate") for name in ran)
        held = max(0, not_due - waiting - max(0, queued - behind))
        self.most_held = max(self.most_held, held)
        return {
            "wait in RabbitMQ": bar(waiting, "green"),
            "held by the worker": bar(held, "red"),
            "in the task queue": bar(queued, "yellow"),
            "ran": bar(len(ran), "blue"),
        }

    def close(self) -> None:
        background.kill(self.worker)
        self.app.close()


def bar(amount: int, color: str) -> Text:
    return Text("■ " * amount, color) if amount else Text("·", "dim")


def beside(title: str, first: str, **options: Any) -> Table:
    """Return an empty table with a column for each side."""
    table = Table(first, title=title, title_justify="left", min_width=78)
    for name in SIDES:
        table.add_column(f"{name} celery-rabbit-delay", min_width=30, **options)
    return table


def verdict(sides: list[Side]) -> Table:
    """Return a table of the runs against the due times."""
    table = beside("When each task ran, against its due time", "task", justify="right")
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


def watch(console: Console, sides: list[Side], channel: Any) -> None:
    """Show where the tasks are, until all have run."""
    started = time.time()
    snapshots = [1.0, COUNTDOWNS[0] / 2, COUNTDOWNS[4]]
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        while any(len(side.ran()) < len(side.due) for side in sides) and time.time() < started + LIMIT:
            table = beside(f"{time.time() - started:4.1f} s after sending", "")
            places = [side.where(channel) for side in sides]
            for label in places[0]:
                table.add_row(label, *(place[label] for place in places))
            live.update(table)
            if snapshots and time.time() >= started + snapshots[0]:
                snapshots.pop(0)
                live.console.print(table)
            time.sleep(0.1)


def demo(console: Console, sides: list[Side]) -> bool:
    plain, ours = sides
    with ours.app.connection_for_read() as connection:
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
            side.send_all()
        outboxes = existing_outboxes(connection, [Destination("", ours.name)])
        ours.delays = [level.queue for cascade in existing(connection) for level in cascade.levels]
        ours.delays += [outbox.queue for outbox in outboxes if outbox.ticks]
        watch(console, sides, connection.default_channel)
    console.print(verdict(sides))
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


def show_schedule(console: Console, side: Side) -> bool:
    """List what waits, cancel one task, and wait until the other has run; return whether just that one has."""
    with console.status("Starting a worker with the schedule"):
        while not side.is_ready():
            time.sleep(0.1)
    console.print("\nAnother app has [bold]install(app, schedule=True)[/]. Two of its tasks wait; one is cancelled.\n")
    ids = {name: side.send(name, COUNTDOWNS[-1]) for name in ("wanted", "called off")}
    show_list(console, side, "celery -A shop delay list")
    celery_rabbit_delay.cancel(side.app, ids["called off"])
    console.print(f"[dim]$[/] celery -A shop delay cancel {ids['called off']}")
    show_list(console, side, "celery -A shop delay list")
    with console.status("Waiting until they are due"):
        while "wanted" not in side.ran() and time.time() < side.due["wanted"] + LIMIT:
            time.sleep(0.1)
        time.sleep(1)
    ran = list(side.ran())
    console.print(f"\n[{'green' if ran == ['wanted'] else 'red'}]When they were due, ran: {', '.join(ran)}.[/]")
    return ran == ["wanted"]


def show_list(console: Console, side: Side, command: str) -> None:
    """Print what waits, as the command does."""
    console.print(f"[dim]$[/] {command}")
    for task in celery_rabbit_delay.scheduled(side.app):
        line = f"{task.due:%Y-%m-%d %H:%M:%SZ}  {task.id}  {task.queue}  {task.task} {task.args}"
        console.print(line, soft_wrap=True)


def main() -> int:
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    servers: list[str | None] = [None] if os.environ.get("RABBITMQ") else [STALLS, ""]
    for server in servers:
        name = f"RabbitMQ {server}, which the first time is installed beside the system" if server else "RabbitMQ"
        with ExitStack() as stack:
            try:
                with console.status(f"Starting a private node of {name}"):
                    node = stack.enter_context(Node(find_server(server)))
            except NodeFailed as exc:
                if server == STALLS:
                    console.print(f"[dim]No RabbitMQ {server} here: {str(exc).splitlines()[-1]}[/]", soft_wrap=True)
                    continue
                console.print(f"[red]{exc}[/]")
                return 1
            make_side = partial(Side, broker=node.url(), directory=node.data)
            sides = [stack.enter_context(closing(make_side(name))) for name in SIDES]
            good = demo(console, sides)
            return 0 if show_schedule(console, stack.enter_context(closing(make_side(SCHEDULE)))) and good else 1
    raise AssertionError("the last server starts, or ends the demo")


if __name__ == "__main__":
    sys.exit(main())
