"""The targets of the page's forms: cancel, restore, move, pause, orphans, periodic entries."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from typing import Any

from flask import Flask, abort, flash, redirect, render_template, request

from ..delay.core import headers as headers_
from ..schedule.amqp import waiting_tasks
from ..schedule.amqp.waiting_tasks import utc_ms
from ..text import counted
from . import forms, plot, search
from .operations import Done, Operations, or_reason
from .overview import Overview
from .printing import printable

logger = logging.getLogger(__name__)


def add_actions(site: Flask, operations: Operations, overview: Overview) -> None:
    """Add the targets of the forms."""

    def selected() -> list[int]:
        wanted = forms.matching()
        if wanted is None:
            return forms.numbers()
        found = search.found(operations.indexer.view, wanted, utc_ms())
        if len(found) > search.MOST:
            abort(400, f"More than {search.MOST:,} match: choose a filter that fewer match.")
        return [row.number for row in found]

    def user() -> str:
        """Return the user whom the server or the application in front has authenticated, or else the address."""
        return printable(request.remote_user or request.remote_addr or "unknown", 100)

    def answer(act: Callable[[], Done]) -> Any:
        done = or_reason(act)
        if isinstance(done, str):
            flash(printable(done, 500), "bad")
        else:
            logger.info("%s, by %s", counted(done.amount, done.what), user())
            flash(counted(done.amount, done.what), "good" if done.amount else "bad")
            for refused in done.refused[:5]:
                flash(printable(refused, 300), "bad")
            if len(done.refused) > 5:
                flash(f"and {len(done.refused) - 5:,} more refused", "bad")
        overview.forget()
        return redirect(forms.back(), 303)

    def reschedule() -> Done:
        numbers, due = selected(), forms.due()
        shown = plot.text(headers_.milliseconds(due), forms.zone(), "%Y-%m-%d %H:%M:%S %Z")
        return operations.move(numbers, due, f"moved to {shown}")

    def at_once() -> Done:
        return operations.move(selected(), datetime.now(timezone.utc), "due at once")

    acts: dict[str, Callable[[], Done]] = {
        "/cancel": lambda: operations.cancel(selected()),
        "/restore": lambda: operations.restore(selected()),
        "/run-now": at_once,
        "/reschedule": reschedule,
        "/pause": lambda: operations.on_queue("paused", waiting_tasks.pause, request.form["queue"], forms.until()),
        "/resume": lambda: operations.on_queue("resumed", waiting_tasks.resume, request.form["queue"]),
        "/orphans/replay": lambda: operations.replay(forms.marks()),
        "/orphans/remove": lambda: operations.remove(forms.marks()),
    }
    for path, act in acts.items():
        name = path.rpartition("/")[2].replace("-", "_")
        site.add_url_rule(path, name, partial(answer, act), methods=["POST"])

    @site.post("/periodic/<any(enable, disable, remove, run_now):act>")
    def edit_entry(act: str) -> Any:
        more = {} if act == "run_now" else forms.version()
        return answer(lambda: operations.periodic(act, request.form["name"], **more))

    @site.post("/periodic")
    def write_entry() -> Any:
        seen = forms.version()
        act, name = "change" if seen else "add", request.form.get("name", "").strip()
        done = or_reason(lambda: operations.periodic(act, name, **seen, **forms.entry()))
        if isinstance(done, str):
            return render_template("entry.html", values=request.form, error=done)
        return answer(lambda: done)
