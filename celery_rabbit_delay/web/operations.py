"""The page's actions on the broker: cancel, restore, move, orphans, health. Each call opens its own connection."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple, TypeVar

import kombu
from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError

from .. import operate
from ..delay.core.destination import Destination
from ..delay.core.errors import DelayError
from ..operate import Orphan, Snapshot, Status, broker_connection
from ..operate.queue_names import QueueNames
from ..operate.replaying import Allowed
from ..periodic.beat_status import BeatStatus
from ..schedule.amqp import reschedule as reschedule_
from ..schedule.amqp import waiting_tasks
from ..schedule.amqp.follower import Follower
from ..schedule.amqp.waiting_tasks import utc_ms
from ..schedule.core import journal, streams
from ..schedule.core.errors import NotWaiting
from ..schedule.core.journal import Record
from .index import Row
from .indexer import Indexer
from .printing import printable, reason

T = TypeVar("T")

#: The maximum number of orphans to show, send or remove at a time.
ORPHANS = 500

#: What is said of what is done to a periodic entry, but of writing it.
_WRITTEN = {
    "enable": "periodic entry enabled",
    "disable": "periodic entry disabled",
    "remove": "periodic entry removed",
    "run_now": "run of a periodic entry sent",
}

#: What is said of messages that are in another state than was expected.
_OTHERS = {False: ("no longer waits", "no longer wait"), True: ("is not cancelled", "are not cancelled")}


class Broker(NamedTuple):
    """The broker of the cascade, and how to connect to it."""

    name: str  # without a password
    connect: Callable[[], kombu.Connection]
    names: QueueNames  # of the queues that the page is about
    destinations: Sequence[Destination]
    snapshot: Callable[[kombu.Connection], Snapshot | None]
    allowed: Allowed = Allowed(())  # destinations of orphans and of tasks that are moved
    beat: Callable[[kombu.Connection], BeatStatus | None] = lambda connection: None  # None: no beat of this package
    periodic: Callable[..., object] = lambda act, name, **more: None  # calls a function of the API for an entry
    is_app: bool = False  # an app that has a beat


class Done(NamedTuple):
    """The number of processed messages, what was done to them, and the reasons for the refused ones."""

    amount: int
    what: str
    refused: Sequence[str] = ()


class Operations:
    """Runs the page's actions, one change at a time. Reads do not wait for changes."""

    def __init__(self, broker: Broker, indexer: Indexer) -> None:
        self.broker = broker
        self.indexer = indexer
        self._turn = threading.Lock()
        # Orphans that one connection reads are invisible to others meanwhile.
        self._turn_at_orphans = threading.Lock()

    @contextmanager
    def _connected(self) -> Iterator[kombu.Connection]:
        with broker_connection.connected(self.broker.connect()) as connection:
            yield connection

    @contextmanager
    def _acting(self) -> Iterator[kombu.Connection]:
        with self._turn, self._connected() as connection:
            yield connection

    def cancel(self, numbers: Iterable[int]) -> Done:
        """Cancel waiting messages by the numbers of their records."""
        with self._acting() as connection:
            self.indexer.catch_up(connection)
            found, refused = self._found(numbers)
            ids = dict.fromkeys(row.id for row in found if row.id)
            without_id = [(row.number, row.due) for row in found if not row.id]
            if found:
                waiting_tasks.cancel(connection, ids, without_id)
                self.indexer.catch_up(connection)
        return Done(len(ids) + len(without_id), "cancelled", refused)

    def restore(self, numbers: Iterable[int]) -> Done:
        """Take back what has cancelled messages, by the numbers of their records."""
        with self._acting() as connection:
            self.indexer.catch_up(connection)
            found, refused = self._found(numbers, is_cancelled=True)
            ids = dict.fromkeys(row.id for row in found if row.id)
            if ids:
                waiting_tasks.restore(connection, ids)
                self.indexer.catch_up(connection)
                stay, _ = self._found((row.number for row in found), is_cancelled=True)
                refused += [f"{row.id} stays cancelled by a stamp" for row in stay]
        return Done(len(ids), "restored", refused)

    def move(self, numbers: Iterable[int], due: datetime, what: str) -> Done:
        """Give waiting messages another due time, by the numbers of their records."""
        moved = 0
        covered: set[int] = set()  # numbers of all copies of the moved messages
        with self._acting() as connection:
            with Follower(connection, 10) as follower:
                self.indexer.catch_up(connection)
                found, refused = self._found(numbers)
                copies = self._copies(found)
                for row in found:
                    if row.number in covered:
                        continue
                    try:
                        records = [self._record(follower, one) for one in copies[row.number]]
                        reschedule_.move(connection, records, due, self.broker.allowed)
                        covered.update(copy.number for copy in copies[row.number])
                        moved += 1
                    except DelayError as exc:
                        name, why = row.id or str(row.number), str(exc)
                        refused.append(why if name in why else f"{name}: {why}")
            self.indexer.catch_up(connection)
        return Done(moved, what, refused)

    def on_queue(self, what: str, change: Callable[..., None], queue: str, *more: object) -> Done:
        """Pause or resume a queue: call a function of `operate`."""
        with self._acting() as connection:
            change(connection, queue, self.broker.names, *more)
            self.indexer.catch_up(connection)
        return Done(1, what)

    def record(self, row: Row) -> Record:
        """Return the record of a message from the journal. Raises `NotWaiting`."""
        with self._connected() as connection, Follower(connection, 10) as follower:
            return self._record(follower, row)

    def _found(self, numbers: Iterable[int], is_cancelled: bool = False) -> tuple[list[Row], list[str]]:
        wanted, view, now = set(numbers), self.indexer.view, utc_ms()
        found = view.cancelled if is_cancelled else view.waiting
        rows = [row for row in found if row.number in wanted and row.due > now]
        gone = len(wanted) - len(rows)
        return rows, [f"{gone:,} of the selected tasks {_OTHERS[is_cancelled][gone > 1]}"] if gone else []

    def _copies(self, rows: Sequence[Row]) -> Mapping[int, Sequence[Row]]:
        """Return all waiting copies of some messages, by their numbers: an interrupted move leaves two."""
        copies: dict[str, list[Row]] = {row.id: [] for row in rows}
        for row in self.indexer.view.waiting:
            if row.id in copies:
                copies[row.id].append(row)
        return {row.number: copies[row.id] if row.id else [row] for row in rows}

    def _record(self, follower: Follower, row: Row) -> Record:
        [stream] = [stream for stream in streams.all_streams(follower.options.cascade) if stream.name == row.stream]
        entry = follower.at(stream, row.offset)
        for record in journal.unpack_records(entry.body) if entry else ():
            if record.number == row.number:
                return record
        raise NotWaiting("the journal no longer has its record")

    def orphans(self) -> list[Orphan]:
        """Return the oldest orphans, each with the reason if it would not be sent on."""
        with self._turn_at_orphans, self._connected() as connection:
            found = operate.orphans(connection, ORPHANS, self.broker.allowed)
        return list(filter(operate.are_for(self.broker.names), found))

    def replay(self, marks: Iterable[str]) -> Done:
        """Send the orphans with some marks to their destinations."""
        with self._acting() as connection, self._turn_at_orphans:
            results = list(operate.replay(connection, ORPHANS, self.broker.allowed, _chosen(marks)))
        refused = [f"{orphan.task or orphan.routing_key}: {reason}" for orphan, reason in results if reason is not None]
        return Done(len(results) - len(refused), "sent on", refused)

    def remove(self, marks: Iterable[str]) -> Done:
        """Remove the orphans with some marks."""
        with self._acting() as connection, self._turn_at_orphans:
            removed = operate.remove(connection, ORPHANS, _chosen(marks))
        return Done(removed, "removed")

    def status(self) -> Status:
        """Return the message counts of the cascade."""
        with self._connected() as connection:
            return operate.status(connection, self.broker.destinations, self.broker.snapshot(connection))

    def beat(self) -> BeatStatus | None:
        """Ask which process of the app's beat is active."""
        with self._connected() as connection:
            return self.broker.beat(connection)

    def periodic(self, act: str, name: str, **more: object) -> Done:
        """Call a function of the API for a periodic entry."""
        with self._turn:
            self.broker.periodic(act, name, **more)
        return Done(1, f"{_WRITTEN.get(act, 'periodic entry written')}: {printable(name, 100)}")


def or_reason(ask: Callable[[], T]) -> T | str:
    """Return an answer of the broker, or the reason why there is none."""
    try:
        return ask()
    except (DelayError, AMQPError, OperationalError, OSError) as exc:
        return reason(exc)


def marks_of(orphans: Iterable[Orphan]) -> list[str]:
    """Return what identifies each of the oldest orphans: a digest, and how many equal ones are before it."""
    return list(map(_marker(), orphans))


def _marker() -> Callable[[Orphan], str]:
    seen = Counter[str]()

    def mark(orphan: Orphan) -> str:
        seen[orphan.digest] += 1
        return f"{orphan.digest}-{seen[orphan.digest]}"

    return mark


def _chosen(marks: Iterable[str]) -> Callable[[Orphan], bool]:
    wanted, mark = set(marks), _marker()
    return lambda orphan: mark(orphan) in wanted
