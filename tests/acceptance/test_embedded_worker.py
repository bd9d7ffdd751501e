"""A worker in a thread of the test process, as Celery's pytest plug-in starts it, on a real broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kit.broker import Vhost

ROOT = Path(__file__).parents[2]

PLUG_IN = """
import os, threading
import pytest
import celery_rabbit_delay

@pytest.fixture(scope="session")
def celery_config():
    return {"broker_url": os.environ["BROKER"], "result_backend": "cache+memory://", "worker_hijack_root_logger": False,
            "control_queue_exclusive": True, "event_queue_exclusive": True}

@pytest.fixture
def installed(celery_app):
    celery_rabbit_delay.install(celery_app, tick=0.01, max_delay=120)

def timers_of(worker):
    return sorted(str(entry.entry.fun) for entry in worker.consumer.timer.queue)

plain = []

def test_plain(celery_app, celery_worker):
    plain.append(timers_of(celery_worker))

def test_installed(installed, celery_app, celery_worker):
    @celery_app.task
    def double(n):
        return 2 * n
    celery_worker.reload()
    assert double.apply_async((4,), countdown=0.1).get(timeout=60) == 8
    assert timers_of(celery_worker) == plain[0]

def test_the_workers_of_the_others_have_ended():
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("Thread-")]
"""


def test_a_worker_of_celerys_pytest_plug_in_has_no_timers_but_celerys_so_that_it_stops_as_fast(
    vhost: Vhost, tmp_path: Path
) -> None:
    (tmp_path / "test_shop.py").write_text(PLUG_IN)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "celery.contrib.pytest", "-p", "no:cacheprovider"]
    environment = {**os.environ, "BROKER": vhost.url("amqp"), "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [*command, "test_shop.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
