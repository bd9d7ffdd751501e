"""The app and the worker that `evidence.benchmarks.worker_settings` measures."""

import os
import time

from celery import Celery
from kombu import Queue

import celery_rabbit_delay

app = Celery("bench", broker=os.environ["BENCH_BROKER"], set_as_current=False)
app.conf.update(
    task_queues=[Queue("bench", queue_arguments={"x-queue-type": "quorum"})],
    task_default_queue="bench",
    task_acks_late=bool(int(os.environ.get("BENCH_LATE", "0"))),
    worker_prefetch_multiplier=int(os.environ.get("BENCH_PREFETCH", "4")),
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
)
celery_rabbit_delay.install(app, journal=None)


@app.task(name="bench.count")
def count(seconds: float) -> None:
    """Take so long, and add a byte to the file that counts."""
    time.sleep(seconds)
    file = os.open(os.environ["BENCH_COUNT"], os.O_WRONLY | os.O_APPEND)
    os.write(file, b".")
    os.close(file)
