import os

import django
from celery import Celery

import celery_rabbit_delay

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
django.setup()

app = Celery("shop", broker="amqp://guest:guest@localhost//")
celery_rabbit_delay.install(app, schedule=True)


@app.task(name="remind")
def remind(appointment: str) -> None:
    print(f"Reminder: {appointment}", flush=True)
