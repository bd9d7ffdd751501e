"""Sent with delays 9, 6, 3; run after 3, 6, 9.

celery -A ordering worker -c 1      # in one terminal
python ordering.py                  # in another
"""

import time
from datetime import datetime, timedelta, timezone

from celery import Celery

import celery_rabbit_delay

app = Celery("ordering", broker="amqp://guest:guest@localhost//")
celery_rabbit_delay.install(app)


@app.task(name="ordering.report")
def report(delay: float, sent: float) -> None:
    print(f"sent with a delay of {delay:g} s, ran after {time.time() - sent:.2f} s", flush=True)


if __name__ == "__main__":
    now = datetime.now(timezone.utc)
    for delay in (9, 6, 3):
        report.apply_async((delay, now.timestamp()), eta=now + timedelta(seconds=delay))
        print(f"sent with a delay of {delay} s")
