"""Celery's beat without a single point of failure: of many processes one is active, and the next one goes on.

    celery -A shop beat -S rabbit-delay

It is Celery's scheduler, which sends nothing unless its process holds a lock in RabbitMQ (`amqp.lock`), and notes there
when each entry has run last. It works without `install` as well.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any

from amqp.exceptions import AMQPError
from celery import Celery, beat
from celery.schedules import schedstate
from celery.utils.time import maybe_make_aware
from kombu.exceptions import OperationalError

from . import upstream
from .amqp.connecting import ensure_connection
from .amqp.lock import Lock
from .core import beat as core
from .core.beat import Run
from .core.errors import InvalidOption
from .core.options import Options

logger = logging.getLogger(__name__)

#: Seconds: the longest sleep, for heartbeats and answers are due then; the time for which it is enough to have asked
#: whether this process is the active one, as for many runs at once; and until a run is tried again.
SLEEP, FRESH, PAUSE = 1.0, 0.5, 10.0


def queue_of(app: Celery) -> str:
    """Return the name of the queue that an app's beat processes share: `beat_queue`, or one made of the app's name.

    Raises `InvalidOption`.
    """
    prefix = getattr(app.amqp, "delay_options", Options()).prefix
    queue = app.conf.get("beat_queue") or f"{core.beat_prefix(prefix)}{app.main or 'celery'}"
    if not isinstance(queue, str) or len(queue.encode()) > 255 or queue.startswith("amq."):
        raise InvalidOption(f"beat_queue={queue!r}: use a name of at most 255 bytes that does not begin with 'amq.'")
    return queue


def heartbeat_of(app: Celery) -> float:
    """Return `beat_heartbeat`, 10 by default: seconds within which a process whose host has vanished is replaced.

    Raises `InvalidOption`.
    """
    seconds = app.conf.get("beat_heartbeat") or 10
    if not isinstance(seconds, (int, float)) or not 3 <= seconds <= 600:
        raise InvalidOption(f"beat_heartbeat={seconds!r}: use seconds, 3 to 600")
    return seconds


class NotSent(Exception):
    """A run could not be sent. The argument is the entry as it was before."""


class Scheduler(beat.Scheduler):  # type: ignore[misc]
    """Celery's scheduler, which is active in one of many processes."""

    _lock: Lock | None = None

    def __init__(self, app: Celery, *args: Any, **kwargs: Any) -> None:
        self.queue, self.heartbeat = queue_of(app), heartbeat_of(app)
        #: What is noted in RabbitMQ, or will be.
        self._runs: dict[str, Run] = {}
        #: When entries that could not be sent are tried again, by `time.monotonic`.
        self._paused: dict[str, float] = {}
        super().__init__(app, *args, **kwargs)

    @property
    def info(self) -> str:
        return f"    . queue -> {self.queue}"

    @cached_property
    def connection(self) -> Any:
        # RabbitMQ takes two to three times the heartbeat of AMQP to notice that a host has vanished.
        options = {"confirm_publish": True}
        return self.app.connection_for_write(heartbeat=int(self.heartbeat / 3), transport_options=options)

    @cached_property
    def producer(self) -> Any:
        assert self._lock is not None
        return self.Producer(self._lock.channel(), auto_declare=False)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Wait a second to become active, or run a tick of Celery's scheduler; return the seconds until the next."""
        with _uninterrupted():
            try:
                if not self._take_part():
                    return 0
                return float(min(super().tick(*args, **kwargs), SLEEP))
            except NotSent as exc:
                [entry] = exc.args
                self.schedule[entry.name] = entry
                self._paused[entry.name] = time.monotonic() + PAUSE
                upstream.schedule_again(self, entry, PAUSE)
                # RabbitMQ may still answer to this run, which py-amqp would take for the answer to the next one.
                with suppress(AMQPError, OSError):
                    upstream.close_without_waiting(self.__dict__.pop("producer").channel)
                return 0
            except (AMQPError, OperationalError, OSError) as exc:
                logger.error("beat: RabbitMQ cannot be reached, trying again: %s", exc)
                if self._lock is not None:
                    self._lock.abandon()
                self._leave()
                return SLEEP

    def is_due(self, entry: Any) -> Any:
        # Before 5.7, a tick of Celery does not look at the time in its heap, which `upstream.schedule_again` sets.
        left = self._paused.get(entry.name, 0) - time.monotonic()
        return schedstate(False, left) if left > 0 else super().is_due(entry)

    def _take_part(self) -> bool:
        """Return whether this process is the active one; become it if it can."""
        if self._lock is None:
            ensure_connection(self.connection)
            self._lock = Lock(self.connection, self.queue, process_name(), self.heartbeat)
        lock = self._lock
        if not lock.wait(SLEEP):
            return False
        if lock.left or not lock.is_held:
            self._take_over(lock)
        elif lock.age > self.heartbeat:
            self._note(lock)
        if lock.questions:
            lock.answer(json.dumps(self._describe()).encode())
        return True

    def _take_over(self, lock: Lock) -> None:
        """Go on where the process before, or this one, has stopped."""
        self._runs = core.merge([self._runs, *_read(lock.left)], _now())
        self._note(lock)
        for name, entry in self.schedule.items():
            run = self._runs[name]
            entry.last_run_at, entry.total_run_count = run.at.astimezone(self.app.timezone), run.total
        upstream.calculate_again(self)
        logger.info("beat: %s is the active one of %s", process_name(), self.queue)

    def _note(self, lock: Lock) -> None:
        self._runs = core.remember(self._runs, self.schedule, _now())
        lock.write(core.dump(self._runs))

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send a run, and note it then: what is interrupted in between is sent twice, with the same task id.

        Raises `NotSent`, and if the lock is lost `AMQPError`, `OSError`.
        """
        lock = self._lock
        assert lock is not None
        if entry.name not in self._runs or lock.age > FRESH:
            self._runs.setdefault(entry.name, _run_of(entry))
            self._note(lock)
        id_ = core.task_id(self.queue, entry.name, self._runs[entry.name])
        options = {"task_id": id_, "mandatory": True, **entry.options, "retry": False}
        run = type(entry)(**dict(entry, options=options))  # copy.copy() would take the app from the schedule
        logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
        try:
            self.apply_async(run, producer=producer, advance=False)
        except Exception as exc:
            logger.exception("beat: %s is not sent, trying again in %.0f s", entry.name, PAUSE)
            raise NotSent(entry) from exc
        self._runs[entry.name] = _run_of(self.schedule[entry.name])
        self._note(lock)

    def close(self) -> None:
        """Leave the lock to the next process."""
        try:
            super().close()
        finally:
            self._leave()

    def _leave(self) -> None:
        self._lock = None
        self.__dict__.pop("producer", None)
        if connection := self.__dict__.pop("connection", None):
            with suppress(AMQPError, OSError):
                connection.release()

    def _describe(self) -> dict[str, Any]:
        """Return what `status` shows."""
        entries = {}
        for name, entry in self.schedule.items():
            due = None
            with suppress(Exception):  # such as that of an entry of a class of its own: it must not stop the others
                is_due, seconds = entry.is_due()
                due = (_now() + timedelta(seconds=0 if is_due else seconds)).isoformat()
            entries[name] = {"task": entry.task, "next": due, "last": _run_of(entry).at.isoformat()}
        return {"process": process_name(), "entries": entries}


def process_name() -> str:
    """Return a name of this process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _run_of(entry: Any) -> Run:
    return Run(maybe_make_aware(entry.last_run_at).astimezone(timezone.utc), entry.total_run_count)


def _read(left: list[bytes]) -> Iterator[dict[str, Run]]:
    for body in left:
        try:
            yield core.load(body)
        except ValueError as exc:
            logger.warning("beat: a message in the queue is not from a beat, and is dropped: %s", exc)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Keep SIGTERM and SIGINT until the block ends: a run that is sent is noted, and no frame is torn."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept: list[int] = []

    def keep(number: int, _: Any) -> None:
        kept.append(number)

    handlers = {number: signal.signal(number, keep) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for which, handler in handlers.items():
            signal.signal(which, handler or signal.SIG_DFL)
        for number in kept[:1]:
            signal.raise_signal(number)
