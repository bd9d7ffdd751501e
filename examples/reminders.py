"""Reminders days ahead: a customer is told of an appointment a day before.

celery -A reminders worker
python reminders.py
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from celery import Celery

import celery_rabbit_delay

app = Celery("reminders", broker="amqp://guest:guest@localhost//")
celery_rabbit_delay.install(app, schedule=True)

#: In place of a database: the start of each appointment, and the id of its reminder task.
appointments: dict[str, tuple[datetime, str]] = {}


@app.task(name="remind")
def remind(appointment: str, start: str) -> None:
    print(f"Reminder: {appointment} is at {start}", flush=True)


def book(appointment: str, start: datetime) -> None:
    old = appointments.get(appointment)
    sent = remind.apply_async(
        (appointment, start.isoformat()),
        eta=start - timedelta(days=1),
        expires=start,
    )
    appointments[appointment] = (start, sent.id)
    if old:  # only now: if the new one could not be sent, the old one still comes
        celery_rabbit_delay.cancel(app, old[1])


def call_off(appointment: str) -> None:
    celery_rabbit_delay.cancel(app, appointments.pop(appointment)[1])


if __name__ == "__main__":
    now = datetime.now(timezone.utc).replace(microsecond=0)
    book("haircut", now + timedelta(days=1, seconds=10))
    book("dentist", now + timedelta(days=20))
    book("dentist", now + timedelta(days=30))  # moved: the first reminder does not come
    book("massage", now + timedelta(days=3))
    call_off("massage")
    for task in celery_rabbit_delay.scheduled(app, task="remind"):
        print(f"{task.due:%Y-%m-%d %H:%M:%S} {task.args}")
