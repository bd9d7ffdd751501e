"""Celery's beat in many processes: which one is active, how soon the next one takes over, and what is sent when.

    celery -A shop beat -S rabbit-delay

It is Celery's scheduler, which sends nothing unless its process holds a lock in RabbitMQ (`periodic.lock`), and notes
there when each entry has run last. It works without `install` as well.

The active one also answers questions: what there is, and edits of entries (`periodic`), of which it leaves the result
to the next one in the same message as the runs.
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

from .. import upstream
from ..delay.amqp.limited import PAUSE
from ..delay.core.errors import DelayError, InvalidOption
from ..delay.core.options import options_with
from ..operate.broker_connection import ensure_connection
from ..unreadable import Unreadable
from .core import entries as periodic
from .core import runs as core
from .core.entries import UNWRITTEN, State
from .core.errors import EntryConflict, InvalidEntry
from .core.runs import Run
from .lock import STEP, Lock
from .schedules import definition_of, entry_of, told

logger = logging.getLogger(__name__)


def queue_of(app: Celery) -> str:
    """Return the name of the queue that an app's beat processes share: `beat_queue`, or one made of the app's name.

    Raises `InvalidOption`.
    """
    options = getattr(app.amqp, "delay_options", None)  # None: without `install`, or switched off
    options = options or options_with(app.conf, getattr(app, "delay_options_given", {}))
    queue = app.conf.get("beat_queue") or f"{core.beat_prefix(options.prefix)}{app.main or 'celery'}"
    if not isinstance(queue, str) or len(queue.encode()) > 255 or queue.startswith("amq."):
        raise InvalidOption(f"beat_queue={queue!r}: use a name of at most 255 bytes that does not begin with 'amq.'")
    return queue


def heartbeat_of(app: Celery) -> float:
    """Return `beat_heartbeat`, 10 by default: seconds within which a process that vanishes with its host is replaced.

    One that ends is replaced at once. RabbitMQ takes two to three heartbeats of AMQP, each a third of this, to notice
    that a host has vanished; and no process waits longer for an answer (`patience` of `Lock`). Raises `InvalidOption`.
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
        #: Why the run that is being sent is not sent.
        self._failure: Exception | None = None
        #: The id of the last run besides the schedule.
        self._ran: str | None = None
        #: What was written at run time, as it is in RabbitMQ.
        self._state = State()
        #: The entries whose next runs are known, and these.
        self._dues: dict[str, tuple[Any, datetime | None]] = {}
        super().__init__(app, *args, **kwargs)
        self._code: dict[str, Any] = dict(self.schedule)
        #: All entries, also those that are disabled and so not in the schedule.
        self._entries = dict(self._code)

    @property
    def info(self) -> str:
        return f"    . queue -> {self.queue}"

    @cached_property
    def connection(self) -> Any:
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
                return float(min(super().tick(*args, **kwargs), STEP))
            except NotSent as exc:
                [entry] = exc.args
                logger.error("beat: %s is not sent, trying again in %.0f s: %s", entry.name, PAUSE, exc.__cause__)
                self.schedule[entry.name] = entry
                self._paused[entry.name] = time.monotonic() + PAUSE
                upstream.schedule_again(self, entry, PAUSE)
                return 0
            except (AMQPError, OperationalError, OSError) as exc:
                logger.error("beat: RabbitMQ cannot be reached, trying again: %s", exc)
                if self._lock is not None:
                    self._lock.abandon()
                self._leave()
                return STEP

    def is_due(self, entry: Any) -> Any:
        # Before 5.7, a tick of Celery does not look at the time in its heap, which `upstream.schedule_again` sets.
        left = self._paused.get(entry.name, 0) - time.monotonic()
        return schedstate(False, left) if left > 0 else super().is_due(entry)

    def schedules_equal(self, *schedules: Any) -> bool:
        return True  # what changes the schedule changes the heap: Celery would compare all entries at each tick

    def _take_part(self) -> bool:
        """Return whether this process is the active one; become it if it can."""
        if self._lock is None:
            ensure_connection(self.connection)
            self._lock = Lock(self.connection, self.queue, process_name(), self.heartbeat)
        lock = self._lock
        if not lock.wait(STEP):
            return False
        if lock.left or not lock.is_held:
            self._take_over(lock)
        elif lock.age > self.heartbeat:
            self._note(lock)
        while lock.questions:
            question = lock.questions[0]
            lock.answer(question, json.dumps(self.answer(question.body)).encode())
            del lock.questions[0]
        return True

    def _take_over(self, lock: Lock) -> None:
        """Go on where the process before, or this one, has stopped."""
        left = list(_read(lock.read_left()))
        self._runs = core.merge([self._runs, *(state.runs for state in left)], _now())
        # What this process wrote before may be older, or have never been stored.
        self._state = periodic.merge(left) if left else self._state
        self._note(lock)
        names = {*self._code, *self._entries, *self._state.entries}
        for number, name in enumerate(names):
            self._arrange(name)
            self._due(name)
            if number % 100 == 0:  # thousands may take longer than RabbitMQ waits for a heartbeat
                lock.wait(0)
        self.populate_heap()
        logger.info("beat: %s is the active one of %s", process_name(), self.queue)

    def _note(self, lock: Lock, name: str | None = None, state: State | None = None) -> None:
        """Leave the runs, and what was written, to the next process: of an entry, or from time to time of all."""
        state = state or self._state
        if name is not None and lock.age_of_first < PAUSE:
            lock.add(periodic.dump(periodic.part(state, name, self._runs[name])))
        else:
            self._runs = core.remember(self._runs, {*self._code, *state.entries}, _now())
            lock.write(periodic.dump(state._replace(runs=self._runs)))
        self._state = state

    def _arrange(self, name: str) -> None:
        """Put an entry into the schedule as it is in the code, or was written."""
        entry, written = self._code.get(name), self._state.entries.get(name, UNWRITTEN)
        if written.definition is not None:
            try:
                entry = entry_of(name, written.definition, self.app)
            except Exception as exc:  # it is forged, or needs a library that is missing here
                logger.error("beat: the entry %r is left out: %s", name, exc)
                entry = None
        self.schedule.pop(name, None)
        self._entries.pop(name, None)
        self._dues.pop(name, None)
        if entry is not None:
            run = self._runs[name]
            entry.last_run_at, entry.total_run_count = run.at.astimezone(self.app.timezone), run.total
            self._entries[name] = entry
            if written.is_enabled:
                self.schedule[name] = entry

    def populate_heap(self, *args: Any, **kwargs: Any) -> None:
        """Calculate when each entry is due, once for the runs and for those who ask."""
        upstream.unschedule(self)
        for name in self.schedule:
            self._run_when_due(name)

    def _rearrange(self, name: str) -> None:
        """Do as `_arrange`, and let the entry run when it is due."""
        self._arrange(name)
        upstream.unschedule(self, name)
        if name in self.schedule:
            self._run_when_due(name)

    def _run_when_due(self, name: str) -> None:
        due = self._due(name)
        seconds = max((due - _now()).total_seconds(), 0) if due else self.max_interval
        upstream.schedule_again(self, self.schedule[name], seconds)

    def answer(self, question: bytes | str) -> dict[str, Any]:
        """Return the answer to a question: `{"edit": […]}`, `{"run": name, "id": id}`, or what there is, perhaps of
        `{"entry": name}` alone.
        """
        try:
            asked = json.loads(question) if question else {}
            if "edit" in asked:
                self._edit(periodic.load_edit(asked["edit"]))
            elif "run" in asked:
                self._run(asked["run"], asked["id"])
            else:
                return self._describe(asked.get("entry"))
        except (AMQPError, OSError):
            raise
        except EntryConflict as exc:
            return {"conflict": str(exc)}
        except NotSent as exc:
            return {"error": f"{asked['run']} is not sent: {exc.__cause__}"}
        except (DelayError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
            return {"error": str(exc)}
        return {"done": True}

    def _edit(self, edit: periodic.Edit) -> None:
        state = periodic.apply(self._state, edit, self._code)
        if state is not self._state:
            assert self._lock is not None
            if edit.definition is not None:
                definition_of(**edit.definition, app=self.app)
            if edit.name not in (self.schedule if edit.is_enabled else self._entries):  # it begins now
                self._runs[edit.name] = Run(_now(), self._runs.get(edit.name, Run(_now())).total)
            self._note(self._lock, edit.name, state)
            self._rearrange(edit.name)
            logger.info("beat: the entry %s has changed", edit.name)

    def _run(self, name: str, id_: str) -> None:
        """Send a run besides those of its schedule. Raises `NotSent`, `InvalidEntry`."""
        if name not in self._entries:
            raise InvalidEntry(f"there is no entry {name!r}")
        if id_ == self._ran:  # it comes again, as the beat that was asked has left
            return
        entry = self._entries[name]
        self._send(type(entry)(**dict(entry, options={**entry.options, "task_id": id_})), id_)
        self._ran = id_

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Send a run, and note it then: what is interrupted in between is sent twice, with the same task id.

        Raises `NotSent`, and if the lock is lost `AMQPError`, `OSError`.
        """
        lock = self._lock
        assert lock is not None
        if entry.name not in self._runs or lock.age > STEP:
            self._runs.setdefault(entry.name, _run_of(entry))
            self._note(lock, entry.name)
        self._send(entry, core.task_id(self.queue, entry.name, self._runs[entry.name]))
        self._runs[entry.name] = _run_of(self.schedule[entry.name])
        self._note(lock, entry.name)

    def _send(self, entry: Any, id_: str) -> None:
        options = {"task_id": id_, "mandatory": True, **entry.options, "retry": False}
        options["headers"] = dict(options.get("headers") or {})  # Celery, and what wraps it, add some of this run
        run = type(entry)(**dict(entry, options=options))  # copy.copy() would take the app from the schedule
        producer = self.producer
        try:
            super().apply_entry(run, producer=producer)  # Sentry and Datadog wrap it, and it only logs errors
        except Exception as exc:
            self._failure = exc
        failure, self._failure = self._failure, None
        if failure:
            # RabbitMQ may still answer to this run, which py-amqp would take for the answer to the next one.
            with suppress(AMQPError, OSError):
                upstream.close_without_waiting(self.__dict__.pop("producer").channel)
            raise NotSent(entry) from failure

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().apply_async(*args, **kwargs)
        except Exception as exc:
            self._failure = exc
            raise

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

    def _describe(self, only: str | None) -> dict[str, Any]:
        """Return what `status` and `periodic` show, perhaps of one entry."""
        entries = {}
        for name in {**self._entries, **self._state.entries} if only is None else [only]:
            entry, written = self.schedule.get(name, self._entries.get(name)), self._state.entries.get(name, UNWRITTEN)
            if entry is None and written is UNWRITTEN:
                continue
            text, definition = self._told.get(name, ("", None))
            if written.definition is not None:
                text, definition = str(written.definition.get("schedule", "")), written.definition
            entries[name] = {
                "task": str((definition or {}).get("task", entry.task if entry else "")),
                "schedule": text,
                "next": due.isoformat() if (due := self._due(name)) else None,
                "last": _run_of(entry).at.isoformat() if entry else None,
                "total": entry.total_run_count if entry else None,
                "is_enabled": written.is_enabled,
                "is_written": written.definition is not None,
                "version": written.version,
                "definition": definition,
            }
        return {"process": process_name(), "entries": entries}

    def _due(self, name: str) -> datetime | None:
        """Return when an entry runs next, if it does: Celery needs a third of a millisecond for a crontab."""
        entry = self.schedule.get(name)
        known, due = self._dues.get(name, (None, None))
        if known is not entry:
            due = None
            with suppress(Exception):  # such as that of an entry of a class of its own: it must not stop others
                is_due, seconds = entry.is_due()
                due = _now() + timedelta(seconds=0 if is_due else seconds)
            self._dues[name] = entry, due
        return due

    @cached_property
    def _told(self) -> dict[str, tuple[str, dict[str, Any] | None]]:
        """The texts of the schedules in the code, and the definitions that are JSON."""
        return {name: told(one, self.app) for name, one in self._code.items()}


def process_name() -> str:
    """Return a name of this process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _run_of(entry: Any) -> Run:
    return Run(maybe_make_aware(entry.last_run_at).astimezone(timezone.utc), entry.total_run_count)


def _read(left: list[bytes]) -> Iterator[State]:
    for body in left:
        try:
            yield periodic.load(body)
        except Unreadable as exc:
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
