"""The command `migrate`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import click
import kombu

from .. import operate
from ..core.options import OPTIONS
from ..core.text import escape
from ..operate import Moved
from .output import EXIT_INTERRUPTED, EXIT_PROBLEMS, progress, until_interrupted
from .parameters import any_queue_option, cascade_options, given, management_option
from .target import Target, connection_to, management_of, pass_target

#: Seconds: what the management API says of messages between two queues may be older than their move.
_STALE = 12


@click.command(short_help="Move waiting tasks to another cascade or broker.")
@click.option(
    "--to-broker",
    metavar="URL",
    envvar="CELERY_RABBIT_DELAY_TO_BROKER",
    help="Move to this broker (default: the same broker). Set the environment variable CELERY_RABBIT_DELAY_TO_BROKER "
    "instead to keep the password out of `ps`.",
)
@cascade_options("to-", "new ")
@any_queue_option
@management_option
@pass_target
def migrate(
    origin: Target,
    /,
    to_broker: str | None,
    any_queue: bool,
    management_url: str | None,
    **changes: Any,
) -> None:
    """Move waiting tasks for the queues of the app to a cascade with other options, or to another broker.

    Each message keeps its due time, and cancelled workflows stay cancelled. --management-url also finds those that wait
    in outboxes of other queues, or with other delays than --outboxes says; otherwise they stay, and are delivered when
    due. A message that cannot be moved stays where it is. After an interruption, run this again: nothing is lost, and
    at most one message is delivered twice. Apps publish to the old cascade until you change their options, too.

    Exits with 3 if some messages stayed.
    """
    changed = given({name.removeprefix("to_"): value for name, value in changes.items()})
    with origin.connected() as source:
        elsewhere = _connection_elsewhere(source, to_broker, changed)
        operate.require(source)
        held_by_rabbitmq = operate.is_by_time(source)
        known, management = origin.destinations(), management_of(management_url, source)

        def counts() -> operate.Status:
            return operate.status(source, known, management.snapshot() if management else None)

        with operate.connected(elsewhere) as target:
            if operate.is_same(source, target):
                raise click.UsageError("source and target are the same cascade: name another target")
            before = counts().ready
            moving = operate.migrate(source, target, origin.allowed(any_queue), known, management)
            moved, refused, is_interrupted = _progress(moving, before)
            operate.tell(source, origin.who, "moved to another cascade", moved)
            lost = 0 if target.transport.delay_options.streams else len(operate.cancelled_workflows(source))
            for reason, count in refused.items():
                click.echo(escape(reason) + (f" ({count:,} times)" if count > 1 else ""))
            # Refused messages return to their queue when the channel closes, but perhaps only after they are counted.
            least = refused.total()
            deadline = time.monotonic() + (_STALE if management and not is_interrupted else 0)
            while (left := max(counts().waiting, least)) > least and time.monotonic() < deadline:
                time.sleep(0.5)
    # A message whose delay ends goes on to its queue, and those that must not be delivered are dropped when taken.
    gone = before - moved - left
    others = f", {gone:,} became due meanwhile or had been cancelled, moved or replaced" if gone > 0 else ""
    click.echo(f"{moved:,} moved, {left:,} left{others}")
    if management is None:
        click.echo(
            "outboxes of other queues than those of the app were not looked at: --management-url shows them", err=True
        )
    if lost:
        are = "workflow is" if lost == 1 else "workflows are"
        says = f"{lost:,} cancelled {are} not cancelled there, without streams: what they still send runs"
        click.echo(says, err=True)
    if held_by_rabbitmq:
        click.echo("what RabbitMQ holds until it is due stays, and is delivered then: `reschedule` moves it", err=True)
    if is_interrupted:
        click.echo("interrupted: run this again to move the others", err=True)
        raise SystemExit(EXIT_INTERRUPTED)
    if left:
        raise SystemExit(EXIT_PROBLEMS)


def _connection_elsewhere(source: kombu.Connection, to_broker: str | None, changed: dict[str, Any]) -> kombu.Connection:
    """Return a connection to the broker of `source`, or another one, with changed options."""
    current = source.transport.delay_options
    options = replace(current, declare="auto", **changed)
    if to_broker:
        return connection_to(to_broker, {**source.transport_options, OPTIONS: options.to_dict()})
    if options.cascade.root == current.cascade.root:
        raise click.UsageError("name the target with --to-prefix, --to-tick or --to-broker")
    return operate.copy_of(source, "migration", **{OPTIONS: options.to_dict()})


def _progress(moving: Iterable[Moved], amount: int) -> tuple[int, Counter[str], bool]:
    """Show how many messages of an amount were moved; return their number, why others stay, and about Ctrl-C."""
    moved, refused = 0, Counter[str]()
    with (
        until_interrupted(moving) as (messages, is_interrupted),
        progress("moving") as show,
    ):
        for message in messages:
            if message.refused is None:
                moved += 1
            else:
                refused[f"stays in {message.queue}: {message.refused}"] += 1
            done = moved + refused.total()
            show(done, max(amount, done))
    return moved, refused, is_interrupted()
