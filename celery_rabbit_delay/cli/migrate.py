"""The command `migrate`."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import click
import kombu

from .. import operate
from ..amqp import connecting as connecting_
from ..amqp import history as history_
from ..core.options import OPTIONS
from ..core.text import escape
from .output import EXIT_INTERRUPTED, EXIT_PROBLEMS, progress, until_interrupted
from .parameters import any_queue_option, cascade_options, given
from .target import Target, connection_to, pass_target

#: Lines about tasks that stay; there may be millions of them.
_LINES = 20


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
@pass_target
def migrate(origin: Target, /, to_broker: str | None, any_queue: bool, **changes: Any) -> None:
    """Move recorded tasks that wait for the queues of the app to a cascade with other options, or to another broker.

    Each keeps its due time. Tasks that have no record (see the option `journal`), or are due within two seconds, stay
    and are delivered when due: keep the broker and the streams that they came from until then. After an interruption,
    run this again: nothing is lost, and at most one task is delivered twice. Apps publish to the old cascade until you
    change their options, too.

    Exits with 3 if some recorded tasks stayed.
    """
    changed = given({name.removeprefix("to_"): value for name, value in changes.items()})
    moved, left, problems = 0, 0, list[str]()
    with origin.connected() as source:
        elsewhere = _connection_elsewhere(source, to_broker, changed)
        operate.require(source)
        with connecting_.connected(elsewhere) as target, progress("moving") as show:
            if operate.is_same(source, target):
                raise click.UsageError("source and target are the same cascade: name another target")
            moving = operate.migrate(source, target, origin.allowed(any_queue), show, problems.append)
            with until_interrupted(moving) as (results, is_interrupted):
                for _, refused in results:
                    if refused:
                        left += 1
                        problems.append(str(refused))
                    else:
                        moved += 1
        history_.tell(source, origin.who, "moved to another cascade", moved)
    click.echo(f"{moved:,} moved, {left:,} left")
    for problem in islice(problems, _LINES):
        click.echo(escape(problem), err=True)
    if len(problems) > _LINES:
        click.echo(f"and {len(problems) - _LINES:,} more", err=True)
    click.echo("tasks without a record stay, and are delivered when due: `status` counts what waits", err=True)
    if is_interrupted():
        click.echo("interrupted: run this again to move the others", err=True)
        raise SystemExit(EXIT_INTERRUPTED)
    if problems:
        raise SystemExit(EXIT_PROBLEMS)


def _connection_elsewhere(source: kombu.Connection, to_broker: str | None, changed: dict[str, Any]) -> kombu.Connection:
    """Return a connection to the broker of `source`, or another one, with changed options."""
    current = source.transport.delay_options
    options = replace(current, declare="auto", **changed)
    if to_broker:
        return connection_to(to_broker, {**source.transport_options, OPTIONS: options.to_dict()})
    if options.cascade.root == current.cascade.root:
        raise click.UsageError("name the target with --to-prefix, --to-tick or --to-broker")
    return connecting_.copy_of(source, "migration", **{OPTIONS: options.to_dict()})
