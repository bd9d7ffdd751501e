"""Cancels beside crashes: what was cancelled never runs, and all else does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit import background, ledger
from tests.kit.broker import QUICK, Broker
from tests.kit.node import Node, cluster, dead_letters_again
from tests.kit.wait import wait_until

from .conftest import ROOT, Shop

TASKS = 60

#: Cancels tasks one by one, each again until that returns, and writes down before and after each.
CANCELLER = """
import sys
import time
import celery_rabbit_delay
from tests.kit import ledger
from tests.acceptance.shop import app
for id_ in sys.argv[2:]:
    ledger.append(sys.argv[1], {"tried": id_})
    while True:
        try:
            celery_rabbit_delay.cancel(app, id_)
            break
        except (OSError, celery_rabbit_delay.DelayError):  # its node was killed
            time.sleep(0.5)
    ledger.append(sys.argv[1], {"cancelled": id_})
"""


@contextmanager
def nodes(amount: int) -> Iterator[list[Node]]:
    if amount == 1:
        with Node(plugins=("rabbitmq_management",), advanced=dead_letters_again(5)) as node:
            yield [node]
    else:
        with cluster(amount, plugins=("rabbitmq_management",)) as found:
            yield found


@pytest.mark.long
@pytest.mark.parametrize("amount", [1, pytest.param(3, marks=pytest.mark.cluster)])
def test_cancelled_tasks_never_run_and_all_others_do_when_everything_is_killed(tmp_path: Path, amount: int) -> None:
    with nodes(amount) as found, Broker(found[0]).vhost() as vhost:
        url = ";".join(f"amqp://guest:guest@127.0.0.1:{node.port}/{vhost.name}" for node in reversed(found))
        conf = {"broker_url": url, "queues": "quorum", "broker_connection_max_retries": None}
        shop = Shop(vhost, tmp_path, {**QUICK, "max_delay": 600}, conf)
        try:
            worker = shop.worker(name="one")
            due = time.time() + 60
            ids = [shop.send("note", n, countdown=due - time.time()) for n in range(TASKS)]
            time.sleep(3)  # what was created only just now may be lost with its node
            log = tmp_path / "cancels"
            log.touch()
            command = [sys.executable, "-c", CANCELLER, str(log), *ids[: TASKS // 2]]
            environment = {**os.environ, **shop.environment, "PYTHONPATH": str(ROOT)}
            canceller = background.start(command, tmp_path / "canceller.log", tmp_path, environment)
            wait_until(lambda: ledger.count(log) >= 11, "some are cancelled")
            background.kill(canceller)
            background.kill(worker.process)
            found[-1].kill()
            if amount > 1:  # two of three go on
                subprocess.run([*command[:4], *ids[20:25]], env=environment, check=True)
            found[-1].start()
            shop.worker(name="two")
            tried = {entry["tried"] for entry in ledger.read(log) if "tried" in entry}
            cancelled = {entry["cancelled"] for entry in ledger.read(log) if "cancelled" in entry}
            expected = {n for n, id_ in enumerate(ids) if id_ not in tried}
            assert cancelled
            wait_until(lambda: expected <= {run["name"] for run in shop.runs()}, "all others have run", timeout=240)
            time.sleep(3)
            runs = Counter(run["name"] for run in shop.runs())
            assert not {n for n, id_ in enumerate(ids) if id_ in cancelled} & runs.keys()
        finally:
            shop.close()
