"""Shared parts of the commands: the target, its connection, errors, options, formats."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

import click

from ..core.routing_key import MAX_LENGTH
from ..core.text import escape

if TYPE_CHECKING:
    import kombu

    from ..amqp.waiting import Allowed
    from ..core.destination import Destination
    from ..operate import Management

T = TypeVar("T")

#: The environment variable that names a file of certificate authorities for the management API.
MANAGEMENT_CA = "CELERY_RABBIT_DELAY_MANAGEMENT_CA"

#: The exit code of a command that worked but found problems.
EXIT_PROBLEMS = 3

#: The exit code of a command that Ctrl-C has ended, as of any program: 128 and the signal's number.
EXIT_INTERRUPTED = 128 + signal.SIGINT

#: A broker URL. An "@" after the host means that the password contains an unescaped delimiter.
_URL = re.compile(r"[\w.+-]+://(?P<user>[^/?#]*@)?(?P<place>[^/?#@]*)(?P<rest>.*)", re.DOTALL)

_UNREADABLE = (
    "the broker URL cannot be read: use one such as amqp://user:password@host:5672/vhost, and percent-encode special "
    "characters in user, password and vhost, such as / as %2F"
)


def parse_seconds(text: str) -> tuple[float, ...]:
    """Return the comma-separated numbers of a command-line option."""
    try:
        return tuple(map(float, filter(None, text.split(","))))
    except ValueError as exc:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 60,3600") from exc


def check_names(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Show an error for an empty name or id, or one that AMQP cannot carry: a callback for one, or for several."""
    from ..core.destination import check_key
    from ..core.errors import InvalidDestination

    for name in (value,) if isinstance(value, str) else value:
        if not name:
            raise click.BadParameter("it is empty")
        try:
            check_key(name, "name" if param.name == "queues" else "id")
        except InvalidDestination as exc:
            raise click.BadParameter(escape(str(exc))) from exc
    return value


class BrokerTarget:
    """A cascade that the command line names."""

    def __init__(self, url: str, options: dict[str, Any], queues: tuple[str, ...]) -> None:
        self.url = url
        self.options = options
        self.queue_names = queues

    def connection(self) -> kombu.Connection:
        from ..core.options import OPTIONS, Options

        options = Options.parse(self.options).to_dict()
        return connection_to(self.url, {OPTIONS: options})

    def queues(self) -> list[kombu.Queue]:
        import kombu

        return [kombu.Queue(name) for name in self.queue_names]


def connection_to(url: str, transport_options: dict[str, Any]) -> kombu.Connection:
    """Return a connection to a broker URL. An error for an unreadable URL shows no part of its password."""
    import kombu

    from ..amqp.schemes import delay_url

    with _reading(url.split(";")):  # as Kombu does
        connection = kombu.Connection(delay_url(url), transport_options=transport_options)
        connection.transport  # noqa: B018  reads the options
        return connection


@contextmanager
def _reading(urls: Iterable[str]) -> Iterator[None]:
    """Show an error, without any of a password, if broker URLs cannot be read, before and while they are."""
    for url in urls:
        _check(url)
    try:
        yield
    except ValueError as exc:  # its text may contain a part of the password
        raise click.ClickException(_UNREADABLE) from exc
    except TypeError as exc:  # Kombu passes the parameters of the URL on as arguments
        raise click.ClickException(
            "the broker URL has a parameter that Kombu does not know: after the ?, use parameters such as heartbeat=10"
        ) from exc


def _check(url: str) -> None:
    """Show an error if a broker URL has an unescaped character in its password, an invalid port or too long a name."""
    parts = _URL.fullmatch(url)
    if parts is None or not url.isprintable() or "@" in parts["rest"]:
        raise click.ClickException(_UNREADABLE)
    vhost = re.split(r"[?#]", parts["rest"].removeprefix("/"))[0]
    user = (parts["user"] or "").rpartition("@")[0].partition(":")[0]
    for what, text in (("vhost", vhost), ("user", user)):
        size = len(unquote_to_bytes(text))
        if size > MAX_LENGTH:
            raise click.ClickException(f"the {what} of the broker URL has {size} bytes: AMQP has room for {MAX_LENGTH}")
    if parts["user"]:  # without a user, the part that looks like a port may be a password
        try:
            urlsplit(f"//{parts['place']}").port  # noqa: B018  raises an error
        except ValueError as exc:
            raise click.ClickException(f"the broker URL cannot be read: {exc}") from exc


class AppTarget:
    """The cascade of a Celery app."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def connection(self) -> kombu.Connection:
        from ..core.options import DRIVER_TYPE

        urls = self.app.conf.broker_write_url or ""
        several = urls if isinstance(urls, (list, tuple)) else str(urls).split(";")
        with _reading([url for url in several if "://" in url]):  # Kombu knows others as well
            connection: kombu.Connection = self.app.connection_for_write()
        if connection.transport.driver_type != DRIVER_TYPE:
            raise click.ClickException(
                f"{self.app} does not delay its tasks: call celery_rabbit_delay.install(app), with RabbitMQ as broker"
            )
        return connection

    def queues(self) -> list[kombu.Queue]:
        return list(self.app.amqp.queues.values())


Target = BrokerTarget | AppTarget


def target_of(obj: Any) -> Target:
    """Return the target of a command from Click's context object, ours or Celery's."""
    return obj if isinstance(obj, BrokerTarget) else AppTarget(obj.app)


@contextmanager
def handle_errors() -> Iterator[None]:
    """Show errors that the user can fix without a traceback."""
    from amqp.exceptions import AMQPError
    from kombu.exceptions import OperationalError

    from ..core.errors import DelayError

    try:
        yield
    except (DelayError, AMQPError, OperationalError, OSError) as exc:
        if isinstance(exc, OSError) and _is_of_output(exc):  # see `Group`
            raise
        raise click.ClickException(escape(str(exc))) from exc


def _is_of_output(exc: OSError) -> bool:
    """Return whether an error was raised by what prints, and not by a connection."""
    return any(frame.f_code is click.echo.__code__ for frame, _ in traceback.walk_tb(exc.__traceback__))


class Group(click.Group):
    """A group whose commands end with an error if their output cannot be written, and silently if a pipe is closed."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as exc:
            if exc.errno == errno.EPIPE or not _is_of_output(exc):  # Click ends silently for a closed pipe
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would try again as it ends
            raise click.ClickException(f"the output cannot be written: {exc.strerror}") from exc


@contextmanager
def until_interrupted(items: Iterable[T]) -> Iterator[tuple[Iterator[T], Callable[[], bool]]]:
    """Yield items that end, after the one in hand, once Ctrl-C was pressed; and a function that returns whether it was.

    A second Ctrl-C raises `KeyboardInterrupt`, as the first does elsewhere, wherever the block is.
    """
    pressed = False

    def press(*args: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def items_until_then() -> Iterator[T]:
        for item in items:
            yield item
            if pressed:
                return

    before = signal.signal(signal.SIGINT, press)
    try:
        yield items_until_then(), lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
        if isinstance(items, Generator):
            items.close()  # while there are connections


@contextmanager
def connected(target: Target) -> Iterator[kombu.Connection]:
    """Connect to a target's broker."""
    from ..amqp.connecting import closing, ensure_connection

    with handle_errors(), closing(target.connection()) as connection:
        ensure_connection(connection)
        yield connection


def management_of(url: str | None, connection: kombu.Connection) -> Management | None:
    """Return the management API at a URL; None without a URL."""
    from ..operate import Management

    return Management(url, connection.virtual_host or "/", os.environ.get(MANAGEMENT_CA)) if url else None


def destinations(target: Target) -> list[Destination]:
    """Return the destinations of messages for a target's queues."""
    from ..amqp.destinations import destinations_of

    return [destination for queue in target.queues() for destination in destinations_of(queue)]


priorities_option = click.option(
    "--priorities/--no-priorities",
    default=None,
    help="Include the levels for priorities above 4 (default: if they exist).",
)
management_option = click.option(
    "--management-url",
    metavar="URL",
    envvar="CELERY_RABBIT_DELAY_MANAGEMENT_URL",
    help="Also use the management API, which shows bindings, policies and messages between queues: "
    "http://user:password@host:15672. Set the environment variable CELERY_RABBIT_DELAY_MANAGEMENT_URL instead to keep "
    f"the password out of `ps`. For https, {MANAGEMENT_CA} may name a file of certificate authorities.",
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


def allowed(target: Target, any_queue: bool) -> Allowed:
    """Return the destinations to which a command may send messages."""
    from ..amqp.waiting import Allowed

    return Allowed(None if any_queue else target.queues())


def format_duration(milliseconds: int) -> str:
    """Return a duration in the largest unit that is not longer than the duration."""
    units = (("year", 365 * 86_400_000), ("day", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
    for unit, size in units:
        if milliseconds >= size:
            amount = f"{milliseconds / size:.3g}"
            return f"{amount} {unit}" + ("s" if unit in ("year", "day") and amount != "1" else "")
    return f"{milliseconds} ms"
