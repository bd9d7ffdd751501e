"""Commands for the schedule: list, cancel, reschedule, run-now."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from typing import Any, TypeVar

import click
import kombu

from .. import operate
from ..core.due import due_at
from ..core.errors import InvalidDelay
from ..core.headers import milliseconds
from ..core.text import escape
from ..operate import Scheduled
from .output import EXIT_PROBLEMS
from .parameters import any_queue_option, check_names, json_option
from .target import Target, pass_target

F = TypeVar("F", bound=Callable[..., Any])


def _check_time(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Show an error for a time or a number of seconds that cannot be read."""
    if value is None:
        return None
    eta, countdown = (None, value) if param.name == "countdown" else (value, None)
    try:
        due_at(eta, countdown, datetime.now(timezone.utc), timezone.utc)
    except InvalidDelay as exc:
        wanted = "a number of seconds, 0 or more" if eta is None else "a time such as 2030-01-31T12:00:00+01:00"
        raise click.BadParameter(f"cannot read {value!r}: use {wanted}") from exc
    return value


def _filters(command: F) -> F:
    for option in (
        click.option(
            "--until",
            metavar="TIME",
            callback=_check_time,
            help="Select tasks due until this time: 2030-01-31T12:00:00+01:00.",
        ),
        click.option("--queue", "only_queue", metavar="NAME", help="Select tasks for this queue."),
        click.option("--task", metavar="NAME", help="Select tasks of this name."),
    ):
        command = option(command)
    return command


def _chosen(all_help: str) -> Callable[[F], F]:
    """Add what names tasks: ids, or the filters of `list`."""

    def add(command: F) -> F:
        command = click.option("--all", "everything", is_flag=True, help=all_help)(command)
        command = _filters(command)
        return click.argument("ids", nargs=-1, metavar="ID...", callback=check_names)(command)

    return add


@click.command("list")
@_filters
@click.option("--limit", type=click.IntRange(1), help="List at most this many tasks.")
@json_option
@pass_target
def list_scheduled(target: Target, /, limit: int | None, as_json: bool, **filters: Any) -> None:
    """List waiting tasks, the soonest first.

    Shows only tasks in the journal: see the option `journal` of install().
    """
    is_empty = True
    problems: list[str] = []
    with target.connected() as connection:
        operate.require(connection)
        waiting = _found(target, connection, problems.append, limit=limit, **filters)
        lines = (json.dumps(_as_data(one)) if as_json else format_scheduled(one) for one in waiting)
        while many := list(itertools.islice(lines, 1000)):  # each echo is flushed
            is_empty = False
            click.echo("\n".join(many))
        if is_empty:
            waits = "matches" if any(filters.values()) else "waits"
            click.echo(
                f"nothing is listed: no task in the journal {waits}. It has those with at least the delay of the "
                "option `journal` of install(), 60 s by default",
                err=True,
            )
    _report(problems)


@click.command(short_help="Cancel waiting tasks.")
@_chosen("Cancel all tasks that `list` shows.")
@pass_target
def cancel(target: Target, /, ids: tuple[str, ...], everything: bool, **filters: Any) -> None:
    """Cancel tasks by their ids, or all tasks that `list` shows with the same options.

    A task that is due in a second or more does not run, now or later, and its state becomes REVOKED. An id stays
    cancelled.
    """
    _check_chosen(ids, everything, filters)
    problems: list[str] = []
    with target.connected() as connection:
        operate.require(connection)
        found = [] if ids else list(_found(target, connection, problems.append, **filters))
        without_id = [(one.number, milliseconds(one.due)) for one in found if not one.id]
        operate.cancel(connection, ids or [one.id for one in found if one.id], without_id)
        # No worker says whether a task with such an id waits.
        click.echo(f"{len(ids):,} {'id' if len(ids) == 1 else 'ids'} cancelled" if ids else f"{len(found):,} cancelled")
    _report(problems)


@click.command(short_help="Change the due time of tasks.")
@_chosen("Move all tasks that `list` shows.")
@click.option("--eta", metavar="TIME", callback=_check_time, help="Set the new due time: 2030-01-31T12:00:00+01:00.")
@click.option("--countdown", metavar="SECONDS", callback=_check_time, help="Set the new due time, in seconds from now.")
@any_queue_option
@pass_target
def reschedule(target: Target, /, eta: str | None, countdown: str | None, any_queue: bool, **chosen: Any) -> None:
    """Give tasks in the journal another due time, earlier or later: by their ids, or as `list` shows them.

    Exits with 3 if some of several were not moved.
    """
    if (eta is None) == (countdown is None):
        raise click.UsageError("name the new due time with either --eta or --countdown")
    _move(target, eta, countdown, any_queue, **chosen)


@click.command("run-now", short_help="Make tasks due at once.")
@_chosen("Run all tasks that `list` shows.")
@any_queue_option
@pass_target
def run_now(target: Target, /, any_queue: bool, **chosen: Any) -> None:
    """Make tasks in the journal due at once: by their ids, or as `list` shows them.

    Exits with 3 if some of several were not moved.
    """
    _move(target, None, "0", any_queue, **chosen)


def _move(
    target: Target,
    eta: str | None,
    countdown: str | None,
    any_queue: bool,
    ids: tuple[str, ...],
    everything: bool,
    **filters: Any,
) -> None:
    _check_chosen(ids, everything, filters)
    problems: list[str] = []
    with target.connected() as connection:
        zone = connection.transport.delay_options.naive_timezone
        due = due_at(eta, countdown, datetime.now(timezone.utc), zone)
        operate.require(connection)
        allowed = target.allowed(any_queue)
        if len(ids) == 1:
            operate.reschedule(connection, ids[0], due, allowed)
            click.echo(f"due {due:%Y-%m-%d %H:%M:%S}Z")
            return
        found = set() if ids else {one.number for one in _found(target, connection, problems.append, **filters)}
        moved = 0
        for _, refused in operate.reschedule_all(connection, ids, found, due, allowed):
            moved += refused is None
            if refused:
                problems.append(str(refused))
        click.echo(f"{moved:,} due {due:%Y-%m-%d %H:%M:%S}Z")
    _report(problems)


def _check_chosen(ids: tuple[str, ...], everything: bool, filters: dict[str, Any]) -> None:
    if bool(ids) == bool(everything or any(filters.values())):
        raise click.UsageError("name either ids or --task, --queue, --until or --all")


def _report(problems: list[str]) -> None:
    """Show malformed messages of the journal, and exit with 3 if there are any."""
    for problem in problems:
        click.echo(escape(problem), err=True)
    if problems:
        raise SystemExit(EXIT_PROBLEMS)


def _found(
    target: Target,
    connection: kombu.Connection,
    report: Callable[[str], object],
    task: str | None,
    only_queue: str | None,
    until: str | None,
    limit: int | None = None,
) -> Iterator[Scheduled]:
    names = operate.QueueNames(target.queues())
    with _progress() as progress:
        return operate.scheduled(connection, task, only_queue, until, limit, names, progress, report)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar after the first second."""
    began = time.monotonic()
    bar: Any = None
    with ExitStack() as shown:

        def progress(done: int, total: int) -> None:
            nonlocal bar
            if bar is None and time.monotonic() - began > 1:
                bar = shown.enter_context(click.progressbar(length=total, label="reading", file=sys.stderr))
            if bar is not None:
                bar.update(done - bar.pos)

        yield progress


def _as_data(waiting: Scheduled) -> dict[str, Any]:
    data = {**waiting._asdict(), "due": waiting.due.isoformat()}
    del data["number"]
    return data


def format_scheduled(waiting: Scheduled) -> str:
    """Return a line about a waiting message."""
    what = f"{waiting.task} {waiting.args or '()'} {waiting.kwargs or '{}'}" if waiting.task else "message"
    return escape(f"{waiting.due:%Y-%m-%d %H:%M:%S}Z  {waiting.id or '-'}  {waiting.queue}  {what}")
