"""`make upstream` puts the package into the suites of others and fails on unexplained differences."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tools.upstream.__main__ import DIFFERENCES, SUITES

ROOT = Path(__file__).parents[2]

PROGRAM = """
import kombu
from celery import Celery
from celery.contrib.testing.app import TestApp

names = set()
for app in (Celery(broker="pyamqp://nowhere//"), TestApp(config={"broker_url": "pyamqp://nowhere//"})):
    names.add(app.connection_for_write().get_transport_cls())
names.add(kombu.Connection("pyamqp://nowhere").get_transport_cls())
print(*{name.__module__ for name in names})
Celery(broker="redis://nowhere")
"""


def test_the_plug_in_leads_every_connection_through_the_package() -> None:
    command = [sys.executable, "-c", "import tools.upstream.with_us\n" + PROGRAM]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("celery_rabbit_delay.transport\n", "")


def test_every_known_difference_has_a_reason() -> None:
    known = json.loads(DIFFERENCES.read_text())
    assert set(known) == set(SUITES)
    assert all(group["reason"] and group["tests"] for groups in known.values() for group in groups)
