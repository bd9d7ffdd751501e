"""The cascade that a command is for: that of an app, or the one that the command line names."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

import click
import kombu
from amqp.exceptions import AccessRefused, AMQPError
from kombu.exceptions import OperationalError

from .. import operate
from ..delay.amqp import broker_url as broker_url_
from ..delay.amqp.queue_destinations import destinations_of
from ..delay.app.apps import advice, queues_of
from ..delay.core.destination import Destination
from ..delay.core.errors import PERMISSIONS, DelayError, InvalidDelay, UnsupportedConfiguration
from ..delay.core.options import DRIVER_TYPE, OPTIONS, Options
from ..delay.core.routing_key import MAX_LENGTH
from ..operate import Management, Snapshot, broker_connection
from ..operate.queue_names import QueueNames
from ..operate.replaying import Allowed
from ..text import escape
from .output import is_of_output

if TYPE_CHECKING:
    from ..periodic.beat_status import BeatStatus

P = ParamSpec("P")
R = TypeVar("R")

#: The environment variable that names a file of certificate authorities for the management API.
MANAGEMENT_CA = "CELERY_RABBIT_DELAY_MANAGEMENT_CA"

#: The one that names a file with a client certificate and its key, for the same.
MANAGEMENT_CERT = "CELERY_RABBIT_DELAY_MANAGEMENT_CERT"

#: A broker URL. An "@" after the host means that the password contains an unescaped delimiter.
_URL = re.compile(r"[\w.+-]+://(?P<user>[^/?#]*@)?(?P<place>[^/?#@]*)(?P<rest>.*)", re.DOTALL)

_UNREADABLE = (
    "the broker URL cannot be read: use one such as amqp://user:password@host:5672/vhost, and percent-encode special "
    "characters in user, password and vhost, such as / as %2F"
)


class Target(ABC):
    """The cascade that a command is for."""

    #: Whether who asks for records has not said that there is a schedule.
    implies_schedule = False

    @abstractmethod
    def connection(self, recorded: bool = False) -> kombu.Connection:
        """Return a connection with the options of the cascade, which is not connected yet; for records, if so."""

    def delay_options(self) -> Options:
        """Return the options of the cascade."""
        options: Options = self.connection().transport.delay_options
        return options

    @abstractmethod
    def queues(self) -> list[kombu.Queue]:
        """Return the app's queues."""

    def destinations(self, with_namesakes: bool = True) -> list[Destination]:
        """Return the destinations of messages for the app's queues, as `destinations_of`."""
        return [destination for queue in self.queues() for destination in destinations_of(queue, with_namesakes)]

    def beat(self, connection: kombu.Connection) -> BeatStatus | None:
        """Return the state of the app's beat; None without an app, or if its beat has not run with RabbitMQ."""
        return None

    def periodic(self, act: str, *names: str, **more: Any) -> Any:
        """Call a function of `periodic` for the app. Raises `UnsupportedConfiguration` without one."""
        raise UnsupportedConfiguration("this needs the code of an app: use `celery -A APP delay periodic`")

    def names(self, any_queue: bool) -> QueueNames:
        """Return the queues that a command is about: those of the app, or of anybody."""
        return QueueNames(self.queues(), only=not any_queue)

    def beat_queue(self) -> str | None:
        """Return the name of the queue that the app's beat has, if it runs with RabbitMQ; None without an app."""
        return None

    def allowed(self, any_queue: bool) -> Allowed:
        """Return the destinations to which a command may send messages."""
        return Allowed(None if any_queue else self.queues())

    @contextmanager
    def connected(self, recorded: bool = False, exists: bool = False) -> Iterator[kombu.Connection]:
        """Connect to the broker, for what is `recorded`, with an error if no cascade with records `exists` there.

        Shows errors without a traceback.
        """
        with handle_errors(), broker_connection.connected(self.connection(recorded)) as connection:
            if exists:
                operate.require(connection, recorded, self.implies_schedule)
            yield connection


class BrokerTarget(Target):
    """A cascade that the command line names."""

    def __init__(self, url: str, options: dict[str, Any], queues: tuple[str, ...]) -> None:
        self.url = url
        self.options = options
        self.queue_names = queues
        self.implies_schedule = "schedule" not in options

    def connection(self, recorded: bool = False) -> kombu.Connection:
        """As said. Who asks for records wants the schedule, without --schedule, too."""
        given = {"schedule": True, **self.options} if recorded else self.options
        return connection_to(self.url, {OPTIONS: Options.parse(given).to_dict()})

    def delay_options(self) -> Options:
        return Options.parse(self.options)

    def queues(self) -> list[kombu.Queue]:
        return [kombu.Queue(name) for name in self.queue_names]

    def names(self, any_queue: bool) -> QueueNames:
        """Return the queues that were named, or those of anybody: there is no app."""
        return super().names(any_queue or not self.queue_names)


class AppTarget(Target):
    """The cascade of a Celery app."""

    def __init__(self, app: Any) -> None:
        self.app = app
        try:
            app.loader.import_default_modules()  # as a worker does: tasks may name queues
        except Exception as exc:
            raise click.ClickException(escape(f"a module of the app cannot be imported: {exc!r}")) from exc

    def connection(self, recorded: bool = False) -> kombu.Connection:
        urls = self.app.conf.broker_write_url or ""
        several = urls if isinstance(urls, (list, tuple)) else str(urls).split(";")
        with _reading([url for url in several if "://" in url]):  # Kombu knows others as well
            connection: kombu.Connection = self.app.connection_for_write()
        if connection.transport.driver_type != DRIVER_TYPE:
            raise click.ClickException(f"{self.app} does not delay its tasks: {advice()}")
        return connection

    def periodic(self, act: str, *names: str, **more: Any) -> Any:
        from .. import periodic  # imports Celery's beat

        return getattr(periodic, act)(self.app, *names, **more)

    def queues(self) -> list[kombu.Queue]:
        return queues_of(self.app)

    def beat(self, connection: kombu.Connection) -> BeatStatus | None:
        from ..periodic.beat_status import beat_status

        return beat_status(connection, self.beat_queue())

    def beat_queue(self) -> str:
        from ..periodic.beat import queue_of  # imports Celery's beat

        return queue_of(self.app)


def pass_target(command: Callable[Concatenate[Target, P], R]) -> Callable[P, R]:
    """Pass a command its target, from Click's context object: ours, or Celery's."""

    @click.pass_obj
    @wraps(command)
    def with_target(obj: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return command(obj if isinstance(obj, Target) else AppTarget(obj.app), *args, **kwargs)

    return with_target


def connection_to(url: str, transport_options: dict[str, Any]) -> kombu.Connection:
    """Return a connection to a broker URL. An error for an unreadable URL shows no part of its password."""
    with _reading(url.split(";")):  # as Kombu does
        connection = kombu.Connection(broker_url_.delay_url(url), transport_options=transport_options)
        connection.transport  # noqa: B018  reads the options
        return connection


@contextmanager
def _reading(urls: Iterable[str]) -> Iterator[None]:
    """Show an error, without any of a password, if broker URLs cannot be read, before and while they are."""
    for url in urls:
        _check(url)
    try:
        yield
    except DelayError as exc:  # of an option
        raise click.ClickException(escape(str(exc))) from exc
    except ValueError as exc:  # its text may contain a part of the password
        raise click.ClickException(_UNREADABLE) from exc
    except (KeyError, TypeError) as exc:  # Kombu passes the parameters of the URL on as arguments
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


@contextmanager
def handle_errors() -> Iterator[None]:
    """Show errors that the user can fix without a traceback."""
    try:
        yield
    except AccessRefused as exc:
        raise click.ClickException(
            escape(f"permission denied ({exc.reply_text}): grant the permissions of an operator, see {PERMISSIONS}")
        ) from exc
    except InvalidDelay as exc:
        raise click.UsageError(escape(str(exc))) from exc
    except (DelayError, AMQPError, OperationalError, OSError) as exc:
        if isinstance(exc, OSError) and is_of_output(exc):  # see `Group`
            raise
        raise click.ClickException(escape(str(exc))) from exc


def management_of(url: str | None, connection: kombu.Connection) -> Management | None:
    """Return the management API at a URL; None without a URL."""
    files = map(os.environ.get, (MANAGEMENT_CA, MANAGEMENT_CERT))
    return operate.Management(url, connection.virtual_host or "/", *files) if url else None


def snapshot_of(url: str | None, connection: kombu.Connection) -> Snapshot | None:
    """Return what the management API at a URL shows now; None without a URL."""
    management = management_of(url, connection)
    return management.snapshot() if management else None
