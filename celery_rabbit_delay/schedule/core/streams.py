"""Which streams stand beside the cascades of a prefix, and for how long each keeps its messages. Pure.

    {streams_root}.journal.600    a copy of each delayed message whose delay is at most 600 s, and so on up to `max`
    {streams_root}.changes        what was cancelled, restored and moved, and paused queues

A stream keeps its messages for a limited time (https://www.rabbitmq.com/docs/streams#retention). Messages with delays
of different lengths go to different streams, so that none is kept much longer than it waits.

What the messages contain is in the modules `journal` and `changes`. The first byte of a message tells its kind.
"""

from __future__ import annotations

import math
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from ...delay.core.errors import InvalidOption, UnsupportedConfiguration
from ...delay.core.names import LAYOUT
from ...delay.core.options import YEAR, Options
from ...delay.core.plan import Ticket
from ...delay.core.topology import Cascade, Stream

_DAY = 24 * 3600

#: Seconds after its due time for which a moved message may lie in its queue, and is dropped when it is taken.
VOID_KEPT = 30 * _DAY

#: For each stream: the longest delay in seconds, the retention in seconds, the size of a segment in bytes.
#: RabbitMQ deletes a segment when its youngest message is old enough, so streams for short delays have small segments.
_HORIZONS = (
    (600, 900, 500_000),
    (3600, 75 * 60, 1_000_000),
    (6 * 3600, 7 * 3600, 2_000_000),
    (36 * 3600, 40 * 3600, 4_000_000),
    (9 * _DAY, 10 * _DAY, 8_000_000),
    (54 * _DAY, 56 * _DAY, 16_000_000),
    (YEAR, 370 * _DAY, 32_000_000),
    (math.inf, 10 * YEAR + 7 * _DAY, 32_000_000),  # ten years is the longest `max_delay`
)

_SECONDS = [seconds for seconds, *_ in _HORIZONS[:-1]]

#: The size of the number in the package's header that identifies a copy of a message.
NUMBER_BITS = 53

#: Hosts of Amazon MQ, where "creating a stream will result in data loss" (its developer guide, version management).
#: Nothing that is documented in what such a broker says of itself tells it from others.
_AMAZON_MQ = re.compile(r"[.]mq[.][a-z0-9-]+[.](amazonaws[.]|on[.]aws\b)", re.ASCII | re.IGNORECASE).search

#: Microseconds of a countdown that may have passed since Celery made an eta of it, while it connects or waits.
_PASSED = 5_000_000

_ROOT = re.compile(rf"(.+)\.v{LAYOUT}\.([1-9][0-9]{{0,6}})ms").fullmatch


def require_streams(hosts: Iterable[str]) -> None:
    """Raise `UnsupportedConfiguration` if a broker, by its host or URL, is one where a stream loses data."""
    if any(map(_AMAZON_MQ, hosts)):
        raise UnsupportedConfiguration(
            "schedule=True needs streams, and on Amazon MQ a stream loses data: leave it out, or add "
            "--no-schedule to the command; delayed tasks work without, but none can be listed, cancelled or moved"
        )


def _stream(cascade: Cascade, name: str, max_age: int, segment: int) -> Stream:
    return Stream(f"{cascade.streams_root}.{name}", f"@.{name}", max_age, segment)


def journals(cascade: Cascade, max_delay: float = math.inf) -> list[Stream]:
    """Return the journal's streams for delays up to `max_delay` seconds, the one for the shortest delays first."""
    return _all_journals(cascade)[: bisect_left(_SECONDS, max_delay) + 1]


@lru_cache(maxsize=16)
def _all_journals(cascade: Cascade) -> list[Stream]:
    return [_stream(cascade, f"journal.{'max' if at == math.inf else at}", *kept) for at, *kept in _HORIZONS]


def journal_for(cascade: Cascade, delay: float) -> Stream:
    """Return the stream that a message with a delay in seconds is recorded in."""
    return _all_journals(cascade)[bisect_left(_SECONDS, delay)]


@lru_cache(maxsize=16)
def changes(cascade: Cascade, max_delay: float = YEAR) -> Stream:
    """Return the stream of changes, which it keeps as long as a message may wait: a year, or ten.

    So all apps of a prefix declare the same one, unless some have a `max_delay` beyond a year and others have not.
    """
    return _stream(cascade, "changes", (YEAR if max_delay <= YEAR else 10 * YEAR) + VOID_KEPT, 2_000_000)


def all_streams(cascade: Cascade, max_delay: float = YEAR) -> list[Stream]:
    """Return all streams that may stand beside a cascade."""
    return [changes(cascade, max_delay), *journals(cascade)]


def wanted(options: Options) -> list[Stream]:
    """Return the streams that an app with these options may need; none without the schedule."""
    if not options.schedule:
        return []
    recorded = [] if options.journal is None else journals(options.cascade, options.max_delay)
    return [changes_of(options), *recorded]


def changes_of(options: Options) -> Stream:
    return changes(options.cascade, options.max_delay)


def require_schedule(options: Options) -> None:
    """Raise `UnsupportedConfiguration` without the schedule."""
    if not options.schedule:
        raise UnsupportedConfiguration(
            "this needs the schedule: add schedule=True to install(app), for its workers and publishers, or "
            "--schedule to the command"
        )


@lru_cache(maxsize=100)
def options_of(root: str) -> Options | None:
    """Return options for reading what stands beside a cascade, by its `root`, and for creating nothing.

    None if no cascade's names begin so.
    """
    found = _ROOT(root)
    if found is None:
        return None
    prefix, milliseconds = found.groups()
    try:
        return Options(prefix=prefix, tick=int(milliseconds) / 1000, declare="passive", schedule=True)
    except InvalidOption:
        return None


def new_number() -> int:
    """Return a random number for a message."""
    return int.from_bytes(os.urandom(7), "big") >> (56 - NUMBER_BITS)


def ticket(options: Options, headers: Mapping[str, Any], delay: int) -> Ticket | None:
    """Return a number, and the stream that records a message with a delay in microseconds; None if it is not recorded.

    A message for tasks has an eta, of which a part may have passed already.
    """
    if not options.schedule or options.journal is None:
        return None
    limit = math.floor(options.journal * 1_000_000)
    if headers.get("eta"):
        limit -= min(limit // 10, _PASSED)
    if delay < limit:
        return None
    return Ticket(new_number(), journal_for(options.cascade, delay / 1_000_000))
