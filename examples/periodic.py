"""Periodic tasks that survive the death of any process: docs/how-to/periodic-tasks.md."""

from celery import Celery
from celery.schedules import crontab

app = Celery("periodic", broker="amqp://guest:guest@localhost//")
app.conf.beat_scheduler = "rabbit-delay"
app.conf.beat_schedule = {
    "tick": {"task": "tick", "schedule": 1.0},
    "invoices": {"task": "invoices", "schedule": crontab(hour="4", minute="30", day_of_month="1")},
}


@app.task(name="tick")
def tick() -> None:
    print("tick", flush=True)


@app.task(name="invoices", bind=True)
def invoices(self) -> None:  # type: ignore[no-untyped-def]
    print(f"run {self.request.id}", flush=True)
