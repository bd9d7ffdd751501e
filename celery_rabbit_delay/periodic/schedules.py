"""Schedules of periodic entries as texts, in which they are stored, shown and typed.

every 30 s                        an interval
crontab 30 4 1 * *                minute, hour, day of the month, month, day of the week
solar sunset 48.2 16.4            an event, the latitude and the longitude
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, schedule, solar
from kombu.compression import compress
from kombu.serialization import dumps

from ..delay.core.due import eta_in_utc
from .core.errors import InvalidEntry


def text_of(value: Any, app: Celery) -> str:
    """Return the text of a schedule: seconds, one of Celery's classes, or its text. Raises `InvalidEntry`."""
    if isinstance(value, str):
        return text_of(schedule_of(value, app), app)
    interval = value
    if isinstance(value, (int, float, timedelta)) and not isinstance(value, bool):
        interval = schedule(value)
    if type(interval) is schedule and (seconds := interval.run_every.total_seconds()) > 0:
        return f"every {seconds:.15g} s{' aligned' if interval.relative else ''}"
    if type(value) is crontab:
        names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
        fields = [getattr(value, f"_orig_{name}") for name in names]
        texts = [
            "".join(str(one).split()) if isinstance(one, (str, int)) else ",".join(map(str, one)) for one in fields
        ]
        return " ".join(map(str, ["crontab", *texts]))
    if type(value) is solar:
        return f"solar {value.event} {value.lat} {value.lon}"
    raise InvalidEntry(f"cannot use the schedule {value!r}: use seconds above 0, crontab, schedule or solar")


def schedule_of(text: str, app: Celery) -> BaseSchedule:
    """Return the schedule that a text stands for. Raises `InvalidEntry`."""
    try:
        match text.split():
            case ["every", seconds, *unit] if unit in ([], ["s"], ["s", "aligned"]):
                if (period := timedelta(seconds=float(seconds))) > timedelta(0):
                    return schedule(period, relative="aligned" in unit, app=app)
            case ["crontab", minute, hour, day, month, weekday]:
                return crontab(minute, hour, weekday, day, month, app=app)
            case ["solar", event, latitude, longitude]:
                return solar(event, float(latitude), float(longitude), app=app)
    except Exception as exc:  # of Celery, whose parsers raise many
        raise InvalidEntry(f"cannot use the schedule {text!r}: {exc}") from exc
    raise InvalidEntry(
        f"cannot read the schedule {text!r}: use 'every 30 s', 'crontab 30 4 1 * *' (minute, hour, day, month, day of "
        "the week) or 'solar sunset 48.2 16.4'; for one run, send a task with an eta"
    )


def _check_options(options: dict[str, Any], app: Celery) -> None:
    """Raise an error for options of `apply_async` with which no run could be sent."""
    app.amqp.create_task_message("id", "task", (), {}, countdown=options.get("countdown"), eta=options.get("eta"))
    if isinstance(expires := options.get("expires"), str):
        eta_in_utc(expires, name="expires")
    elif not isinstance(expires, (int, float, type(None))):
        raise InvalidEntry(f"expires={expires!r}: use seconds or a time")
    priority, headers = options.get("priority"), options.get("headers")
    if priority is not None and (type(priority) is not int or not 0 <= priority <= 255):
        raise InvalidEntry(f"priority={priority!r}: use a whole number from 0 to 255")
    if not isinstance(headers or {}, dict):
        raise InvalidEntry(f"headers={headers!r}: use a mapping")
    dumps((), serializer=options.get("serializer") or "json")
    compress(b"", options.get("compression") or "gzip")


def definition_of(task: Any, schedule: Any, args: Any, kwargs: Any, options: Any, app: Celery) -> dict[str, Any]:
    """Return the definition of an entry, which is JSON. Raises `InvalidEntry`."""
    if not isinstance(task, str) or not task:
        raise InvalidEntry(f"cannot use the task {task!r}: use its name")
    if isinstance(args, (str, bytes, Mapping)):
        raise InvalidEntry(f"cannot use the positional arguments {args!r}: use a list")
    try:
        definition = {
            "task": task,
            "schedule": text_of(schedule, app),
            "args": list(args or ()),
            "kwargs": dict(kwargs or {}),
            "options": dict(options or {}),
        }
        as_json: dict[str, Any] = json.loads(json.dumps(definition, allow_nan=False))
        entry_of(task, as_json, app).is_due()
        _check_options(as_json["options"], app)
    except InvalidEntry:
        raise
    except Exception as exc:  # of Celery, such as for a date that never comes, or of json
        raise InvalidEntry(f"cannot use the entry for {task}: {exc}") from exc
    return as_json


def entry_of(name: str, definition: dict[str, Any], app: Celery) -> ScheduleEntry:
    """Return Celery's entry for a definition. Raises `InvalidEntry`, `LookupError`, `TypeError`, `AttributeError`."""
    return ScheduleEntry(
        name=name,
        task=definition["task"],
        schedule=schedule_of(definition["schedule"], app),
        args=definition["args"],
        kwargs=definition["kwargs"],
        options=definition["options"],
        app=app,
    )


def told(entry: ScheduleEntry, app: Celery) -> tuple[str, dict[str, Any] | None]:
    """Return the text of an entry's schedule, and its definition; None if that is not JSON."""
    text = str(entry.schedule)
    with suppress(Exception):  # it is of a class of its own, or not JSON
        text = text_of(entry.schedule, app)
        return text, definition_of(entry.task, text, entry.args, entry.kwargs, entry.options, app)
    return text, None
