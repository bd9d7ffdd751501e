"""The two groups of commands, with and without a Celery app."""

from __future__ import annotations

from typing import Any

import click

from . import common, inspecting, moving, pages, schedule, topology

version_option = click.version_option(package_name="celery-rabbit-delay", prog_name="celery-rabbit-delay")


@click.group(cls=common.Group, help="Manage the queues of delayed tasks, and the tasks that wait in them.")
@version_option
def delay() -> None:
    pass


class _Standalone(common.Group):
    """A group that requires a broker, except for `--help`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_for_help = "--help" in args
        rest = super().parse_args(ctx, args)
        if ctx.params["broker"] is None and not (asks_for_help or ctx.resilient_parsing):
            raise click.UsageError(
                "Missing option '--broker' / '-b': name a broker with it or with the environment variable "
                "CELERY_BROKER_URL.",
                ctx,
            )
        return rest


@click.group(cls=_Standalone, help="Manage delayed tasks and their queues without a Celery app.")
@version_option
@click.option(
    "--broker",
    "-b",
    envvar="CELERY_BROKER_URL",
    metavar="URL",
    help="Connect to this broker: amqp://user:password@host/vhost. Set the environment variable CELERY_BROKER_URL "
    "instead to keep the password out of `ps`.",
)
@click.option(
    "--prefix",
    metavar="NAME",
    help="Set the prefix of all names. This option and the following ones are the options of install().",
)
@click.option("--tick", metavar="SECONDS", type=float, help="Set the shortest delay.")
@click.option("--max-delay", metavar="SECONDS", type=float, help="Set the longest delay.")
@click.option(
    "--outboxes",
    metavar="SECONDS,...",
    type=common.parse_seconds,
    help="Set the delays that a queue has outboxes for, separated by commas; '' for none.",
)
@click.option("--queue-type", type=click.Choice(["quorum", "classic"]), help="Set the type of the level queues.")
@click.option("--journal", metavar="SECONDS", type=float, help="Set the shortest delay that is recorded.")
@click.option(
    "--confirm-timeout", metavar="SECONDS", type=float, help="Set how long the broker may take to store a message."
)
@click.option(
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    callback=common.check_names,
    help="Treat this queue as one of the app's: setup binds it, replay and migrate may send to it. May be repeated.",
)
@click.pass_context
def standalone(ctx: click.Context, /, broker: str | None, queues: tuple[str, ...], **options: Any) -> None:
    given = {key: value for key, value in options.items() if value is not None}
    ctx.obj = common.BrokerTarget(broker or "", given, queues)


for command in (
    topology.plan,
    topology.setup,
    topology.export,
    topology.verify,
    inspecting.status,
    inspecting.orphans,
    schedule.list_scheduled,
    schedule.cancel,
    schedule.reschedule,
    schedule.run_now,
    pages.web,
    pages.metrics,
    moving.migrate,
    topology.teardown,
):
    delay.add_command(command)
    standalone.add_command(command)


def main() -> None:
    standalone(prog_name="celery-rabbit-delay")
