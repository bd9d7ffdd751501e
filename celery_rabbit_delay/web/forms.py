"""What a request says: the viewer's zone, what is to be shown, and what a form names."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from flask import abort, g, request, url_for

from ..core import headers as headers_
from ..core import journal
from ..core.due import due_at
from .search import Filter

#: Most messages that one form may name, and bytes that a form may have.
SELECTED, FORM = 1000, 200_000

#: Numbers of messages lie below.
MOST = 1 << journal.NUMBER_BITS

#: What a moved message may be given instead of a moment: what it is called, and seconds.
DELAYS = {"in 1 minute": 60, "in 10 minutes": 600, "in 1 hour": 3600, "in 1 day": 86_400, "in 1 week": 604_800}


def zone() -> tzinfo:
    """Return the viewer's zone, which the browser tells in a cookie; UTC until it does."""
    if "zone" not in g:
        name = request.cookies.get("zone", "")
        try:
            g.zone = ZoneInfo(name) if 0 < len(name) < 64 else timezone.utc
        except (OSError, ValueError, LookupError):
            g.zone = timezone.utc
    found: tzinfo = g.zone
    return found


def numbers() -> list[int]:
    """Return the numbers of the messages that were selected."""
    chosen = [number for number in request.form.getlist("number", type=int) if 0 <= number < MOST]
    if not chosen:
        abort(400, "Nothing was selected: go back, and select a task.")
    return chosen[:SELECTED]


def marks() -> list[str] | None:
    """Return what tells the orphans that were selected; None for all."""
    if request.form.get("all"):
        return None
    chosen = request.form.getlist("mark")
    if not chosen:
        abort(400, "Nothing was selected: go back, and select an orphan.")
    return chosen


def due() -> datetime:
    """Return the moment that a form names: a delay, or a time in the viewer's zone. Raises `InvalidDelay`."""
    moment = datetime.now(timezone.utc)
    eta, delay = request.form.get("eta", ""), request.form.get("delay", "")
    if eta:
        return due_at(eta, None, moment, zone())
    if delay in DELAYS:
        return moment + timedelta(seconds=DELAYS[delay])
    return due_at(None, None, moment, timezone.utc)


def back() -> str:
    """Return where a form came from: a path of this page, never another site."""
    path = request.form.get("back", "/")
    own = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if own else "/"


def wanted() -> Filter:
    """Return which messages the address asks for."""
    arguments = request.args
    return Filter(
        arguments.get("q", "").strip()[:200],
        arguments.get("task", "")[:255],
        arguments.get("queue", "")[:255],
        moment(arguments.get("since", "")),
        moment(arguments.get("until", "")),
    )


def moment(text: str) -> int | None:
    """Return a moment in milliseconds since 1970: from such a number, or from a time in the viewer's zone."""
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        return headers_.milliseconds(found if found.tzinfo else found.replace(tzinfo=zone()))
    except (ValueError, OverflowError):
        return None


def place(text: str | None) -> tuple[int, int] | None:
    """Return a row's place in the schedule, as `Row.place` writes it; None for anything else."""
    parts = (text or "").split("-")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 18 for part in parts):
        return None
    return int(parts[0]), int(parts[1])


def link(**changes: Any) -> str:
    """Return the address of the schedule with other arguments; None leaves one out."""
    kept = {
        name: value for name, value in request.args.items() if name in ("q", "task", "queue", "since", "until", "range")
    }
    merged = {**kept, **changes}
    return url_for("schedule", **{name: value for name, value in merged.items() if value not in (None, "")})
