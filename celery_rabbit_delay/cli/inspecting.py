"""Commands for waiting and undeliverable tasks: status, orphans."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from ..core.text import escape
from .common import (
    EXIT_INTERRUPTED,
    EXIT_PROBLEMS,
    allowed,
    any_queue_option,
    connected,
    format_duration,
    limit_option,
    management_of,
    management_option,
    priorities_option,
    target_of,
    until_interrupted,
)

if TYPE_CHECKING:
    from ..operate import LevelStatus, Orphan, OutboxStatus, Status


@click.command(short_help="Show how many messages wait, level by level.")
@priorities_option
@management_option
@click.option("--all", "show_all", is_flag=True, help="Show empty levels and streams as well.")
@click.option("--shards", is_flag=True, help="Show each shard of a level or a destination by itself.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--watch", is_flag=True, help="Refresh every 2 s until Ctrl-C.")
@click.pass_obj
def status(
    obj: Any,
    priorities: bool | None,
    management_url: str | None,
    show_all: bool,
    shards: bool,
    as_json: bool,
    watch: bool,
) -> None:
    """Show how many messages wait, level by level, and how many could not be delivered.

    Exits with 3 if a level is blocked or missing, if there are orphans, or, with --management-url, if a destination
    accepts nothing and the cause is known.
    """
    from .. import operate

    with connected(target_of(obj)) as connection:
        while True:
            wanted = operate.existing(connection, priorities)
            found = operate.status(connection, wanted, management_of(management_url, connection))
            levels = found.levels if shards else found.added_up
            outboxes = found.outboxes if shards else found.outboxes_added_up
            if watch and not as_json:
                click.clear()
            if as_json:
                click.echo(json.dumps(_as_data(found, levels, outboxes)))
            else:
                click.echo(_as_text(found, levels, outboxes, show_all))
            if not watch:
                break
            time.sleep(2)
    if found.has_problems:
        raise SystemExit(EXIT_PROBLEMS)


@click.group(short_help="Handle tasks that could not be delivered.")
def orphans() -> None:
    """List, replay or purge orphans: tasks that could not be delivered when they were due."""


@orphans.command("list", short_help="List the oldest orphans.")
@limit_option
@management_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
@click.pass_obj
def list_orphans(obj: Any, limit: int, management_url: str | None, as_json: bool) -> None:
    """List the oldest orphans with their due times, destinations and tasks.

    With --management-url, also list the destinations that accept nothing, with the number of tasks due for each.
    """
    from .. import operate

    with connected(target_of(obj)) as connection:
        found = operate.orphans(connection, limit)
        for orphan in found:
            if as_json:
                told = {**orphan._asdict(), "due": orphan.due and orphan.due.isoformat()}
                del told["digest"]
                click.echo(json.dumps(told))
            else:
                click.echo(format_orphan(orphan))
        if management := management_of(management_url, connection):
            for outbox in operate.add_up(operate.outboxes(operate.existing(connection), management)):
                click.echo(json.dumps(_outbox_data(outbox)) if as_json else escape(str(outbox)))
    _tell_of_limit(len(found), limit)


@orphans.command(short_help="Send the oldest orphans to their destinations.")
@limit_option
@any_queue_option
@management_option
@click.pass_obj
def replay(obj: Any, limit: int, any_queue: bool, management_url: str | None) -> None:
    """Send the oldest orphans for the queues of the app to their destinations.

    Sends them one by one, each confirmed by the broker. Orphans that still cannot be delivered stay. With
    --management-url and a user with the tag policymaker, this also makes RabbitMQ retry at once the messages that
    exchanges could not route. Exits with 3 if some stayed.
    """
    from .. import operate

    sent = stayed = 0
    target = target_of(obj)
    with connected(target) as connection:
        replaying = operate.replay(connection, limit, allowed(target, any_queue))
        with until_interrupted(replaying) as (results, is_interrupted):
            for orphan, refused in results:
                if refused is None:
                    sent += 1
                else:
                    stayed += 1
                    click.echo(f"stays: {format_orphan(orphan)}: {escape(refused)}")
        held_up = False
        if is_interrupted():
            click.echo(f"{sent:,} sent on, {stayed:,} stay")
            click.echo("interrupted: run this again to send the others", err=True)
            raise SystemExit(EXIT_INTERRUPTED)
        if management := management_of(management_url, connection):
            for outbox, refused in operate.hurry(connection, management):
                held_up |= refused is not None
                click.echo(escape(f"{outbox.stuck:,} due for {outbox.destination}: {refused or 'tried again'}"))
    click.echo(f"{sent:,} sent on, {stayed:,} stay")
    _tell_of_limit(sent + stayed, limit)
    if stayed or held_up:
        raise SystemExit(EXIT_PROBLEMS)


@orphans.command()
@click.confirmation_option(prompt="Remove all orphans for good?")
@click.pass_obj
def purge(obj: Any) -> None:
    """Remove all orphans, for good."""
    from .. import operate

    with connected(target_of(obj)) as connection:
        click.echo(f"{operate.purge(connection):,} removed")


def _tell_of_limit(amount: int, limit: int) -> None:
    if amount == limit:
        click.echo(f"these were the oldest {limit:,}: more may be left, raise --limit to see them", err=True)


def format_orphan(orphan: Orphan) -> str:
    """Return a line about an orphan."""
    place = f"exchange {orphan.exchange!r}, key" if orphan.exchange else "queue"
    what = f"{orphan.task}[{orphan.task_id}]" if orphan.task else f"{orphan.size:,} bytes"
    due = f"{orphan.due:%Y-%m-%d %H:%M:%S}Z" if orphan.due else "unknown"
    return escape(f"{due}  {place} {orphan.routing_key!r}  {what}")


def _outbox_data(outbox: OutboxStatus) -> dict[str, Any]:
    data = outbox._asdict()
    del data["is_stuck"], data["text"]
    return data


def _as_data(found: Status, levels: list[LevelStatus], outboxes: list[OutboxStatus] | None) -> dict[str, Any]:
    return {
        "waiting": found.waiting,
        "orphans": found.orphans,
        "blocked": [level.queue for level in found.blocked],
        "levels": [level._asdict() for level in levels],
        "streams": [stream._asdict() for stream in found.streams if stream.messages is not None],
        "destinations": found.destinations,
        "stuck": None if outboxes is None else list(map(_outbox_data, outboxes)),
    }


def _as_text(found: Status, levels: list[LevelStatus], outboxes: list[OutboxStatus] | None, show_all: bool) -> str:
    shown = [
        level
        for level in sorted(levels, key=lambda level: level.ttl)
        if show_all or level.ready != 0 or level.unsettled
    ]
    lines = [f"{'level':>10}  {'ready':>9}  {'unsettled':>9}  queue"] if shown else []
    for level in shown:
        ready = "missing" if level.ready is None else f"{level.ready:,}"
        unsettled = "" if level.unsettled is None else f"{level.unsettled:,}"
        lines.append(f"{format_duration(level.ttl):>10}  {ready:>9}  {unsettled:>9}  {level.queue}")
    for stream in found.streams if show_all else ():
        if stream.messages is not None:
            lines.append(f"{'stream':>10}  {stream.messages:>9,}  {'':>9}  {stream.queue}")
    lines.append(f"{found.waiting:,} wait" + ("" if found.orphans is None else f", {found.orphans:,} are orphans"))
    for destination in found.destinations or ():
        lines.append(f"leads to {destination!r}")
    for outbox in outboxes or ():
        lines.append(escape(str(outbox)))
    for level in found.blocked:
        lines.append(f"{level.queue} may be blocked; run `verify`")
    return "\n".join(lines)
