"""Moves one-off entries from the table of django-celery-beat into RabbitMQ. Stop beat first."""

from __future__ import annotations

import json
from typing import Any

import shop  # sets Django up
from django_celery_beat.models import PeriodicTask, PeriodicTasks

import celery_rabbit_delay

#: Entries that are sent together. If the program is interrupted, so many at most are sent again, with the same ids.
TOGETHER = 1000


def send(entry: Any) -> None:
    shop.app.send_task(
        entry.task,
        json.loads(entry.args),
        json.loads(entry.kwargs),
        eta=entry.clocked.clocked_time,
        task_id=f"one-off-{entry.pk}",
        expires=entry.expires_,
        queue=entry.queue or None,
        exchange=entry.exchange or None,
        routing_key=entry.routing_key or None,
        priority=entry.priority,
        headers=json.loads(entry.headers),
    )


def move() -> int:
    """Send all entries and disable each once RabbitMQ has confirmed it; return their number."""
    waiting = PeriodicTask.objects.filter(clocked__isnull=False, one_off=True, enabled=True).select_related("clocked")
    moved = 0
    while entries := list(waiting.order_by("clocked__clocked_time")[:TOGETHER]):
        with celery_rabbit_delay.batch(shop.app):
            for entry in entries:
                send(entry)
        PeriodicTask.objects.filter(pk__in=[entry.pk for entry in entries]).update(enabled=False)
        moved += len(entries)
    PeriodicTasks.update_changed()  # so that a running beat reads the table again
    return moved


if __name__ == "__main__":
    print(f"{move()} entries moved")
