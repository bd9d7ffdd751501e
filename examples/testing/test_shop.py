"""Tests of one's own app: pytest test_shop.py

The last one wants a RabbitMQ, as in CI; the others want none.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from unittest.mock import patch

import pytest
import shop
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Retry

import celery_rabbit_delay

TWO_WEEKS = 14 * 24 * 3600


@pytest.fixture
def eager() -> Iterator[None]:
    shop.app.conf.task_always_eager = True
    yield
    shop.app.conf.task_always_eager = False


def test_what_a_task_does() -> None:
    shop.ask_for_review(1)  # a plain call
    assert shop.asked.get_nowait() == 1


def test_an_eager_app_runs_it_at_once(eager: None) -> None:
    shop.place(2)
    assert shop.asked.get_nowait() == 2


def test_when_it_is_to_run() -> None:
    with patch.object(shop.ask_for_review, "apply_async") as sent:
        shop.place(3)
    sent.assert_called_once_with((3,), countdown=TWO_WEEKS)


def test_how_long_a_retry_waits() -> None:
    shop.charge.push_request(retries=2, called_directly=False)
    try:
        with patch.object(shop.charge, "apply_async"), pytest.raises(Retry) as retry:
            shop.charge.run(4)
    finally:
        shop.charge.pop_request()
    assert retry.value.when == 240


def test_all_of_it_on_rabbitmq_without_waiting_two_weeks() -> None:
    order = uuid.uuid4().int % 1_000_000
    shop.place(order)

    [waiting] = [task for task in celery_rabbit_delay.scheduled(shop.app) if task.args == f"({order},)"]
    in_two_weeks = datetime.now(timezone.utc) + timedelta(seconds=TWO_WEEKS)
    assert abs(waiting.due - in_two_weeks) < timedelta(minutes=1)

    celery_rabbit_delay.reschedule(shop.app, waiting.id, countdown=0)
    with start_worker(shop.app, perform_ping_check=False, without_heartbeat=False, shutdown_timeout=60):
        assert shop.asked.get(timeout=30) == order
