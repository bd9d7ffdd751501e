"""The modules that an import of a part of the package loads."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

KOMBU = "import kombu, celery_rabbit_delay; kombu.Connection('rabbit-delay://localhost//').transport"


def imported_by(code: str) -> set[str]:
    code = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("code", ["import celery_rabbit_delay", KOMBU, "import celery_rabbit_delay.operate"])
def test_without_celery_none_of_it_is_imported(code: str) -> None:
    found = imported_by(code)
    assert "celery_rabbit_delay.delay.amqp.broker_url" in found
    assert not {name for name in found if name.split(".")[0] in ("celery", "click")}


def test_the_transport_is_imported_only_with_a_connection() -> None:
    assert "celery_rabbit_delay.delay.amqp.transport" not in imported_by("import celery_rabbit_delay")
    assert "celery_rabbit_delay.delay.amqp.transport" in imported_by(KOMBU)


def test_a_lock_is_that_of_green_threads_if_they_come_later() -> None:
    code = (
        "import threading, kombu, celery_rabbit_delay.delay.amqp.transport as t; "
        "green = type('Green', (), {}); threading.RLock = green; user = t.UserConnection(); "
        "user.client = kombu.Connection('rabbit-delay://'); assert green in map(type, vars(user.sender).values())"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_install_alone_loads_nothing_of_the_schedule() -> None:
    code = (
        "from celery import Celery; import celery_rabbit_delay; app = Celery(broker='amqp://'); "
        "celery_rabbit_delay.install(app); app.connection_for_write().transport.intercept(None); app.amqp.Consumer"
    )
    other = ("operate", "periodic", "schedule", "unreadable", "web", "cli")
    found = imported_by(code)
    assert not {name for name in found if name.startswith(tuple(f"celery_rabbit_delay.{room}" for room in other))}


ROOT = Path(__file__).parents[2]
DELAY = ROOT / "celery_rabbit_delay" / "delay"


def test_who_wants_to_trust_the_delay_has_little_to_read() -> None:
    listed = re.findall(r"^\d+\. `(\w+/\w+\.py)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert 10 < len(listed) <= 16
    assert sum(len((DELAY / name).read_text().splitlines()) for name in listed) <= 2500
    files = list(DELAY.rglob("*.py"))
    assert len(files) <= 33
    assert sum(len(path.read_text().splitlines()) for path in files) <= 3867
