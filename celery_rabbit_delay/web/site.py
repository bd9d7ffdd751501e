"""The page: what it answers to whom. All that it knows comes from the index and the desk."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from flask import Flask, Response, abort, flash, redirect, render_template, request, session, url_for
from werkzeug.exceptions import HTTPException

from .. import operate
from ..core import headers as headers_
from ..core import journal
from ..core.errors import DelayError
from ..core.headers import Delivery
from ..operate import Record
from . import forms, plot, safety, search
from .desk import FAILURES, ORPHANS, Broker, Desk, Done, Verified, mark
from .gauges import exposition
from .index import now, reading
from .indexer import Indexer
from .overview import Overview
from .text import body_text, printable, reason


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
        MAX_CONTENT_LENGTH=forms.FORM,
        MAX_FORM_MEMORY_SIZE=forms.FORM,
        MAX_FORM_PARTS=forms.SELECTED + 20,
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
            "zone": forms.zone(),
            "progress": indexer.progress,
            "delays": forms.DELAYS,
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


def _filters(site: Flask) -> None:
    site.jinja_env.filters["moment"] = lambda value: plot.text(value, forms.zone())
    site.jinja_env.filters["until"] = lambda value: plot.until(value - now())
    site.jinja_env.filters["printable"] = printable
    site.jinja_env.filters["iso"] = lambda value: plot.text(value, timezone.utc, "%Y-%m-%dT%H:%M:%SZ")
    site.jinja_env.filters["local"] = lambda value: plot.text(value, forms.zone(), "%Y-%m-%dT%H:%M")
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
        wanted, moment = forms.wanted(), now()
        name = request.args.get("range", "hour")
        range_ = plot.RANGES.get(name, plot.RANGES["hour"])
        edges = plot.edges(range_, moment, forms.zone())
        plotted = wanted._replace(text="", since=None, until=None)
        drawn = plot.plot(range_, edges, overview.bars(plotted, edges), forms.zone())
        back = "before" in request.args
        place = forms.place(request.args.get("before" if back else "after"))
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
            link=forms.link,
        )

    @site.get("/task/<int:number>")
    def task(number: int) -> Any:
        with reading(path) as db:
            rows = search.find(db, [number]) if number < forms.MOST else []
        if not rows:
            abort(404, "It no longer waits: it was delivered or moved.")
        try:
            details = _details(desk.record(rows[0]))
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


@journal.reading
def _details(record: Record) -> dict[str, Any]:
    """Return what the journal has of a message: its arguments as Celery shows them, for they may hide secrets.

    Raises `Unreadable`.
    """
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
        return redirect(forms.back(), 303)

    @site.post("/cancel")
    def cancel() -> Any:
        numbers = forms.numbers()
        return answer(lambda: desk.cancel(numbers), "cancelled")

    @site.post("/run-now")
    def run_now() -> Any:
        numbers = forms.numbers()
        return answer(lambda: desk.move(numbers, datetime.now(timezone.utc)), "due at once")

    @site.post("/reschedule")
    def reschedule() -> Any:
        numbers = forms.numbers()
        try:
            due = forms.due()
        except DelayError as exc:
            flash(printable(str(exc), 300), "bad")
            return redirect(forms.back(), 303)
        shown = plot.text(headers_.milliseconds(due), forms.zone())
        return answer(lambda: desk.move(numbers, due), f"moved to {shown}")

    @site.post("/orphans/replay")
    def replay() -> Any:
        marks = forms.marks()
        return answer(lambda: desk.replay(marks), "sent on")

    @site.post("/orphans/remove")
    def remove() -> Any:
        marks = forms.marks()
        return answer(lambda: desk.remove(marks), "removed")

    @site.post("/health/verify")
    def verify() -> Any:
        try:
            site.extensions["verified"][:] = [desk.verify()]
        except FAILURES as exc:
            flash(printable(reason(exc), 500), "bad")
        overview.forget()
        return redirect(url_for("health"), 303)
