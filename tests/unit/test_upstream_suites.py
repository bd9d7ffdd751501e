"""`make upstream` puts the package into the suites of others and fails on unexplained differences."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.upstream.__main__ import DIFFERENCES, SUITES, Suite

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


class Faked(Suite):
    """Ends the first time, and the second, as it is told."""

    runs: list[dict[str, dict[str, str]]]

    def on_both_sides(self, arguments: Sequence[str]) -> dict[str, dict[str, str]]:
        return self.runs.pop(0)


def both(plain: str, ours: str) -> dict[str, dict[str, str]]:
    return {"plain": {"t.test_chord[1]": plain}, "with us": {"t.test_chord[1]": ours}}


@pytest.mark.parametrize(
    ("runs", "same"),
    [
        ([both("passed", "passed")], True),
        ([both("failure", "failure")], True),
        ([both("passed", "failure"), both("passed", "passed")], True),
        ([both("passed", "failure"), both("passed", "failure")], False),
        ([both("passed", "failure"), both("failure", "passed")], False),
    ],
)
def test_what_differs_twice_without_a_known_reason_is_a_failure(
    runs: list[dict[str, dict[str, str]]], same: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = Faked("celery", Path())
    suite.runs = runs
    assert suite.is_the_same([]) is same
    assert ("t.test_chord[1]: " in capsys.readouterr().out) is not same
    assert not suite.runs


def test_every_known_difference_has_a_reason() -> None:
    known = json.loads(DIFFERENCES.read_text())
    assert set(known) == set(SUITES)
    assert all(group["reason"] and group["tests"] for groups in known.values() for group in groups)
