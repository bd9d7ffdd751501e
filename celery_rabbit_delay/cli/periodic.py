"""The commands for periodic entries: periodic list, add, change, disable, enable, remove, run."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from ..periodic.beat_status import PeriodicTask
from ..periodic.core.entries import SENT_WITH, parse_fields
from ..text import escape
from .output import fit, format_time, is_terminal
from .parameters import check_names, json_option
from .target import Target, handle_errors, pass_target

F = TypeVar("F", bound=Callable[..., Any])

_HEADINGS = f"{'NEXT RUN':<24}  {'ENTRY':<20}  TASK\n  {'LAST RUN':<24}  SCHEDULE"


@click.group(short_help="List, add, change and run periodic entries.")
def periodic() -> None:
    """List, add, change, disable, enable, remove and run entries of `celery beat -S rabbit-delay`, which must run.

    A SCHEDULE is 'every 30 s', 'crontab 30 4 1 * *' (minute, hour, day, month, day of the week) or 'solar sunset 48.2
    16.4'.
    """


def _of_an_entry(command: F) -> F:
    """Add the options for what the task is sent with."""
    for name, (what, *_) in reversed(SENT_WITH.items()):
        help_ = f"Send the task with {what}, in JSON."
        command = click.option(f"--{name}", metavar="JSON", help=help_)(command)
    return command


def _write(target: Target, act: str, name: str, definition: dict[str, Any]) -> None:
    with handle_errors():
        target.periodic(act, name, **parse_fields(definition))


@periodic.command("list")
@json_option
@pass_target
def list_entries(target: Target, as_json: bool) -> None:
    """List all entries, the next first: of the code, and written ones."""
    with handle_errors():
        found: list[PeriodicTask] = target.periodic("entries")
    if found and is_terminal() and not as_json:
        click.echo(_HEADINGS)
    for one in found:
        click.echo(json.dumps(one._asdict(), default=datetime.isoformat) if as_json else _format(one))
    if not found:
        click.echo("there are no entries", err=True)


@periodic.command(short_help="Write a new entry.")
@click.argument("name", callback=check_names)
@click.argument("task")
@click.argument("schedule")
@_of_an_entry
@click.option("--disabled", is_flag=True, help="Let it not run until it is enabled.")
@pass_target
def add(target: Target, /, name: str, disabled: bool, **definition: Any) -> None:
    """Write a new entry, which counts instead of one of this name in the code until it is removed."""
    _write(target, "add", name, {**definition, "enabled": not disabled})


@periodic.command(short_help="Change an entry.")
@click.argument("name", callback=check_names)
@click.option("--task", metavar="NAME", help="Set the task.")
@click.option("--schedule", metavar="SCHEDULE", help="Set the schedule.")
@_of_an_entry
@click.option("--enabled/--disabled", default=None, help="Let it run, or not until it is enabled.")
@pass_target
def change(target: Target, /, name: str, **changes: Any) -> None:
    """Change an entry, and keep what is not named. One in the code is written with the change."""
    if all(value is None for value in changes.values()):
        raise click.UsageError("name what to change, such as --schedule")
    _write(target, "change", name, changes)


def _add_command(name: str, act: str, help_: str) -> None:
    @periodic.command(name, help=help_)
    @click.argument("name", callback=check_names)
    @pass_target
    def command(target: Target, name: str) -> None:
        with handle_errors():
            if (answer := target.periodic(act, name)) is not None:
                click.echo(answer)


_add_command("disable", "disable", "Stop the runs of an entry.")
_add_command("enable", "enable", "Let an entry run again. It begins now.")
_add_command("remove", "remove", "Remove a written entry. One of the same name in the code counts again.")
_add_command("run", "run_now", "Send a task of an entry at once, besides those of its schedule, and print its id.")


def _format(one: PeriodicTask) -> str:
    """Return what is shown of an entry: two lines on a terminal, else one."""
    due = format_time(one.next) if one.next else "unknown" if one.is_enabled else "disabled"
    last = format_time(one.last) if one.last and one.total else "-"
    source = "written" if one.is_written else "in the code"
    lines = [f"{due:<24}  {one.entry:<20}  {one.task}", f"  {last:<24}  {one.schedule}  ({source})"]
    if is_terminal():
        return "\n".join(fit(escape(line)) for line in lines)
    return escape("  ".join([due, one.entry, one.task, last, one.schedule, source]))
