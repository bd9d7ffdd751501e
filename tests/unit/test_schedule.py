"""The description of a waiting message, also of a forged one."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay.amqp.schedule import Scheduled, describe
from celery_rabbit_delay.cli.schedule import _as_data, format_scheduled
from celery_rabbit_delay.core import headers
from celery_rabbit_delay.core.journal import Record
from celery_rabbit_delay.core.streams import Unreadable

DUE = datetime(2030, 1, 31, 12, tzinfo=timezone.utc)
RECORD = Record(headers.milliseconds(DUE), 5, "my-id", "", b"", b"x")

#: What a header may hold, as py-amqp reads it.
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.just(Decimal("1.5"))
    | st.datetimes()
    | st.binary(max_size=5)
    | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
names = ("task", "argsrepr", "kwargsrepr", "retries", "CC", headers.HEADER)


def described(record: Record = RECORD, **forged: Any) -> Scheduled:
    of_task = {"task": "shop.review", "id": "my-id", "argsrepr": "(1,)", "kwargsrepr": "{}", "retries": 2}
    return describe(record, {**headers.wrap(of_task, "root.", "orders", "q", DUE, 5), **forged}, {("orders", "q"): "Q"})


def test_what_a_record_says_is_shown() -> None:
    assert described() == ("my-id", "shop.review", "Q", DUE, "(1,)", "{}", "orders", "q", None, 2, 5)


@pytest.mark.parametrize("retries", [b"\xff", True, Decimal(1), 1.5, -1, 1 << 40, "3", {}, datetime(2030, 1, 1), None])  # noqa: DTZ001  as py-amqp reads it
def test_retries_that_are_no_number_of_them_are_none(retries: Any) -> None:
    assert described(retries=retries).retries == 0


@given(
    st.builds(Record, st.integers(0, (1 << 64) - 1), st.just(5), st.text(), st.text(), st.just(b""), st.just(b"x")),
    st.dictionaries(st.sampled_from(names), values),
)
def test_whatever_somebody_made_up_is_shown_or_is_unreadable(record: Record, forged: dict[str, Any]) -> None:
    try:
        found = described(record, **forged)
    except Unreadable:
        return
    assert json.loads(json.dumps(_as_data(found)))["retries"] == found.retries
    assert format_scheduled(found).isprintable()


@pytest.mark.parametrize("due", [253_402_300_800_000, (1 << 63) - 1, (1 << 64) - 1])
def test_a_due_time_beyond_the_year_9999_is_unreadable(due: int) -> None:
    with pytest.raises(Unreadable, match="it is not what this package writes"):
        described(RECORD._replace(due=due))
