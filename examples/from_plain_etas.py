"""From plain etas: a publisher that has not been changed yet, and a worker that has.

celery -A from_plain_etas worker
python from_plain_etas.py
"""

from __future__ import annotations

from celery import Celery

import celery_rabbit_delay

app = Celery("shop", broker="amqp://guest:guest@localhost//")
celery_rabbit_delay.install(app)

old = Celery("old_shop", broker="amqp://guest:guest@localhost//")  # without install()


@app.task(name="ask_for_review")
def ask_for_review(order: int) -> None:
    print(f"How was order {order}?", flush=True)


if __name__ == "__main__":
    for order in range(20):
        old.send_task("ask_for_review", (order,), countdown=4000)
    old.send_task("ask_for_review", (42,))
