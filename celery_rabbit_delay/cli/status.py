"""The command `status`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import kombu

from .. import operate
from ..delay.core.errors import DelayError
from ..operate import Status
from ..operate.queue_names import QueueNames
from ..text import escape, span
from .output import EXIT_PROBLEMS, fit, format_time, is_terminal
from .parameters import management_option, other_queues_option
from .target import Target, pass_target, snapshot_of

if TYPE_CHECKING:
    from ..periodic.beat_status import BeatStatus
    from ..schedule.core.changes import Pause

RUNBOOK = "https://github.com/celery-rabbit-delay/celery-rabbit-delay/blob/main/docs/runbook.md"


@click.command(short_help="Show how many messages wait.")
@management_option
@other_queues_option
@click.option("--levels", is_flag=True, help="Also show the levels and outboxes that hold them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--watch", is_flag=True, help="Refresh every 2 s until Ctrl-C.")
@pass_target
def status(
    target: Target, management_url: str | None, any_queue: bool, levels: bool, as_json: bool, watch: bool
) -> None:
    """Show how many messages of all apps with the same prefix wait, and how many are orphans.

    --management-url shows all outboxes; AMQP shows those of the queues of the app, with the delays of --outboxes.

    Shows the paused queues and the active process of `celery beat -S rabbit-delay`, too.

    Exits with 3 if a level is blocked or missing, if there are orphans, if no beat is active although one was, or, with
    --management-url, if a destination accepts nothing and the cause is known. Then prints a link to the runbook.
    """
    with target.connected() as connection:
        while True:
            snapshot = snapshot_of(management_url, connection)
            found = operate.status(connection, target.destinations(), snapshot)
            paused = _paused(target.names(any_queue), connection, found)
            if not as_json:
                if watch:
                    click.clear()
                _show(found, levels)
                for one in paused:
                    click.echo(fit(escape(_shown_pause(one))))
            beat = target.beat(connection)  # at last: during an alarm it cannot be asked
            if as_json:
                click.echo(json.dumps(_as_data(found, beat, paused), default=datetime.isoformat))
            elif beat and beat.process:
                click.echo(escape(f"beat is active on {beat.process}"))
            elif beat:
                click.echo("no beat is active: start one with `celery -A APP beat -S rabbit-delay`")
            if not watch:
                break
            time.sleep(2)
    if found.has_problems:
        click.echo(f"what to do: {RUNBOOK}", err=True)
    if found.has_problems or (beat and beat.process is None):
        raise SystemExit(EXIT_PROBLEMS)


def _paused(names: QueueNames, connection: kombu.Connection, found: Status) -> list[Pause]:
    """Return the paused queues; if this user may not read them, say why not."""
    if not any(one.queue.endswith(".changes") for one in found.streams):
        return []
    from ..schedule.amqp.waiting_tasks import paused

    try:
        return paused(connection, names)
    except DelayError as exc:
        click.echo(escape(f"which queues are paused is unknown: {exc}"), err=True)
        return []


def _shown_pause(one: Pause) -> str:
    return f"{one.queue} is paused" + (f" until {format_time(one.end)}" if one.end else "")


def _as_data(found: Status, beat: BeatStatus | None, paused: list[Pause]) -> dict[str, Any]:
    return {
        "waiting": found.waiting,
        "is_partial": found.is_partial,
        "orphans": found.orphans,
        "blocked": [level.queue for level in found.blocked],
        "levels": [level._asdict() for level in found.levels],
        "outboxes": [outbox._asdict() for outbox in found.outboxes],
        "streams": [stream._asdict() for stream in found.streams],
        "destinations": found.destinations,
        "stuck": None if found.held_up is None else [one._asdict() for one in found.held_up],
        "paused": [{"queue": one.queue, "until": one.end} for one in paused],
        "beat": beat and {"process": beat.process, "entries": [one._asdict() for one in beat.entries]},
    }


def _show(found: Status, levels: bool) -> None:
    counts = [f"{found.waiting:,} wait" + (", besides those that RabbitMQ holds" if found.is_partial else "")]
    if found.orphans is not None:
        counts.append(f"{found.orphans:,} are orphans")
    click.echo(", ".join(counts))
    lines = [f"leads to {destination!r}" for destination in found.destinations or ()]
    lines += map(str, found.held_up or ())
    if found.is_partial:
        lines.append("AMQP does not count those that RabbitMQ holds until they are due: --management-url does")
    if not found.is_there:
        lines.append(
            "there is no cascade of these options: `setup` creates it, as do workers when they start, and publishers "
            "with their first delayed task"
        )
    else:
        lines += [f"{level.queue} is missing; run `setup`" for level in found.missing]
    lines += [f"{level.queue} may be blocked; run `verify`" for level in found.blocked]
    for line in lines:
        click.echo(escape(line))
    if levels:
        holding = [(one.ttl, one.ready, one.unsettled, one.queue) for one in found.levels if one.held]
        _table(f"{'LEVEL':>11}  {'READY':>9}  UNSETTLED  QUEUE", _rows(holding))
        outboxes = [(one.delay, one.ready, one.unsettled, one.destination) for one in found.outboxes]
        _table(f"{'OUTBOX':>11}  {'READY':>9}  UNSETTLED  FOR", _rows(outboxes))


def _rows(queues: Iterable[tuple[int, int | None, int | None, str]]) -> Iterator[str]:
    """Yield a line for each queue, the one with the shortest delay first."""
    for delay, ready, unsettled, name in sorted(queues, key=lambda row: (row[0], row[3])):
        settling = "" if unsettled is None else f"{unsettled:,}"
        yield f"{span(delay):>11}  {ready or 0:>9,}  {settling:>9}  {name}"


def _table(headings: str, rows: Iterable[str]) -> None:
    """Print lines, on a terminal below their headings."""
    for number, row in enumerate(rows):
        if number == 0 and is_terminal():
            click.echo(headings)
        click.echo(fit(escape(row)))
