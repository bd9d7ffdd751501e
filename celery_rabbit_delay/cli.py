"""`celery -A shop delay COMMAND`, and `celery-rabbit-delay --broker URL COMMAND` where there is no app.

Every `celery` command imports this module, so what only a command needs is imported there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import kombu

    from .management import Management
    from .operate import Orphan, Status
    from .routing_key import Destination

#: Exit code where nothing failed, but not all is as it should be.
NOT_AS_IT_SHOULD_BE = 3


@click.group(help="The queues in which delayed tasks wait: see, create, check and export them.")
def delay() -> None:
    pass


@click.group(help="The queues in which delayed tasks wait, for those without a Celery app at hand.")
@click.option("--broker", "-b", required=True, envvar="CELERY_BROKER_URL", help="amqp://user:password@host/vhost")
@click.option("--prefix", help="As in install(), like the options that follow.")
@click.option("--tick", type=float, help="Seconds.")
@click.option("--max-delay", type=float, help="Seconds.")
@click.option("--queue-type", type=click.Choice(["quorum", "classic"]))
@click.option("--queue", "queues", multiple=True, help="A queue that delayed tasks go to; may be repeated.")
@click.pass_context
def standalone(ctx: click.Context, /, broker: str, queues: tuple[str, ...], **options: Any) -> None:
    import kombu
    from celery import Celery

    from . import install

    app = Celery("celery-rabbit-delay", broker=broker, set_as_current=False)
    app.conf.task_queues = [kombu.Queue(name) for name in queues]
    app.conf.task_default_queue = ""  # no queue but those named
    with told():
        install(app, **{key: value for key, value in options.items() if value is not None})
    ctx.obj = SimpleNamespace(app=app)


@contextmanager
def told() -> Iterator[None]:
    """Errors that the user can do something about, without a traceback."""
    from amqp.exceptions import AMQPError
    from kombu.exceptions import OperationalError

    from .exceptions import DelayError

    try:
        yield
    except (DelayError, AMQPError, OperationalError, OSError) as exc:
        raise click.ClickException(str(exc)) from exc


@contextmanager
def connected(app: Any) -> Iterator[kombu.Connection]:
    from .options import DRIVER_TYPE

    with told(), app.connection_for_write() as connection:
        if connection.transport.driver_type != DRIVER_TYPE:
            raise click.ClickException(f"{app} does not delay its tasks: call celery_rabbit_delay.install(app)")
        connection.ensure_connection(max_retries=1)
        yield connection


priorities_option = click.option(
    "--priorities/--no-priorities",
    default=None,
    help="With the levels for priorities above 4; by default if they are there.",
)
management_option = click.option(
    "--management",
    metavar="URL",
    help="http://user:password@host:15672 of the management API, which tells more than AMQP.",
)


def management_of(url: str | None, connection: kombu.Connection) -> Management | None:
    from .management import Management

    return Management(url, connection.virtual_host or "/") if url else None


def destinations(app: Any) -> list[Destination]:
    from .install import destinations_of

    return [destination for queue in app.amqp.queues.values() for destination in destinations_of(queue)]


@delay.command()
@priorities_option
@management_option
@click.pass_obj
def plan(obj: Any, priorities: bool | None, management: str | None) -> None:
    """What `setup` would create. Changes nothing on the broker.

    Exits with 0 if all is there already, 3 if something is missing or different.
    """
    report(obj.app, priorities, management, probing=False)


@delay.command()
@priorities_option
@click.pass_obj
def setup(obj: Any, priorities: bool | None) -> None:
    """Creates what is missing, and leads it to the queues of the app.

    May be repeated. A cascade with other parameters is an error, and stays as it is.
    """
    from . import operate

    with connected(obj.app) as connection:
        wanted = operate.cascades(connection, priorities)
        lacking = operate.setup(connection, wanted, destinations(obj.app))
    click.echo(f"{wanted[0].prefix}: {len(wanted) * wanted[0].levels} levels are there")
    for destination in lacking:
        name = f"exchange {destination.exchange!r} or queue" if destination.exchange else "queue"
        click.echo(f"nothing leads to {name} {destination.queues[0]!r}, which is not there")


@delay.command()
@priorities_option
@click.option("--format", "how", type=click.Choice(["definitions", "terraform", "mermaid"]), default="definitions")
@click.pass_obj
def export(obj: Any, priorities: bool | None, how: str) -> None:
    """Prints what `setup` creates, for other tools.

    `definitions` is for `rabbitmqctl import_definitions`, `terraform` for the provider cyrilgdn/rabbitmq, `mermaid` a
    diagram. The broker is not asked. What leads to the queues of the app is not part of it: they may not exist yet.
    """
    from . import export as exports
    from .options import Options
    from .topology import Topology

    with told():
        connection = obj.app.connection_for_write()
        options: Options = connection.transport.delay_options
    cascades = [options.cascade]
    if priorities and options.cascade_for(9) != options.cascade:
        cascades.append(options.high_cascade)
    topology = Topology.of(cascades)
    vhost = connection.virtual_host or "/"
    if how == "mermaid":
        click.echo(exports.mermaid(topology), nl=False)
    else:
        click.echo(getattr(exports, how)(topology, vhost), nl=False)


@delay.command()
@priorities_option
@management_option
@click.pass_obj
def verify(obj: Any, priorities: bool | None, management: str | None) -> None:
    """Compares what is on the broker with what should be, and sends messages through the short levels.

    Exits with 0 if all is well, 3 if something is missing, different or does not come back. Bindings and policies
    are compared through the management API only; messages show what is wrong with bindings of levels of up to 2 s.
    """
    report(obj.app, priorities, management, probing=True)


def report(app: Any, priorities: bool | None, management: str | None, probing: bool) -> None:
    from . import operate

    with connected(app) as connection:
        cascades = operate.cascades(connection, priorities)
        # Otherwise a publisher makes what leads to a destination when it needs it.
        passive = connection.transport.delay_options.declare == "passive"
        needed = destinations(app) if passive else ()
        parts = list(operate.compare(connection, cascades, needed, management_of(management, connection)))
        wrong = [part for part in parts if part.state != "present"]
        for part in wrong:
            click.echo(f"{part.state:<10} {part.kind:<8} {part.name}" + (f": {part.detail}" if part.detail else ""))
        click.echo(f"{len(parts) - len(wrong)} of {len(parts)} parts are as they should be")
        lost: list[str] = []
        if probing and not any(part.kind != "binding" for part in wrong):
            for cascade in cascades:
                for problem in operate.probe(connection, cascade):
                    click.echo(problem)
                    lost.append(problem)
            if not lost:
                click.echo("every message through the short levels came back, none early")
    if wrong or lost:
        if probing:
            click.echo("`setup` creates what is missing; what is different needs another prefix", err=True)
        raise SystemExit(NOT_AS_IT_SHOULD_BE)


@delay.command()
@priorities_option
@management_option
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option("--watch", is_flag=True, help="Again every two seconds, until interrupted.")
@click.pass_obj
def status(obj: Any, priorities: bool | None, management: str | None, as_json: bool, watch: bool) -> None:
    """How many messages wait, level by level, and what could not be delivered.

    Exits with 3 if a level is blocked or missing, or if there are orphans.
    """
    from . import operate

    with connected(obj.app) as connection:
        while True:
            wanted = operate.cascades(connection, priorities)
            found = operate.status(connection, wanted, management_of(management, connection))
            if watch and not as_json:
                click.clear()
            click.echo(as_text(found) if not as_json else json.dumps(as_data(found)))
            if not watch:
                break
            time.sleep(2)
    if found.blocked or found.orphans or any(level.ready is None for level in found.levels):
        raise SystemExit(NOT_AS_IT_SHOULD_BE)


@delay.group()
def orphans() -> None:
    """What could not be delivered when it was due: see it, send it on, remove it."""


limit_option = click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")


@orphans.command("list")
@limit_option
@click.option("--json", "as_json", is_flag=True, help="For machines, one object a line.")
@click.pass_obj
def list_orphans(obj: Any, limit: int, as_json: bool) -> None:
    """The oldest orphans: since when, where they were going, and which tasks they are."""
    from . import operate

    with connected(obj.app) as connection:
        for orphan in operate.orphans(connection, limit):
            if as_json:
                click.echo(json.dumps({**orphan._asdict(), "due": orphan.due.isoformat()}))
            else:
                click.echo(described(orphan))


@orphans.command()
@limit_option
@click.pass_obj
def replay(obj: Any, limit: int) -> None:
    """Sends the oldest orphans on to where they were going.

    One by one, each confirmed by the broker; what still cannot be delivered stays. Exits with 3 if some stayed.
    """
    from . import operate

    sent = stayed = 0
    with connected(obj.app) as connection:
        for orphan, refused in operate.replay(connection, limit):
            if refused is None:
                sent += 1
            else:
                stayed += 1
                click.echo(f"stays: {described(orphan)}: {refused}")
    click.echo(f"{sent:,} sent on, {stayed:,} stay")
    if stayed:
        raise SystemExit(NOT_AS_IT_SHOULD_BE)


@orphans.command()
@click.confirmation_option(prompt="Remove all orphans for good?")
@click.pass_obj
def purge(obj: Any) -> None:
    """Removes all orphans, for good."""
    from . import operate

    with connected(obj.app) as connection:
        click.echo(f"{operate.purge(connection):,} removed")


@delay.command()
@click.option("--to-broker", help="A URL; by default the same broker.")
@click.option("--to-prefix")
@click.option("--to-tick", type=float, help="Seconds.")
@click.option("--to-max-delay", type=float, help="Seconds.")
@click.option("--to-queue-type", type=click.Choice(["quorum", "classic"]))
@management_option
@click.pass_obj
def migrate(obj: Any, /, to_broker: str | None, management: str | None, **changes: Any) -> None:
    """Moves what waits to another prefix or broker, where it is due when it was due anyway.

    Start it again if it was interrupted: nothing is lost, and at most one message is delivered twice. Apps that still
    publish to the old place go on doing so.
    """
    from dataclasses import replace

    from . import operate
    from .install import our_url
    from .options import OPTIONS

    changed = {name.removeprefix("to_"): value for name, value in changes.items() if value is not None}
    if not (to_broker or "prefix" in changed):
        raise click.UsageError("say where to: --to-prefix, --to-broker or both")
    with connected(obj.app) as source:
        options = replace(source.transport.delay_options, declare="auto", **changed)
        transport_options = {**source.transport_options, OPTIONS: options.plain()}
        if to_broker:
            import kombu

            target = kombu.Connection(our_url(to_broker), transport_options=transport_options)
        else:
            target = source.clone(transport_options=transport_options)
        with target:
            target.ensure_connection(max_retries=1)
            found = operate.status(source, operate.cascades(source), management_of(management, source))
            moved = 0
            with click.progressbar(length=found.waiting, label="moving", file=sys.stderr) as bar:
                for _ in operate.migrate(source, target):
                    moved += 1
                    bar.update(1)
            left = operate.status(source, operate.cascades(source), management_of(management, source)).waiting
    click.echo(f"{moved:,} moved, {left:,} left")
    if left:
        raise SystemExit(NOT_AS_IT_SHOULD_BE)


@delay.command()
@click.option("--with-messages", is_flag=True, help="Even if messages wait, which are lost then.")
@management_option
@click.confirmation_option(prompt="Delete the cascade?")
@click.pass_obj
def teardown(obj: Any, with_messages: bool, management: str | None) -> None:
    """Deletes the cascade: all its exchanges and queues, and nothing else.

    Refuses while messages wait or are orphans; of those on their way between two queues it knows only through the
    management API. A publisher that still runs creates the cascade anew, so stop them first.
    """
    from . import operate

    with connected(obj.app) as connection:
        cascades = operate.cascades(connection)
        found = operate.status(connection, cascades, management_of(management, connection))
        held = found.waiting + (found.orphans or 0)
        if held and not with_messages:
            raise click.ClickException(
                f"{found.waiting:,} messages wait and {found.orphans or 0:,} are orphans: "
                "`migrate` and `orphans replay` take them elsewhere, --with-messages deletes them"
            )
        click.echo(f"{operate.teardown(connection):,} exchanges and queues deleted")


def described(orphan: Orphan) -> str:
    place = f"exchange {orphan.exchange!r}, key" if orphan.exchange else "queue"
    what = f"{orphan.task}[{orphan.task_id}]" if orphan.task else f"{orphan.size:,} bytes"
    return f"{orphan.due:%Y-%m-%d %H:%M:%S}Z  {place} {orphan.routing_key!r}  {what}"


def as_data(found: Status) -> dict[str, Any]:
    return {
        "waiting": found.waiting,
        "orphans": found.orphans,
        "blocked": [level.queue for level in found.blocked],
        "levels": [level._asdict() for level in found.levels],
        "destinations": found.destinations
        and [{"from": b.source, "to": b.target, "kind": b.kind} for b in found.destinations],
    }


def as_text(found: Status) -> str:
    lines = [f"{'level':>10}  {'ready':>9}  {'unsettled':>9}  queue"]
    for level in found.levels:
        ready = "missing" if level.ready is None else f"{level.ready:,}"
        unsettled = "" if level.unsettled is None else f"{level.unsettled:,}"
        lines.append(f"{span(level.ttl):>10}  {ready:>9}  {unsettled:>9}  {level.queue}")
    lines.append(f"{found.waiting:,} wait" + ("" if found.orphans is None else f", {found.orphans:,} are orphans"))
    for binding in found.destinations or ():
        lines.append(f"leads to {binding.kind} {binding.target!r}")
    for level in found.blocked:
        lines.append(f"BLOCKED, or in a burst: {level.queue}; `verify` tells")
    return "\n".join(lines)


def span(milliseconds: int) -> str:
    """A level's TTL in the largest unit of which it is at least one."""
    units = (("years", 365 * 86_400_000), ("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
    for unit, size in units:
        if milliseconds >= size:
            return f"{milliseconds / size:.3g} {unit}"
    return f"{milliseconds} ms"


standalone.commands = delay.commands


def main() -> None:
    standalone(prog_name="celery-rabbit-delay")
