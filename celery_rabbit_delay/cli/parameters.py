"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from ..delay.core.destination import check_key
from ..delay.core.errors import InvalidDestination
from ..text import escape
from .target import MANAGEMENT_CA, MANAGEMENT_CERT

F = TypeVar("F", bound=Callable[..., Any])

#: What --journal takes for None.
_NONE = "none"


def parse_seconds(text: str) -> tuple[float, ...]:
    """Return the comma-separated numbers of a command-line option."""
    try:
        return tuple(map(float, filter(None, text.split(","))))
    except ValueError as exc:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 60,3600") from exc


def parse_journal(text: str) -> float | str:
    """Return the value of --journal: 'none' stands for None, as which an option that was not given is passed."""
    try:
        return text if text == _NONE else float(text)
    except ValueError as exc:
        raise click.BadParameter(f"{text!r} is neither a number of seconds nor '{_NONE}'") from exc


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `install` that were given on the command line."""
    wanted = {name: value for name, value in options.items() if value is not None}
    return {name: None if name == "journal" and value == _NONE else value for name, value in wanted.items()}


def check_names(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Show an error for an empty name or id, or one that AMQP cannot carry: a callback for one, or for several."""
    for name in (value,) if isinstance(value, str) else value:
        if not name:
            raise click.BadParameter("it is empty")
        try:
            check_key(name, "id" if param.name == "ids" else "name")
        except InvalidDestination as exc:
            raise click.BadParameter(escape(str(exc))) from exc
    return value


def cascade_options(command: F) -> F:
    """Add the options of `install` that decide what stands on the broker."""
    seconds: dict[str, Any] = {"metavar": "SECONDS", "type": float}
    options = (
        click.option(
            "--prefix",
            metavar="NAME",
            help="Set the prefix of all names. This option and the following ones are the options of install().",
        ),
        click.option("--tick", **seconds, help="Set the shortest delay."),
        click.option("--max-delay", **seconds, help="Set the longest delay."),
        click.option(
            "--outboxes",
            metavar="SECONDS,...",
            type=parse_seconds,
            help="Set the delays that a queue has outboxes for, separated by commas; '' for none.",
        ),
        click.option(
            "--schedule/--no-schedule",
            default=None,
            help="Keep what waits in streams too, so that it can be listed, cancelled and moved (default: not).",
        ),
        click.option(
            "--journal",
            metavar="SECONDS",
            type=parse_journal,
            help="Set the shortest delay that the schedule records, or 'none'.",
        ),
        click.option(
            "--delivery-time/--no-delivery-time",
            default=None,
            help="Let RabbitMQ 4.4 hold messages until they are due, or not (default: not).",
        ),
    )

    for option in reversed(options):
        command = option(command)
    return command


management_option = click.option(
    "--management-url",
    metavar="URL",
    envvar="CELERY_RABBIT_DELAY_MANAGEMENT_URL",
    help="Also use the management API, which shows bindings, policies and messages between queues: "
    "http://user:password@host:15672. Set the environment variable CELERY_RABBIT_DELAY_MANAGEMENT_URL instead to keep "
    f"the password out of `ps`. For https, {MANAGEMENT_CA} may name a file of certificate authorities, and "
    f"{MANAGEMENT_CERT} one with a client certificate and its key.",
)
limit_option = click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="Handle at most this many orphans."
)
any_queue_option = click.option(
    "--any-queue",
    is_flag=True,
    help="Send to any queue, not only to those of the app and those named with --queue. Any user who may publish with "
    "a delay can forge the destination in a message.",
)
other_queues_option = click.option(
    "--any-queue",
    is_flag=True,
    help="Include what is for other queues than those of the app, such as those of other apps with the same prefix.",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask before changing what the filters select.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
