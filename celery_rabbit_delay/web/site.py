"""The page: what it answers to whom. All that it knows comes from the index and the desk."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from flask import Flask, Response, abort, flash, g, redirect, render_template, request, session, url_for
from werkzeug.exceptions import HTTPException

from .. import operate
from ..core import headers as headers_
from ..core import journal
from ..core.due import due_at
from ..core.errors import DelayError
from ..core.headers import Delivery
from . import plot, safety, search
from .desk import FAILURES, ORPHANS, Broker, Desk, Done, Verified, mark
from .gauges import exposition
from .index import now, reading
from .indexer import Indexer
from .overview import Overview
from .search import Filter, Row
from .text import body_text, printable, reason

#: Most messages that one form may name, and bytes that a form may have.
SELECTED, FORM = 1000, 200_000

#: Numbers of messages lie below.
_MOST = 1 << journal.NUMBER_BITS

#: What a moved message may be given instead of a moment: what it is called, and seconds.
DELAYS = {"in 1 minute": 60, "in 10 minutes": 600, "in 1 hour": 3600, "in 1 day": 86_400, "in 1 week": 604_800}


class Setting(NamedTuple):
    """How the page is served."""

    host: str = "127.0.0.1"
    port: int = 5566
    names: tuple[str, ...] = ()  # that the Host header may have besides
    password: str = ""  # "": none is asked for
    read_only: bool = False
    management: bool = False  # whether the management API is asked


def create(setting: Setting, broker: Broker, path: Path, indexer: Indexer) -> Flask:
    """Return the application."""
    site = Flask(__name__, static_url_path="/static")
    site.config.update(
        SECRET_KEY=secrets.token_bytes(32),
        SESSION_COOKIE_NAME=f"celery-rabbit-delay-{setting.port}",  # a cookie is for all ports of a host
        SESSION_COOKIE_SAMESITE="Strict",
        SESSION_COOKIE_HTTPONLY=True,
        MAX_CONTENT_LENGTH=FORM,
        MAX_FORM_MEMORY_SIZE=FORM,
        MAX_FORM_PARTS=SELECTED + 20,
    )
    desk = Desk(broker, indexer, path)
    overview = Overview(path, indexer, desk)
    _guard(site, setting)
    _filters(site)
    _show(site, setting, desk, overview, path)
    _act(site, setting, desk, overview)

    @site.context_processor
    def common() -> dict[str, Any]:
        return {
            "setting": setting,
            "broker": broker.name,
            "token": _token,
            "now": now(),
            "zone": _zone(),
            "progress": indexer.progress,
            "delays": DELAYS,
        }

    return site


def _guard(site: Flask, setting: Setting) -> None:
    """Turn away who may not see, and requests that other sites make a browser send."""
    door = safety.Door(setting.password)

    @site.before_request
    def check() -> Response | None:
        if not safety.is_known(request.headers.get("Host", ""), setting.host, setting.names):
            abort(421, "This page does not answer to that name: name it with --allow-host.")
        if request.endpoint in ("static", "login", "enter"):
            pass
        elif request.endpoint == "metrics" and _basic() is not None:
            if not setting.password or not door.opens(request.remote_addr or "", _basic() or ""):
                abort(401, "The password is wrong.")
        elif setting.password and not session.get("entered"):
            if request.method == "GET" and request.endpoint != "metrics":
                return redirect(url_for("login"), 303)  # type: ignore[return-value]
            abort(401, "Log in first, or send the password.")
        if request.method == "POST":
            _check_post(setting)
        return None

    @site.after_request
    def protect(response: Response) -> Response:
        response.headers.update(safety.HEADERS)
        if request.endpoint == "static":
            response.headers["Cache-Control"] = "no-cache"
        return response

    @site.errorhandler(HTTPException)
    def error(exc: HTTPException) -> Any:
        if request.endpoint == "metrics":
            return exc.get_response()
        return render_template("error.html", title=exc.name, says=exc.description), exc.code or 500

    @site.get("/login")
    def login() -> str:
        return render_template("login.html")

    @site.post("/login")
    def enter() -> Any:
        address = request.remote_addr or ""
        if door.is_closed(address):
            abort(429, "Too many wrong passwords: wait for a minute.")
        if not setting.password or not door.opens(address, request.form.get("password", "")):
            flash("The password is wrong.", "bad")
            return redirect(url_for("login"), 303)
        session.clear()
        session["entered"] = True
        return redirect(url_for("schedule"), 303)

    @site.post("/logout")
    def logout() -> Any:
        session.clear()
        return redirect(url_for("login"), 303)


def _check_post(setting: Setting) -> None:
    expected = session.get("token")
    if not expected or not safety.same(request.form.get("token", ""), expected):
        abort(403, "This form is out of date: go back, load the page again, and repeat it.")
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        abort(403, "Another site sent this form.")
    if setting.read_only and request.endpoint not in ("enter", "logout"):
        abort(403, "This page was started with --read-only.")


def _token() -> str:
    """Return what shows that a form comes from this page."""
    if "token" not in session:
        session["token"] = secrets.token_urlsafe(24)
    return str(session["token"])


def _basic() -> str | None:
    """Return the password of an Authorization header, whatever the name in it; None without one."""
    kind, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def _zone() -> tzinfo:
    """Return the viewer's zone, which the browser tells in a cookie; UTC until it does."""
    if "zone" not in g:
        name = request.cookies.get("zone", "")
        try:
            g.zone = ZoneInfo(name) if 0 < len(name) < 64 else timezone.utc
        except (OSError, ValueError, LookupError):
            g.zone = timezone.utc
    zone: tzinfo = g.zone
    return zone


def _filters(site: Flask) -> None:
    site.jinja_env.filters["moment"] = lambda value: plot.text(value, _zone())
    site.jinja_env.filters["until"] = lambda value: plot.until(value - now())
    site.jinja_env.filters["printable"] = printable
    site.jinja_env.filters["iso"] = lambda value: plot.text(value, timezone.utc, "%Y-%m-%dT%H:%M:%SZ")
    site.jinja_env.filters["local"] = lambda value: plot.text(value, _zone(), "%Y-%m-%dT%H:%M")
    site.jinja_env.filters["duration"] = lambda value: plot.until(value).removeprefix("in ")
    site.jinja_env.filters["mark"] = mark
    site.jinja_env.filters["milliseconds"] = headers_.milliseconds
    site.jinja_env.globals["none"] = search.NONE
    site.jinja_env.trim_blocks = site.jinja_env.lstrip_blocks = True


def _show(site: Flask, setting: Setting, desk: Desk, overview: Overview, path: Path) -> None:
    verified: list[Verified] = []
    site.extensions["verified"] = verified

    @site.get("/")
    def schedule() -> str:
        wanted, moment = _filter(), now()
        name = request.args.get("range", "hour")
        range_ = plot.RANGES.get(name, plot.RANGES["hour"])
        edges = plot.edges(range_, moment, _zone())
        plotted = wanted._replace(text="", since=None, until=None)
        drawn = plot.plot(range_, edges, overview.bars(plotted, edges), _zone())
        back = "before" in request.args
        place = _place(request.args.get("before" if back else "after"))
        with reading(path) as db:
            rows = search.page(db, wanted, moment, place, back and place is not None)
        more = len(rows) > search.PAGE
        if more:
            rows = rows[1:] if back and place else rows[: search.PAGE]
        earlier, later = (more, True) if back and place else (place is not None, more)
        return render_template(
            "schedule.html",
            summary=overview.summary(),
            status=overview.status(),
            wanted=wanted,
            found=overview.count(wanted),
            most=search.MOST,
            rows=rows,
            before=rows[0].place if rows and earlier else None,
            after=rows[-1].place if rows and later else None,
            plot=drawn,
            range=range_,
            ranges=plot.RANGES,
            size=(plot.WIDTH, plot.HEIGHT, plot.LEFT, plot.BOTTOM),
            link=_link,
        )

    @site.get("/task/<int:number>")
    def task(number: int) -> Any:
        with reading(path) as db:
            rows = search.find(db, [number]) if number < _MOST else []
        if not rows:
            abort(404, "It no longer waits: it was delivered or moved.")
        try:
            details = _details(desk, rows[0])
        except FAILURES as exc:
            details = {"error": str(exc)}
        return render_template("task.html", row=rows[0], **details)

    @site.get("/orphans")
    def orphans() -> Any:
        try:
            found, error = desk.orphans(), None
        except FAILURES as exc:
            found, error = [], str(exc)
        status = overview.status()
        total = None if isinstance(status, str) else status.orphans
        return render_template("orphans.html", orphans=found, error=error, total=total, most=ORPHANS)

    @site.get("/health")
    def health() -> Any:
        return render_template("health.html", status=overview.status(), verified=verified[-1] if verified else None)

    @site.get("/metrics")
    def metrics() -> Response:
        return Response(exposition(overview.measured(setting.management)), content_type="text/plain; version=0.0.4")


def _details(desk: Desk, row: Row) -> dict[str, Any]:
    """Return what the journal has of a message: its arguments as Celery shows them, for they may hide secrets."""
    record = desk.record(row)
    message = operate.to_message(record)
    headers = message.headers or {}
    state = headers_.read_state(headers)
    is_task = "task" in headers
    sent = headers_.unwrap(Delivery(f"{state.prefix}.", "@", headers)).headers if state else headers
    hidden = ("argsrepr", "kwargsrepr", headers_.X_DELAY_NUMBER)
    shown = {
        printable(name, 200): printable(value if isinstance(value, str) else _json(value), 2000)
        for name, value in list(sent.items())[:200]
        if name not in hidden
    }
    properties = {
        name: printable(value, 500) for name, value in message.properties.items() if name != "application_headers"
    }
    return {
        "args": printable(headers.get("argsrepr"), 10_000) if is_task and headers.get("argsrepr") is not None else None,
        "kwargs": printable(headers.get("kwargsrepr"), 10_000)
        if is_task and headers.get("kwargsrepr") is not None
        else None,
        "body": None if is_task else body_text(record.body),
        "size": len(record.body),
        "headers": shown,
        "properties": properties,
        "exchange": state.exchange if state else "",
        "routing_key": printable(headers["CC"][0], 300) if headers.get("CC") else "",
    }


def _json(value: Any) -> str:
    try:
        return json.dumps(value, default=str, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def _act(site: Flask, setting: Setting, desk: Desk, overview: Overview) -> None:
    def answer(act: Callable[[], Done], what: str) -> Any:
        try:
            done = act()
            flash(f"{done.amount:,} {what}", "good" if done.amount else "bad")
            for refused in done.refused[:5]:
                flash(printable(refused, 300), "bad")
            if len(done.refused) > 5:
                flash(f"and {len(done.refused) - 5:,} more were refused", "bad")
        except FAILURES as exc:
            flash(printable(reason(exc), 500), "bad")
        overview.forget()
        return redirect(_back(), 303)

    @site.post("/cancel")
    def cancel() -> Any:
        numbers = _numbers()
        return answer(lambda: desk.cancel(numbers), "cancelled")

    @site.post("/run-now")
    def run_now() -> Any:
        numbers = _numbers()
        return answer(lambda: desk.move(numbers, datetime.now(timezone.utc)), "due at once")

    @site.post("/reschedule")
    def reschedule() -> Any:
        numbers = _numbers()
        try:
            due = _due()
        except DelayError as exc:
            flash(printable(str(exc), 300), "bad")
            return redirect(_back(), 303)
        shown = plot.text(headers_.milliseconds(due), _zone())
        return answer(lambda: desk.move(numbers, due), f"moved to {shown}")

    @site.post("/orphans/replay")
    def replay() -> Any:
        marks = _marks()
        return answer(lambda: desk.replay(marks), "sent on")

    @site.post("/orphans/remove")
    def remove() -> Any:
        marks = _marks()
        return answer(lambda: desk.remove(marks), "removed")

    @site.post("/health/verify")
    def verify() -> Any:
        try:
            site.extensions["verified"][:] = [desk.verify()]
        except FAILURES as exc:
            flash(printable(reason(exc), 500), "bad")
        overview.forget()
        return redirect(url_for("health"), 303)


def _numbers() -> list[int]:
    chosen = [number for number in request.form.getlist("number", type=int) if 0 <= number < _MOST]
    if not chosen:
        abort(400, "Nothing was selected: go back, and select a task.")
    return chosen[:SELECTED]


def _marks() -> list[str] | None:
    """Return what tells the orphans that were selected; None for all."""
    if request.form.get("all"):
        return None
    chosen = request.form.getlist("mark")
    if not chosen:
        abort(400, "Nothing was selected: go back, and select an orphan.")
    return chosen


def _due() -> datetime:
    """Return the moment that a form names: a delay, or a time in the viewer's zone. Raises `InvalidDelay`."""
    moment = datetime.now(timezone.utc)
    eta, delay = request.form.get("eta", ""), request.form.get("delay", "")
    if eta:
        return due_at(eta, None, moment, _zone()).astimezone(timezone.utc)
    if delay in DELAYS:
        return moment + timedelta(seconds=DELAYS[delay])
    return due_at(None, None, moment, timezone.utc)


def _back() -> str:
    """Return where a form came from: a path of this page, never another site."""
    back = request.form.get("back", "/")
    return (
        back if back.startswith("/") and not back.startswith("//") and "\\" not in back and back.isprintable() else "/"
    )


def _filter() -> Filter:
    arguments = request.args
    return Filter(
        arguments.get("q", "").strip()[:200],
        arguments.get("task", "")[:255],
        arguments.get("queue", "")[:255],
        _moment(arguments.get("since", "")),
        _moment(arguments.get("until", "")),
    )


def _moment(text: str) -> int | None:
    """Return a moment in milliseconds since 1970: from such a number, or from a time in the viewer's zone."""
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        return headers_.milliseconds(found if found.tzinfo else found.replace(tzinfo=_zone()))
    except (ValueError, OverflowError):
        return None


def _place(text: str | None) -> tuple[int, int] | None:
    parts = (text or "").split("-")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 18 for part in parts):
        return None
    return int(parts[0]), int(parts[1])


def _link(**changes: Any) -> str:
    """Return the address of the schedule with other arguments; None leaves one out."""
    kept = {
        name: value for name, value in request.args.items() if name in ("q", "task", "queue", "since", "until", "range")
    }
    merged = {**kept, **changes}
    return url_for("schedule", **{name: value for name, value in merged.items() if value not in (None, "")})
