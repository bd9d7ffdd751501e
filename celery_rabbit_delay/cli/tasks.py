"""Commands for the schedule: list, cancel, restore, reschedule, run-now, pause, resume."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timezone
from typing import Any, TypeVar

import click
import kombu

from ..delay.core.headers import milliseconds
from ..schedule.amqp import reschedule as reschedule_
from ..schedule.amqp import waiting_tasks
from ..schedule.amqp.waiting_tasks import Scheduled
from ..schedule.core.new_due_time import due_at
from ..schedule.core.search import matching, parse
from ..text import counted, escape
from .output import (
    EXIT_INTERRUPTED,
    EXIT_PROBLEMS,
    fit,
    format_time,
    is_terminal,
    until_interrupted,
)
from .parameters import any_queue_option, check_names, json_option, other_queues_option, yes_option
from .target import Target, handle_errors, pass_target

F = TypeVar("F", bound=Callable[..., Any])

#: The parameters that select tasks.
_FILTERS = ("task", "only_queue", "until", "search")

#: The headings of what a terminal shows of a task: two lines.
_HEADINGS = f"{'DUE':<24}  {'QUEUE':<20}  TASK\n  {'ID':<36}  ARGUMENTS"


def _words(context: click.Context, parameter: click.Parameter, text: str | None) -> list[str] | None:
    words = None if text is None else parse(text)
    if words == []:  # such as of a variable of the shell that is not set: all would be selected
        raise click.BadParameter("it has no word")
    return words


def _filters(command: F) -> F:
    for option in (
        click.option(
            "--search",
            metavar="WORDS",
            callback=_words,
            help="Select tasks with all of these words in their id, name, queue or arguments.",
        ),
        click.option(
            "--until",
            metavar="TIME",
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
@other_queues_option
@json_option
@pass_target
def list_scheduled(target: Target, /, as_json: bool, **filters: Any) -> None:
    """List waiting tasks for the queues of the app, the soonest first.

    Shows only tasks in the journal: see the option `journal` of install(). A pipe gets one line for each task, without
    headings.
    """
    is_empty = True
    problems: list[str] = []
    with target.connected(recorded=True, exists=True) as connection:
        waiting = _found(target, connection, problems.append, **filters)
        shown = _shown if is_terminal() else format_scheduled
        lines = (json.dumps(_as_data(one)) if as_json else shown(one) for one in waiting)
        while many := list(itertools.islice(lines, 1000)):  # each echo is flushed
            if is_empty and is_terminal() and not as_json:
                click.echo(_HEADINGS)
            is_empty = False
            click.echo("\n".join(many))
        if is_empty:
            waits = "matches" if any(filters[name] for name in _FILTERS) else "waits"
            click.echo(
                f"nothing is listed: no task in the journal {waits}. It has those with at least the delay of the "
                "option `journal` of install(), 60 s by default",
                err=True,
            )
    _report(problems)


@click.command(short_help="Cancel waiting tasks.")
@_chosen("Cancel all tasks that `list` shows.")
@other_queues_option
@yes_option
@json_option
@pass_target
def cancel(
    target: Target,
    /,
    ids: tuple[str, ...],
    everything: bool,
    any_queue: bool,
    yes: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """Cancel tasks by their ids, or all tasks that `list` shows with the same options, after a question.

    A task that is due in a second or more does not run, now or later, and its state becomes REVOKED.
    """
    ids = tuple(dict.fromkeys(ids))
    _check_chosen(ids, everything, filters)
    problems: list[str] = []
    with target.connected(recorded=True, exists=True) as connection:
        if ids:
            waiting_tasks.cancel(connection, ids)
            lines = [json.dumps({"id": id_}) for id_ in ids] if as_json else [counted(len(ids), "ids cancelled")]
        else:
            found = list(_found(target, connection, problems.append, any_queue=any_queue, **filters))
            _ask(f"Cancel {counted(len(found), 'tasks')} for good?", found, yes)
            without_id = [(one.number, milliseconds(one.due)) for one in found if not one.id]
            waiting_tasks.cancel(connection, [one.id for one in found if one.id], without_id)
            lines = [json.dumps(_as_data(one)) for one in found] if as_json else [f"{len(found):,} cancelled"]
    for line in lines:
        click.echo(line)
    _report(problems)


@click.command(short_help="Take back a cancellation.")
@click.argument("ids", nargs=-1, required=True, metavar="ID...", callback=check_names)
@pass_target
def restore(target: Target, /, ids: tuple[str, ...]) -> None:
    """Take back what has cancelled tasks by their ids: what still waits runs when it is due.

    What a worker has discarded is gone. A stamp stays cancelled.
    """
    with target.connected(recorded=True, exists=True) as connection:
        waiting_tasks.restore(connection, ids)
    click.echo(counted(len(ids), "ids restored"))


def _ask(question: str, found: Collection[object], yes: bool) -> None:
    """Ask before something that cannot be undone, unless nothing was found; end the command if the answer is no."""
    if found and not yes:
        click.confirm(question, abort=True, err=True)


@click.command(short_help="Change the due time of tasks.")
@_chosen("Move all tasks that `list` shows.")
@click.option("--eta", metavar="TIME", help="Set the new due time: 2030-01-31T12:00:00+01:00.")
@click.option("--countdown", metavar="SECONDS", help="Set the new due time, in seconds from now.")
@any_queue_option
@yes_option
@pass_target
def reschedule(target: Target, /, eta: str | None, countdown: str | None, **chosen: Any) -> None:
    """Give tasks in the journal another due time, earlier or later: by their ids, or as `list` shows them.

    Asks before it moves tasks that are not named by their ids, and before a time in the past runs any. Exits with 3 if
    some of several were not moved.
    """
    _move(target, eta, countdown, **chosen)


@click.command("run-now", short_help="Make tasks due at once.")
@_chosen("Run all tasks that `list` shows.")
@any_queue_option
@yes_option
@pass_target
def run_now(target: Target, /, **chosen: Any) -> None:
    """Make tasks in the journal due at once: by their ids, or as `list` shows them.

    Asks before it runs tasks that are not named by their ids. Exits with 3 if some of several were not moved.
    """
    _move(target, None, "0", **chosen)


@click.command(short_help="Stop all workers from consuming a queue.")
@click.argument("queue", callback=check_names)
@click.option("--until", metavar="TIME", help="End the pause then: 2030-01-31T12:00:00+01:00.")
@other_queues_option
@pass_target
def pause(target: Target, /, queue: str, until: str | None, any_queue: bool) -> None:
    """Pause a queue: all workers, also those that start later, stop consuming it, and go on with their others.

    What is sent to it or due stays in it, in order. What a worker has taken already still runs.
    """
    with target.connected(recorded=True, exists=True) as connection:
        waiting_tasks.pause(connection, queue, target.names(any_queue), until)
    click.echo(escape(f"{queue} is paused until {until or '`resume`'}"))


@click.command(short_help="Let workers consume a paused queue again.")
@click.argument("queue", callback=check_names)
@other_queues_option
@pass_target
def resume(target: Target, /, queue: str, any_queue: bool) -> None:
    """End the pause of a queue: workers consume it again. Without a pause nothing changes."""
    with target.connected(recorded=True, exists=True) as connection:
        waiting_tasks.resume(connection, queue, target.names(any_queue))
    click.echo(escape(f"{queue} is not paused"))


def _move(
    target: Target,
    eta: str | None,
    countdown: str | None,
    any_queue: bool,
    yes: bool,
    ids: tuple[str, ...],
    everything: bool,
    **filters: Any,
) -> None:
    _check_chosen(ids, everything, filters)
    problems: list[str] = []
    with handle_errors():
        now = datetime.now(timezone.utc)
        due = due_at(eta, countdown, now)
    with target.connected(recorded=True, exists=True) as connection:
        past = f"{format_time(due)} is in the past" if due < now else ""
        allowed = target.allowed(any_queue)
        if past and ids:
            _ask(f"{past}: run {counted(len(ids), 'tasks')} now?", ids, yes)
        if len(ids) == 1:
            reschedule_.reschedule(connection, ids[0], due, allowed)
            click.echo(f"due {format_time(due)}")
            return
        found: set[object] = set()
        left = set(ids)
        if not ids:
            listed = list(_found(target, connection, problems.append, any_queue=any_queue, **filters))
            found = {(one.id, milliseconds(one.due)) if one.id else one.number for one in listed}
            left = {one.id or str(one.number) for one in listed}
            tasks = counted(len(found), "tasks")
            _ask(f"{past}: run {tasks} now?" if past else f"Make {tasks} due {format_time(due)}?", found, yes)
            due = max(due, due_at(eta, countdown, datetime.now(timezone.utc)))  # the answer took its time
        moved = 0
        moving = reschedule_.reschedule_all(connection, ids, found, due, allowed)
        with until_interrupted(moving) as (results, is_interrupted):
            for id_, refused in results:
                left.discard(id_)
                if refused:
                    problems.append(str(refused))
                else:
                    moved += 1
        click.echo(f"{moved:,} due {format_time(due)}")
    if is_interrupted():
        click.echo("interrupted: run this again to move the others", err=True)
        raise SystemExit(EXIT_INTERRUPTED)
    if left:
        problems.append(f"{counted(len(left), 'tasks')} of those that were listed wait no more")
    _report(problems)


def _check_chosen(ids: tuple[str, ...], everything: bool, filters: dict[str, Any]) -> None:
    if bool(ids) == bool(everything or any(filters.values())):
        raise click.UsageError("name either ids or --task, --queue, --until, --search or --all")


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
    search: list[str] | None,
    any_queue: bool,
    limit: int | None = None,
) -> Iterator[Scheduled]:
    """Yield what waits for the queues of the app, or for any; say if there is more for others."""
    is_all = True

    def elsewhere() -> None:
        nonlocal is_all
        is_all = False

    names = target.names(any_queue)
    most = None if search else limit
    found = waiting_tasks.scheduled(connection, task, only_queue, until, most, names, report, elsewhere=elsewhere)
    yield from itertools.islice(matching(search or (), found, _text), limit)
    if not is_all:
        click.echo("what waits for other queues than those of the app is left out: see --any-queue", err=True)


def _text(waiting: Scheduled) -> str:
    """Return what is searched of a waiting message."""
    return f"{waiting.id} {waiting.task or ''} {waiting.queue} {waiting.args or ''} {waiting.kwargs or ''}"


def _as_data(waiting: Scheduled) -> dict[str, Any]:
    data = {**waiting._asdict(), "due": waiting.due.isoformat()}
    del data["number"]
    return data


def _shown(waiting: Scheduled) -> str:
    """Return what a terminal shows of a waiting message, below `_HEADINGS`."""
    lines = [f"{format_time(waiting.due):<24}  {waiting.queue:<20}  {waiting.task or 'message'}"]
    arguments = f"{waiting.args or '()'} {waiting.kwargs or '{}'}" if waiting.task else ""
    lines.append(f"  {waiting.id or '-':<36}  {arguments}".rstrip())
    return "\n".join(fit(escape(line)) for line in lines)


def format_scheduled(waiting: Scheduled) -> str:
    """Return a line about a waiting message."""
    what = f"{waiting.task} {waiting.args or '()'} {waiting.kwargs or '{}'}" if waiting.task else "message"
    return escape(f"{format_time(waiting.due)}  {waiting.id or '-'}  {waiting.queue}  {what}")
