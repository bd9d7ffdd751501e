"""Reminders in RabbitMQ, and as one-off entries in the table of django-celery-beat, side by side.

    python -m evidence.benchmarks.one_off                          100,000 of each on RabbitMQ 4.3, ten minutes
    python -m evidence.benchmarks.one_off --amount 1000 --out /tmp/one_off.json

Writes `one_off.json`, and draws it into docs/how-to/from-one-off-entries.md. Most reminders are due within a month,
and some within the minute in which their lateness is measured. They are taken from the queue without running.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery

import celery_rabbit_delay
from tests.kit import background, meter
from tests.kit.node import Node, find_server
from tests.kit.page import fill, machine, markdown

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("one_off.json")
PAGE = ROOT / "docs" / "how-to" / "from-one-off-entries.md"

OURS, TABLE = "celery-rabbit-delay", "one-off entries"

#: Seconds in which some are due, for which an idle beat and node are watched, and that are waited for late ones.
MINUTE, IDLE, PATIENCE = 60, 30, 300

MONTH = 30 * 86_400

#: Reminders that are due within the minute. Of more than a thousand that are due soon, SQLite refuses beat's query.
SOON = 500

QUEUE = "reminders"


def app_of(url: str) -> Celery:
    app = Celery("reminders", broker=url, set_as_current=False)
    app.conf.task_default_queue = QUEUE
    return app


def set_up_django(directory: Path) -> None:
    from django.conf import settings
    from django.core.management import call_command

    settings.configure(**django_settings(directory))
    import django

    django.setup()
    call_command("migrate", verbosity=0)


def django_settings(directory: Path) -> dict[str, Any]:
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(directory / "table.sqlite3")}
    return {
        "SECRET_KEY": "not one",
        "USE_TZ": True,
        "INSTALLED_APPS": ["django_celery_beat"],
        "DATABASES": {"default": database},
        "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
    }


def add_to_table(dues: Sequence[float], at_once: bool) -> float:
    """Add entries in one statement, or one after the other, as an application does; return the seconds."""
    from django_celery_beat.models import ClockedSchedule, PeriodicTask, PeriodicTasks

    def clocked(due: float) -> Any:
        return ClockedSchedule(clocked_time=datetime.fromtimestamp(due, timezone.utc))

    def entry(due: float, clocked: Any) -> Any:
        return PeriodicTask(name=repr(due), task="remind", args=json.dumps([due]), clocked=clocked, one_off=True)

    began = time.monotonic()
    if at_once:
        schedules = ClockedSchedule.objects.bulk_create([clocked(due) for due in dues], batch_size=1000)
        PeriodicTask.objects.bulk_create(map(entry, dues, schedules), batch_size=1000)
        PeriodicTasks.update_changed()
    else:
        for due in dues:
            schedule = clocked(due)
            schedule.save()
            entry(due, schedule).save()
    return time.monotonic() - began


def add_to_broker(app: Celery, dues: Sequence[float], at_once: bool) -> float:
    """Send tasks in a batch, or one after the other; return the seconds."""
    began = time.monotonic()
    with celery_rabbit_delay.batch(app) if at_once else nullcontext() as producer:
        for due in dues:
            app.send_task("remind", (due,), eta=datetime.fromtimestamp(due, timezone.utc), producer=producer)
    return time.monotonic() - began


@contextmanager
def beat(url: str, directory: Path) -> Iterator[int]:
    """Run beat with the table; yield its process."""
    (directory / "table_settings.py").write_text(
        "".join(f"{name} = {value!r}\n" for name, value in django_settings(directory).items())
    )
    (directory / "table_beat.py").write_text(
        f"import django\ndjango.setup()\nfrom celery import Celery\napp = Celery('reminders', broker={url!r})\n"
        f"app.conf.task_default_queue = {QUEUE!r}\n"
    )
    command = [sys.executable, "-m", "celery", "-A", "table_beat", "beat", "-l", "INFO", "--pidfile", ""]
    command += ["-S", "django_celery_beat.schedulers:DatabaseScheduler"]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "table_settings", "PYTHONPATH": str(directory)}
    process = background.start(command, directory / "beat.log", directory, environment)
    try:
        yield process.pid
    finally:
        background.kill(process)


def received(app: Celery, amount: int, patience: float) -> list[float]:
    """Take reminders from the queue until all are there, or none should come any more; return how late they are."""
    late: list[float] = []
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        app.amqp.queues[QUEUE](channel).declare()

        def on_message(message: Any) -> None:
            late.append(time.time() - float(json.loads(message.body)[0][0]))

        channel.basic_consume(QUEUE, callback=on_message, no_ack=True)
        until = time.monotonic() + patience
        while len(late) < amount and time.monotonic() < until:
            try:
                connection.drain_events(timeout=5)
            except TimeoutError:
                continue
    return late


def used(processes: Iterable[int]) -> float:
    """Return the CPU seconds of some processes until now."""
    return sum(map(meter.cpu, processes))


def dues_in(amount: int, seconds: float, within: float) -> list[float]:
    """Return moments within some seconds, which begin in some seconds."""
    start = time.time() + seconds
    return [round(start + within * number / amount, 6) for number in range(amount)]


def compared(app: Celery, add: Callable[[Sequence[float], bool], float], *processes: int) -> dict[str, Any]:
    """Return what an idle second costs some processes, what sending costs, and how late what is due soon comes."""
    before = used(processes)
    time.sleep(IDLE)
    found: dict[str, Any] = {"idle": (used(processes) - before) / IDLE}
    before = used(processes)
    add(dues_in(SOON, 30, MINUTE), True)
    late = received(app, SOON, 30 + MINUTE + PATIENCE)
    found |= {"cpu": used(processes) - before, "came": len(late), "early": sum(one < 0 for one in late)}
    return found | ({"p50": meter.percentile(late, 50), "last": max(late)} if late else {})


def filled(add: Callable[[Sequence[float], bool], float], amount: int) -> dict[str, float]:
    few = min(1000, amount)
    return {
        "one": add(dues_in(few, 3600, MONTH), False) / few,
        "all": add(dues_in(amount, 3601, MONTH), True),
    }


def ours(node: Node, amount: int) -> dict[str, Any]:
    app = app_of(node.url())
    celery_rabbit_delay.install(app)
    add = partial(add_to_broker, app)
    found = filled(add, amount)
    found |= compared(app, add, meter.pid(node))
    app.close()
    return found


def table(node: Node, amount: int, directory: Path) -> dict[str, Any]:
    app = app_of(node.url())
    set_up_django(directory)
    found = filled(add_to_table, amount)
    with beat(node.url(), directory) as pid:
        time.sleep(MINUTE)  # until it has read the table
        found |= compared(app, add_to_table, meter.pid(node), pid)
    app.close()
    return found


def drawn(results: dict[str, Any]) -> str:
    """Return the table of the how-to."""

    def of(show: Callable[[dict[str, Any]], str]) -> list[str]:
        return [show(results[kind]) for kind in (TABLE, OURS)]

    amount = results["amount"]
    lines = [
        ["add one", *of(lambda found: f"{1000 * found['one']:.1f} ms")],
        [f"add {amount:,} together", *of(lambda found: f"{found['all']:.0f} s")],
        ["CPU while none is due", *of(lambda found: f"{100 * found['idle']:.1f} % of one")],
        [f"CPU of {SOON} more that are due within a minute", *of(lambda found: f"{found['cpu']:.1f} s")],
        ["late: half, the last", *of(lambda found: f"{found['p50']:.2f} s, {found['last']:.1f} s")],
    ]
    about = results["about"]
    return (
        f"{markdown([f'{amount:,} reminders within a month', 'in the table, with beat', 'in RabbitMQ'], lines)}\n\n"
        f"{machine('Measured', [about])} The table is that of django-celery-beat {about['django-celery-beat']} in "
        "SQLite. The CPU is that of the node and of beat."
    )


def page(text: str) -> str:
    results = json.loads(RESULTS.read_text())
    return fill(text, {"one_off": lambda: drawn(results)})


def main() -> None:
    from importlib.metadata import version

    parser = argparse.ArgumentParser(prog="python -m evidence.benchmarks.one_off", description=__doc__.splitlines()[0])
    parser.add_argument("--rabbitmq", default="4.3", help="a name for tools/get-rabbitmq")
    parser.add_argument("--amount", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    results: dict[str, Any] = {"amount": arguments.amount}
    for kind in (OURS, TABLE):
        node = Node(find_server(arguments.rabbitmq), ("rabbitmq_management",))
        with tempfile.TemporaryDirectory() as directory, node:
            if kind == OURS:
                results[kind] = ours(node, arguments.amount)
            else:
                results[kind] = table(node, arguments.amount, Path(directory))
            results["about"] = {**meter.about(node), "django-celery-beat": version("django-celery-beat")}
        print(kind, results[kind], file=sys.stderr, flush=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.out == RESULTS:
        PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
