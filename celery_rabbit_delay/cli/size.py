"""The command `size`: what a load takes, by calculation alone."""

from __future__ import annotations

import re
from collections.abc import Callable

import click

from ..core import sizing
from .target import Target, handle_errors, pass_target

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {"": 1, "b": 1, "kb": 1000, "mb": 1_000_000}


def _number(units: dict[str, int], example: str) -> Callable[[click.Context, click.Parameter, str], float]:
    """Return a callback that reads a number with a unit."""

    def read(ctx: click.Context, param: click.Parameter, value: str) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value.lower())
        if not found or found[2] not in units or not float(found[1]):
            raise click.BadParameter(f"{value!r}: write a number with a unit, such as {example}")
        return float(found[1]) * units[found[2]]

    return read


@click.command()
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), required=True, help="Set how many tasks are sent in a second."
)
@click.option(
    "--delay",
    metavar="TIME",
    callback=_number(_SECONDS, "90s, 15m, 1h or 30d"),
    required=True,
    help="Set the delay of each task, such as 90s, 15m, 1h or 30d.",
)
@click.option("--spread", is_flag=True, help="Spread the delays evenly up to that one, instead of one for all.")
@click.option(
    "--body",
    metavar="SIZE",
    callback=_number(_BYTES, "500b or 1kB"),
    default="1kB",
    show_default=True,
    help="Set the size of a task's body.",
)
@click.option("--queues", type=click.IntRange(1), default=1, show_default=True, help="Set the number of their queues.")
@click.option("--nodes", type=click.IntRange(1), default=3, show_default=True, help="Set the number of nodes.")
@pass_target
def size(target: Target, rate: float, delay: float, spread: bool, body: float, queues: int, nodes: int) -> None:
    """Calculate what a load of delayed tasks takes: queues, CPU, memory, disk. Asks no broker.

    The figures are those of docs/sizing.md. Measure with your own load before you rely on them.
    """
    with handle_errors():
        options = target.delay_options()
    if delay > options.max_delay:
        raise click.BadParameter(f"the longest delay is max_delay, {options.max_delay:.0f} s", param_hint="--delay")
    found = sizing.size(sizing.Load(rate, delay, spread, round(body), queues, nodes), options)
    least, most = found.cpus
    rows = {
        "hops": f"{found.hops:.1f} on average, the outbox included",
        "queues": f"{found.cascade + queues * found.outboxes}: {found.cascade} of the cascade, and {found.outboxes} "
        "for each queue of the tasks" + ("; up to ten streams besides" if options.streams else ""),
        "CPU": f"{least:.2g} to {most:.2g} CPUs of each node",
        "waiting": f"{found.waiting:,} tasks",
        "memory": f"{_bytes(found.memory)} of each node",
        "disk": f"{_bytes(found.disk)} of each node, and as much again to spare",
    }
    for name, value in rows.items():
        click.echo(f"{name:<8} {value}")
    if found.longest > sizing.LONG_QUEUE:
        click.echo(
            f"One queue would hold {found.longest:,} messages, and RabbitMQ advises against more than "
            f"{sizing.LONG_QUEUE:,}: divide the tasks among more prefixes."
        )


def _bytes(amount: int) -> str:
    for unit, one in (("GB", 10**9), ("MB", 10**6)):
        if amount >= one:
            return f"{amount / one:.3g} {unit}"
    return f"{amount / 1000:.3g} kB"
