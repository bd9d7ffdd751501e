"""Feeds the index from the journal's streams, in a separate thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import kombu
from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError

from ..amqp import connecting as connecting_
from ..amqp.clocks import utc_ms
from ..amqp.destinations import QueueNames
from ..amqp.follower import Follower
from ..amqp.stream_consumer import StreamMessage, StreamReplaced
from ..core import streams
from ..core.changes import Pause
from ..core.errors import DelayError, StreamUnavailable
from ..core.topology import Stream
from .database import IndexDamaged, noticing_damage
from .index import Counts, Index
from .printing import reason

logger = logging.getLogger(__name__)

#: The maximum of bytes, messages and seconds that are stored in one transaction.
_BYTES, _MESSAGES, _SECONDS = 2_000_000, 2000, 1.0

#: Seconds without a message until pending messages are stored, and until other work is done if none is pending.
_PAUSE, _TURN = 0.02, 0.3

#: Seconds between two attempts to connect, and between two prunings.
_AGAIN, _PRUNE = 1, 5

#: The most seconds between attempts that fail again and again.
_AGAIN_AT_MOST = 60

#: Milliseconds that a message stays after its due time, so that it does not vanish from a page that was just shown.
_KEEP = 2000


class Progress(NamedTuple):
    """The progress of the index."""

    behind: float  # seconds since it was last up to date
    left: int  # of the messages that the streams had at the beginning, those that are not read yet
    total: int
    error: str | None  # the reason why it has stopped
    is_ready: bool = True  # whether it was up to date at least once since it was started
    has_streams: bool = True  # otherwise there is nothing to read


class Indexer:
    """Keeps an index up to date until it is stopped."""

    def __init__(self, index: Index, connect: Callable[[], kombu.Connection], queues: QueueNames) -> None:
        self.path = index.path
        self._index = index
        self._connect = connect
        self._queues = queues
        self._pending: list[StreamMessage] = []
        self._bytes = 0  # of what is pending
        self._reached: dict[str, int] = {}
        self._has_streams = True
        self._ends: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self.counts = Counts()  # of the messages that came since the index was up to date for the first time
        self._seen = threading.Condition()
        self._complete = time.monotonic()
        self._error: str | None = None
        self._failed = 0  # attempts to follow the streams since the last one that worked
        self.stopping = threading.Event()
        self._follower: Follower | None = None
        self.damage: IndexDamaged | None = None  # for which it has ended
        #: Is called when it ends for that.
        self.on_damage: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self.run, name="indexer", daemon=True)
        self.is_ready = threading.Event()  # is set when the index is up to date for the first time

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(30)

    @property
    def progress(self) -> Progress:
        ends = dict(self._ends)
        left = sum(max(0, end - self._reached.get(name, -1)) for name, end in ends.items())
        total = sum(end - self._first.get(name, 0) + 1 for name, end in ends.items())
        is_complete = self._error is None and not left and not self._pending and self.is_ready.is_set()
        behind = 0.0 if is_complete else time.monotonic() - self._complete
        return Progress(behind, left, max(total, left), self._error, self.is_ready.is_set(), self._has_streams)

    @property
    def paused(self) -> dict[str, Pause]:
        """The paused queues of the app by their names, or of anybody."""
        found = self._index.paused(utc_ms())
        return {name: one for name, one in found.items() if self._queues.leads_to_one("", [name])}

    def catch_up(self, connection: kombu.Connection, timeout: float = 10) -> None:
        """Wait until the index has all messages that the streams have now. Raises `StreamUnavailable`."""
        cascade = connection.transport.delay_options.cascade
        with Follower(connection) as reader:
            extents = reader.extents(streams.all_streams(cascade))
        if self._follower and any(stream.name not in self._ends for stream in extents):  # one was just created
            self._follower.look_soon()
        wanted = {stream.name: extent.last for stream, extent in extents.items() if extent.last is not None}

        def is_there() -> bool:
            return all(self._reached.get(name, -1) >= last for name, last in wanted.items())

        with self._seen:
            done = self._seen.wait_for(is_there, timeout)
        if not done:
            raise StreamUnavailable(f"the index has not caught up with the journal in {timeout:.0f} s: try again")

    def give_up(self, damage: IndexDamaged) -> None:
        """End, because the index is damaged. Any thread may call this."""
        if self.damage is None:
            self.damage, self._error = damage, reason(damage)
            self.stopping.set()
            self.on_damage()

    def run(self) -> None:
        """Follow the streams until it is stopped."""
        while not self.stopping.is_set():
            try:
                with connecting_.connected(self._connect()) as connection:
                    self._index_streams(connection)
            except (AMQPError, DelayError, OperationalError, OSError) as exc:
                self._error = reason(exc)
                self.stopping.wait(min(_AGAIN * 2**self._failed, _AGAIN_AT_MOST))
            except Exception as exc:
                logger.exception("The index has stopped")
                self._error = f"{type(exc).__name__}: {exc}"
                self.stopping.wait(10 * _AGAIN)

    def _index_streams(self, connection: kombu.Connection) -> None:
        self._failed += 1
        try:
            with noticing_damage(self.path):
                try:
                    with Follower(connection) as follower:
                        self._follow(follower, connection)
                except StreamReplaced as exc:
                    logger.warning("The index is built again: %s", exc)
                    self._index.clear()
        except IndexDamaged as exc:
            self.give_up(exc)

    def _follow(self, follower: Follower, connection: kombu.Connection) -> None:
        options = connection.transport.delay_options
        self._has_streams = options.streams
        self._pending.clear()
        self._bytes = 0
        self._ends, self._reached, self._first = {}, {}, {}
        if options.streams:
            self._begin(follower, streams.all_streams(options.cascade))
        self._error, self._failed = None, 0
        prune = stored = time.monotonic()
        while not self.stopping.is_set():
            moment = time.monotonic()
            came = self._take(follower.receive(_PAUSE if self._pending else _TURN))
            if self._pending and (not came or self._is_much or time.monotonic() - stored > _SECONDS):
                self._store()
                stored = time.monotonic()
                came = False  # on a busy stream, an index with all that has come is up to date, too
            if not came and not self._pending and not self.progress.left:
                self._complete = time.monotonic()
                self.is_ready.set()
            if moment >= prune:
                removed = self._index.prune(utc_ms() - _KEEP)
                prune = time.monotonic() + (_TURN if removed else _PRUNE)

    @property
    def _is_much(self) -> bool:
        return self._bytes >= _BYTES or len(self._pending) >= _MESSAGES

    def _begin(self, follower: Follower, wanted: list[Stream]) -> None:
        """Follow the streams from where the index has been left."""
        known = self._index.places()
        places = {stream: known.get(stream.name) for stream in wanted}
        for stream, place in places.items():
            self._reached[stream.name] = place.offset if place else -1
            self._first[stream.name] = place.offset + 1 if place else 0
        follower.follow(places)
        self._follower, self._ends = follower, follower.ends

    def _take(self, message: StreamMessage | None) -> bool:
        if message is not None:
            self._pending.append(message)
            self._bytes += len(message.body)
        return message is not None

    def _store(self) -> None:
        pending, self._pending, self._bytes = self._pending, [], 0
        found = self._index.apply(pending, self._queues, utc_ms())
        if self.is_ready.is_set():  # what came before the start is no event
            self.counts = Counts(*map(sum, zip(self.counts, found, strict=True)))
        with self._seen:
            for message in pending:
                self._reached[message.stream] = message.offset
            self._seen.notify_all()


def indexed(indexer: Indexer) -> None:
    """Bring an index up to date once. Raises `StreamUnavailable` with the reason if that fails."""
    indexer.start()
    try:
        while not indexer.is_ready.wait(0.1):
            if error := indexer.progress.error:
                raise indexer.damage or StreamUnavailable(f"the journal cannot be read: {error}")
    finally:
        indexer.stop()
