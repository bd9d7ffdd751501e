"""The Celery app of the demo's workers. DEMO_BROKER, DEMO_SIDE ("without" or "with"), DEMO_LEDGER."""

import os
import time

from celery import Celery

import celery_rabbit_delay
from tests.kit import ledger

side = os.environ["DEMO_SIDE"]
app = Celery("demo", broker=os.environ["DEMO_BROKER"])
app.conf.update(
    task_default_queue=side,
    broker_connection_retry_on_startup=True,
    control_queue_exclusive=True,  # RabbitMQ 4.3 denies the shared ones that Celery before 5.7 makes
    event_queue_exclusive=True,
)
if side == "with":
    celery_rabbit_delay.install(app)


@app.task
def run(name: str) -> None:
    ledger.append(os.environ["DEMO_LEDGER"], [name, time.time()])
