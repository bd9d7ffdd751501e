"""Notes of who has changed what, in the stream of changes."""

from __future__ import annotations

import getpass
import logging
import os
import platform
import sys
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import kombu
from amqp.exceptions import AMQPError

from ..core import notes, streams
from ..core.errors import DelayError
from ..core.notes import Note
from ..core.streams import Unreadable
from ..core.text import counted
from .clocks import utc_ms
from .declare import queue_exists
from .schedule import read_changes, write_changes

logger = logging.getLogger(__name__)

#: Seconds for which a note waits for the broker's answer.
NOTING = 5


def of_app(by: str, app: str | None) -> str:
    """Return who has changed something, and for which app, by its name: all apps of a prefix have one history."""
    return f"{by}, app {app}" if app else by


def within_app(by: str, app: str | None) -> str:
    """Return the same without the name of the app whose people look at it."""
    return by.removesuffix(of_app("", app))


def who() -> str:
    """Return whose process this is, and on which host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        user = str(os.getuid())
    return f"{user}@{platform.node()}"


def who_calls(app: str | None = None) -> str:
    """Return the same of a program that calls this package, which one it is, and the app that it names."""
    return of_app(f"{who()}, {Path(*sys.argv[:1]).name}[{os.getpid()}]", app)


def tell(
    connection: kombu.Connection, by: str, what: str, amount: int, ids: Collection[str] = (), creates: bool = True
) -> None:
    """Note who has done what to how many tasks. Logs a warning if that fails, for what was done is done.

    `creates`: whether to create the stream for it.
    """
    if not amount or not (options := connection.transport.delay_options).streams:
        return
    try:
        if creates or queue_exists(connection.default_channel, streams.changes(options.cascade).name):
            write_changes(connection, [notes.note(utc_ms(), by, what, amount, ids)], NOTING)
    except (AMQPError, DelayError, OSError) as exc:
        logger.warning("The history does not have what %s has done, %s: %s", by, counted(amount, what), exc)


def moved_to(due: datetime) -> str:
    """Return what a note says of tasks that were given another due time, an aware datetime in UTC."""
    return f"moved to {due:%Y-%m-%d %H:%M:%S}Z"


def history(connection: kombu.Connection, limit: int) -> Collection[Note]:
    """Return who has changed what, the newest first. Raises `StreamUnavailable`, `NotPermitted`."""
    found: deque[Note] = deque(maxlen=limit)
    for body in read_changes(connection):
        with suppress(Unreadable):
            found.extendleft(notes.read(body))
    return found
