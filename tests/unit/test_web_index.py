"""The index without a broker: contents of streams in any order, and searches."""

from __future__ import annotations

import random
from typing import Any

import kombu
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay.operate.queue_names import QueueNames
from celery_rabbit_delay.schedule.amqp.stream_consumer import StreamMessage
from celery_rabbit_delay.schedule.core import changes, journal
from celery_rabbit_delay.schedule.core.fates import Fate
from celery_rabbit_delay.schedule.core.journal import Record
from celery_rabbit_delay.web import index as index_
from celery_rabbit_delay.web import search
from celery_rabbit_delay.web.index import Index, Row
from celery_rabbit_delay.web.search import Filter
from tests.kit.fates import CASES, MINUTE, NOW, UUID, Case, record


class Streams:
    """An index that is told what streams say."""

    def __init__(self, names: QueueNames | None = None) -> None:
        self.index = Index(names or QueueNames())

    def tell(self, *bodies: bytes | Record, now: int = NOW) -> None:
        for offset, body in enumerate(bodies):
            packed = journal.pack_records([body]) if isinstance(body, Record) else body
            self.index.apply(StreamMessage("stream", offset, packed), now)
        self.index.settle(now)

    def rows(self, now: int = NOW, **wanted: Any) -> list[Row]:
        return search.found(self.index.view, Filter(**wanted), now)

    def found(self, now: int = NOW, **wanted: Any) -> list[str]:
        return [row.id for row in self.rows(now, **wanted)]


@pytest.fixture
def streams() -> Streams:
    return Streams()


def test_what_waits_is_found_the_soonest_first(streams: Streams) -> None:
    streams.tell(record(1, NOW + 3 * MINUTE), record(2, NOW + MINUTE), record(3, NOW + 2 * MINUTE), record(4, NOW - 1))
    assert streams.found() == ["id-2", "id-3", "id-1"]
    assert streams.found(now=NOW + MINUTE) == ["id-3", "id-1"]
    assert streams.found(since=NOW + 2 * MINUTE, until=NOW + 3 * MINUTE) == ["id-3"]
    edges = [NOW, NOW + 2 * MINUTE, NOW + 9 * MINUTE]
    assert search.bars(streams.rows(), edges, []) == {"": [1, 2]}
    assert search.bars(streams.rows(), edges, ["q", "r"]) == {"q": [1, 2], "r": [0, 0]}
    assert search.bars(streams.rows(), edges, ["r"]) == {"r": [0, 0], "": [1, 2]}


def test_a_record_that_comes_twice_is_one(streams: Streams) -> None:
    streams.tell(record(1), record(1))
    streams.tell(record(1))
    assert streams.found() == ["id-1"]


@pytest.mark.parametrize("records_first", [True, False])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_index_has_what_became_of_a_message(
    streams: Streams, case: Case, records_first: bool, together: bool
) -> None:
    told: list[Any] = [*case.records, *case.says] if records_first else [*case.says, *reversed(case.records)]
    if together:
        streams.tell(*told)
    else:
        for one in told:
            streams.tell(one)
    for fate, is_cancelled in ((Fate.WAITS, False), (Fate.CANCELLED, True)):
        wanted = {number for number, became in case.became.items() if became is fate}
        assert {row.number for row in streams.rows(is_cancelled=is_cancelled)} == wanted


def test_search_finds_ids_names_and_parts_of_arguments(streams: Streams) -> None:
    streams.tell(
        record(1, id_=UUID, argsrepr="(4711, 'Ärger')", task="shop.review"),
        record(2, kwargsrepr="{'rate': '100%', 'path': 'a_b\\\\c'}", queue="mail"),
        record(3, argsrepr="('axb',)", task="shop.reports.review"),
    )
    for text, ids in {
        UUID: [UUID],
        UUID[:8].upper(): [UUID],
        "MAIL": ["id-2"],
        "47": [UUID],
        "ärger": [UUID],
        "%": ["id-2"],
        "a_b\\\\c'": ["id-2"],
        "'": ["id-2", UUID, "id-3"],
        "review reports": ["id-3"],
        f"{UUID[:4]} shop 47": [UUID],
        "review nothing": [],
    }.items():
        assert sorted(streams.found(text=text)) == sorted(ids), text
    assert streams.found(text="review", task="shop.review") == [UUID]
    assert streams.found(queue="mail") == ["id-2"]
    assert streams.found(queue="unknown") == []


def test_what_is_due_is_forgotten(streams: Streams) -> None:
    streams.tell(record(1), record(2, NOW + 9 * MINUTE, stamps={"a": "b"}), *changes.cancelled(["id-2"]))
    streams.index.settle(NOW + 5 * MINUTE)
    assert ([*streams.index.view.waiting], len(streams.index.view.cancelled)) == ([], 1)
    streams.index.settle(NOW + 10 * MINUTE)
    assert streams.index.view == ([], [], {})


def later(streams: Streams) -> int:
    return sum(streams.index.view.later.values())


def test_the_soonest_are_kept_and_the_others_counted_and_read_again(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_, "MOST", 10)
    everything = [record(number, NOW + number * MINUTE) for number in range(1, 31)]
    random.Random(1).shuffle(everything)
    for one in everything:
        streams.tell(one)
    kept = streams.rows()
    assert [row.number for row in kept] == [*range(1, len(kept) + 1)]
    assert (10 <= len(kept) <= 11, len(kept) + later(streams)) == (True, 30)
    streams.tell(record(31, NOW + 31 * MINUTE), record(32, NOW + 90), *changes.cancelled(["id-40"]))
    assert (streams.rows()[0].number, later(streams)) == (32, 31 + 1 - len(streams.rows()))
    streams.tell(record(40, NOW + 40 * MINUTE))  # is cancelled
    assert len(streams.rows()) + later(streams) == 32
    assert not streams.index.is_exhausted
    streams.tell(now=NOW + 7 * MINUTE)
    assert streams.index.is_exhausted
    streams.index.expect_all()
    streams.tell(*everything, now=NOW + 7 * MINUTE)
    kept = streams.rows(NOW + 7 * MINUTE)
    assert [row.number for row in kept] == [*range(8, 8 + len(kept))]
    assert len(kept) + later(streams) == 23


def test_shares_are_by_task_and_by_queue_the_most_first(streams: Streams) -> None:
    streams.tell(record(1, task="a"), record(2, queue="mail", task="b"), record(3, NOW + 2 * MINUTE, task="b"))
    assert search.shares(streams.rows(), "task") == [("b", 2), ("a", 1)]
    assert search.shares(streams.rows(), "queue") == [("q", 2), ("mail", 1)]
    assert streams.found(task="b") == ["id-2", "id-3"]


def test_a_view_never_changes(streams: Streams) -> None:
    streams.tell(record(1), record(2))
    view = streams.index.view
    streams.tell(record(3), *changes.cancelled(["id-1"]))
    assert [row.id for row in view.waiting] == ["id-1", "id-2"]
    assert streams.found() == ["id-2", "id-3"]


@given(st.lists(st.binary(max_size=60), min_size=10, max_size=20))
def test_no_message_stops_the_index(tails: list[bytes]) -> None:
    streams = Streams()
    for tail in tails:
        for kind in (b"", b"r", b"u", b"c", b"s", b"v"):
            streams.tell(kind + tail)
        streams.tell(record(5)._replace(properties=tail, body=tail))
    streams.tell(record(6))
    assert "id-6" in streams.found()


def test_text_that_no_page_can_have_is_stored_all_the_same(streams: Streams) -> None:
    streams.tell(record(1)._replace(id="\ud800"), record(2)._replace(id="\x00'\"<"))
    assert streams.found() == ["?", "\x00'\"<"]


def test_an_index_of_the_queues_of_an_app_has_no_others() -> None:
    bodies = [record(n, queue=queue) for n, queue in enumerate(("q", "others"), start=1)]
    for names, expected in ((QueueNames([kombu.Queue("q")], only=True), ["id-1"]), (QueueNames(), ["id-1", "id-2"])):
        streams = Streams(names)
        streams.tell(*bodies)
        assert streams.found() == expected
