"""What `status` says about the beat of an app."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .target import AppTarget, Target

if TYPE_CHECKING:
    import kombu

    from ..operate import BeatStatus


def beat_of(target: Target, connection: kombu.Connection) -> BeatStatus | None:
    """Return the state of an app's beat; None if the target is no app, or if its beat has not run with RabbitMQ."""
    if not isinstance(target, AppTarget):
        return None
    from ..beat import queue_of
    from ..operate import beat_status

    return beat_status(connection, queue_of(target.app))


def as_lines(beat: BeatStatus) -> list[str]:
    """Return the active process and its next runs as text."""
    if beat.process is None:
        return ["no beat is active: start one with `celery -A APP beat -S rabbit-delay`"]
    rows = [
        (one.next.strftime("%Y-%m-%d %H:%M:%SZ") if one.next else "unknown", one.entry, one.task)
        for one in beat.entries
    ]
    return [f"beat is active on {beat.process}", *(f"{due:>20}  {entry}  {task}" for due, entry, task in rows)]


def as_data(beat: BeatStatus) -> dict[str, Any]:
    """Return the same for JSON."""
    entries = [
        {**one._asdict(), "next": one.next and one.next.isoformat(), "last": one.last.isoformat()}
        for one in beat.entries
    ]
    return {"process": beat.process, "entries": entries}
