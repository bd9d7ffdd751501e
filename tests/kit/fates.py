"""What streams say of messages that were recorded, and what became of these: for all that adds it up."""

from __future__ import annotations

from typing import Any, NamedTuple

from amqp import Message

from celery_rabbit_delay import upstream
from celery_rabbit_delay.delay.core import headers
from celery_rabbit_delay.schedule.core import changes
from celery_rabbit_delay.schedule.core.fates import Fate
from celery_rabbit_delay.schedule.core.journal import Record

NOW = 1_800_000_000_000
MINUTE = 60_000
UUID = "7e2b6a4c-5d4e-4e0b-8d4b-0c1f6ed7f2a1"


def record(number: int, due: int = NOW + MINUTE, id_: str = "", **more: Any) -> Record:
    """Return the record of a message that goes to the queue `q`, with more headers."""
    queue = more.pop("queue", "q")
    of_task = {"task": "shop.t", "id": id_ or f"id-{number}", "argsrepr": "()", "kwargsrepr": "{}", **more}
    wrapped = headers.wrap(of_task, "root.", "", queue, headers.moment(due), number)
    properties, body = upstream.serialize(Message(b"x", application_headers=wrapped))
    return Record(due, number, id_ or f"id-{number}", properties, body)


class Case(NamedTuple):
    """Records, what else streams say in this order, and what became of each message, by its number."""

    records: list[Record]
    says: list[bytes]
    became: dict[int, Fate | None]


W, C, M = Fate.WAITS, Fate.CANCELLED, Fate.MOVED
_STAMPED = [
    record(1, stamps={"batch": ["red", "blue"]}),
    record(2, stamps={"batch": "red"}),
    record(3, stamps={"batch": "blue"}),
    record(4, stamps={"lot": "red"}),
    record(5, stamps="red"),
    record(6),
]
_TWO, _IDS = [record(1), record(2, id_=UUID)], [*changes.cancelled([UUID, "id-1"])]
_BACK = [*changes.restored(["id-1", UUID])]
_COPIES = [record(number, id_="a") for number in (1, 2, 3, 4)]


def _moved(*copies: int) -> list[bytes]:
    return [changes.void(number, NOW + MINUTE) for number in copies]


CASES: dict[str, Case] = {
    "nothing is said": Case([record(1)], [], {1: W}),
    "due": Case([record(1, NOW), record(2, NOW - 1)], [changes.void(1, NOW)], {1: None, 2: None}),
    "cancelled by its id": Case([record(1), record(2)], [*changes.cancelled(["id-1"])], {1: C, 2: W}),
    "by a UUID": Case([record(1, id_=UUID), record(2)], [*changes.cancelled([UUID, "x"])], {1: C, 2: W}),
    "all with the id": Case([record(1, id_="a"), record(2, id_="a")], [*changes.cancelled(["a"])], {1: C, 2: C}),
    "by a stamp": Case(_STAMPED, [changes.cancelled_stamps({"batch": ["red"]})], {1: C, 2: C, 3: W, 4: W, 5: W, 6: W}),
    "moved": Case([record(1), record(2)], [changes.void(1, NOW + MINUTE)], {1: M, 2: W}),
    "moved and cancelled": Case([record(1)], [changes.void(1, NOW + MINUTE), *changes.cancelled(["id-1"])], {1: M}),
    "moved again": Case(_COPIES, _moved(1, 2), {1: M, 2: M, 3: W, 4: W}),
    "moved by two at the same moment": Case(_COPIES, _moved(1, 1), {1: M, 2: W, 3: W, 4: W}),
    "published twice and moved": Case(_COPIES, _moved(1, 2, 1), {1: M, 2: M, 3: W, 4: W}),
    "restored": Case(_TWO, [*_IDS, *_BACK], {1: W, 2: W}),
    "cancelled again after it was restored": Case(_TWO, [*_IDS, *_BACK, *_IDS], {1: C, 2: C}),
    "restored before it was cancelled": Case(_TWO, [*_BACK, *_IDS], {1: C, 2: C}),
}
