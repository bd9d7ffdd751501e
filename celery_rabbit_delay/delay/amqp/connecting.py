"""Connects to a broker, with an error that names the broker, and closes connections; tries again what fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import kombu
from amqp.exceptions import AMQPError, RecoverableConnectionError
from kombu.exceptions import OperationalError

from ... import upstream

_INTERVALS = ("interval_start", "interval_step", "interval_max")


def ensure_connection(connection: kombu.Connection, pause: float = 2, retry: Mapping[str, Any] | None = None) -> None:
    """Connect; if no host answers, once more after a pause in seconds, or as `retry` says, which is a policy of Celery.

    Raises `kombu.exceptions.OperationalError`, which names the broker without the password.
    """
    policy = {"max_retries": 1, "interval_start": pause} if retry is None else retry
    hosts, retries = max(len(connection.alt), 1), policy.get("max_retries")
    options = {key: value for key, value in policy.items() if key in _INTERVALS}
    if retries is not None:  # each host of the URL once at least; none again that does not answer, as Kombu does it
        options |= {"max_retries": max(hosts - 1, retries), "timeout": hosts * (connection.connect_timeout or 0)}
    try:
        connection.ensure_connection(**options)
    except (OperationalError, AMQPError, OSError) as exc:
        raise OperationalError(f"no connection to {connection.as_uri()}: {str(exc) or type(exc).__name__}") from exc


def is_lost(exc: Exception) -> bool:
    """Return whether an error means that a connection was lost, and nothing else."""
    return isinstance(exc, (OSError, RecoverableConnectionError)) and not isinstance(exc, TimeoutError)


def copy_of(connection: kombu.Connection, purpose: str, **changes: Any) -> kombu.Connection:
    """Return a copy with other transport options, which the broker shows with its purpose.

    It has no heartbeats: nobody would send them. `Connection.clone` cannot copy a connection of a pool of Kombu 5.7.
    """
    arguments = upstream.arguments_of(connection)
    options = {**(arguments["transport_options"] or {}), **changes}
    properties = {**(options.get("client_properties") or {}), "connection_name": f"celery-rabbit-delay {purpose}"}
    options |= {"client_properties": properties, "heartbeat": 0}
    return kombu.Connection(**{**arguments, "transport_options": options})


def connect(connection: kombu.Connection) -> None:
    """Connect, each host of the URL once, and raise the error of the last one."""
    connection.ensure_connection(
        max_retries=len(connection.alt), interval_start=0, interval_step=0, reraise_as_library_errors=False
    )


@contextmanager
def closing(connection: kombu.Connection) -> Iterator[kombu.Connection]:
    """Close a connection when the block ends; after an error without waiting for the broker, which may not answer."""
    try:
        yield connection
    except BaseException:
        abandon(connection)
        raise
    connection.release()


@contextmanager
def connected(connection: kombu.Connection, pause: float = 2) -> Iterator[kombu.Connection]:
    """Connect for a block, and close the connection as `closing` does. Raises what `ensure_connection` raises.

    With our transport, a broker that does not answer for the option `confirm_timeout` is a `TimeoutError`.
    """
    with closing(connection):
        ensure_connection(connection, pause)
        if options := getattr(connection.transport, "delay_options", None):
            connection.connection.patience = options.confirm_timeout
        yield connection


@contextmanager
def own_channel(connection: kombu.Connection) -> Iterator[Any]:
    """Open a channel for a block; closed, it gives back what was not acknowledged. It waits as `closing` does."""
    channel = connection.channel()
    try:
        yield channel
    except BaseException:
        with suppress(OSError, AMQPError):
            upstream.close_without_waiting(channel)
        raise
    channel.close()


def abandon(connection: kombu.Connection) -> None:
    """Close a connection, and wait for nothing."""
    if connection.connected:
        connection.connection.abandon()
    connection.collect()


T = TypeVar("T")


class Patience:
    """So many seconds for which to try again. Pauses between two tries double: RabbitMQ logs each one."""

    def __init__(self, seconds: float, pause: float = 0.1, longest: float = 1.0) -> None:
        self._seconds, self._first, self._longest = seconds, pause, longest
        self.renew()

    def renew(self) -> None:
        """Begin again, as something has worked meanwhile."""
        self._end, self._pause = time.monotonic() + self._seconds, self._first

    def pause(self) -> bool:
        """Pause, and return True for another try; return False at once if the seconds are over."""
        if time.monotonic() >= self._end:
            return False
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, self._longest)
        return True


def again(call: Callable[[], T], errors: type[Exception] | tuple[type[Exception], ...], seconds: float) -> T:
    """Call a function, again and again for some seconds while it raises one of some errors."""
    tries = Patience(seconds)
    while True:
        try:
            return call()
        except errors:
            if not tries.pause():
                raise


class PerClient(Generic[T]):
    """A value for each `kombu.Connection`, which is made when it is first asked for."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: WeakKeyDictionary[Any, T] = WeakKeyDictionary()

    def __getitem__(self, client: Any) -> T:
        value = self._values.get(client)
        return self._values.setdefault(client, self._make()) if value is None else value

    def __setitem__(self, client: Any, value: T) -> None:
        self._values[client] = value
