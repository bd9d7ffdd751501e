"""The command `can-leave`."""

from __future__ import annotations

import click

from .. import operate
from ..amqp.destinations import QueueNames
from ..core.text import escape
from .output import EXIT_PROBLEMS, utc_option
from .parameters import management_option
from .target import Target, pass_target, snapshot_of
from .tasks import format_scheduled


@click.command("can-leave", short_help="Show what would run again without this package.")
@management_option
@utc_option
@pass_target
def can_leave(target: Target, management_url: str | None) -> None:
    """Show which waiting tasks would run again in workers without this package: cancelled, moved and replaced ones.

    Shows paused queues as well.

    Only workers with this package know of these. Ask before you remove it, roll it back, or start workers without it
    beside others. --management-url also counts messages between two queues, all outboxes, and what RabbitMQ holds until
    it is due.

    Exits with 0 if there are none, and with 3 as long as there are some, or tasks without a record, which may be some.
    Changes nothing.
    """
    with target.connected(exists=True) as connection:
        names = QueueNames(target.queues())
        found = operate.revivable(connection, target.destinations(), names, snapshot_of(management_url, connection))
    for task, fate in found.known:
        click.echo(f"{fate:<9}  {format_scheduled(task)}")
    if found.unknown:
        click.echo(f"waiting without a record: {found.unknown:,}, which may have been cancelled or replaced as well")
    elif found.unknown is None:
        click.echo("RabbitMQ may hold others without a record, which may be such as well: --management-url counts them")
    for queue in found.paused:
        click.echo(escape(f"paused     {queue}: workers without this package consume it"))
    if found.known or found.unknown:
        click.echo("workers without this package would run them: keep it in all workers until they are through")
    if any(found) or found.unknown is None:
        raise SystemExit(EXIT_PROBLEMS)
    click.echo("nothing that was cancelled, moved or replaced waits")
