"""The index without a broker: contents of streams in any order, and searches."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import kombu
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay.amqp.destinations import QueueNames
from celery_rabbit_delay.amqp.stream_consumer import StreamMessage
from celery_rabbit_delay.core import changes, journal
from celery_rabbit_delay.core.journal import Record
from celery_rabbit_delay.web import database, search
from celery_rabbit_delay.web import index as index_
from celery_rabbit_delay.web.database import CANCELLED, IndexDamaged, IndexUnusable, connect, reading
from celery_rabbit_delay.web.index import Index
from celery_rabbit_delay.web.search import Filter
from tests.kit.fates import CASES, MINUTE, NOW, SENT, UUID, Case, record


class Streams:
    """An index that is told what streams say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index = Index(path, "here")
        self.offset = 0

    def tell(self, *bodies: bytes | Record, now: int = NOW) -> None:
        entries = []
        for body in bodies:
            packed = journal.pack_records([body]) if isinstance(body, Record) else body
            entries.append(StreamMessage("stream", self.offset, packed))
            self.offset += 1
        self.index.apply(entries, QueueNames(), now)

    def found(self, now: int = NOW, **wanted: Any) -> list[str]:
        db = connect(self.path)
        try:
            return [row.id for row in search.page(db, Filter(**wanted), now)]
        finally:
            db.close()

    def ask(self, query: Any, *arguments: Any) -> Any:
        db = connect(self.path)
        try:
            return query(db, *arguments)
        finally:
            db.close()


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[Streams]:
    streams = Streams(tmp_path / "index.sqlite")
    yield streams
    streams.index.close()


def test_what_waits_is_found_the_soonest_first(streams: Streams) -> None:
    streams.tell(record(1, NOW + 3 * MINUTE), record(2, NOW + MINUTE), record(3, NOW + 2 * MINUTE), record(4, NOW - 1))
    assert streams.found() == ["id-2", "id-3", "id-1"]
    assert streams.found(now=NOW + MINUTE) == ["id-3", "id-1"]
    assert streams.found(since=NOW + 2 * MINUTE, until=NOW + 3 * MINUTE) == ["id-3"]
    assert streams.ask(search.extent, NOW) == (NOW + MINUTE, NOW + 3 * MINUTE)
    assert streams.ask(search.extent, NOW + 9 * MINUTE) == (None, None)
    assert streams.ask(search.bars, Filter(), NOW, [NOW, NOW + 2 * MINUTE, NOW + 9 * MINUTE]) == [1, 2]


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
    told: list[Any] = [*case.records, *case.says] if records_first else [*case.says, *case.records]
    if together:
        streams.tell(*told)
    else:
        for one in told:
            streams.tell(one)
    wanted = {number: database.STATES[fate] for number, fate in case.became.items() if fate in database.STATES}
    db = connect(streams.path)
    assert dict(db.execute("SELECT number, state FROM message")) == wanted
    db.close()


def test_search_finds_ids_names_and_parts_of_arguments(streams: Streams) -> None:
    streams.tell(
        record(1, id_=UUID, argsrepr="(4711, 'Ärger')", task="shop.review"),
        record(2, kwargsrepr="{'rate': '100%', 'path': 'a_b\\\\c'}", queue="mail"),
        record(3, argsrepr="('axb',)", task="shop.reports.review"),
    )
    for text, ids in {
        UUID: [UUID],
        UUID[:8]: [UUID],
        "review": [UUID, "id-3"],
        "MAIL": ["id-2"],
        "4711": [UUID],
        "47": [UUID],
        "Ärger": [UUID],
        "100%": ["id-2"],
        "a_b": ["id-2"],
        "%": ["id-2"],
        "a_b\\\\c'": ["id-2"],
        "nothing": [],
        "'": ["id-2", UUID, "id-3"],
        "id-": ["id-2", "id-3"],
        "review reports": ["id-3"],
        "REVIEW 4711 q": [UUID],
        "id:id- task:review": ["id-3"],
        "args:review": [],
        "queue:mail args:\"'rate': '100%\"": ["id-2"],
        "task:mail": [],
        "id:mail": [],
        "queue:id-": [],
        f"id:{UUID[:4]} task:shop args:47": [UUID],
        "review nothing": [],
    }.items():
        assert sorted(streams.found(text=text)) == sorted(ids), text
        assert streams.ask(search.count, Filter(text=text), NOW) == len(ids), text
        edges = [NOW, NOW + MINUTE, NOW + 2 * MINUTE]
        assert streams.ask(search.bars, Filter(text=text), NOW, edges) == [0, len(ids)], text
    assert streams.found(text="review", task="shop.review") == [UUID]
    assert streams.found(queue="mail") == ["id-2"]
    assert streams.found(queue="unknown") == []


def told(amount: int, seed: int) -> Iterable[Record]:
    dice = random.Random(seed)
    for number in range(amount):
        due = NOW + dice.randrange(1, 40) * MINUTE
        yield record(number, due, argsrepr=f"({dice.choice(['rare', 'often', 'often', 'often'])}, {number})")


@pytest.mark.parametrize("text", ["", "often", "rare", "shop", "ft", "shop often", "args:often task:sh"])
@pytest.mark.parametrize("near", [20, 20_000])
def test_pages_have_everything_once_forwards_and_backwards(
    streams: Streams, text: str, near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_NEAR", near)
    records = list(told(400, 1))
    for at in range(0, 400, 100):
        streams.tell(*records[at : at + 100])
    wanted, db = Filter(text=text), connect(streams.path)
    forwards: list[list[search.Row]] = [search.page(db, wanted, NOW)]
    while len(forwards[-1]) > search.PAGE:
        forwards[-1].pop()
        forwards.append(search.page(db, wanted, NOW, forwards[-1][-1].place))
    everything = [row for page in forwards for row in page]
    assert everything == sorted(everything, key=lambda row: row.place)
    assert len({row.row for row in everything}) == len(everything) == search.count(db, wanted, NOW)
    assert all(
        word.partition(":")[2] in row.arguments + row.task if ":" in word else word in row.arguments + row.task
        for row in everything
        for word in text.split()
    )
    backwards = search.page(db, wanted, NOW, everything[-1].place, back=True)
    assert backwards[-search.PAGE :] == everything[:-1][-search.PAGE :]
    db.close()


def test_what_is_due_is_removed_from_the_search_as_well(streams: Streams) -> None:
    streams.tell(record(1, argsrepr="('needle',)"), record(2, NOW + 9 * MINUTE), *changes.cancelled(["id-2"], SENT))
    assert streams.index.prune(NOW + 5 * MINUTE) == 1
    assert streams.index.prune(NOW + 5 * MINUTE) == 0
    assert streams.index.prune(NOW + 10 * MINUTE) == 1
    db = connect(streams.path)
    assert db.execute("SELECT count(*) FROM message").fetchone() == (0,)
    assert db.execute("SELECT rowid FROM search WHERE arguments LIKE '%needle%'").fetchall() == []
    db.close()


def test_shares_are_by_task_and_by_queue_the_most_first(streams: Streams) -> None:
    streams.tell(record(1, task="a"), record(2, queue="mail", task="b"), record(3, NOW + 2 * MINUTE, task="b"))
    assert streams.ask(search.shares, "task", NOW) == [("b", 2, NOW + MINUTE), ("a", 1, NOW + MINUTE)]
    assert streams.ask(search.shares, "queue", NOW) == [("q", 2, NOW + MINUTE), ("mail", 1, NOW + MINUTE)]
    assert streams.found(task="b") == ["id-2", "id-3"]
    streams.tell(*changes.cancelled(["id-2"], SENT))
    assert streams.ask(search.shares, "queue", NOW, CANCELLED) == [("mail", 1, NOW + MINUTE)]


def test_copies_of_one_message_are_found_together(streams: Streams) -> None:
    streams.tell(record(1, id_="same"), record(2, id_="same"), record(3))
    [first, *_] = streams.ask(search.find, [1])
    assert {row.number for row in streams.ask(search.copies, first, NOW)} == {1, 2}
    assert streams.ask(search.find, [99]) == []


def test_an_index_goes_on_where_it_stopped_and_may_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    streams = Streams(path)
    streams.tell(record(1), record(4))
    cancelled = [StreamMessage("root.changes", 0, one) for one in changes.cancelled(["id-2", "id-4"], SENT)]
    streams.index.apply(cancelled, QueueNames(), NOW)
    assert set(streams.index.places()) == {"stream", "root.changes"}
    streams.index.close()
    index = Index(path, "here")
    assert {name: place.offset for name, place in index.places().items()} == {"stream": 1}
    entries = [StreamMessage("stream", 2, journal.pack_records([record(2), record(3)]))]
    index.apply([*entries, *cancelled], QueueNames(), NOW)
    assert streams.found() == ["id-1", "id-3"]
    index.clear()
    assert index.places() == {}
    assert streams.found() == []
    index.apply([StreamMessage("stream", 0, journal.pack_records([record(2)]))], QueueNames(), NOW)
    assert streams.found(text="id-2") == ["id-2"]
    assert index.prune(NOW + 2 * MINUTE) == 1
    index.close()


def test_an_index_is_that_of_one_cascade_and_one_process(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    index = Index(path, "here")
    with pytest.raises(IndexUnusable, match="in use by another process"):
        Index(path, "here")
    index.close()
    with pytest.raises(IndexUnusable, match="is the index of here, but this is there"):
        Index(path, "there")
    db = connect(path, writable=True)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(IndexUnusable, match="made by another release"):
        Index(path, "here")


@pytest.mark.parametrize("version", [0, 1, 7])
def test_the_file_of_another_program_stays_as_it_is(tmp_path: Path, version: int) -> None:
    path, lock = tmp_path / "shop.sqlite", tmp_path / "shop.sqlite.lock"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(f"CREATE TABLE orders (id INTEGER); PRAGMA user_version = {version};")
    lock.write_text("theirs")
    before = path.read_bytes()
    with pytest.raises(IndexUnusable, match="is a file of another program: name another file"):
        Index(path, "here")
    assert path.read_bytes() == before
    assert lock.read_text() == "theirs"
    assert {file.name for file in tmp_path.iterdir()} == {path.name, lock.name}


def test_an_index_whose_making_was_interrupted_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "index.sqlite"
    with monkeypatch.context() as interrupted:
        interrupted.setattr(index_, "TABLES", f"{database.TABLES} SELECT no_such_function();")
        with pytest.raises(IndexUnusable, match="cannot be used as an index"):
            Index(path, "here")
    Index(path, "here").close()


@given(st.lists(st.binary(max_size=60), min_size=10, max_size=20))
def test_no_message_stops_the_index(tails: list[bytes]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        streams = Streams(Path(directory, "index"))
        for tail in tails:
            for kind in (b"", b"r", b"u", b"c", b"s", b"v"):
                streams.tell(kind + tail)
            streams.tell(Record(NOW + 1, 5, "id", tail, tail))
        streams.tell(record(6))
        assert "id-6" in streams.found()
        streams.index.close()


@pytest.mark.parametrize("retries", [True, -1, 1 << 62, "3", 1.5, [1], None])
def test_a_number_of_retries_that_somebody_made_up_counts_as_none(streams: Streams, retries: Any) -> None:
    streams.tell(record(1, retries=retries), record(2, retries=3))
    assert [row.retries for row in streams.ask(search.find, [1, 2])] == [0, 3]


def test_a_name_is_not_taken_for_another_after_an_error(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as failing:
        failing.setattr(index_, "_INSERT", "INSERT INTO nothing")
        with pytest.raises(sqlite3.Error):
            streams.tell(record(1, task="shop.lost"))
    streams.tell(record(1, task="shop.a", queue="qa"), record(2, task="shop.lost", queue="qb"))
    assert {row.name for row in streams.ask(search.shares, "task", NOW)} == {"shop.a", "shop.lost"}
    assert streams.found(task="shop.lost") == ["id-2"]


def test_a_search_finds_any_number_of_names(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_NAMES", 5)
    monkeypatch.setattr(search, "_NEAR", 0)
    streams.tell(*(record(n, NOW + n + 1, task=f"shop.t{n:02}") for n in range(20)))
    streams.index.prune(NOW + 20)  # their names stay
    streams.tell(*(record(n, NOW + n, f"x{n}", task=f"shop.t{n:02}") for n in range(20, 32)))
    wanted = [f"x{n}" for n in range(20, 32)]
    assert streams.found(text="shop.t") == wanted
    assert streams.ask(search.count, Filter(text="shop.t"), NOW) == 12
    assert streams.found(text="shop.t2") == wanted[:10]
    assert streams.found(text="shop.t3") == wanted[10:]


def test_text_that_no_file_can_hold_is_stored_all_the_same(streams: Streams) -> None:
    streams.tell(record(1)._replace(id="\ud800"), record(2)._replace(id="\x00'\"<"))
    assert streams.found() == ["?", "\x00'\"<"]


def overwrite(path: Path, *pages: int) -> None:
    """Damage pages of the file of an index, the first of which is 0."""
    with path.open("r+b") as file:
        for page in pages:
            file.seek(4096 * page)
            file.write(b"\xff" * 4096)


def test_a_damaged_index_is_noticed_by_readers(tmp_path: Path) -> None:
    streams = Streams(tmp_path / "index.sqlite")
    streams.tell(*(record(n) for n in range(100)))
    streams.index.close()
    overwrite(streams.path, *range(2, 10))
    with pytest.raises(IndexDamaged, match=f"the index {streams.path} is damaged"), reading(streams.path) as db:
        search.page(db, Filter(), NOW)


def test_an_index_that_is_found_damaged_at_the_start_is_begun_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    streams = Streams(tmp_path / "index.sqlite")
    streams.tell(record(1))
    streams.index.close()
    overwrite(streams.path, *range(1, 9))
    again = Streams(streams.path)
    assert f"A new index is begun: the index {streams.path} is damaged" in caplog.text
    assert again.index.places() == {}
    again.tell(record(2))
    assert again.found() == ["id-2"]
    assert {file.stat().st_mode & 0o077 for file in tmp_path.glob("index.sqlite*") if file.suffix != ".lock"} == {0}
    again.index.close()


def test_a_file_that_is_no_longer_seen_to_be_an_index_is_left_alone(tmp_path: Path) -> None:
    streams = Streams(tmp_path / "index.sqlite")
    streams.index.close()
    overwrite(streams.path, 0)
    before = streams.path.read_bytes()
    with pytest.raises(IndexUnusable, match="file is not a database: delete it if it was one, or name another file"):
        Index(streams.path, "here")
    assert streams.path.read_bytes() == before


def test_an_index_of_the_queues_of_an_app_has_no_others_and_is_built_again_for_others(tmp_path: Path) -> None:
    mine = QueueNames([kombu.Queue("q")], only=True)
    entries = [
        StreamMessage("stream", n, journal.pack_records([record(n, queue=queue)]))
        for n, queue in enumerate(("q", "others"), start=1)
    ]
    path = tmp_path / "index"
    for names, expected in ((mine, ["id-1"]), (mine, ["id-1"]), (QueueNames(), ["id-1", "id-2"])):
        index = Index(path, "here", names.scope)
        again = index.places() == {}
        index.apply(entries if again else [], names, NOW)
        index.close()
        with reading(path) as db:
            assert [row.id for row in search.page(db, Filter(), NOW)] == expected
