"""The commands, and the group that has them without a Celery app."""

from __future__ import annotations

from typing import Any

import click

from . import broker, orphans, periodic, status, tasks, web
from .output import Group, version_option
from .parameters import cascade_options, check_names, given
from .target import BrokerTarget

_ASKS_FOR_HELP = f"{__name__}.asks_for_help"


class _Standalone(Group):
    """A group whose commands require a broker, except for `--help`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ASKS_FOR_HELP] = "--help" in args
        return super().parse_args(ctx, args)


@click.group(
    cls=_Standalone,
    help="Manage delayed tasks and their queues without a Celery app.",
    commands=[
        broker.setup,
        broker.export,
        broker.verify,
        status.status,
        orphans.orphans,
        tasks.list_scheduled,
        tasks.cancel,
        tasks.restore,
        tasks.reschedule,
        tasks.run_now,
        tasks.pause,
        tasks.resume,
        periodic.periodic,
        web.web,
        web.metrics,
        broker.teardown,
    ],
)
@version_option
@click.option(
    "--broker",
    "-b",
    envvar="CELERY_BROKER_URL",
    metavar="URL",
    help="Connect to this broker: amqp://user:password@host/vhost. Set the environment variable CELERY_BROKER_URL "
    "instead to keep the password out of `ps`.",
)
@cascade_options
@click.option(
    "--confirm-timeout", metavar="SECONDS", type=float, help="Set how long the broker may take to store a message."
)
@click.option(
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    callback=check_names,
    help="Treat this queue as one of the app's: setup creates its outboxes, replay may send to it. May be repeated.",
)
@click.pass_context
def standalone(ctx: click.Context, /, broker: str | None, queues: tuple[str, ...], **options: Any) -> None:
    if broker is None and not ctx.meta[_ASKS_FOR_HELP]:
        raise click.UsageError(
            "Missing option '--broker' / '-b': name a broker with it or with the environment variable "
            "CELERY_BROKER_URL.",
            ctx,
        )
    ctx.obj = BrokerTarget(broker or "", given(options), queues)
