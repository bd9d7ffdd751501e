"""Retries with backoff: a payment service that is down for a while.

celery -A retries worker
python retries.py
"""

from __future__ import annotations

import time
from typing import Any

from celery import Celery

import celery_rabbit_delay

app = Celery("retries", broker="amqp://guest:guest@localhost//")
celery_rabbit_delay.install(app)


class TryLater(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@app.task(
    bind=True,
    name="charge",
    autoretry_for=(ConnectionError,),
    max_retries=8,
    retry_backoff=1,  # 1, 2, 4, 8 … seconds
    retry_backoff_max=600,
    retry_jitter=True,  # a random part of that, so that not all come back at once
)
def charge(self: Any, order: int, sent: float) -> None:
    print(f"try {self.request.retries + 1} of order {order} after {time.time() - sent:.1f} s", flush=True)
    if self.request.retries < 3:
        raise ConnectionError("the payment service does not answer")
    print(f"order {order} is paid", flush=True)


@app.task(bind=True, name="notify", max_retries=5)
def notify(self: Any, order: int, sent: float) -> None:
    """Wait for as long as the other side asks."""
    print(f"notify order {order} after {time.time() - sent:.1f} s", flush=True)
    try:
        if not self.request.retries:
            raise TryLater(1.5)  # an answer 429 with a Retry-After header
    except TryLater as exc:
        raise self.retry(countdown=exc.seconds, exc=exc) from exc


if __name__ == "__main__":
    charge.delay(42, time.time())
    notify.delay(42, time.time())
