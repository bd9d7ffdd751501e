"""Many tasks at once: a newsletter to many readers, spread over an hour.

celery -A many_tasks worker
python many_tasks.py
"""

from __future__ import annotations

import sys
import time

from celery import Celery, group

import celery_rabbit_delay

app = Celery("many_tasks", broker="amqp://guest:guest@localhost//")
celery_rabbit_delay.install(app)


@app.task(name="mail")
def mail(reader: int) -> None:
    print(f"mail to reader {reader}", flush=True)


def send_newsletter(readers: int, seconds: int) -> None:
    """Spread the mails evenly."""
    try:
        with celery_rabbit_delay.batch(app):
            for reader in range(readers):
                mail.apply_async((reader,), countdown=seconds * (reader + 1) / readers)
    except celery_rabbit_delay.BatchFailed as exc:
        print(f"{len(exc.ids)} tasks were not stored: {exc}", file=sys.stderr)
        raise


def send_to_all(readers: int, countdown: float) -> None:
    """Send a group whose tasks are all due at the same time."""
    with celery_rabbit_delay.batch(app):
        group(mail.s(reader) for reader in range(readers)).apply_async(countdown=countdown)


if __name__ == "__main__":
    started = time.monotonic()
    send_newsletter(2000, seconds=3600)
    send_to_all(500, countdown=60)
    print(f"2,500 tasks wait, stored in {time.monotonic() - started:.1f} s")
