"""Moves entries from the table of django-celery-beat to `celery beat -S rabbit-delay`. Stop the other beat first."""

from __future__ import annotations

import json
from typing import Any

import shop  # sets Django up
from django_celery_beat.models import PeriodicTask

from celery_rabbit_delay import DelayError, periodic


def schedule_of(entry: Any) -> Any:
    if entry.start_time or entry.one_off:
        raise ValueError("it has a start time, or is to run only once")
    if cron := entry.crontab:
        if str(cron.timezone) != str(shop.app.timezone):
            raise ValueError(f"its time zone is {cron.timezone}, and that of the app {shop.app.timezone}")
        fields = cron.minute, cron.hour, cron.day_of_month, cron.month_of_year, cron.day_of_week
        return " ".join(["crontab", *(field.replace(" ", "") for field in fields)])
    if entry.interval:
        return entry.interval.schedule.run_every
    return f"solar {entry.solar.event} {entry.solar.latitude} {entry.solar.longitude}"


def move(entry: Any) -> None:
    if entry.expires:
        raise ValueError("it expires at a fixed time")
    options = {
        "queue": entry.queue,
        "exchange": entry.exchange,
        "routing_key": entry.routing_key,
        "priority": entry.priority,
        "expires": entry.expire_seconds,
        "headers": json.loads(entry.headers),
    }
    periodic.add(
        shop.app,
        entry.name,
        entry.task,
        schedule_of(entry),
        json.loads(entry.args),
        json.loads(entry.kwargs),
        {name: value for name, value in options.items() if value not in (None, "", {})},
        enabled=entry.enabled,
    )


def main() -> None:
    for entry in PeriodicTask.objects.exclude(task="celery.backend_cleanup"):
        try:
            move(entry)
            print(f"{entry.name}: moved")
        except (DelayError, ValueError) as exc:  # also if it was moved before
            print(f"{entry.name}: stays, {exc}")


if __name__ == "__main__":
    main()
