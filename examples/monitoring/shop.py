"""A shop whose workers tell Prometheus how late their delayed tasks start."""

import os

from celery import Celery
from celery.signals import worker_ready
from prometheus_client import CollectorRegistry, multiprocess, start_http_server

import celery_rabbit_delay

app = Celery("shop", broker=os.environ.get("CELERY_BROKER_URL", "amqp://guest:guest@localhost//"))
celery_rabbit_delay.install(app, journal=1)
celery_rabbit_delay.measure_lateness()


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
