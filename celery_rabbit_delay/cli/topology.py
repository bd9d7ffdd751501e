"""Commands for the cascade on the broker: plan, setup, export, verify, teardown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..core.text import escape
from .common import (
    EXIT_PROBLEMS,
    Target,
    connected,
    destinations,
    handle_errors,
    management_of,
    management_option,
    priorities_option,
    target_of,
)

if TYPE_CHECKING:
    import kombu

    from ..core.layouts import Layout1
    from ..operate import Management


@click.command()
@priorities_option
@management_option
@click.pass_obj
def plan(obj: Any, priorities: bool | None, management_url: str | None) -> None:
    """Show what `setup` would create. Changes nothing on the broker.

    Exits with 0 if everything exists or is created when it is needed, and with 3 if another part is missing, a part is
    different, or an earlier layout exists.
    """
    _report(obj, priorities, management_url, probing=False)


@click.command()
@priorities_option
@click.option(
    "--prune",
    is_flag=True,
    help="Also delete empty outboxes whose queue, exchange or binding is gone; needs --management-url, takes 12 s.",
)
@management_option
@click.pass_obj
def setup(obj: Any, priorities: bool | None, prune: bool, management_url: str | None) -> None:
    """Create missing parts of the cascade, and bind it to the queues of the app. Running it again is safe."""
    from .. import operate

    target = target_of(obj)
    with connected(target) as connection:
        management = management_of(management_url, connection)
        if prune and management is None:
            raise click.UsageError("--prune needs --management-url: AMQP does not list outboxes")
        wanted = operate.cascades(connection, priorities)
        lacking = operate.setup(connection, wanted, destinations(target))
        click.echo(f"{wanted[0].root}: {sum(len(cascade.levels) for cascade in wanted)} levels exist")
        for destination in lacking:
            click.echo(f"skipped {destination}: it does not exist")
        if prune and management:
            click.echo(f"{len(operate.prune(connection, management)):,} outboxes deleted, because they led nowhere")
        _report_earlier(connection)


@click.command()
@click.option(
    "--priorities/--no-priorities", default=False, help="Include the levels for priorities above 4 (default: no)."
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["definitions", "terraform", "mermaid"]),
    default="definitions",
    show_default=True,
    help="Print this format.",
)
@click.pass_obj
def export(obj: Any, priorities: bool, kind: str) -> None:
    """Print what `setup` creates, for other tools. Does not contact the broker.

    `definitions` is for `rabbitmqctl import_definitions`, `terraform` (JSON, for a file `delays.tf.json`) for the
    provider cyrilgdn/rabbitmq, `mermaid` is a diagram. The output does not include bindings to the queues of the app,
    because these queues may not exist yet.
    """
    from ..core.options import Options
    from ..core.topology import Topology
    from ..operate import export as exports

    with handle_errors():
        connection = target_of(obj).connection()
        options: Options = connection.transport.delay_options
    topology = Topology.of(options.cascades(priorities), (), options.streams)
    text = exports.FORMATS[kind](topology, connection.virtual_host or "/")
    click.echo(text, nl=False)


@click.command(short_help="Check the cascade, and send test messages through it.")
@priorities_option
@management_option
@click.pass_obj
def verify(obj: Any, priorities: bool | None, management_url: str | None) -> None:
    """Compare the cascade on the broker with the expected one, and send test messages through the levels of up to 2 s.

    The messages test the bindings between these levels. Only --management-url compares all bindings, and policies.

    Exits with 0 if no problem was found, and with 3 if a part is missing or different, an earlier layout exists, a
    message does not come back, or, with --management-url, a destination accepts nothing for a known cause.
    """
    _report(obj, priorities, management_url, probing=True)


def _report(obj: Any, priorities: bool | None, management_url: str | None, probing: bool) -> None:
    from .. import operate

    target = target_of(obj)
    with connected(target) as connection:
        management = management_of(management_url, connection)
        findings = operate.compare(connection, destinations(target), management, priorities, existing_streams=probing)
        wrong = [finding for finding in findings if finding.state != "present"]
        for finding in wrong:
            detail = f": {finding.detail}" if finding.detail else ""
            click.echo(escape(f"{finding.state:<10} {finding.kind:<8} {finding.name}{detail}"))
        click.echo(f"{len(findings) - len(wrong)} of {len(findings)} checks passed")
        earlier = _report_earlier(connection)
        if probing and (advice := operate.advice_on_release(connection.connection)):
            click.echo(escape(advice))
        existing = operate.existing(connection, priorities) if probing and management else []
        stuck = False
        if existing and management:
            for outbox in operate.add_up(operate.outboxes(existing, management)):
                click.echo(escape(str(outbox)))
                stuck |= outbox.is_stuck
        lost: list[str] = []
        if probing and operate.can_try_out(wrong):
            for problem in operate.try_out(connection, priorities):
                click.echo(escape(problem))
                lost.append(problem)
            if not lost:
                click.echo("probe: all messages on time, in the levels of up to 2 s")
        if existing and management:
            for text in operate.advice(management, existing):
                click.echo(escape(text))
    if (wrong or lost) and probing:
        click.echo("`setup` creates missing parts; delete parts that are different, or choose another prefix", err=True)
    if lost or earlier or stuck or not all(finding.on_demand for finding in wrong):
        raise SystemExit(EXIT_PROBLEMS)


def _report_earlier(connection: kombu.Connection) -> bool:
    """Print a note if a cascade of an earlier layout exists; return whether one exists."""
    from .. import operate
    from ..core.topology import LAYOUT

    waiting = operate.count_earlier(connection, operate.earlier_layout(connection, 1))
    if waiting is None:
        return False
    click.echo(
        f"layout 1, of an earlier release, exists too and holds {waiting:,} messages, which it delivers when they are "
        f"due; this release uses layout {LAYOUT}: `migrate --from-layout 1` moves the messages, `teardown --layout 1` "
        "deletes layout 1"
    )
    return True


@click.command(short_help="Delete the cascade.")
@click.option("--delete-messages", is_flag=True, help="Delete the cascade even if messages wait; these are lost.")
@click.option("--layout", type=click.Choice(["1"]), help="Delete the cascade of an earlier release instead.")
@click.option("--native", is_flag=True, help="Delete the queues of Celery's native delayed delivery instead.")
@management_option
@click.confirmation_option(prompt="Delete the cascade?")
@click.pass_obj
def teardown(obj: Any, delete_messages: bool, layout: str | None, native: bool, management_url: str | None) -> None:
    """Delete the cascade: all its exchanges and queues, and nothing else.

    Refuses if there are waiting messages or orphans. Stop publishers first: a running publisher creates the cascade
    again. Use --management-url to include messages between two queues, outboxes of queues that the app does not have,
    and messages that are stuck in outboxes; it takes 12 s. Without it outboxes stay, unless --delete-messages deletes
    those of the app. --layout needs it, or --delete-messages.
    """
    from .. import operate

    target = target_of(obj)
    if native:
        if delete_messages or layout:
            raise click.UsageError("--native cannot be combined with --delete-messages or --layout")
        _teardown_native(target, management_url)
        return
    with connected(target) as connection:
        management = management_of(management_url, connection)
        earlier = operate.earlier_layout(connection, int(layout)) if layout else None
        if earlier and not (management or delete_messages) and operate.count_earlier(connection, earlier) is not None:
            raise click.UsageError(
                "--layout needs --management-url: AMQP does not show tasks that are due and that their queue does not "
                "accept; --delete-messages deletes whatever is there"
            )
        if not delete_messages:
            _require_empty(connection, earlier, None)
            if management:  # its counts are those of some seconds ago
                operate.wait_for_counts()
                _require_empty(connection, earlier, management)
        kept: list[str] = []
        if earlier:
            deleted = operate.teardown_earlier(connection, earlier)
        else:
            leading = destinations(target)
            if not (management or delete_messages):
                kept = operate.opaque_outboxes(connection, leading)
            deleted = operate.teardown(connection, leading, management, kept)
        click.echo(f"{deleted:,} exchanges and queues deleted" if deleted or kept else "there is no such cascade")
        if kept:
            click.echo(
                f"{len(kept):,} outboxes stay, because AMQP does not show whether tasks are stuck in them: `teardown` "
                "with --management-url deletes them if they are empty, with --delete-messages whatever they hold"
            )


def _require_empty(
    connection: kombu.Connection, earlier: Sequence[Layout1] | None, management: Management | None
) -> None:
    """Show an error if messages wait in the cascade, or in that of an earlier layout, or if there are orphans."""
    from .. import operate

    # Whoever lists orphans, such as the page, holds them for a moment: only the management API counts these.
    if earlier:
        waiting = operate.count_earlier(connection, earlier, management) or 0
        orphans = operate.message_count(connection, earlier[0].orphans) or 0
        if management:
            orphans = max(orphans, int(management.queues().get(earlier[0].orphans, {}).get("messages") or 0))
    else:
        found = operate.status(connection, operate.existing(connection), management)
        waiting = found.waiting + found.stuck
        orphans = max(found.orphans or 0, found.all_orphans)
    if waiting or orphans:
        raise click.ClickException(
            f"{waiting:,} messages wait and {orphans:,} are orphans: "
            "`migrate` and `orphans replay` take them elsewhere, --delete-messages deletes them"
        )


def _teardown_native(target: Target, management_url: str | None) -> None:
    from .. import operate

    with connected(target) as connection:
        waiting = operate.native_waiting(connection, management_of(management_url, connection))
        if not waiting:
            deleted = operate.teardown_native(connection)
            click.echo(f"{deleted:,} exchanges and queues deleted")
            waiting = operate.native_waiting(connection)
        if waiting:
            raise click.ClickException(
                f"{waiting:,} messages wait in native delayed delivery, which delivers them when they are due: "
                "run this again when it is empty"
            )
