"""The two groups of commands, with and without a Celery app."""

from __future__ import annotations

from typing import Any

import click

from . import common, inspecting, moving, pages, schedule, topology

version_option = click.version_option(package_name="celery-rabbit-delay", prog_name="celery-rabbit-delay")


@click.group(help="See, create, check and export the queues in which delayed tasks wait.")
@version_option
def delay() -> None:
    pass


class _Standalone(click.Group):
    """Asks for a broker, unless a command is only to show its help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_for_help = "--help" in args
        rest = super().parse_args(ctx, args)
        if ctx.params["broker"] is None and not (asks_for_help or ctx.resilient_parsing):
            raise click.UsageError(
                "Missing option '--broker' / '-b': name a broker with it, or in the environment variable "
                "CELERY_BROKER_URL.",
                ctx,
            )
        return rest


@click.group(cls=_Standalone, help="Manage delay queues without a Celery app.")
@version_option
@click.option(
    "--broker",
    "-b",
    envvar="CELERY_BROKER_URL",
    metavar="URL",
    help="amqp://user:password@host/vhost. The environment variable CELERY_BROKER_URL keeps the password out of `ps`.",
)
@click.option(
    "--prefix",
    metavar="NAME",
    help="Begin all names with this. This and the options that follow are those of install().",
)
@click.option("--tick", metavar="SECONDS", type=float, help="The shortest delay.")
@click.option("--max-delay", metavar="SECONDS", type=float, help="The longest delay.")
@click.option(
    "--lanes",
    metavar="SECONDS,...",
    type=common.parse_seconds,
    help="Delays that take one hop, with commas between them; '' for none.",
)
@click.option("--shards", metavar="NUMBER", type=int, help="Sets of levels side by side.")
@click.option("--queue-type", type=click.Choice(["quorum", "classic"]), help="The type of the level queues.")
@click.option("--journal", metavar="SECONDS", type=float, help="The shortest delay that is recorded.")
@click.option(
    "--confirm-timeout", metavar="SECONDS", type=float, help="How long the broker may take to store a message."
)
@click.option(
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    callback=common.check_names,
    help="Treat this queue as one of the app's: setup leads to it, replay and migrate may send to it. May be repeated.",
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
