"""What waits, as the streams tell it while they grow: kept in memory for as long as somebody asks."""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Collection, Iterator

from ..core import streams
from ..core.fates import Fate, Fates
from ..core.journal import Record
from ..core.streams import Unreadable
from .clocks import utc_ms
from .destinations import QueueNames
from .follower import Follower
from .schedule import Scheduled, concerns, describe, headers_in, to_message
from .stream_consumer import StreamMessage

logger = logging.getLogger(__name__)

#: The records that are kept: those that are due first. When half of them are left, the streams are read again.
MOST = 100_000


class Outlook:
    """The messages that wait in a cascade and are recorded, as far as its follower has read."""

    def __init__(self, follower: Follower) -> None:
        """Begin to read. Raises `NotPermitted`, `StreamUnavailable`, `StreamReplaced`."""
        self._follower = follower
        self._fates = Fates(time.time)
        self._records: dict[int, Record] = {}  # by number, without bodies
        self._elsewhere: set[int] = set()  # numbers of those that go to queues which nobody has asked for
        self._reached: dict[str, int] = {}
        self._has_dropped = False
        follower.follow(dict.fromkeys(streams.all_streams(follower.options.cascade)))

    @property
    def is_complete(self) -> bool:
        """Whether all is read that the streams had when following them began."""
        return all(self._reached.get(name, -1) >= last for name, last in self._follower.ends.items())

    @property
    def is_exhausted(self) -> bool:
        """Whether so many messages became due that those which were not kept are among the first ones now."""
        return self._has_dropped and sum(record.due > utc_ms() for record in self._records.values()) < MOST // 2

    def soonest(self, names: QueueNames, limit: int) -> Iterator[tuple[Scheduled, int | None]]:
        """Yield the messages for some queues that are due first, each with its priority."""
        heap = [(record.due, number) for number, record in self._records.items() if number not in self._elsewhere]
        heapq.heapify(heap)
        while heap and limit:
            record = self._records[heapq.heappop(heap)[1]]
            found, concerns_them = self._shown(record, names)
            if found and concerns_them:
                limit -= 1
                yield found
            elif found:
                self._elsewhere.add(record.number)

    def find(self, ids: Collection[str], names: QueueNames) -> Iterator[tuple[Scheduled, int | None]]:
        """Yield the messages for some queues that have some ids, each with its priority."""
        for record in [one for one in self._records.values() if one.id in ids]:
            found, concerns_them = self._shown(record, names)
            if found and concerns_them:
                yield found

    def _shown(self, record: Record, names: QueueNames) -> tuple[tuple[Scheduled, int | None] | None, bool]:
        """Return a message with its priority, if it waits, and whether it is for one of the queues."""
        try:
            if self._fates.of(record, utc_ms(), headers_in) is not Fate.WAITS:
                return None, False
            message = to_message(record)
            shown = describe(record, message.headers, names), message.properties.get("priority")
        except Unreadable:  # `list` names it
            return None, False
        return shown, concerns(message.headers, names)

    def apply(self, message: StreamMessage) -> None:
        """Take a message that the follower has received."""
        self._reached[message.stream] = message.offset
        try:
            records = self._fates.apply(message.body)
        except Unreadable:
            return
        now = utc_ms()
        self._records.update({one.number: one._replace(body=b"") for one in records if one.due > now})
        if len(self._records) > MOST + MOST // 10:
            self._drop(now)

    def _drop(self, now: int) -> None:
        """Keep the records that are due first."""
        left = [record for record in self._records.values() if record.due > now]
        kept = heapq.nsmallest(MOST, left, key=lambda record: record.due)
        self._has_dropped = self._has_dropped or len(kept) < len(left)
        self._records = {record.number: record for record in kept}
        self._elsewhere &= self._records.keys()
