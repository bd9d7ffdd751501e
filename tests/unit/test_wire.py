"""Properties are read as py-amqp does it, and what is odd is left to it."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import amqp
import pytest
from amqp.serialization import dumps
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay.core import wire

short_strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
fields = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda items: st.lists(items) | st.tuples(items) | st.dictionaries(short_strings, items),
    max_leaves=10,
)
texts = ["content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type"]
properties = st.fixed_dictionaries(
    {},
    optional={
        "application_headers": st.dictionaries(short_strings, fields),
        "delivery_mode": st.integers(1, 2),
        "priority": st.none() | st.integers(0, 255),
        "timestamp": st.integers(0, (1 << 64) - 1),
        **dict.fromkeys([*texts, "user_id", "app_id", "cluster_id"], short_strings),
    },
)


def by_py_amqp(properties: dict[str, Any]) -> Any:
    return amqp.Message("", **properties)._serialize_properties()


@given(properties)
def test_properties_are_the_bytes_that_py_amqp_sends(properties: dict[str, Any]) -> None:
    assert wire.encode_properties(properties) == amqp.Message("", **properties)._serialize_properties()


def read_by_py_amqp(data: bytes) -> Any:
    message = amqp.Message()
    message._load_properties(60, data, 0)
    return message.properties


@given(properties)
def test_properties_are_what_py_amqp_reads(properties: dict[str, Any]) -> None:
    data = by_py_amqp(properties)
    assert repr(wire.decode_properties(data)) == repr(read_by_py_amqp(data))


@given(properties, st.data())
def test_broken_properties_are_not_known_or_what_py_amqp_reads(properties: dict[str, Any], data: st.DataObject) -> None:
    broken = bytearray(by_py_amqp(properties))
    at = data.draw(st.integers(0, len(broken) - 1))
    if data.draw(st.booleans()):
        del broken[at:]
    else:
        broken[at] = data.draw(st.integers(0, 255))
    decoded = wire.decode_properties(bytes(broken))
    assert decoded is None or repr(decoded) == repr(read_by_py_amqp(bytes(broken)))


def headers(*fields: bytes) -> bytes:
    """Return properties that are nothing but headers."""
    table = b"".join(fields)
    return b"\x20\x00" + len(table).to_bytes(4, "big") + table


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        headers(b"\1nT" + bytes(8)),  # a time
        headers(b"\1nx\0\0\0\1\0"),  # bytes
        headers(b"\1ns\0\1"),  # a number of RabbitMQ's, or a short string
        headers(b"\1nS\0\0\0\1\xff"),  # no UTF-8
        headers(b"\1\xffV"),
        headers(b"\1nS\0\0\0\2a"),  # longer than all of it
        headers(b"\1nF\0\0\0\1\1nV"),  # longer than its table
        headers(b"\1nA\0\0\0\2I\0\0\0\1"),
        headers(b"\1n", *(b"A" + (5 * n).to_bytes(4, "big") for n in range(1500, -1, -1))),  # too deep
        b"\x00\x02",  # an unknown flag
        b"\x00\x01\x00\x00",  # more flags
        b"\x00\x00more",
    ],
)
def test_what_is_odd_is_not_known(odd: bytes) -> None:
    assert wire.decode_properties(odd) is None


def test_headers_may_stay_the_bytes_that_they_are() -> None:
    data = by_py_amqp(
        {"application_headers": {"list": [1], "text": "x", "no": None, "table": {"text": "y"}, "other": [2]}}
    )
    decoded = wire.decode_properties(data, {"list", "text", "no", "table"})
    assert decoded == {
        "application_headers": {"list": b"I\0\0\0\1", "text": b"x", "no": None, "table": {"text": "y"}, "other": [2]}
    }


NEW_YEAR = datetime(2026, 1, 1, tzinfo=timezone.utc)


def list_of(*items: Any) -> bytes:
    return bytes(dumps("A", [list(items)])[4:])


@pytest.mark.parametrize(
    ("tables", "begin"),
    [
        (list_of(), True),
        (list_of({"queue": "ours.1", "count": 1, "time": NEW_YEAR}, {"keys": ["k"], "queue": "ours.2"}), True),
        (list_of({"queue": "ours.1"}, {"queue": "theirs"}), False),
        (list_of({"queue": "ours.1"}, {"exchange": "ours.2"}), False),
        (list_of({"queue": "ours.1"}, {}), False),
        (list_of({"queues": "ours.1"}), False),
        (list_of({"exchange": "\x05queueS\0\0\0\x06ours.1"}), False),
        (list_of({"queue": ["ours.1"]}), False),
        (list_of({"queue": None}), False),
        (list_of({"queue": "ours.1", "price": Decimal("1.5")}), False),  # not known
        (list_of("ours.1"), False),
        (list_of({"queue": "ours.1"})[:-1], False),
        (list_of({"queue": "ours.1"}) + b"F", False),
        (b"F\0\0\0\x0e\x05queueS\0\0\0\x06ours.1\1nV", False),  # longer than its table
        (b"F\0\0\0\x12\x05queueS\0\0\0\x06ours.\xff", False),
        (b"F\0\0\0\x16" + 2 * b"\x05queueS\0\0\0\0", False),
    ],
)
def test_tables_are_told_by_how_a_text_in_each_begins(tables: bytes, begin: bool) -> None:
    assert wire.all_begin_with(tables, "queue", "ours.") is begin


def test_of_two_texts_of_one_name_the_last_one_counts_as_for_py_amqp() -> None:
    ours, theirs = b"\x05queueS\0\0\0\1o", b"\x05queueS\0\0\0\1t"
    assert not wire.all_begin_with(b"F\0\0\0\x18" + ours + theirs, "queue", "o")
    assert wire.all_begin_with(b"F\0\0\0\x18" + theirs + ours, "queue", "o")
