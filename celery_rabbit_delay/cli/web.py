"""Commands that need the extra `web`: the page and the metrics."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from .parameters import any_queue_option, management_option, other_queues_option
from .target import AppTarget, Target, handle_errors, pass_target, snapshot_of

if TYPE_CHECKING:
    from ..web.operations import Broker

#: The environment variable with the password of the page.
PASSWORD = "CELERY_RABBIT_DELAY_WEB_PASSWORD"


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help=f"Listen on this address; any other than a loopback address needs {PASSWORD}.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=5566, show_default=True, help="Listen on this port.")
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Also answer to this host name, such as that of a proxy. May be repeated.",
)
@click.option("--read-only", is_flag=True, help="Disable all changes.")
@management_option
@any_queue_option
@pass_target
def web(
    target: Target,
    host: str,
    port: int,
    names: tuple[str, ...],
    read_only: bool,
    management_url: str | None,
    any_queue: bool,
) -> None:
    """Serve a web page that lists, cancels and moves the app's waiting tasks. Needs the extra `web`.

    Prints its address, and runs until Ctrl-C. Shows only tasks in the journal: see the option `journal` of install().
    """
    with handle_errors(), _extra():
        from ..web.serve import serve
        from ..web.setting import Setting

        setting = Setting(host, port, names, os.environ.get(PASSWORD, ""), read_only)
        serve(setting, broker_of(target, management_url, any_queue), click.echo)


@click.command()
@management_option
@other_queues_option
@pass_target
def metrics(target: Target, management_url: str | None, any_queue: bool) -> None:
    """Print metrics of the app's waiting tasks for Prometheus, once. Needs the extra `web`."""
    with handle_errors(), _extra():
        from ..web.serve import metrics

        click.echo(metrics(broker_of(target, management_url, any_queue)), nl=False)


def broker_of(target: Target, management_url: str | None, any_queue: bool = False) -> Broker:
    """Return what the page and the metrics know of the broker."""
    from ..web.operations import Broker

    connect = partial(target.connection, recorded=True)
    with connect() as connection:
        place = f"{connection.hostname}:{connection.port}/{(connection.virtual_host or '').lstrip('/')}"
        name = f"{place} {connection.transport.delay_options.cascade.root}"
    return Broker(
        name,
        connect,
        target.names(any_queue),
        target.destinations(),
        lambda connection: snapshot_of(management_url, connection),
        target.allowed(any_queue),
        target.beat,
        target.periodic,
        isinstance(target, AppTarget),
    )


@contextmanager
def _extra() -> Iterator[None]:
    """Show an error that says what to install if a dependency is missing."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in ("flask", "jinja2", "prometheus_client", "waitress", "werkzeug"):
            raise
        raise click.ClickException(
            f"this needs {exc.name}, which is not installed: pip install 'celery-rabbit-delay[web]'"
        ) from exc
