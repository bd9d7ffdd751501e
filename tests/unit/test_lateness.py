from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.signals import task_prerun
from prometheus_client import CollectorRegistry

from celery_rabbit_delay import UnsupportedConfiguration, measure_lateness
from celery_rabbit_delay.app.handing_on import handed_on
from celery_rabbit_delay.app.lateness import lateness

NOW = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("eta", "seconds"),
    [
        ("2026-11-23T11:59:58.500000+00:00", 1.5),
        ("2026-11-23T12:59:50+01:00", 10),
        ("2026-11-23T11:59:50", 10),
        (NOW + timedelta(seconds=5), 0),  # another clock
        ("soon", None),
        (5, None),
    ],
)
def test_a_task_is_late_by_what_has_passed_since_its_eta(eta: object, seconds: float | None) -> None:
    assert lateness(eta, NOW) == seconds


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    """Yield what measures the lateness of this process's tasks."""
    before = list(task_prerun.receivers), list(handed_on.receivers)
    measure_lateness(registry := CollectorRegistry())
    yield registry
    task_prerun.receivers[:], handed_on.receivers[:] = before


def test_only_delayed_tasks_are_observed_by_their_names(registry: CollectorRegistry) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    task: Any = app.task(name="shop.t", shared=False)(nothing)
    for eta in (None, (datetime.now(timezone.utc) - timedelta(seconds=20)).isoformat(), "soon"):
        task.push_request(eta=eta, id="x")
        task_prerun.send(sender=task, task_id="x", task=task, args=(), kwargs={})
        task.pop_request()
    labels = {"task": "shop.t"}
    name = "celery_rabbit_delay_task_lateness_seconds"
    assert registry.get_sample_value(f"{name}_count", labels) == 1
    assert 20 <= (registry.get_sample_value(f"{name}_sum", labels) or 0) < 60
    app.close()


def test_tasks_that_were_handed_on_are_counted(registry: CollectorRegistry) -> None:
    for amount in (3, 4):
        handed_on.send(sender=None, amount=amount)
    assert registry.get_sample_value("celery_rabbit_delay_handed_on_total") == 7


def test_without_prometheus_client_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UnsupportedConfiguration, match=r"pip install 'celery-rabbit-delay\[metrics\]'"):
        measure_lateness()
