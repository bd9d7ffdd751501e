"""The examples do what their READMEs say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import kombu
import pytest

from testkit import background
from testkit.broker import Vhost
from testkit.wait import wait_until

from .conftest import ROOT, Worker


@pytest.fixture
def run_worker(vhost: Vhost, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    processes: list[subprocess.Popen[bytes]] = []

    def run(example: str, app: str, *arguments: str) -> Worker:
        log = tmp_path / "log"
        command = [sys.executable, "-m", "celery", "-A", app, "worker", *arguments]
        conf = {"CELERY_BROKER_URL": vhost.url("amqp"), "PYTHONUNBUFFERED": "1"}
        process = background.start(command, log, ROOT / "examples" / example, {**os.environ, **conf})
        processes.append(process)
        worker = Worker(process, log)
        wait_until(lambda: "celery" in vhost.names("queues"), "the worker is up")
        return worker

    yield run
    for process in processes:
        background.kill(process)


def script(vhost: Vhost, example: str, name: str) -> str:
    environment = {**os.environ, "CELERY_BROKER_URL": vhost.url("amqp")}
    command = [sys.executable, name]
    done = subprocess.run(
        command, cwd=ROOT / "examples" / example, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_quickstart(vhost: Vhost, run_worker: Callable[..., Worker]) -> None:
    worker = run_worker("quickstart", "shop", "-c", "2")
    assert "Order 42 is placed" in script(vhost, "quickstart", "place_order.py")
    wait_until(lambda: "How was order 42?" in worker.output(), "the worker asks for a review")


def test_ordering(vhost: Vhost, run_worker: Callable[..., Worker]) -> None:
    with kombu.Connection(vhost.url()) as connection:  # so that the first delay is not spent on declaring the cascade
        vhost.declare("q")
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 1})
    worker = run_worker("ordering", "ordering", "-c", "1")
    sent = re.findall(r"sent with a delay of (\d)", script(vhost, "ordering", "ordering.py"))
    assert sent == ["3", "2", "1"]
    wait_until(lambda: worker.output().count("ran after") == 3, "all three ran")
    ran = re.findall(r"sent with a delay of (\d) s, ran after ([\d.]+) s", worker.output())
    assert [delay for delay, _ in ran] == ["1", "2", "3"]
    assert all(float(after) >= float(delay) for delay, after in ran)
