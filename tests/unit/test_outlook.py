"""What waits, as streams tell it while they grow."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from amqp import Message
from kombu import Queue

from celery_rabbit_delay import Options, upstream
from celery_rabbit_delay.amqp import outlook
from celery_rabbit_delay.amqp.clocks import sent_now
from celery_rabbit_delay.amqp.destinations import QueueNames
from celery_rabbit_delay.amqp.outlook import Outlook
from celery_rabbit_delay.amqp.stream_consumer import StreamMessage
from celery_rabbit_delay.core import changes
from celery_rabbit_delay.core.headers import wrap
from celery_rabbit_delay.core.journal import Record, pack_records

ROOT = Options().cascade.root


class Followed:
    """Takes the place of a follower: streams are what a test says."""

    outlook: Outlook

    def __init__(self) -> None:
        self.ends, self.offset = {"journal": 3}, -1
        self.options = Options()

    def follow(self, places: Any) -> None:
        pass

    def say(self, body: bytes) -> None:
        self.offset += 1
        self.outlook.apply(StreamMessage("journal", self.offset, body))


def record(number: int, seconds: float, queue: str = "q", **properties: Any) -> Record:
    due = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    headers = wrap({"task": f"t{number}", "id": str(number)}, ROOT, "", queue, due, number)
    message = Message(b"x" * 1000, application_headers=headers, **properties)
    return Record(int(due.timestamp() * 1000), number, str(number), "", *upstream.serialize(message))


@pytest.fixture
def followed() -> Followed:
    return Followed()


@pytest.fixture
def waits(followed: Followed) -> Outlook:
    waits = Outlook(followed)  # type: ignore[arg-type]
    followed.outlook = waits
    return waits


def soonest(waits: Outlook, *queues: str, limit: int = 10) -> list[str]:
    return [one.id for one, _ in waits.soonest(QueueNames(map(Queue, queues), only=True), limit)]


def test_what_waits_for_some_queues_is_there_the_soonest_first(followed: Followed, waits: Outlook) -> None:
    followed.say(pack_records([record(1, 50), record(2, 40, "r"), record(3, 30, priority=7), record(4, -1)]))
    assert soonest(waits, "q") == ["3", "1"]
    assert soonest(waits, "q", "s", limit=1) == ["3"]
    assert [(one.id, one.task, priority) for one, priority in waits.find({"3", "2", "9"}, QueueNames())] == [
        ("2", "t2", None),
        ("3", "t3", 7),
    ]
    followed.say(next(iter(changes.cancelled(["3"], sent_now()))))
    assert soonest(waits, "q") == ["1"]


def test_it_is_complete_when_all_is_read_whatever_is_malformed(followed: Followed, waits: Outlook) -> None:
    followed.say(pack_records([record(1, 50)])[:-1])
    followed.say(pack_records([record(2, 50)._replace(properties=b"\xff\xff")]))
    followed.say(pack_records([record(3, 50)]))
    assert not waits.is_complete
    followed.say(b"")
    assert waits.is_complete
    assert soonest(waits, "q") == ["3"]


def test_the_soonest_are_kept_until_too_few_are_left(
    followed: Followed, waits: Outlook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlook, "MOST", 20)
    followed.say(pack_records([record(n, 100 - n) for n in range(22)]))
    assert len(soonest(waits, "q", limit=100)) == 22
    followed.say(pack_records([record(22, 50)]))
    assert soonest(waits, "q", limit=100) == ["22", *(str(n) for n in range(21, 2, -1))]
    assert not waits.is_exhausted
    later = int((datetime.now(timezone.utc) + timedelta(seconds=91)).timestamp() * 1000)
    monkeypatch.setattr(outlook, "utc_ms", lambda: later)
    assert waits.is_exhausted
