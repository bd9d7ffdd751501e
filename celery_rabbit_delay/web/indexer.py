"""Feeds the index from the streams, in a separate thread.

It reads the changes first, and then the journal from its end backwards, the streams of the shortest delays first: so
those that are due next are shown first. What comes meanwhile it follows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import kombu
from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError

from ..delay.core.errors import DelayError
from ..delay.core.options import Options
from ..delay.core.topology import Cascade, Stream
from ..operate import broker_connection
from ..operate.queue_names import QueueNames
from ..schedule.amqp.follower import Follower
from ..schedule.amqp.stream_consumer import Place, StreamMessage, StreamReplaced
from ..schedule.amqp.waiting_tasks import utc_ms
from ..schedule.core import streams
from ..schedule.core.changes import Pause
from ..schedule.core.errors import StreamUnavailable
from .index import Index, View
from .printing import reason

logger = logging.getLogger(__name__)

#: Messages of a stream to read backwards at a time, and to be sent ahead meanwhile.
_BLOCK, _AHEAD = 2000, 200

#: Seconds without a message until a new view is made, and until other work is done if there is nothing new.
_PAUSE, _TURN = 0.02, 0.3

#: The most seconds without a new view while messages come, and while none comes. Nor is one made for ten times as long
#: as the last one took.
_BUSY, _IDLE = 1, 5

#: Seconds between two attempts to connect, which double up to the most.
_AGAIN, _AGAIN_AT_MOST = 1, 60


class Progress(NamedTuple):
    """The progress of the index."""

    behind: float  # seconds since it was last up to date
    left: int  # of the messages that the streams had at the beginning, those that are not read yet
    total: int
    error: str | None  # the reason why it has stopped
    complete: int | None = None  # when it was last up to date, in milliseconds since 1970; None: not since its start
    has_streams: bool = True  # otherwise there is nothing to read


class Indexer:
    """Keeps an index up to date until it is stopped."""

    def __init__(self, connect: Callable[[], kombu.Connection], queues: QueueNames) -> None:
        self.index = Index(queues)
        self._connect = connect
        self._queues = queues
        self._has_streams = True
        self._places: dict[str, Place] = {}  # of the last message of each stream that was applied
        self._reached: dict[str, int] = {}  # their offsets when the view was made
        self._ends: dict[str, int] = {}
        #: Of each stream that is read backwards, the offset before which messages are left, and their number.
        self._back: dict[Stream, tuple[int, int]] = {}
        self._total = 0
        self._seen = threading.Condition()
        self._began = time.monotonic()
        self._complete: tuple[float, int] | None = None  # when it was last up to date, by both clocks
        self._error: str | None = None
        self._failed = 0  # attempts to follow the streams since the last one that worked
        self.stopping = threading.Event()
        self._follower: Follower | None = None
        self._thread = threading.Thread(target=self.run, name="indexer", daemon=True)
        self.is_ready = threading.Event()  # is set when the index is up to date for the first time

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(30)

    @property
    def view(self) -> View:
        """What the index has now."""
        return self.index.view

    @property
    def progress(self) -> Progress:
        left = self._ahead + sum(amount for _, amount in list(self._back.values()))
        clock, moment = self._complete or (self._began, None)
        behind = time.monotonic() - clock if self._error or left or moment is None else 0.0
        return Progress(behind, left, max(self._total, left), self._error, moment, self._has_streams)

    @property
    def _ahead(self) -> int:
        """The number of messages that the streams which are followed had at the beginning, and that are left."""
        reached = {name: place.offset for name, place in list(self._places.items())}
        return sum(max(0, end - reached.get(name, -1)) for name, end in list(self._ends.items()))

    @property
    def paused(self) -> dict[str, Pause]:
        """The paused queues of the app by their names, or of anybody."""
        found = self.index.paused(utc_ms())
        return {name: one for name, one in found.items() if self._queues.leads_to_one("", name)}

    def catch_up(self, connection: kombu.Connection, timeout: float = 10) -> None:
        """Wait until the view has all that the streams got until now, but for what is read backwards.

        Raises `StreamUnavailable`.
        """
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

    def run(self) -> None:
        """Follow the streams until it is stopped."""
        while not self.stopping.is_set():
            try:
                with broker_connection.connected(self._connect()) as connection:
                    self._failed += 1
                    with Follower(connection) as follower, Follower(connection, _AHEAD) as reader:
                        self._follow(follower, reader, connection.transport.delay_options)
            except StreamReplaced as exc:
                logger.warning("The index is built again: %s", exc)
                self.index, self._places, self._reached, self._back = Index(self._queues), {}, {}, {}
            except (AMQPError, DelayError, OperationalError, OSError) as exc:
                self._error = reason(exc)
                self.stopping.wait(min(_AGAIN * 2**self._failed, _AGAIN_AT_MOST))
            except Exception as exc:
                logger.exception("The index has stopped")
                self._error = f"{type(exc).__name__}: {exc}"
                self.stopping.wait(10 * _AGAIN)

    def _follow(self, follower: Follower, reader: Follower, options: Options) -> None:
        self._has_streams, self._ends = options.schedule, {}
        if options.schedule:
            self._begin(follower, reader, options.cascade)
        self._error, self._failed = None, 0
        is_news, made, pause = True, time.monotonic(), 0.0
        while not self.stopping.is_set():
            message = follower.receive(0 if self._back and not self._ahead else _PAUSE if is_news else _TURN)
            if message is not None:
                self._apply(message)
            elif self._back and not self._ahead:
                self._read_back(reader)
            is_busy = message is not None or bool(self._back)
            is_news, moment = is_news or is_busy, time.monotonic()
            if moment >= made + (max(pause, _BUSY) if is_busy else pause if is_news else _IDLE):
                self._make_view()
                is_news, made = False, time.monotonic()
                pause = 10 * (made - moment)
            if not is_news and not self._ahead and not self._back:
                self._complete = time.monotonic(), utc_ms()
                self.is_ready.set()
                if self.index.is_exhausted:
                    self.index.expect_all()
                    self._look_back(reader, options.cascade)

    def _begin(self, follower: Follower, reader: Follower, cascade: Cascade) -> None:
        """Follow the streams from where the index has been left; at first, the journal from its end on."""
        if not self._places:
            self._total = 0
            self._look_back(reader, cascade)
            self._places = {stream.name: Place(end - 1, b"") for stream, (end, _) in self._back.items()}
        follower.follow({stream: self._places.get(stream.name) for stream in streams.all_streams(cascade)})
        self._follower, self._ends = follower, follower.ends

    def _look_back(self, reader: Follower, cascade: Cascade) -> None:
        """Have the journal read backwards, from its present end."""
        for stream, extent in reader.extents(streams.journals(cascade)).items():
            if extent.last is not None and extent.last >= 0:
                self._back[stream] = extent.last + 1, max(1, extent.messages)
        self._total = sum(amount for _, amount in self._back.values())

    def _read_back(self, reader: Follower) -> None:
        """Apply the last block of a stream that was not read yet."""
        stream, (end, left) = next(iter(self._back.items()))
        begin, amount = max(0, end - _BLOCK), 0
        for message in reader.between(stream, begin, end - 1):
            self._apply(message)
            amount += 1
            if self.stopping.is_set():
                return
        if begin == 0 or not amount:  # what was before that was too old, and RabbitMQ has deleted it
            del self._back[stream]
            if not self._back:
                reader.close()
        else:
            self._back[stream] = begin, max(1, left - amount)

    def _apply(self, message: StreamMessage) -> None:
        known = self._places.get(message.stream)
        if known is None or message.offset >= known.offset:
            self._places[message.stream] = Place.of(message)
        self.index.apply(message, utc_ms())

    def _make_view(self) -> None:
        self.index.settle(utc_ms())
        with self._seen:
            self._reached = {name: place.offset for name, place in self._places.items()}
            self._seen.notify_all()


def indexed(indexer: Indexer) -> None:
    """Bring an index up to date once. Raises `StreamUnavailable` with the reason if that fails."""
    indexer.start()
    try:
        while not indexer.is_ready.wait(0.1):
            if error := indexer.progress.error:
                raise StreamUnavailable(f"the journal cannot be read: {error}")
    finally:
        indexer.stop()
