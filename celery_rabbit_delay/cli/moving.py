"""The command `migrate`."""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from ..core.text import escape
from .common import (
    EXIT_INTERRUPTED,
    EXIT_PROBLEMS,
    allowed,
    any_queue_option,
    connected,
    connection_to,
    destinations,
    management_of,
    management_option,
    parse_seconds,
    target_of,
    until_interrupted,
)

if TYPE_CHECKING:
    import kombu

    from ..operate import Outbox


@click.command(short_help="Move waiting tasks to another cascade or broker.")
@click.option(
    "--to-broker",
    metavar="URL",
    envvar="CELERY_RABBIT_DELAY_TO_BROKER",
    help="Move to this broker (default: the same broker). Set the environment variable CELERY_RABBIT_DELAY_TO_BROKER "
    "instead to keep the password out of `ps`.",
)
@click.option(
    "--to-prefix",
    metavar="NAME",
    help="Set the new prefix. This option and the following ones are the options of install().",
)
@click.option("--to-tick", metavar="SECONDS", type=float, help="Set the new shortest delay.")
@click.option("--to-max-delay", metavar="SECONDS", type=float, help="Set the new longest delay.")
@click.option(
    "--to-outboxes",
    metavar="SECONDS,...",
    type=parse_seconds,
    help="Set the new delays of outboxes, separated by commas; '' for none.",
)
@click.option("--to-queue-type", type=click.Choice(["quorum", "classic"]), help="Set the new type of the level queues.")
@click.option(
    "--to-journal", metavar="SECONDS", type=float, help="Record moved tasks that still have at least this delay."
)
@any_queue_option
@management_option
@click.pass_obj
def migrate(
    obj: Any,
    /,
    to_broker: str | None,
    any_queue: bool,
    management_url: str | None,
    **changes: Any,
) -> None:
    """Move waiting tasks for the queues of the app to a cascade with other options, or to another broker.

    Each message keeps its due time. --management-url also finds those that wait in outboxes of other queues, or with
    other delays than --outboxes says; otherwise they stay, and are delivered when due. A message that cannot be moved
    stays where it is. After an interruption, run this again: nothing is lost, and at most one message is delivered
    twice. Apps publish to the old cascade until you change their options, too.

    Exits with 3 if some messages stayed.
    """
    from dataclasses import replace

    from .. import operate
    from ..amqp.connecting import closing, copy_of, ensure_connection
    from ..core.options import OPTIONS

    changed = {name.removeprefix("to_"): value for name, value in changes.items() if value is not None}
    source_target = target_of(obj)
    with connected(source_target) as source:
        current = source.transport.delay_options
        options = replace(current, declare="auto", confirm=True, **changed)
        if not to_broker and options.cascade.root == current.cascade.root:
            raise click.UsageError("name the target with --to-prefix, --to-tick, --to-queue-type or --to-broker")
        transport_options = {**source.transport_options, OPTIONS: options.to_dict()}
        if to_broker:
            target = connection_to(to_broker, transport_options)
        else:
            target = copy_of(source, transport_options=transport_options)
        operate.require(source)
        cascades, management = operate.existing(source), management_of(management_url, source)
        known = destinations(source_target)

        def outboxes() -> list[Outbox]:
            return operate.existing_outboxes(source, known, management)

        def waiting() -> int:
            return operate.status(source, cascades, known, management).waiting

        with closing(target):
            ensure_connection(target)
            is_same_name = to_broker and options.cascade.root == current.cascade.root
            if is_same_name and _is_same(source, target):
                raise click.UsageError("source and target are the same cascade: name another target")
            moved, refused = 0, Counter[str]()
            before = waiting()
            moving = operate.migrate(source, target, cascades, allowed(source_target, any_queue), outboxes)
            with (
                until_interrupted(moving) as (messages, is_interrupted),
                click.progressbar(length=before, label="moving", file=sys.stderr) as bar,
            ):
                for message in messages:
                    if message.refused is None:
                        moved += 1
                    else:
                        refused[f"stays in {message.queue}: {message.refused}"] += 1
                    bar.update(1)
                if not is_interrupted():
                    bar.update(max(0, before - bar.pos))
            for reason, count in refused.items():
                click.echo(escape(reason) + (f" ({count:,} times)" if count > 1 else ""))
            # Refused messages return to their queue when the channel closes, but perhaps only after they are counted.
            left = max(waiting(), refused.total())
    # A message whose delay ends goes on to its queue, and those that must not be delivered are dropped when taken.
    gone = before - moved - left
    others = f", {gone:,} became due meanwhile or had been cancelled, moved or replaced" if gone > 0 else ""
    click.echo(f"{moved:,} moved, {left:,} left{others}")
    if management is None:
        click.echo(
            "outboxes of other queues than those of the app were not looked at: --management-url shows them", err=True
        )
    if is_interrupted():
        click.echo("interrupted: run this again to move the others", err=True)
        raise SystemExit(EXIT_INTERRUPTED)
    if left:
        raise SystemExit(EXIT_PROBLEMS)


def _is_same(source: kombu.Connection, target: kombu.Connection) -> bool:
    """Return whether two connections use the same virtual host: then each sees the other's exclusive queue."""
    from amqp.exceptions import ResourceLocked

    from ..amqp import declare

    name = f"{target.transport.delay_options.cascade.root}.migrate.{uuid.uuid4()}"
    target.default_channel.queue_declare(name, exclusive=True)
    try:
        return declare.queue_exists(source.default_channel, name)
    except ResourceLocked:  # the other connection owns the queue
        return True
