from __future__ import annotations

import copy
import json
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay import DelayError, Options
from celery_rabbit_delay.delay.core import routing_key
from celery_rabbit_delay.operate.all_parts import Topology
from celery_rabbit_delay.schedule.core import changes, journal, streams
from celery_rabbit_delay.schedule.core.changes import Changes, Pause
from celery_rabbit_delay.schedule.core.journal import Record
from celery_rabbit_delay.unreadable import Unreadable

CASCADE = Options().cascade
UUID = "7e2b6a4c-5d4e-4e0b-8d4b-0c1f6ed7f2a1"
YEAR = 365 * 24 * 3600
SOON = (int(time.time()) + 60) * 1000

numbers = st.integers(0, 2**streams.NUMBER_BITS - 1)
records = st.builds(
    Record,
    numbers,
    numbers,
    st.text(max_size=50).filter(lambda t: t.isprintable()),
    st.binary(),
    st.binary(),
)


def read(*messages: bytes) -> Changes:
    known = Changes(time.time)
    for message in messages:
        known.apply(message)
    return known


@given(st.lists(records, max_size=5))
def test_records_come_out_of_a_message_as_they_went_in(wanted: list[Record]) -> None:
    assert journal.unpack_records(journal.pack_records(wanted)) == wanted


def test_what_is_no_record_holds_none() -> None:
    for other in (changes.void(5, 1), b""):
        assert journal.unpack_records(other) == []


@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_a_message_of_records_that_was_cut_is_an_error(wanted: list[Record], data: st.DataObject) -> None:
    whole = journal.pack_records(wanted)
    ends = [len(journal.pack_records(wanted[:count])) for count in range(len(wanted))]
    cut = data.draw(st.integers(ends[0] + 1, len(whole) - 1).filter(lambda length: length not in ends))
    with pytest.raises(Unreadable, match="it is not what this package writes"):
        journal.unpack_records(whole[:cut])


@pytest.mark.parametrize(
    "forged",
    [
        b"u123",
        b"u" + b"0" * 19,
        b"c{",
        b"c" + b"[" * 100_000,
        b"c5",
        b's{"a": "b", "c": 5}',
        b"s[]",
        b"v1",
        b"p",
        b"p{}",
        b'p["mail"]',
        b'p["mail", "now"]',
        b'p["mail", NaN]',
        b"b{",
    ],
    ids=lambda forged: forged[:20].decode(errors="replace"),
)
def test_a_change_that_somebody_made_up_is_an_error_and_changes_nothing(forged: bytes) -> None:
    read = Changes(time.time)
    before = vars(copy.deepcopy(read))
    with pytest.raises(Unreadable, match="it is not what this package writes"):
        read.apply(forged)
    assert vars(read) == before


@given(
    st.sampled_from(b"rucsvp"), st.binary() | st.recursive(st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_nothing_in_a_stream_raises_another_error(kind: int, content: bytes) -> None:
    for read in (Changes(time.time).apply, journal.unpack_records):
        with suppress(Unreadable):
            read(bytes([kind]) + content)


@given(st.floats(0.001, 10 * YEAR))
def test_a_message_is_recorded_where_it_is_kept_as_long_as_it_waits(delay: float) -> None:
    cascade = Options(max_delay=max(1, delay)).cascade
    stream = streams.journal_for(cascade, delay)
    assert delay < stream.max_age
    if 600 < delay <= YEAR:  # but not for much longer
        assert stream.max_age < 7.5 * delay
    assert delay + streams.VOID_KEPT <= streams.changes(cascade, delay).max_age


@given(st.one_of(st.floats(1, YEAR), st.floats(YEAR, 10 * YEAR)), st.integers(1, 5000))
def test_all_cascades_of_a_prefix_share_their_streams(max_delay: float, tick: int) -> None:
    cascade = Options(max_delay=max(max_delay, tick / 1000), tick=tick / 1000).cascade
    for one in (cascade, replace(cascade, by_time=True)):
        # Changes are kept longer where a delay may be longer than a year.
        usual = streams.all_streams(CASCADE, max_delay if max_delay <= YEAR else 10 * YEAR)
        assert streams.all_streams(one, max_delay) == usual
        assert usual[1:] == streams.all_streams(CASCADE)[1:]
    assert streams.changes(CASCADE).max_age == YEAR + streams.VOID_KEPT
    assert streams.changes(Options(prefix="other").cascade) != streams.changes(CASCADE)


def test_short_delays_need_few_streams() -> None:
    names = [stream.name for stream in streams.journals(CASCADE, 3600)]
    assert names == [f"celery-rabbit-delay.v3.journal.{seconds}" for seconds in (600, 3600)]
    assert len(list(streams.journals(CASCADE))) == 8


def test_a_streams_routing_key_matches_no_level_and_no_user_may_send_it() -> None:
    for stream in (*streams.journals(CASCADE), streams.changes(CASCADE)):
        assert routing_key.is_reserved(stream.routing_key)
        assert not set(map(routing_key.word, CASCADE.levels)) & set(stream.routing_key.split("."))


def test_a_number_is_one_that_amqp_and_json_can_carry() -> None:
    found = {streams.new_number() for _ in range(1000)}
    assert len(found) == 1000
    assert all(0 <= number < 2**53 and json.loads(json.dumps(number)) == number for number in found)


@given(st.lists(st.one_of(st.uuids().map(str), st.text(max_size=40))), st.uuids())
def test_cancelled_ids_are_cancelled_and_no_others(ids: list[str], other: uuid.UUID) -> None:
    known = Changes(time.time)
    told = [id_ for message in changes.cancelled(ids) for id_ in known.apply(message)]
    assert sorted(told) == sorted(set(ids))
    assert all(known.cancels(id_) for id_ in ids if id_)
    assert not known.cancels(str(other))


@given(st.lists(st.one_of(st.uuids().map(str), st.text(max_size=40)), unique=True), st.lists(st.uuids(), unique=True))
def test_an_id_that_is_known_to_be_cancelled_is_not_told_again(ids: list[str], later: list[uuid.UUID]) -> None:
    known = read(*changes.cancelled(ids))
    new = [str(id_) for id_ in later if str(id_) not in ids]
    told = [id_ for message in changes.cancelled([*ids, *new]) for id_ in known.apply(message)]
    assert sorted(told) == sorted(new)


def test_an_id_that_only_looks_like_a_uuid_is_not_taken_for_it() -> None:
    id_ = str(uuid.UUID(int=0xABC << 80))
    known = read(*changes.cancelled([id_.upper()]))
    assert known.cancels(id_.upper())
    assert not known.cancels(id_)
    known = read(*changes.cancelled(["x" * 36]))
    assert (known.cancels("x" * 36), known.cancels("y" * 36)) == (True, False)


def test_stamps_beyond_two_megabytes_are_refused() -> None:
    with pytest.raises(DelayError, match="revoke at most 2,000,000 bytes of them at a time"):
        changes.cancelled_stamps({"customer": ["7" * 2_000_000]})


def test_many_ids_take_sixteen_bytes_each() -> None:
    assert sum(map(len, changes.cancelled(invented(0, 20_000)))) == 320_002


def test_however_many_ids_are_cancelled_no_message_is_too_large_for_rabbitmq() -> None:
    uuids = [str(uuid.UUID(int=number)) for number in range(25_000)]
    others = ["\x01" * 249 + f"{number:06}" for number in range(25_000)]
    messages = list(changes.cancelled([*uuids, *others]))
    assert max(map(len, messages)) <= changes.MAX_BYTES < 16 * 1024 * 1024
    known = read(*messages)
    assert all(map(known.cancels, (*uuids, *others)))


def invented(first: int, amount: int) -> list[str]:
    return [str(uuid.UUID(int=number)) for number in range(first, first + amount)]


def test_of_many_cancelled_ids_the_last_ones_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "KEPT", 100)
    known = Changes(time.time)
    for first in range(0, 1000, 10):
        for message in changes.cancelled([*invented(first, 10), *map(str, range(first, first + 10))]):
            known.apply(message)
        assert known.has_forgotten is (first >= 200)
        last = range(max(0, first - 89), first + 10)
        assert all(known.cancels(str(number)) and known.cancels(str(uuid.UUID(int=number))) for number in last)
    assert not any(map(known.cancels, [*invented(0, 790), *map(str, range(790))]))


@pytest.mark.parametrize("is_first_due", [0, 1])
def test_of_many_void_copies_those_due_last_are_known(is_first_due: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "KEPT", 1000)
    known = Changes(time.time)
    for number in range(10_000):
        known.apply(changes.void(number, 2**45 - is_first_due * number))
    latest = range(1000) if is_first_due else range(9000, 10_000)
    assert all(map(known.voids, latest))
    assert sum(map(known.voids, range(10_000))) <= 2000


def test_a_stamp_cancels_what_has_one_of_its_values() -> None:
    known = read(
        changes.cancelled_stamps({"customer": ["7"]}),
        changes.cancelled_stamps({"customer": ["8"], "batch": "red"}),
    )
    for stamps, cancelled in (
        ({"customer": ["8"]}, True),
        ({"customer": "8"}, True),
        ({"batch": ["blue", "red"]}, True),
        ({"customer": ["9"], "batch": None}, False),
        ({"other": ["7"]}, False),
        ("nonsense", False),
    ):
        assert known.cancels("id", {"stamped_headers": ["customer"], "stamps": stamps}) is cancelled
    assert not known.cancels("id", {})


def test_an_id_that_is_restored_is_told_and_cancelled_anew() -> None:
    known = Changes(time.time)
    for ids in (["id"], [UUID]):
        for make in (changes.cancelled, changes.restored) * 2:
            assert [known.apply(message) for message in make(ids)] == [ids]
            assert known.has_cancelled(ids[0]) is (make is changes.cancelled)


def test_an_empty_id_cancels_nothing() -> None:
    known = read(*changes.cancelled([""]))
    assert not known.cancels("", {})


def test_a_void_copy_is_told_from_others() -> None:
    known = read(changes.void(17, SOON), b"")
    assert [known.voids(number) for number in (17, 18, None)] == [True, False, False]


pauses = st.builds(Pause, st.sampled_from("abc"), st.none() | st.integers(0, 100))


@given(st.lists(pauses), st.integers(0, 100), st.integers(0, 100))
def test_the_last_pause_of_each_queue_counts_until_it_is_over(said: list[Pause], then: int, now: int) -> None:
    known = Changes(lambda: then / 1000)
    for one in said:
        assert known.apply(changes.pause(one)) == []
    last = {one.queue: one for one in said}
    now = max(now, then)
    assert known.paused(now) == {name: one for name, one in last.items() if one.until is None or one.until > now}


def test_a_pause_says_when_it_ends() -> None:
    assert (Pause("a").end, Pause("b", 1000).end) == (None, datetime.fromtimestamp(1, timezone.utc))


@given(st.lists(st.integers(-100, 100), min_size=1))
def test_a_void_copy_is_forgotten_after_a_time_and_not_before(due: list[int]) -> None:
    """`due` in days."""
    day, now = 24 * 3600, 100
    known = Changes(lambda: now * day)
    for number, when in enumerate(due):
        known.apply(changes.void(number, (100 + when) * day * 1000))
    late = [number for number, when in enumerate(due) if 100 + when < now - 30]
    assert not any(map(known.voids, late))
    now = 180
    for number in range(1000, 2000):  # it looks for old ones at each thousand
        known.apply(changes.void(number, now * day * 1000))
    kept = {number for number, when in enumerate(due) if 100 + when >= now - 30}
    assert set(filter(known.voids, range(len(due)))) == kept


def test_ages_are_whole_seconds_as_rabbitmq_wants_them() -> None:
    for stream in (*streams.journals(CASCADE), streams.changes(CASCADE)):
        assert stream.queue.arguments["x-max-age"] == f"{stream.max_age}s"


def test_a_message_has_a_hundred_records_of_one_stream_or_100_kb_or_one_that_is_larger() -> None:
    small, large, huge = (Record(1, 2, "id", b"", bytes(size)) for size in (1, 30_000, 200_000))
    one, other = streams.journals(CASCADE)[:2]
    sent = [(one, small)] * 250 + [(other, large), (one, large)] * 4 + [(one, huge)]
    packs = list(journal.packs(sent))
    sizes = [(stream, len(pack)) for stream, pack in packs]
    assert sizes == [(one, 100), (one, 100), (other, 3), (one, 53), (one, 1), (one, 1), (other, 1)]
    assert sorted((stream, record) for stream, pack in packs for record in pack) == sorted(sent)


def test_a_record_knows_about_how_large_it_is() -> None:
    record = Record(1, 2, "id", b"properties", b"body")
    message = journal.pack_records([record])
    assert record.size <= len(message) <= record.size + 20


def test_a_topology_may_have_streams_each_led_to_from_ingest() -> None:
    all_of_them = streams.all_streams(CASCADE)
    topology = Topology.of([CASCADE], streams=all_of_them)
    for stream in all_of_them:
        assert topology.queues[stream.name] == stream.queue
        assert {CASCADE.streams_mark[1], CASCADE.stream_binding(stream)} <= topology.bindings.keys()
    assert topology.exchanges.keys() - Topology.of([CASCADE]).exchanges.keys() == {CASCADE.streams_root}
