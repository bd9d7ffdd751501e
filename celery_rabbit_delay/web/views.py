"""What each page is given to show: the schedule, a task, orphans, health, the form for a periodic entry; metrics."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable
from typing import Any

from flask import Flask, Response, abort, render_template, request

from ..delay.core import headers as headers_
from ..delay.core.headers import Delivery, unwrap
from ..schedule.amqp import waiting_tasks
from ..schedule.amqp.waiting_tasks import utc_ms
from ..schedule.core.journal import Record
from ..schedule.core.search import matching, parse
from ..unreadable import reading
from . import forms, plot, search
from .gauges import exposition
from .index import Row
from .operations import ORPHANS, Operations, marks_of, or_reason
from .overview import Overview
from .printing import body_text, printable
from .search import Filter, Share

_Link = dict[str, Any] | None

#: The periodic entries on the page at a time, at most.
_ENTRIES = 100


def add_views(site: Flask, operations: Operations, overview: Overview) -> None:
    """Add the pages that change nothing."""

    @site.get("/")
    def schedule() -> str:
        wanted, moment = forms.wanted(), utc_ms()
        range_ = plot.RANGES.get(request.args.get("range", ""), plot.RANGES["hour"])
        edges = plot.edges(range_, moment, forms.zone())
        colours, counts = _by_queue(overview, wanted, edges)
        shares, paused = overview.shares(wanted.is_cancelled), operations.indexer.paused
        falls, found = request.args.get("order") == "latest", overview.found(wanted)
        rows, before, after = _page(found, falls)
        return render_template(
            "schedule.html",
            summary=overview.summary(),
            shares=(shares[0], _with_idle(shares[1], paused, operations.broker.names)),
            paused=paused,
            status=overview.status(),
            wanted=wanted,
            found=len(found),
            later=sum(operations.indexer.view.later.values()),
            most=search.MOST,
            rows=rows,
            before=before,
            after=after,
            falls=falls,
            plot=plot.plot(range_, edges, counts, forms.zone()),
            colours=colours,
            range=range_,
            ranges=plot.RANGES,
            height=plot.HEIGHT,
            link=forms.link,
        )

    @site.get("/task/<int:number>")
    def task(number: int) -> Any:
        view = operations.indexer.view
        row = next((row for row in itertools.chain(view.waiting, view.cancelled) if row.number == number), None)
        if row is None:
            abort(404, "This task no longer waits: it was delivered or moved.")
        found = or_reason(lambda: _details(operations.record(row)))
        details: dict[str, Any] = {"error": found} if isinstance(found, str) else found
        is_cancelled = row in view.cancelled
        return render_template("task.html", row=row, is_cancelled=is_cancelled, origin=forms.origin(), **details)

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
        return render_template(
            "health.html",
            status=overview.status(),
            beat=beat,
            asked=asked,
            entries=list(matching(parse(asked), known, forms.searched)),
            most=_ENTRIES,
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


def _page(found: list[Row], falls: bool) -> tuple[list[Row], _Link, _Link]:
    """Return the rows of a page, and the arguments of the links to the pages before and after it; None without one."""
    found, back = found[::-1] if falls else found, "before" in request.args
    begin = search.begin(found, forms.place(request.args.get("before") or request.args.get("after")), back, falls)
    rows = found[begin : begin + search.PAGE]
    places = [f"{row.due}-{row.number}" for row in rows] or [""]
    before, after = {"before": places[0]}, {"after": places[-1]}
    return rows, before if begin else None, after if len(found) > begin + search.PAGE else None


def _with_idle(shares: list[Share], paused: Collection[str], names: Iterable[str]) -> list[Share]:
    """Return the queues with their messages, those that are paused first, and last those of the app without any."""
    idle = [Share(name, 0) for name in sorted({*paused, *names} - {share.name for share in shares})]
    return sorted([*shares, *idle], key=lambda share: share.name not in paused)


def _by_queue(overview: Overview, wanted: Filter, edges: list[int]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Return the colours of the queues with the most messages, and the plot's counts by queue; "" is all others."""
    _, queues = overview.shares(wanted.is_cancelled)
    # By name, so that queues keep their colours while their numbers change.
    colours = {name: number for number, name in enumerate(sorted(share.name for share in queues[: plot.COLOURS]))}
    rows = overview.found(wanted._replace(since=None, until=None))
    return colours, search.bars(rows, edges, [wanted.queue] if wanted.queue else list(colours))


@reading
def _details(record: Record) -> dict[str, Any]:
    """Return the contents of a record. Arguments have Celery's shortened form, which may hide secrets.

    Raises `Unreadable`.
    """
    message = waiting_tasks.to_message(record)
    headers = message.headers or {}
    state = headers_.read_state(headers)
    is_task = "task" in headers
    if state is None:
        raise ValueError(f"it has no header {headers_.HEADER}")
    sent = unwrap(Delivery(f"{state.root}.", "@", headers), state)
    texts = ("argsrepr", "kwargsrepr")
    shown = {
        printable(name, 200): printable(value if isinstance(value, str) else _json(value), 2000)
        for name, value in list(sent.headers.items())[:200]
        if name not in texts
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
