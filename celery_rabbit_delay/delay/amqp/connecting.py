"""Our own connections: copies of a user's, without heartbeats; a value for each connection; pauses between tries."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import kombu

from ... import upstream


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
