"""Commands for the cascade on the broker: setup, export, verify, teardown."""

from __future__ import annotations

import click
import kombu

from .. import operate
from ..text import escape
from .output import EXIT_PROBLEMS
from .parameters import management_option
from .target import BrokerTarget, Target, handle_errors, management_of, pass_target, snapshot_of


@click.command()
@pass_target
def setup(target: Target) -> None:
    """Create missing parts of the cascade, with streams, and outboxes of the app's queues. Running it again is safe.

    For a broker named with --broker, and for an app with declare="passive", it also creates for each queue the outboxes
    of the option `outboxes`. Other publishers create these when they first need them.
    """
    with target.connected() as connection:
        wanted, ahead = operate.wanted(connection), _creates_ahead(target, connection)
        lacking = operate.setup(connection, wanted, target.destinations(with_namesakes=ahead), ahead)
        click.echo(f"{wanted[0].root}: {sum(len(cascade.levels) for cascade in wanted)} levels exist")
        _show_way(connection)
        for destination in lacking:
            click.echo(f"skipped {destination}: it does not exist")


def _show_way(connection: kombu.Connection) -> None:
    """Show whether messages pass levels, if the options ask for the delays of RabbitMQ."""
    if connection.transport.delay_options.delivery_time:
        click.echo(
            "RabbitMQ holds each message until it is due, in the outbox of its destination: it passes no level, unless "
            'its publisher has declare="passive"'
            if operate.is_by_time(connection)
            else "RabbitMQ has not shown that it holds messages until they are due: they pass levels"
        )


def _creates_ahead(target: Target, connection: kombu.Connection) -> bool:
    """Return whether `setup` creates outboxes with a delay: for publishers that create none."""
    return isinstance(target, BrokerTarget) or connection.transport.delay_options.declare == "passive"


@click.command()
@click.option(
    "--format",
    "kind",
    type=click.Choice(["definitions", "terraform"]),
    default="definitions",
    show_default=True,
    help="Print this format.",
)
@pass_target
def export(target: Target, kind: str) -> None:
    """Print what `setup` creates, for other tools. Does not contact the broker.

    `definitions` is for `rabbitmqctl import_definitions`, `terraform` (JSON, for a file `delays.tf.json`) for the
    provider cyrilgdn/rabbitmq. The output does not include the outboxes of the app's queues, which publishers
    create when they need them.
    """
    with handle_errors():
        connection = target.connection()
    click.echo(operate.export(connection, kind))


@click.command(short_help="Check the cascade, and send test messages through it.")
@management_option
@pass_target
def verify(target: Target, management_url: str | None) -> None:
    """Compare the cascade on the broker with the expected one, and send test messages through the levels of up to 2 s.

    The messages test the bindings between these levels. Only --management-url compares all bindings, and policies.

    Exits with 0 if no problem was found, and with 3 if a part is missing or different, or a message does not come back.
    """
    with target.connected() as connection:
        snapshot = snapshot_of(management_url, connection)
        wrong = _compare(target, connection, snapshot)
        arrived = not operate.can_try_out(wrong) or _probe(connection)
    if wrong or not arrived:
        click.echo("`setup` creates missing parts; delete parts that are different, or choose another prefix", err=True)
    if wrong or not arrived:
        raise SystemExit(EXIT_PROBLEMS)


def _compare(target: Target, connection: kombu.Connection, snapshot: operate.Snapshot | None) -> list[operate.Finding]:
    """Show and return what is not as expected."""
    findings = operate.compare(connection, target.destinations(), snapshot)
    wrong = [finding for finding in findings if finding.state != "present"]
    for finding in wrong:
        detail = f": {finding.detail}" if finding.detail else ""
        click.echo(escape(f"{finding.state:<10} {finding.kind:<8} {finding.name}{detail}"))
    click.echo(f"{len(findings) - len(wrong)} of {len(findings)} checks passed")
    return wrong


def _probe(connection: kombu.Connection) -> bool:
    """Send test messages, and show problems; return whether there are none."""
    is_sound = True
    for problem in operate.try_out(connection):
        click.echo(escape(problem))
        is_sound = False
    if is_sound:
        click.echo("probe: all messages on time, in the levels of up to 2 s")
    return is_sound


@click.command(short_help="Delete the cascade.")
@click.option("--delete-messages", is_flag=True, help="Delete the cascade even if messages wait; these are lost.")
@click.option("--beat", "with_beat", is_flag=True, help="Also delete the queue of the app's beat, which must not run.")
@management_option
@click.confirmation_option(prompt="Delete the cascade, for all apps with its prefix?")
@pass_target
def teardown(target: Target, delete_messages: bool, with_beat: bool, management_url: str | None) -> None:
    """Delete the cascade, of all apps with its prefix: all its exchanges and queues, and nothing else.

    Refuses if there are waiting messages, also cancelled ones, or orphans. Stop publishers first: a
    running publisher creates the cascade again. Use --management-url to include messages between two queues, outboxes
    of queues that the app does not have, and messages that are stuck in outboxes; it takes 10 s. Without it outboxes
    stay, unless --delete-messages deletes those of the app. Streams stay while another cascade of the prefix leads to
    them.

    The queue of `celery beat -S rabbit-delay` is no part of the cascade: it is named, and --beat deletes it, with
    --management-url those of all apps with the prefix.
    """
    from ..periodic.beat_status import beat_queues, delete_beat_queues

    with target.connected(recorded=True) as connection:
        management = management_of(management_url, connection)
        deleted = operate.teardown(connection, target.destinations(), management, delete_messages)
        beats = beat_queues(connection, target.beat_queue(), management.snapshot() if management else None)
        if with_beat:
            delete_beat_queues(connection, beats)
    for name in beats:
        done = "is deleted" if with_beat else "stays, --beat deletes it"
        click.echo(escape(f"the queue {name!r} with the last runs and written entries of beat {done}"))
    if deleted.keeps_streams:
        click.echo(
            "streams stay: another cascade of this prefix leads to them, or the app has no schedule any more (then run "
            "`celery-rabbit-delay --broker URL teardown`)"
        )
    if not deleted.amount and not deleted.kept:
        click.echo("there is no such cascade")
        return
    click.echo(f"{deleted.amount:,} exchanges and queues deleted")
    if deleted.kept:
        click.echo(
            f"{len(deleted.kept):,} outboxes stay, because AMQP does not show whether tasks are stuck in them: "
            "`teardown` with --management-url deletes them if they are empty, with --delete-messages whatever they hold"
        )
