from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.utils.time import maybe_iso8601, maybe_make_aware
from dateutil.parser import isoparse
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay import InvalidDelay
from celery_rabbit_delay.delay.core import due

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
TASK = {"task": "shop.order", "id": "1", "eta": "2026-03-01T12:00:10+00:00"}


@pytest.mark.parametrize(
    ("headers", "delayed"),
    [
        (None, False),
        ({}, False),
        ({"task": "t", "eta": None}, False),
        ({"eta": "2026-03-01T12:00:10"}, False),  # not a task: an eta of the user's own
        (TASK, True),
        ({"x-delay": 5}, True),
        ({"x-delay": 0}, False),
    ],
)
def test_tasks_with_an_eta_and_messages_with_x_delay_are_delayed(headers: Any, delayed: bool) -> None:
    assert (due.delay_of(headers, NOW) != 0) is delayed


@pytest.mark.parametrize("eta", ["2026-03-01T12:00:10", "2026-03-01T12:00:10+00:00", "2026-03-01T14:00:10+02:00"])
def test_an_eta_without_a_time_zone_is_in_utc_as_celerys_worker_reads_it(eta: str) -> None:
    assert due.delay_of({**TASK, "eta": eta}, NOW) == 10_000_000
    assert maybe_make_aware(maybe_iso8601(eta), ZoneInfo("Europe/Berlin")) == NOW + timedelta(seconds=10)


def test_an_x_delay_is_enough_and_the_later_of_eta_and_x_delay_counts() -> None:
    assert due.delay_of({"x-delay": 5000}, NOW) == 5_000_000
    assert due.delay_of({**TASK, "x-delay": 5000}, NOW) == 10_000_000
    assert due.delay_of({**TASK, "x-delay": 20000}, NOW) == 20_000_000


def test_a_bad_header_is_an_error_even_beside_a_good_one() -> None:
    with pytest.raises(InvalidDelay):
        due.delay_of({**TASK, "x-delay": "soon"}, NOW)


@pytest.mark.parametrize(
    "text",
    ["2026-03-01T13:00:00+00:00", "2026-03-01T13:00:00Z", "20260301T130000Z", "2026-03-01 14:00:00+01:00"],
)
def test_an_iso_string_is_read_as_celery_reads_it(text: str) -> None:
    assert due.delay_of({**TASK, "eta": text}, NOW) == 3_600_000_000


@given(st.datetimes(timezones=st.none() | st.timezones() | st.just(timezone.utc)), st.sampled_from(["auto", "seconds"]))
def test_what_celery_writes_is_read_as_celery_reads_it(when: datetime, precision: str) -> None:
    text = when.isoformat(timespec=precision)
    try:
        expected = isoparse(text)
    except ValueError:  # offsets of seconds, as zones had in the 19th century
        with pytest.raises(InvalidDelay):
            due.eta_in_utc(text)
        return
    try:
        in_utc = (expected if expected.tzinfo else expected.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except OverflowError:
        with pytest.raises(InvalidDelay):
            due.eta_in_utc(text)
    else:
        found = due.eta_in_utc(text)
        assert found == in_utc
        assert found.tzinfo is timezone.utc


@pytest.mark.parametrize("value", ["tomorrow", "", "nan", "2026-13-01", 5, float("nan"), None, [], b"\xff", object()])
def test_an_unreadable_eta_is_an_error_that_says_what_to_use(value: object) -> None:
    with pytest.raises(InvalidDelay, match="use an aware datetime, or an ISO 8601 string"):
        due.eta_in_utc(value)


def test_an_eta_keeps_microseconds() -> None:
    assert due.delay_of({**TASK, "eta": NOW + timedelta(microseconds=1)}, NOW) == 1
    assert due.delay_of({**TASK, "eta": NOW - timedelta(days=1)}, NOW) == -86_400_000_000


def test_a_zone_that_knows_no_offset_for_a_date_makes_it_unreadable() -> None:
    class Local(tzinfo):
        def utcoffset(self, when: datetime | None) -> timedelta:
            raise OverflowError("mktime argument out of range")

        def dst(self, when: datetime | None) -> None:
            pass

        def tzname(self, when: datetime | None) -> None:
            pass

    with pytest.raises(InvalidDelay, match=r"cannot read the eta datetime.datetime\(9999, 12, 31"):
        due.eta_in_utc(datetime(9999, 12, 31, tzinfo=Local()))


@pytest.mark.parametrize(
    ("value", "microseconds"), [(0, 0), (1, 1000), (0.5, 500), ("1500", 1_500_000), (0.0001, 1), (-1, 0), ("-5", 0)]
)
def test_x_delay_is_milliseconds_rounded_up(value: object, microseconds: int) -> None:
    assert due.parse_x_delay(value) == microseconds


@pytest.mark.parametrize("value", ["soon", "", float("nan"), float("inf"), "inf", True, [], {}, object()])
def test_an_unreadable_x_delay_is_an_error_that_says_what_to_use(value: object) -> None:
    with pytest.raises(InvalidDelay, match="use a number of milliseconds"):
        due.parse_x_delay(value)


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    "eta",
    [
        "9999-12-31T23:59:00-12:00",
        "0001-01-01T00:00:00+14:00",
        "0001-01-01T00:00",  # Berlin's time
        datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-5))),
    ],
)
def test_a_due_time_that_utc_has_no_year_for_is_an_error(eta: object) -> None:
    with pytest.raises(InvalidDelay, match=r"cannot read the eta .*use an aware datetime, or an ISO 8601 string"):
        due.eta_in_utc(eta, BERLIN)
