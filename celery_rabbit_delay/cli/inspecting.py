"""Commands for waiting and undeliverable tasks: status, orphans."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..core.text import escape
from .common import (
    EXIT_INTERRUPTED,
    EXIT_PROBLEMS,
    allowed,
    any_queue_option,
    connected,
    destinations,
    format_duration,
    limit_option,
    management_of,
    management_option,
    priorities_option,
    target_of,
    until_interrupted,
)

if TYPE_CHECKING:
    from ..operate import HeldUp, Orphan, Status


@click.command(short_help="Show how many messages wait, level by level.")
@priorities_option
@management_option
@click.option("--all", "show_all", is_flag=True, help="Show empty levels and streams as well.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--watch", is_flag=True, help="Refresh every 2 s until Ctrl-C.")
@click.pass_obj
def status(
    obj: Any,
    priorities: bool | None,
    management_url: str | None,
    show_all: bool,
    as_json: bool,
    watch: bool,
) -> None:
    """Show how many messages wait, in levels and in outboxes with a delay, and how many could not be delivered.

    --management-url shows all outboxes; AMQP shows those of the queues of the app, with the delays of --outboxes.

    Exits with 3 if a level is blocked or missing, if there are orphans, or, with --management-url, if a destination
    accepts nothing and the cause is known.
    """
    from .. import operate

    target = target_of(obj)
    with connected(target) as connection:
        while True:
            wanted, management = operate.existing(connection, priorities), management_of(management_url, connection)
            found = operate.status(connection, wanted, destinations(target), management)
            if watch and not as_json:
                click.clear()
            if as_json:
                click.echo(json.dumps(_as_data(found)))
            else:
                click.echo(_as_text(found, show_all))
            if not watch:
                break
            time.sleep(2)
    if found.has_problems:
        raise SystemExit(EXIT_PROBLEMS)


@click.group(short_help="Handle tasks that could not be delivered.")
def orphans() -> None:
    """List, replay or purge orphans: tasks whose queue or outbox was gone when they were led there."""


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
                del told["digest"], told["refused"]
                click.echo(json.dumps(told))
            else:
                click.echo(format_orphan(orphan))
        if management := management_of(management_url, connection):
            cascade = connection.transport.delay_options.cascade
            for held_up in operate.add_up(operate.held_up(cascade, management)):
                click.echo(json.dumps(_held_up_data(held_up)) if as_json else escape(str(held_up)))
    _tell_of_limit(len(found), limit)


@orphans.command(short_help="Send the oldest orphans to their destinations.")
@limit_option
@any_queue_option
@management_option
@click.pass_obj
def replay(obj: Any, limit: int, any_queue: bool, management_url: str | None) -> None:
    """Send the oldest orphans for the queues of the app to their destinations.

    Sends them one by one, each confirmed by the broker. One that is not due yet waits for the rest of its delay.
    Orphans that still cannot be delivered stay. With --management-url and a user with the tag policymaker, this also
    makes RabbitMQ retry at once the messages that exchanges could not route. Exits with 3 if some stayed.
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
            hurried = list(operate.hurry(connection, management))
            held_up = any(refused is not None for _, refused in hurried)
            done = [one._replace(reason=refused or "tried again") for one, refused in hurried]
            for one in operate.add_up(done):
                click.echo(escape(str(one)))
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


def _held_up_data(held_up: HeldUp) -> dict[str, Any]:
    data = held_up._asdict()
    del data["is_stuck"]
    return data


def _as_data(found: Status) -> dict[str, Any]:
    return {
        "waiting": found.waiting,
        "orphans": found.orphans,
        "blocked": [level.queue for level in found.blocked],
        "levels": [level._asdict() for level in found.levels],
        "outboxes": [outbox._asdict() for outbox in found.outboxes],
        "streams": [stream._asdict() for stream in found.streams if stream.messages is not None],
        "destinations": found.destinations,
        "stuck": None if found.held_up is None else list(map(_held_up_data, found.held_up)),
    }


def _as_text(found: Status, show_all: bool) -> str:
    levels = [level for level in found.levels if show_all or level.ready != 0 or level.unsettled]
    rows = [(level.ttl, level.ready, level.unsettled, level.queue) for level in levels]
    lines = list(_table("level", "queue", rows))
    lines += _table("outbox", "for", [(one.delay, one.ready, one.unsettled, one.destination) for one in found.outboxes])
    for stream in found.streams if show_all else ():
        if stream.messages is not None:
            lines.append(f"{'stream':>10}  {stream.messages:>9,}  {'':>9}  {stream.queue}")
    lines.append(f"{found.waiting:,} wait" + ("" if found.orphans is None else f", {found.orphans:,} are orphans"))
    for destination in found.destinations or ():
        lines.append(f"leads to {destination!r}")
    for held_up in found.held_up or ():
        lines.append(str(held_up))
    for level in found.blocked:
        lines.append(f"{level.queue} may be blocked; run `verify`")
    return "\n".join(map(escape, lines))


def _table(what: str, where: str, rows: Sequence[tuple[int, int | None, int | None, str]]) -> Iterator[str]:
    """Yield a line for each queue, the one with the shortest delay first, below the names of the columns."""
    if rows:
        yield f"{what:>10}  {'ready':>9}  {'unsettled':>9}  {where}"
    for delay, ready, unsettled, name in sorted(rows, key=lambda row: (row[0], row[3])):
        counts = "missing" if ready is None else f"{ready:,}", "" if unsettled is None else f"{unsettled:,}"
        yield f"{format_duration(delay):>10}  {counts[0]:>9}  {counts[1]:>9}  {name}"
