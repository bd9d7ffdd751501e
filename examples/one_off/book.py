"""Books reminders as before: as one-off entries in the table of django-celery-beat."""

import json
from datetime import datetime, timedelta, timezone

import shop  # noqa: F401  sets Django up
from django.core.management import call_command
from django_celery_beat.models import ClockedSchedule, PeriodicTask

call_command("migrate", verbosity=0)
now = datetime.now(timezone.utc)
for number in range(3):
    clocked = ClockedSchedule.objects.create(clocked_time=now + timedelta(days=number, seconds=90))
    PeriodicTask.objects.create(
        name=f"appointment {number}",
        task="remind",
        args=json.dumps([f"appointment {number}"]),
        clocked=clocked,
        one_off=True,
    )
