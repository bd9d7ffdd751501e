"""The examples do what their READMEs say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import kombu
import pytest

from tests.kit import background
from tests.kit.broker import Vhost
from tests.kit.commands import management, run
from tests.kit.node import free_port
from tests.kit.wait import wait_until

from .conftest import ROOT, Worker

pytestmark = pytest.mark.more


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


def test_the_quickstart_works(vhost: Vhost, run_worker: Callable[..., Worker]) -> None:
    worker = run_worker("quickstart", "shop", "-c", "2")
    assert "Order 42 is placed" in script(vhost, "quickstart", "place_order.py")
    wait_until(lambda: "How was order 42?" in worker.output(), "the worker asks for a review")


def test_the_ordering_example_follows_the_delays(vhost: Vhost, run_worker: Callable[..., Worker]) -> None:
    with kombu.Connection(vhost.url()) as connection:  # so that the first delay is not spent on declaring the cascade
        vhost.declare("q")
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 1})
    worker = run_worker("ordering", "ordering", "-c", "1")
    sent = re.findall(r"sent with a delay of (\d)", script(vhost, "ordering", "ordering.py"))
    assert sent == ["9", "6", "3"]
    wait_until(lambda: worker.output().count("ran after") == 3, "all three ran")
    ran = re.findall(r"sent with a delay of (\d) s, ran after ([\d.]+) s", worker.output())
    assert [delay for delay, _ in ran] == ["3", "6", "9"]
    assert all(float(after) >= float(delay) for delay, after in ran)


def test_the_monitoring_example_exports_metrics(
    vhost: Vhost, run_worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "metrics").mkdir()
    port = free_port()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "metrics"))
    monkeypatch.setenv("METRICS_PORT", str(port))
    worker = run_worker("monitoring", "shop", "-c", "2")
    script(vhost, "monitoring", "shop.py")
    wait_until(lambda: "How was order 42?" in worker.output(), "the worker asks for a review")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[0] != "#")
    name = "task_lateness_seconds"
    assert lines[f'{name}_count{{task="shop.ask_for_review"}}'] == "1.0"
    assert 0 <= float(lines[f'{name}_sum{{task="shop.ask_for_review"}}']) < 60
    page = run(vhost.url("amqp"), "metrics", *management(vhost), options=())
    known = {line.split()[2] for line in page.out.splitlines() if line.startswith("# TYPE")}
    known |= {"celery_rabbit_delay_waiting", "celery_rabbit_delay_beat_active"}
    for file in ("alerts.yml", "dashboard.json"):
        used = set(re.findall(r"celery_rabbit_delay_\w+", (ROOT / "examples" / "monitoring" / file).read_text()))
        assert used, file
        assert used <= known | {"celery_rabbit_delay_next_due_timestamp_seconds"}, file


def test_the_rules_of_monitoring_are_sound() -> None:
    directory = ROOT / "examples" / "monitoring"
    panels = json.loads((directory / "dashboard.json").read_text())["panels"]
    assert all(panel["targets"] for panel in panels)
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, of the package prometheus, is not here")
    for arguments in (("check", "config", "prometheus.yml"), ("test", "rules", "alerts.test.yml")):
        done = subprocess.run([promtool, *arguments], cwd=directory, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
