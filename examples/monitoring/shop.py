"""A shop whose workers tell Prometheus how late their delayed tasks start."""

import os
from datetime import datetime, timezone
from typing import Any

from celery import Celery
from celery.signals import task_prerun, worker_ready
from prometheus_client import CollectorRegistry, Histogram, multiprocess, start_http_server

import celery_rabbit_delay

app = Celery("shop", broker=os.environ.get("CELERY_BROKER_URL", "amqp://guest:guest@localhost//"))
celery_rabbit_delay.install(app, schedule=True, journal=1)

lateness = Histogram(
    "task_lateness_seconds",
    "How long after its eta a delayed task started.",
    ["task"],
    buckets=(0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800),
)


@task_prerun.connect
def measure(task: Any, **_: object) -> None:
    if task.request.eta:
        late = datetime.now(timezone.utc) - datetime.fromisoformat(task.request.eta)
        lateness.labels(task.name).observe(late.total_seconds())


@worker_ready.connect
def serve_metrics(**_: object) -> None:
    """Add up what the processes of this worker have written into the directory PROMETHEUS_MULTIPROC_DIR."""
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    start_http_server(int(os.environ.get("METRICS_PORT", "9808")), registry=registry)


@app.task
def ask_for_review(order: int) -> None:
    print(f"How was order {order}?")


if __name__ == "__main__":
    ask_for_review.apply_async((42,), countdown=2)
    ask_for_review.apply_async((43,), countdown=3600)
