"""The pages: the schedule, a task, orphans, health, the form for a periodic entry, metrics."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable
from typing import Any

from flask import Flask, Response, abort, render_template, request

from ..amqp import schedule as schedule_
from ..amqp.clocks import utc_ms
from ..core import headers as headers_
from ..core import streams
from ..core.headers import Delivery
from ..core.journal import Record
from ..core.routing_key import MAX_LENGTH
from ..core.search import ENTRY_FIELDS, matching, parse
from ..core.unwrap import unwrap
from . import forms, plot, search
from .database import reading
from .gauges import exposition
from .index import NUMBERS
from .operations import ORPHANS, Operations, marks_of, or_reason
from .overview import Overview
from .printing import body_text, printable
from .search import Filter, Row, Share

_Link = dict[str, Any] | None

#: The periodic entries on the page at a time, at most.
_ENTRIES = 100


def add_views(site: Flask, operations: Operations, overview: Overview) -> None:
    """Add the pages that change nothing."""
    path = operations.indexer.path

    @site.get("/")
    def schedule() -> str:
        wanted, moment = forms.wanted(), utc_ms()
        range_ = plot.RANGES.get(request.args.get("range", ""), plot.RANGES["hour"])
        edges = plot.edges(range_, moment, forms.zone())
        colours, counts = _by_queue(overview, wanted, edges)
        shares, paused = overview.shares(wanted.state), operations.indexer.paused
        found = overview.count(wanted)
        order = request.args.get("order", "")
        if order != "latest" and (order not in search.ORDERS or found > search.MOST):
            order = ""
        with reading(path) as db:
            rows, before, after = _page(db, wanted, moment, order)
        return render_template(
            "schedule.html",
            summary=overview.summary(),
            shares=(shares[0], _with_idle(shares[1], paused, operations.broker.names)),
            paused=paused,
            status=overview.status(),
            wanted=wanted,
            found=found,
            most=search.MOST,
            rows=rows,
            before=before,
            after=after,
            order=order,
            plot=plot.plot(range_, edges, counts, forms.zone()),
            colours=colours,
            range=range_,
            ranges=plot.RANGES,
            height=plot.HEIGHT,
            link=forms.link,
        )

    @site.get("/task/<int:number>")
    def task(number: int) -> Any:
        with reading(path) as db:
            rows = search.find(db, [number]) if number < NUMBERS else []
        if not rows:
            abort(404, "This task no longer waits: it was delivered or moved.")
        found = or_reason(lambda: _details(operations.record(rows[0])))
        details: dict[str, Any] = {"error": found} if isinstance(found, str) else found
        return render_template("task.html", row=rows[0], origin=forms.origin(), **details)

    @site.get("/about")
    def about() -> Any:
        id_ = request.args.get("id", "")
        if not 0 < len(id_) <= MAX_LENGTH:
            abort(404, "There is no task with such an id.")
        found = or_reason(lambda: operations.about(id_))
        return render_template(
            "about.html", id=id_, **({"error": found} if isinstance(found, str) else {"known": found})
        )

    @site.get("/orphans")
    def orphans() -> Any:
        answer, status = or_reason(operations.orphans), overview.status()
        found, error = ([], answer) if isinstance(answer, str) else (answer, None)
        total = None if isinstance(status, str) else status.orphans
        return render_template(
            "orphans.html", orphans=found, marks=marks_of(found), error=error, total=total, most=ORPHANS
        )

    @site.get("/health")
    def health() -> Any:
        beat, asked = overview.beat(), request.args.get("entry", "").strip()
        known = [] if beat is None or isinstance(beat, str) else beat.entries
        words = parse(asked, ENTRY_FIELDS)
        return render_template(
            "health.html",
            status=overview.status(),
            beat=beat,
            asked=asked,
            entries=list(matching(words, known, forms.searched)),
            most=_ENTRIES,
            verified=operations.verified,
            is_app=operations.broker.is_app,
        )

    @site.get("/periodic")
    def entry() -> Any:
        name = request.args.get("name")
        beat = or_reason(operations.beat) if name else None
        if isinstance(beat, str):
            return render_template("entry.html", values={"name": name}, error=beat)
        found = [forms.filled(one) for one in (beat.entries if beat else ()) if one.entry == name and one.definition]
        if name and not found:
            abort(404, "There is no such entry that could be changed: it was removed, or is in the code and not JSON.")
        return render_template("entry.html", values=found[0] if found else {})

    @site.get("/metrics")
    def metrics() -> Response:
        return Response(exposition(overview), content_type="text/plain; version=0.0.4")


def _page(db: sqlite3.Connection, wanted: Filter, moment: int, order: str) -> tuple[list[Row], _Link, _Link]:
    """Return the rows of a page, and the arguments of the links to the pages before and after it; None without one."""
    if order in search.ORDERS:
        skip = max(0, request.args.get("skip", 0, int))
        rows = search.ordered(db, wanted, moment, order)[skip:]
        before = {"skip": max(0, skip - search.PAGE)} if skip else None
        return rows[: search.PAGE], before, {"skip": skip + search.PAGE} if len(rows) > search.PAGE else None
    place = forms.place(request.args.get("before") or request.args.get("after"))
    up = place is not None and "before" in request.args
    back = up != (order == "latest")
    rows = search.page(db, wanted, moment, place, back)
    more = len(rows) > search.PAGE
    if more:
        rows = rows[1:] if back else rows[: search.PAGE]
    if order == "latest":
        rows.reverse()
    earlier, later = (more, True) if up else (place is not None, more)
    first, last = (f"{row.due}-{row.row}" for row in (rows[0], rows[-1])) if rows else ("", "")
    return rows, {"before": first} if rows and earlier else None, {"after": last} if rows and later else None


def _with_idle(shares: list[Share], paused: Collection[str], names: Iterable[str]) -> list[Share]:
    """Return the queues with their messages, those that are paused first, and last those of the app without any."""
    idle = [Share(name, 0, 0) for name in sorted({*paused, *names} - {share.name for share in shares})]
    return sorted([*shares, *idle], key=lambda share: share.name not in paused)


def _by_queue(overview: Overview, wanted: Filter, edges: list[int]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Return the colours of the queues with the most messages, and the plot's counts by queue; "" is all others."""
    _, queues = overview.shares(wanted.state)
    # By name, so that queues keep their colours while their numbers change.
    colours = {name: number for number, name in enumerate(sorted(share.name for share in queues[: plot.COLOURS]))}
    plotted = wanted._replace(since=None, until=None)
    # The index has no counts by task and queue, or by words: with these, all queues are one.
    is_plain = wanted.task or wanted.text
    names = [wanted.queue] if wanted.queue else [name for name in colours if name and not is_plain]
    counts = {name: overview.bars(plotted._replace(queue=name), edges) for name in names}
    if not counts or (not wanted.queue and len(queues) > len(names)):
        total = overview.bars(plotted, edges)
        counts[""] = [max(0, due - sum(found[at] for found in counts.values())) for at, due in enumerate(total)]
    return colours, counts


@streams.reading
def _details(record: Record) -> dict[str, Any]:
    """Return the contents of a record. Arguments have Celery's shortened form, which may hide secrets.

    Raises `Unreadable`.
    """
    message = schedule_.to_message(record)
    headers = message.headers or {}
    state = headers_.read_state(headers)
    is_task = "task" in headers
    if state is None:
        raise ValueError(f"it has no header {headers_.HEADER}")
    sent = unwrap(Delivery(f"{state.root}.", "@", headers), state)
    texts = ("argsrepr", "kwargsrepr")
    hidden = (*texts, headers_.X_DELAY_OF, headers_.X_DELAY_SENT)
    shown = {
        printable(name, 200): printable(value if isinstance(value, str) else _json(value), 2000)
        for name, value in list(sent.headers.items())[:200]
        if name not in hidden
    }
    properties = {
        name: printable(value, 500) for name, value in message.properties.items() if name != "application_headers"
    }
    args, kwargs = (printable(headers[name]) if is_task and headers.get(name) is not None else None for name in texts)
    return {
        "args": args,
        "kwargs": kwargs,
        "body": None if is_task else body_text(record.body),
        "size": len(record.body),
        "headers": shown,
        "properties": properties,
        "exchange": sent.exchange,
        "routing_key": printable(sent.routing_key, 300),
    }


def _json(value: Any) -> str:
    try:
        return json.dumps(value, default=str, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)
