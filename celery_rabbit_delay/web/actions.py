"""The targets of the page's forms: cancel, restore, move, pause, orphans, periodic entries, verify."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from flask import Flask, abort, flash, redirect, render_template, request, url_for

from .. import operate
from ..amqp.clocks import utc_ms
from ..core import headers as headers_
from ..core.errors import DelayError
from ..core.text import counted
from . import forms, plot, search
from .database import reading
from .operations import Done, Operations, or_reason
from .overview import Overview
from .printing import printable


def add_actions(site: Flask, operations: Operations, overview: Overview) -> None:
    """Add the targets of the forms."""

    def selected() -> list[int]:
        wanted = forms.matching()
        if wanted is None:
            return forms.numbers()
        with reading(operations.indexer.path) as db:
            numbers = [number for _, number in search.soonest(db, wanted, utc_ms())]
        if len(numbers) > search.MOST:
            abort(400, f"More than {search.MOST:,} match: choose a filter that fewer match.")
        return numbers

    def user() -> str:
        """Return the user whom the server or the application in front has authenticated, or else the address."""
        return printable(request.remote_user or request.remote_addr or "unknown", 100)

    def who() -> str:
        return operate.of_app(user(), operations.broker.app)

    def answer(act: Callable[[], Done], what: str) -> Any:
        done = or_reason(act)
        if isinstance(done, str):
            flash(printable(done, 500), "bad")
        else:
            flash(counted(done.amount, what), "good" if done.amount else "bad")
            for refused in done.refused[:5]:
                flash(printable(refused, 300), "bad")
            if len(done.refused) > 5:
                flash(f"and {len(done.refused) - 5:,} more refused", "bad")
        overview.forget()
        return redirect(forms.back(), 303)

    @site.post("/cancel", endpoint="cancel")
    @site.post("/restore", endpoint="restore")
    def cancel_or_restore() -> Any:
        numbers, workflow = selected(), "workflow" in request.form
        act = str(request.endpoint)
        done = {"cancel": "cancelled", "restore": "restored"}[act]
        return answer(
            lambda: getattr(operations, act)(numbers, who(), workflow), f"workflows {done}" if workflow else done
        )

    @site.post("/run-now")
    def run_now() -> Any:
        numbers = selected()
        return answer(lambda: operations.move(numbers, datetime.now(timezone.utc), who()), "due at once")

    @site.post("/reschedule")
    def reschedule() -> Any:
        numbers = selected()
        try:
            due = forms.due()
        except DelayError as exc:
            flash(printable(str(exc), 300), "bad")
            return redirect(forms.back(), 303)
        shown = plot.text(headers_.milliseconds(due), forms.zone(), "%Y-%m-%d %H:%M:%S %Z")
        return answer(lambda: operations.move(numbers, due, who()), f"moved to {shown}")

    @site.post("/pause")
    def pause() -> Any:
        queue = request.form["queue"]
        return answer(lambda: operations.on_queue(operate.pause, queue, forms.until(), who()), "paused")

    @site.post("/resume")
    def resume() -> Any:
        queue = request.form["queue"]
        return answer(lambda: operations.on_queue(operate.resume, queue, who()), "resumed")

    @site.post("/orphans/replay")
    def replay() -> Any:
        marks = forms.marks()
        return answer(lambda: operations.replay(marks, who()), "sent on")

    @site.post("/orphans/remove")
    def remove() -> Any:
        marks = forms.marks()
        return answer(lambda: operations.remove(marks, who()), "removed")

    @site.post("/periodic/<any(enable, disable, remove, run_now):act>")
    def edit_entry(act: str) -> Any:
        seen = {} if act == "run_now" else forms.version()
        done = "run of a periodic entry sent" if act == "run_now" else f"periodic entry {act}d"
        return answer(lambda: operations.periodic(act, request.form["name"], **seen, by=user()), done)

    @site.post("/periodic")
    def write_entry() -> Any:
        seen = forms.version()
        act, name = "change" if seen else "add", request.form.get("name", "").strip()
        done = or_reason(lambda: operations.periodic(act, name, **seen, **forms.entry(), by=user()))
        if isinstance(done, str):
            return render_template("entry.html", values=request.form, error=done)
        return answer(lambda: done, "periodic entry written")

    @site.post("/health/verify")
    def verify() -> Any:
        if why := or_reason(operations.verify):
            flash(printable(why, 500), "bad")
        overview.forget()
        return redirect(url_for("health"), 303)
