"""An app whose tests are in test_shop.py."""

from __future__ import annotations

import queue
from typing import Any

from celery import Celery

import celery_rabbit_delay

app = Celery("shop", broker="amqp://guest:guest@localhost//")
celery_rabbit_delay.install(app, schedule=True, journal=1)

asked: queue.Queue[int] = queue.Queue()


@app.task(name="ask_for_review")
def ask_for_review(order: int) -> None:
    asked.put(order)


@app.task(bind=True, name="charge", max_retries=3)
def charge(self: Any, order: int) -> None:
    raise self.retry(countdown=60 * 2**self.request.retries)


def place(order: int) -> None:
    ask_for_review.apply_async((order,), countdown=14 * 24 * 3600)
