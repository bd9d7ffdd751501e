"""Real Celery workers as subprocesses."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import kombu.pools
import pytest
from celery import Celery

import celery_rabbit_delay
from tests.kit import background, forks, ledger
from tests.kit.beats import Beat
from tests.kit.broker import QUICK, Vhost
from tests.kit.commands import Result, celery
from tests.kit.wait import wait_until

from .queues import KINDS

ROOT = Path(__file__).parents[2]


class Shop:
    """An app, its workers and its ledger. `options=None` is an app without install()."""

    def __init__(
        self, vhost: Vhost | None, directory: Path, options: dict[str, Any] | None, conf: dict[str, Any]
    ) -> None:
        if vhost is not None:
            self.vhost = vhost
        self.directory = directory
        self.ledger = directory / "ledger"
        self.ledger.touch()
        self._runs: list[dict[str, Any]] = []
        self._news = ledger.Follower(self.ledger)
        self.processes: list[background.Process] = []
        conf = {
            "broker_url": vhost.url("amqp") if vhost else None,
            "broker_connection_retry_on_startup": True,
            # Celery 5.7 does so itself; 5.6 needs it on a RabbitMQ 4.3 that denies transient shared queues.
            "control_queue_exclusive": True,
            "event_queue_exclusive": True,
            **conf,
        }
        self.environment = {
            "SHOP_CONF": json.dumps(conf),
            "SHOP_OPTIONS": json.dumps(options),
            "SHOP_LEDGER": str(self.ledger),
            "PYTHONPATH": str(ROOT),
        }
        self.app = Celery("shop", set_as_current=False)
        self.app.conf.update({key: value for key, value in conf.items() if key != "queues"})
        self.app.conf.update(KINDS[conf.get("queues", "made when missing")])
        if options is not None:
            celery_rabbit_delay.install(self.app, **options)

    def send(self, task: str, *args: Any, **options: Any) -> str:
        sent: str = self.app.send_task(f"tests.acceptance.shop.{task}", args, **options).id
        return sent

    def celery(self, *arguments: str) -> Result:
        """Run `celery -A …` with the app."""
        return celery("-A", "tests.acceptance.shop", *arguments, directory=self.directory, **self.environment)

    def delay(self, *arguments: str) -> Result:
        """Run one of our commands with the app."""
        return self.celery("delay", *arguments)

    def worker(self, *arguments: str, name: str = "w", mingle: bool = False) -> Worker:
        """Start `celery worker -c 1` with these arguments, and wait until it is ready.

        Where it mingles, that takes Celery another second.
        """
        log = self.directory / f"{name}.log"
        command = ["celery", "-A", "tests.acceptance.shop", "worker", "-c", "1", "-l", "INFO"]
        command += ["-n", f"{name}@localhost", *([] if mingle else ["--without-mingle"]), *arguments]
        environment = {**os.environ, **self.environment}
        process: background.Process
        if {"gevent", "eventlet"} & set(arguments):  # they patch a new interpreter
            process = background.start([sys.executable, "-m", *command], log, self.directory, environment)
        else:
            process = forks.start(command, log, log, self.directory, {**environment, "TMPDIR": str(self.directory)})
        self.processes.append(process)
        worker = Worker(process, log)
        wait_until(lambda: " ready." in worker.output() or process.poll() is not None, "the worker is ready", 150)
        assert process.poll() is None, worker.output()
        return worker

    def runs(self, name: Any = None) -> list[dict[str, Any]]:
        """Return the ledger's entries, all or those of one name."""
        self._runs += self._news.read()
        return [entry for entry in self._runs if name is None or entry["name"] == name]

    def wait_for(self, amount: int, name: Any = None, timeout: float = 60) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.runs(name)) >= amount, f"{amount} runs of {name or 'any task'}", timeout)
        assert len(self.runs(name)) == amount
        return self.runs(name)

    def close(self) -> None:
        for process in self.processes:
            background.kill(process)
        self.app.close()
        kombu.pools.reset()


def signature(shop: Shop, task: str, *args: Any, **options: Any) -> Any:
    immutable = task != "join"  # or it would be called with the result of the one before
    return shop.app.signature(f"tests.acceptance.shop.{task}", args, options=options, immutable=immutable)


def plain_celery_url(shop: Shop, **more: str) -> str:
    """Return the broker's URL with a user who has the permissions that plain Celery needs, and `more`."""
    own = r"^(celery|celery@.*|celeryev.*|.*\.pidbox|amq\..*|.*reply\.celery.*)$"
    allowed = [f"{own}|{more[what]}" if what in more else own for what in ("configure", "write", "read")]
    return shop.vhost.url("amqp", shop.vhost.user(*allowed))


def waiting(vhost: Vhost) -> int:
    """Return the number of messages in the levels and outboxes of the cascade."""
    return sum(vhost.waiting().values())


class Worker:
    def __init__(self, process: background.Process, log: Path) -> None:
        self.process = process
        self.log = log

    def output(self) -> str:
        return self.log.read_text()

    def has_discarded(self, id_: str, task: str = "note") -> bool:
        return f"Discarding revoked task: tests.acceptance.shop.{task}[{id_}]" in self.output()

    def stop(self) -> int:
        os.kill(self.process.pid, signal.SIGTERM)
        return self.process.wait(90)


def assert_nothing_went_wrong(shop: Shop, *workers: Worker) -> None:
    """Assert that no task was early, misdirected or sent through native delayed delivery, and that no worker warned."""
    for run in shop.runs():
        if run.get("eta"):
            assert run["at"] >= datetime.fromisoformat(run["eta"]).timestamp()
    orphans = shop.vhost.cascade.orphans
    assert orphans not in shop.vhost.names("queues") or not shop.vhost.count(orphans)
    assert not [name for name in shop.vhost.names("exchanges") if name.startswith("celery_delayed")]
    for worker in workers:
        assert "WARNING" not in worker.output()
        assert "ERROR" not in worker.output()


MakeShop = Callable[..., Shop]
StartBeat = Callable[[Shop], Beat]


@pytest.fixture
def make_shop(vhost: Vhost, tmp_path: Path) -> Iterator[MakeShop]:
    shops: list[Shop] = []

    def make(options: dict[str, Any] | None = QUICK, **conf: Any) -> Shop:
        if options and options.get("journal") is not None:
            vhost.make_streams(options)
        shops.append(Shop(vhost, tmp_path, options, conf))
        return shops[-1]

    yield make
    for shop in shops:
        shop.close()


@pytest.fixture
def start_beat() -> Iterator[StartBeat]:
    beats: list[Beat] = []

    def start(shop: Shop) -> Beat:
        beats.append(Beat("tests.acceptance.shop", shop.directory, shop.environment))
        return beats[-1]

    yield start
    for beat in beats:
        beat.kill()
