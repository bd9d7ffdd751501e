"""The commands for undeliverable tasks: orphans list, replay, purge."""

from __future__ import annotations

import json

import click

from .. import operate
from ..operate import Orphan
from ..text import escape
from .output import EXIT_INTERRUPTED, EXIT_PROBLEMS, format_time, until_interrupted
from .parameters import any_queue_option, json_option, limit_option, other_queues_option
from .target import Target, pass_target


@click.group(short_help="Handle tasks whose outbox was deleted.")
def orphans() -> None:
    """List, replay or purge orphans: tasks whose outbox was deleted while they passed levels."""


@orphans.command("list", short_help="List the oldest orphans.")
@limit_option
@other_queues_option
@json_option
@pass_target
def list_orphans(target: Target, limit: int, any_queue: bool, as_json: bool) -> None:
    """List the oldest orphans for the queues of the app with their due times, destinations and tasks."""
    with target.connected() as connection:
        found = operate.orphans(connection, limit)
        listed = list(filter(operate.are_for(target.names(any_queue)), found))
        for orphan in listed:
            if as_json:
                told = {**orphan._asdict(), "due": orphan.due and orphan.due.isoformat()}
                del told["digest"], told["refused"]
                click.echo(json.dumps(told))
            else:
                click.echo(format_orphan(orphan))
    if len(listed) < len(found):
        click.echo(f"for other queues than those of the app: {len(found) - len(listed):,}, see --any-queue", err=True)
    elif not found:
        click.echo("there are no orphans", err=True)
    _tell_of_limit(len(found), limit)


@orphans.command(short_help="Send the oldest orphans to their destinations.")
@limit_option
@any_queue_option
@pass_target
def replay(target: Target, limit: int, any_queue: bool) -> None:
    """Send the oldest orphans for the queues of the app to their destinations.

    Sends them one by one, each confirmed by the broker. One that is not due yet waits for the rest of its delay.
    Orphans that still cannot be delivered stay. Exits with 3 if some stayed.
    """
    sent = stayed = 0
    with target.connected(recorded=True) as connection:  # drops what was cancelled or moved
        replaying = operate.replay(connection, limit, target.allowed(any_queue))
        with until_interrupted(replaying) as (results, is_interrupted):
            for orphan, refused in results:
                if refused is None:
                    sent += 1
                else:
                    stayed += 1
                    click.echo(f"stays: {format_orphan(orphan)}: {escape(refused)}")
    click.echo(f"{sent:,} sent on, {stayed:,} stay")
    if is_interrupted():
        click.echo("interrupted: run this again to send the others", err=True)
        raise SystemExit(EXIT_INTERRUPTED)
    _tell_of_limit(sent + stayed, limit)
    if stayed:
        raise SystemExit(EXIT_PROBLEMS)


@orphans.command()
@other_queues_option
@click.confirmation_option(prompt="Remove these orphans for good?")
@pass_target
def purge(target: Target, any_queue: bool) -> None:
    """Remove all orphans for the queues of the app, for good."""
    with target.connected() as connection:
        removed, left = operate.purge(connection, target.names(any_queue))
    click.echo(f"{removed:,} removed")
    if left:
        click.echo(f"for other queues than those of the app: {left:,}, see --any-queue", err=True)


def _tell_of_limit(amount: int, limit: int) -> None:
    if amount == limit:
        click.echo(f"these were the oldest {limit:,}: more may be left, raise --limit to see them", err=True)


def format_orphan(orphan: Orphan) -> str:
    """Return a line about an orphan."""
    place = f"exchange {orphan.exchange!r}, key" if orphan.exchange else "queue"
    what = f"{orphan.task}[{orphan.task_id}]" if orphan.task else f"{orphan.size:,} bytes"
    due = format_time(orphan.due) if orphan.due else "unknown"
    return escape(f"{due}  {place} {orphan.routing_key!r}  {what}")
