"""Infrastructure as code: an app that creates nothing on the broker itself.

celery -A infrastructure delay export --format definitions
"""

from __future__ import annotations

from celery import Celery

import celery_rabbit_delay

app = Celery("infrastructure", broker="amqp://guest:guest@localhost//")
celery_rabbit_delay.install(app, declare="passive", max_delay=30 * 24 * 3600)


@app.task(name="ask_for_review")
def ask_for_review(order: int) -> None:
    print(f"How was order {order}?", flush=True)


if __name__ == "__main__":
    ask_for_review.apply_async((42,), countdown=1)
