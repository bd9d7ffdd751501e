"""Parses requests: the viewer's time zone, the filters, and the fields of forms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo

from flask import abort, g, request, url_for

from ..delay.core import headers as headers_
from ..delay.core.due import eta_in_utc
from ..delay.core.errors import InvalidDelay
from ..periodic.beat_status import PeriodicTask
from ..periodic.core.entries import SENT_WITH, parse_fields
from ..schedule.core.new_due_time import due_at
from .index import NUMBERS
from .search import Filter

#: The maximum number of messages in one form, and of its bytes.
SELECTED, FORM = 1000, 200_000

#: The delays that the form for moving offers: text and seconds.
DELAYS = {"in 1 minute": 60, "in 10 minutes": 600, "in 1 hour": 3600, "in 1 day": 86_400, "in 1 week": 604_800}


def zone() -> tzinfo:
    """Return the viewer's time zone from the browser's cookie; UTC without one."""
    if "zone" not in g:
        name = request.cookies.get("zone", "")
        try:
            g.zone = ZoneInfo(name) if 0 < len(name) < 64 else timezone.utc
        except (OSError, ValueError, LookupError):
            g.zone = timezone.utc
    found: tzinfo = g.zone
    return found


def numbers() -> list[int]:
    """Return the numbers of the selected messages."""
    chosen = [number for number in request.form.getlist("number", type=int) if 0 <= number < NUMBERS]
    if not chosen:
        abort(400, "Nothing was selected: go back, and select a task.")
    return chosen[:SELECTED]


def marks() -> list[str]:
    """Return the marks of the selected orphans, or of all that the page showed."""
    chosen = request.form.getlist("shown" if request.form.get("all") else "mark")
    if not chosen:
        abort(400, "Nothing was selected: go back, and select an orphan.")
    return chosen


def due() -> datetime:
    """Return the due time in a form: a delay, or a time to come in the viewer's time zone. Raises `InvalidDelay`."""
    moment = datetime.now(timezone.utc)
    eta, delay = request.form.get("eta", ""), request.form.get("delay", "")
    if eta:
        found = due_at(eta, None, moment, zone())
        if found <= moment:
            raise InvalidDelay(f"{eta} is in the past: enter a later time, or choose “Run now”")
        return found
    if delay in DELAYS:
        return moment + timedelta(seconds=DELAYS[delay])
    raise InvalidDelay("choose a delay, or enter a due time")


def until() -> datetime | None:
    """Return the end of a pause in a form, a time in the viewer's time zone. Raises `InvalidDelay`."""
    text = request.form.get("until", "")
    return eta_in_utc(text, zone(), "until") if text else None


def version() -> dict[str, int]:
    """Return the version of a periodic entry that the sender of a form has seen; nothing for a new one."""
    seen = request.form.get("version", None, int)
    return {} if seen is None else {"version": seen}


def entry() -> dict[str, Any]:
    """Return the definition of a periodic entry in a form, and whether it is enabled. Raises `InvalidEntry`."""
    typed = {name: request.form.get(name, "").strip() for name in ("task", "schedule", *SENT_WITH)}
    return {**parse_fields(typed), "enabled": "disabled" not in request.form}


def searched(one: PeriodicTask) -> str:
    """Return what is searched of a periodic entry: its name, task and definition."""
    return f"{one.entry} {one.task} {json.dumps(one.definition, ensure_ascii=False)}"


def filled(one: PeriodicTask) -> dict[str, Any]:
    """Return what the form for a periodic entry shows of one."""
    given = one.definition or {}
    sent_with = {name: json.dumps(given[name], ensure_ascii=False) for name in SENT_WITH if given.get(name)}
    fields = {"name": one.entry, "version": one.version, "task": one.task, "schedule": one.schedule, **sent_with}
    return fields if one.is_enabled else {**fields, "disabled": "yes"}


def back() -> str:
    """Return the path that a form came from: a path of this page, never another site."""
    return _own(request.form.get("back", ""))


def origin() -> str:
    """Return the path of the schedule, with its filters, that a link was followed from."""
    site, found, rest = (request.referrer or "").partition(request.url_root + "?")
    return _own(f"{request.script_root}/?{rest}") if found and not site else url_for("schedule")


def _own(path: str) -> str:
    own = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if own else url_for("schedule")


def matching() -> Filter | None:
    """Return the filter whose matches a form is for; None if it is for a selection."""
    chosen = request.form.get("matching")
    return None if chosen is None else wanted(dict(parse_qsl(chosen)))


def wanted(arguments: Mapping[str, str] | None = None) -> Filter:
    """Return the filter in the query string, or in other arguments."""
    arguments = request.args if arguments is None else arguments
    return Filter(
        arguments.get("q", "").strip()[:200],
        arguments.get("task", "")[:255],
        arguments.get("queue", "")[:255],
        moment(arguments.get("since", "")),
        moment(arguments.get("until", "")),
        arguments.get("state") == "cancelled",
    )


def moment(text: str) -> int | None:
    """Return milliseconds since 1970 from a number of these, or from a time in the viewer's time zone."""
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        return headers_.milliseconds(found if found.tzinfo else found.replace(tzinfo=zone()))
    except (ValueError, OverflowError):
        return None


def place(text: str | None) -> tuple[int, int] | None:
    """Return a row's place in the schedule from two numbers, its due time and its own; None for other text."""
    parts = (text or "").split("-")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 18 for part in parts):
        return None
    return int(parts[0]), int(parts[1])


def link(**changes: Any) -> str:
    """Return the URL of the schedule with changed arguments; None removes one."""
    names = ("q", "task", "queue", "since", "until", "state", "range", "order")
    kept = {name: value for name, value in request.args.items() if name in names}
    merged = {**kept, **changes}
    return url_for("schedule", **{name: value for name, value in merged.items() if value not in (None, "")})
