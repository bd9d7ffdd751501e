"""Other tools work together with this package, as docs/beside-other-tools.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.kit import background
from tests.kit.broker import QUICK, Vhost
from tests.kit.node import free_port
from tests.kit.wait import wait_until

from .conftest import MakeShop, waiting

pytestmark = [pytest.mark.more, pytest.mark.shared_vhost]

HEAD = f"""
import json, os, sys
import celery_rabbit_delay
from celery import Celery

app = Celery("program", broker=os.environ["BROKER"])
celery_rabbit_delay.install(app, **{QUICK!r})

def write(line):
    with open("out", "a") as file:
        print(line, file=file, flush=True)
"""

TRACED = {
    "opentelemetry": """
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())
CeleryInstrumentor().instrument()
span = lambda: trace.get_tracer("shop").start_as_current_span("order")
trace_id = lambda: format(trace.get_current_span().get_span_context().trace_id, "032x")
""",
    "sentry_sdk": """
import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration

sentry_sdk.init(traces_sample_rate=1.0, integrations=[CeleryIntegration()])
span = lambda: sentry_sdk.start_transaction(name="order")
trace_id = lambda: sentry_sdk.get_traceparent().split("-")[0]
""",
}

#: What Sentry is told of each message: its system, and the milliseconds until it was received.
SENTRY = (
    TRACED["sentry_sdk"]
    + """
from sentry_sdk.consts import SPANDATA

@app.task
def told():
    data = sentry_sdk.get_current_span()._data
    write(data[SPANDATA.MESSAGING_SYSTEM])
    write(data[SPANDATA.MESSAGING_MESSAGE_RECEIVE_LATENCY])

if __name__ == "__main__":
    with span():
        told.apply_async(countdown=3)
"""
)

TRACED_TASK = """
@app.task(bind=True)
def traced(self):
    write(trace_id())
    if not self.request.retries:
        raise self.retry(countdown=0.3)

if __name__ == "__main__":
    with span():
        print(trace_id())
        traced.apply_async(countdown=0.5)
"""

BATCHES = """
from celery_batches import Batches

@app.task(base=Batches, flush_every=4, flush_interval=60)
def total(requests):
    write(sum(request.args[0] for request in requests))

if __name__ == "__main__":
    for n in (1, 2, 3, 4):
        total.apply_async((n,), countdown=0.5)
"""

SINGLETON = """
from celery_singleton import Singleton
from celery_singleton.backends.base import BaseBackend

class Locks(BaseBackend):
    '''In a file, for the default wants Redis.'''
    def __init__(self, *args, **kwargs): pass
    def read(self): return json.load(open("locks")) if os.path.exists("locks") else {}
    def change(self, locks): json.dump(locks, open("locks", "w"))
    def lock(self, lock, task_id, expiry=None):
        locks = self.read()
        free = lock not in locks
        self.change({lock: task_id, **locks})
        return free
    def unlock(self, lock): self.change({k: v for k, v in self.read().items() if k != lock})
    def get(self, lock): return self.read().get(lock)
    def clear(self, key_prefix): self.change({})

app.conf.singleton_backend_class = Locks

@app.task(base=Singleton)
def once(n):
    write(n)

"""

LOCKED = """
@app.task(base=Singleton, bind=True)
def again(self):
    write("again")
    if not self.request.retries:
        raise self.retry(countdown=0.1)

def is_refused(n):
    try:
        once.apply_async((n,), countdown=1000)
    except celery_rabbit_delay.InvalidDelay:
        return True

if __name__ == "__main__":
    cancelled = once.apply_async((1,), countdown=100).id
    app.control.revoke(cancelled)
    equal = once.apply_async((1,), countdown=100).id
    once.release_lock((1,))
    released = once.apply_async((1,), countdown=100).id
    print(equal == cancelled, released == cancelled, is_refused(2), is_refused(2), again.delay().id)
    once.release_lock((1,))
"""

DJANGO = """
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db"}},
    INSTALLED_APPS=["django_celery_beat"], USE_TZ=True, DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
os.environ["DJANGO_SETTINGS_MODULE"] = "program"
app.conf.beat_scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
app.conf.beat_max_loop_interval = 1

from celery.contrib.django.task import DjangoTask

@app.task(base=DjangoTask, name="note")
def note(what):
    write(what)

@app.task(name="later")
def later():
    note.apply_async(("from beat",), countdown=0.3)

django.setup()

if __name__ == "__main__":
    from django.core.management import call_command
    from django.db import transaction
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    call_command("migrate", verbosity=0)
    every, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
    PeriodicTask.objects.create(name="later", task="later", interval=every)
    with transaction.atomic():
        note.apply_async_on_commit(("committed",), countdown=0.5)
        note.delay_on_commit("at once")
    try:
        with transaction.atomic():
            note.apply_async_on_commit(("rolled back",), countdown=0.1)
            raise ValueError
    except ValueError:
        pass
"""


class Program:
    """A module with a Celery app that publishes when it is run, and a worker of it."""

    def __init__(self, vhost: Vhost, directory: Path, text: str) -> None:
        (directory / "program.py").write_text(HEAD + text)
        self.directory = directory
        self.environment = {**os.environ, "BROKER": vhost.url("amqp"), "PYTHONPATH": str(directory)}

    def run(self) -> str:
        command = [sys.executable, "program.py"]
        done = subprocess.run(command, cwd=self.directory, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def lines(self) -> list[str]:
        path = self.directory / "out"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    @contextmanager
    def started(self, *arguments: str, name: str = "celery") -> Iterator[Path]:
        log = self.directory / f"{name}.log"
        command = [sys.executable, "-m", "celery", *arguments]
        process = background.start(command, log, self.directory, self.environment)
        try:
            yield log
        finally:
            background.kill(process)

    def worker(self, *arguments: str) -> AbstractContextManager[Path]:
        return self.started("-A", "program", "worker", "-P", "solo", "-l", "INFO", *arguments)


@pytest.mark.parametrize("tracer", TRACED)
def test_a_trace_goes_on_across_the_delay_and_a_retry(vhost: Vhost, tmp_path: Path, tracer: str) -> None:
    pytest.importorskip(tracer)
    program = Program(vhost, tmp_path, TRACED[tracer] + TRACED_TASK)
    with program.worker():
        trace_id = program.run()
        wait_until(lambda: len(program.lines) == 2, "the task and its retry ran")
    assert program.lines == [trace_id, trace_id]
    assert trace_id.strip("0")


def test_sentry_is_told_a_system_that_it_knows_and_a_latency_with_the_delay(vhost: Vhost, tmp_path: Path) -> None:
    pytest.importorskip("sentry_sdk")
    program = Program(vhost, tmp_path, SENTRY)
    with program.worker():
        program.run()
        wait_until(lambda: len(program.lines) == 2, "the task ran")
    system, milliseconds = program.lines
    assert system == "rabbitmq"
    assert float(milliseconds) > 3000


def test_celery_batches_gets_tasks_when_they_are_due(vhost: Vhost, tmp_path: Path) -> None:
    pytest.importorskip("celery_batches")
    program = Program(vhost, tmp_path, BATCHES)
    with program.worker():
        program.run()
        wait_until(lambda: program.lines, "a batch ran")
    assert program.lines == ["10"]


def test_celery_singleton_unlocks_after_a_refusal_but_not_after_a_cancellation_nor_for_a_retry(
    vhost: Vhost, tmp_path: Path
) -> None:
    pytest.importorskip("celery_singleton")
    program = Program(vhost, tmp_path, SINGLETON + LOCKED)
    with program.worker() as log:
        *said, first = program.run().split()
        assert said == ["True", "False", "True", "True"]
        wait_until(lambda: "Retry in 0.1s" in log.read_text(), "it was to be tried again")
        assert program.run().split()[-1] == first  # its own retry was a duplicate of it, and so is this
    assert program.lines == ["again"]


def test_django_sends_tasks_with_its_beat_and_on_commit(vhost: Vhost, tmp_path: Path) -> None:
    pytest.importorskip("django_celery_beat")
    program = Program(vhost, tmp_path, DJANGO)
    program.run()
    with program.worker(), program.started("-A", "program", "beat", name="beat"):
        wait_until(lambda: {"committed", "at once", "from beat"} <= set(program.lines), "all ran")
    assert "rolled back" not in program.lines


def page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return str(response.read().decode())
    except OSError:
        return ""


@pytest.mark.parametrize("how", ["of the app", "of the broker"])
def test_flower_shows_delayed_tasks_and_with_the_broker_alone_its_queues(
    make_shop: MakeShop, tmp_path: Path, how: str
) -> None:
    pytest.importorskip("flower")
    shop = make_shop(worker_send_task_events=True, task_send_sent_event=True)
    node, vhost = shop.vhost.broker.node, shop.vhost
    program = Program(vhost, tmp_path, "")
    program.environment["FLOWER_UNAUTHENTICATED_API"] = "true"
    port = free_port()
    api = f"http://guest:guest@127.0.0.1:{node.management_port}/api/"
    whose = ["-A", "program"] if how == "of the app" else ["--broker", vhost.url("amqp")]
    shop.worker("-E")
    with program.started(*whose, "flower", "--address=127.0.0.1", f"--port={port}", f"--broker_api={api}"):
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: "w@localhost" in page(f"{url}/api/workers?refresh=1"), "Flower knows the worker")
        queues = partial(vhost.names, "queues")
        wait_until(lambda: sum(name.startswith("celeryev.") for name in queues()) == 2, "it hears of tasks")
        task_id = shop.send("note", "delayed", countdown=1)
        wait_until(lambda: task_id in page(f"{url}/api/tasks?state=SUCCESS"), "Flower has seen it run")
        waits = shop.send("note", "waits", countdown=100)
        wait_until(lambda: "PENDING" in page(f"{url}/task/{waits}"), "Flower has heard of it")
        assert "Revoke" not in page(f"{url}/task/{waits}")
        [worker] = json.loads(page(f"{url}/api/workers?refresh=1&workername=w@localhost")).values()
        assert not worker.get("scheduled")  # which the page says
        if how == "of the broker":
            wait_until(lambda: 'id="celery"' in page(f"{url}/broker"), "Flower shows the queue")
    assert waiting(vhost) == 1
