"""Workers in a thread of the test process, as Celery's pytest plug-in starts them, on a real broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kit.broker import Vhost

ROOT = Path(__file__).parents[2]

TESTS = """
import os, threading, time
import pytest
import celery_rabbit_delay
from celery_rabbit_delay.schedule.app.revoking import POLL
from celery.exceptions import TaskRevokedError
from celery.worker import state

@pytest.fixture(scope="session")
def celery_config():
    return {"broker_url": os.environ["BROKER"], "result_backend": "cache+memory://", "worker_hijack_root_logger": False,
            "control_queue_exclusive": True, "event_queue_exclusive": True}

@pytest.fixture
def installed(celery_app):
    celery_rabbit_delay.install(celery_app, tick=0.01, max_delay=120, schedule=True)

def timers_of(worker):
    return sorted(str(entry.entry.fun) for entry in worker.consumer.timer.queue)

plain, ran = [], []

def test_a_plain_worker(celery_app, celery_worker):
    plain.append(timers_of(celery_worker))

def test_a_worker_has_no_long_timers_but_celerys_so_that_it_stops_as_fast(installed, celery_app, celery_worker):
    @celery_app.task
    def double(n):
        return 2 * n
    celery_worker.reload()
    assert double.apply_async((4,), countdown=0.1).get(timeout=60) == 8
    # With a timer that is not due for long, Kombu's event loop sleeps for longer than without one: for a second.
    assert POLL <= 1
    assert [name for name in timers_of(celery_worker) if "FollowChanges._look" not in name] == plain[0]

def test_a_cancelled_task_does_not_run_though_the_set_of_revoked_ids_is_full_of_stamps_of_another_host(
    installed, celery_app, celery_worker, monkeypatch
):
    @celery_app.task
    def note(what):
        ran.append(what)
    celery_worker.reload()
    for n in range(10):
        state.revoked.add(str(n), now=time.monotonic() + 90 * 86400)
    monkeypatch.setattr(state.revoked, "maxlen", 10)
    cancelled = note.apply_async(("cancelled",), countdown=3)
    celery_rabbit_delay.cancel(celery_app, cancelled.id)
    note.apply_async(("later",), countdown=4).get(timeout=60)
    with pytest.raises(TaskRevokedError):
        cancelled.get(timeout=60)
    assert ran == ["later"]

def test_all_workers_have_ended():
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("Thread-")]
"""


def test_workers_of_celerys_pytest_plug_in(vhost: Vhost, tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "celery.contrib.pytest", "-p", "no:cacheprovider"]
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plug-ins take time, and one has a thread
    environment = {**os.environ, **alone, "BROKER": vhost.url("amqp"), "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [*command, "test_shop.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
