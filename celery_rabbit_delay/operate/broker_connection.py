"""Connects for commands and readers, with an error that names the broker, and closes; tries again what fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import kombu
from amqp.exceptions import AMQPError, RecoverableConnectionError
from kombu.exceptions import OperationalError

from .. import upstream
from ..delay.amqp.connecting import Patience

T = TypeVar("T")

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


def again(call: Callable[[], T], errors: type[Exception] | tuple[type[Exception], ...], seconds: float) -> T:
    """Call a function, again and again for some seconds since it first raised one of some errors."""
    tries: Patience | None = None
    while True:
        try:
            return call()
        except errors:
            if not (tries := tries or Patience(seconds)).pause():
                raise
