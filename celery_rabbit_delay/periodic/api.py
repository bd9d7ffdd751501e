"""Periodic entries that are written while beats run, beside those in the code: list, add, change, disable, run now.

    from celery_rabbit_delay import periodic

    periodic.add(app, "report", "shop.tasks.report", crontab(hour="4", minute="30"))

The active beat of `celery beat -S rabbit-delay` answers and makes each change, at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

from amqp.exceptions import NotFound
from celery import Celery

from ..delay.core.errors import DelayError
from ..operate.broker_connection import connected
from .beat import heartbeat_of, queue_of
from .beat_status import PeriodicTask, read_status
from .core.entries import Edit
from .core.errors import EntryConflict, InvalidEntry
from .lock import NoHolder, ask
from .schedules import definition_of

PeriodicTask.__module__ = __package__  # where users find it


def entries(app: Celery) -> list[PeriodicTask]:
    """Return all entries, the next first: of the code, and written ones. Raises `DelayError` without an answer."""
    return read_status(_ask(app, {})).entries


def add(
    app: Celery,
    name: str,
    task: str,
    schedule: Any,
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    enabled: bool = True,
) -> None:
    """Write a new entry, which counts instead of one of the same name in the code until it is removed.

    The schedule is seconds, a `timedelta`, `crontab`, `celery.schedules.schedule`, `solar`, or a text such as
    `"crontab 30 4 1 * *"`. For one run send a task with an `eta`. Raises `EntryConflict` if such an entry was written
    already, `InvalidEntry`, and `DelayError` without an answer.
    """
    _edit(app, name, 0, definition_of(task, schedule, args, kwargs, options, app), enabled)


def change(
    app: Celery,
    name: str,
    *,
    task: str | None = None,
    schedule: Any = None,
    args: Iterable[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    enabled: bool | None = None,
    version: int | None = None,
) -> None:
    """Change an entry, and keep what is not named. One in the code is written with the change.

    `version`: that of the entry that you have seen; by default the present one. Raises `EntryConflict` if the entry
    has another version when the change is made, `InvalidEntry`, and `DelayError` without an answer.
    """
    given = {"task": task, "schedule": schedule, "args": args, "kwargs": kwargs, "options": options}
    if enabled is None and all(value is None for value in given.values()):
        raise InvalidEntry("nothing is to be changed: name a task, a schedule, arguments, options or enabled")
    seen = _seen(app, name)
    if seen.definition is None:
        raise InvalidEntry(f"the entry {name!r} in the code is not JSON: add one of the same name")
    new = {**seen.definition, **{key: value for key, value in given.items() if value is not None}}
    _edit(app, name, seen.version if version is None else version, definition_of(**new, app=app), enabled)


def disable(app: Celery, name: str, *, version: int | None = None) -> None:
    """Stop the runs of an entry. Raises as `change`."""
    _edit(app, name, version, is_enabled=False)


def enable(app: Celery, name: str, *, version: int | None = None) -> None:
    """Let an entry run again; it begins now. Raises as `change`."""
    _edit(app, name, version, is_enabled=True)


def remove(app: Celery, name: str, *, version: int | None = None) -> None:
    """Remove a written entry; one of the same name in the code counts again. Raises as `change`."""
    _edit(app, name, version, removes=True)


def run_now(app: Celery, name: str) -> str:
    """Send a task of an entry at once, besides those of its schedule; return its id.

    Raises `InvalidEntry`, and `DelayError` if it could not be sent.
    """
    id_ = str(uuid4())
    _ask(app, {"run": name, "id": id_})
    return id_


def _seen(app: Celery, name: str) -> PeriodicTask:
    for entry in read_status(_ask(app, {"entry": name})).entries:
        return entry
    raise InvalidEntry(f"there is no entry {name!r}")


def _edit(
    app: Celery,
    name: str,
    version: int | None,
    definition: dict[str, Any] | None = None,
    is_enabled: bool | None = None,
    removes: bool = False,
) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidEntry(f"cannot use the name {name!r}: use a text")
    version = _seen(app, name).version if version is None else version
    _ask(app, {"edit": Edit(uuid4().hex, name, version, definition, is_enabled, removes)})


def _ask(app: Celery, question: Any) -> dict[str, Any]:
    """Ask the active beat. Raises `DelayError` if none answers, and what it answers instead of doing what is asked."""
    is_active, answer, patience = True, None, 2 * heartbeat_of(app)  # another beat becomes the active one meanwhile
    with connected(app.connection_for_write()) as connection:
        try:
            answer = ask(connection, queue_of(app), question, patience)
        except (NotFound, NoHolder):
            is_active = False
    if not is_active:
        raise DelayError("no beat is active: start one with `celery -A APP beat -S rabbit-delay`")
    if answer is None:
        raise DelayError(f"no beat has answered within {patience:.0f} s: list the entries to see whether it is done")
    if "conflict" in answer:
        raise EntryConflict(answer["conflict"])
    if "error" in answer:
        raise InvalidEntry(answer["error"])
    found: dict[str, Any] = answer
    return found
