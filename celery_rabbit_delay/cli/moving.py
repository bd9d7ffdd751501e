"""The command `migrate`."""

from __future__ import annotations

import sys
from typing import Any

import click

from .common import (
    EXIT_PROBLEMS,
    connected,
    ensure_connection,
    management_of,
    management_option,
    target_of,
)


@click.command()
@click.option(
    "--to-broker",
    envvar="CELERY_RABBIT_DELAY_TO_BROKER",
    help="A broker URL (default: the same broker). Use the environment variable CELERY_RABBIT_DELAY_TO_BROKER to keep "
    "the password out of `ps`.",
)
@click.option("--to-prefix", help="Another prefix.")
@click.option("--to-tick", type=float, help="Seconds.")
@click.option("--to-max-delay", type=float, help="Seconds.")
@click.option("--to-queue-type", type=click.Choice(["quorum", "classic"]))
@click.option("--from-layout", type=click.Choice(["1"]), help="Move what waits in the cascade of an earlier release.")
@management_option
@click.pass_obj
def migrate(
    obj: Any, /, to_broker: str | None, from_layout: str | None, management_url: str | None, **changes: Any
) -> None:
    """Move what waits to another cascade: other options, another prefix, another broker, or from an earlier layout.

    Each message keeps its due time. Start it again if it was interrupted: nothing is lost, and at most one message is
    delivered twice. Apps that still publish to the old place go on doing so.
    """
    from dataclasses import replace

    from .. import operate
    from ..amqp.schemes import delay_url
    from ..core.options import OPTIONS

    changed = {name.removeprefix("to_"): value for name, value in changes.items() if value is not None}
    with connected(target_of(obj)) as source:
        current = source.transport.delay_options
        options = replace(current, declare="auto", confirm=True, **changed)
        if not (to_broker or from_layout) and options.cascade.root == current.cascade.root:
            raise click.UsageError(
                "say where to: --to-prefix, --to-tick, --to-queue-type, --to-broker or --from-layout"
            )
        transport_options = {**source.transport_options, OPTIONS: options.to_dict()}
        if to_broker:
            import kombu

            target = kombu.Connection(delay_url(to_broker), transport_options=transport_options)
        else:
            target = source.clone(transport_options=transport_options)
        with target:
            ensure_connection(target)

            def waiting() -> int:
                if from_layout:
                    return operate.count_earlier(source, operate.earlier_layout(source, int(from_layout))) or 0
                return operate.status(source, cascades, management_of(management_url, source)).waiting

            if from_layout:
                cascades: Any = operate.earlier_layout(source, int(from_layout))
            else:
                cascades = [operate.with_all_levels(source, cascade) for cascade in operate.cascades(source)]
            moved = 0
            with click.progressbar(length=waiting(), label="moving", file=sys.stderr) as bar:
                for _ in operate.migrate(source, target, cascades):
                    moved += 1
                    bar.update(1)
            left = waiting()
    click.echo(f"{moved:,} moved, {left:,} left")
    if left:
        raise SystemExit(EXIT_PROBLEMS)
