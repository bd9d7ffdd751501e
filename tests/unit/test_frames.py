"""Decoding messages of a stream from bytes that are cut anywhere; frames that py-amqp cannot read, or writes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from amqp import Message
from amqp.serialization import dumps, loads

from celery_rabbit_delay.core import frames
from celery_rabbit_delay.core.frames import Deliveries, UnexpectedMethod


def parse_offset(properties: bytes) -> int:
    """Record the argument."""
    return -len(properties)


def new() -> Deliveries:
    return Deliveries(parse_offset)


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


OFFSET = b"\x0fx-stream-offsetl"


def message(offset: int, *bodies: bytes, named: bytes = OFFSET, first: bytes = b"\x05firstI\0\0\0\1") -> bytes:
    deliver = b"\x00\x3c\x00\x3c" + dumps("sLbss", ("tag", 1, False, "", "key"))
    table = first + named + struct.pack(">q", offset)  # RabbitMQ's way
    header = struct.pack(">HHQHI", 60, 0, sum(map(len, bodies)), 1 << 13, len(table)) + table
    return b"".join([frame(1, deliver), frame(2, header), *(frame(3, body) for body in bodies)])


HEARTBEAT = frame(8, b"")


def test_whole_messages_are_found_with_their_offsets() -> None:
    data = message(0, b"one") + HEARTBEAT + message(1) + message(2**40, b"th", b"ree")
    assert new().feed(data) == [(0, b"one"), (1, b""), (2**40, b"three")]


def test_messages_may_be_cut_anywhere() -> None:
    data = message(7, b"one", b"two") + HEARTBEAT + message(8, b"\xce")
    for size in range(1, len(data)):
        deliveries = new()
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        assert [found for part in parts for found in deliveries.feed(part)] == [(7, b"onetwo"), (8, b"\xce")]


def test_what_else_the_broker_says_is_an_error() -> None:
    cancel = b"\x00\x3c\x00\x1e" + dumps("sb", ("tag", True))
    with pytest.raises(UnexpectedMethod, match=r"\\x00<\\x00\\x1e"):
        new().feed(message(7, b"one") + frame(1, cancel))


@pytest.mark.parametrize(
    ("first", "named"),
    [(b"\x05firstS\0\0\0\x10" + OFFSET[:-1], OFFSET), (b"", OFFSET[:-1] + b"T"), (b"", b"\x0fy-stream-offsetl")],
    ids=["twice", "of another type", "missing"],
)
def test_an_offset_that_may_be_forged_is_looked_for_with_more_care(first: bytes, named: bytes) -> None:
    properties = 2 + 4 + len(first) + len(named) + 8  # flags, the table's length, the table
    assert new().feed(message(7, b"one", named=named, first=first)) == [(-properties, b"one")]


def test_an_offset_that_nobody_can_read_is_the_one_after_the_last() -> None:
    def fail(properties: bytes) -> int:
        raise OverflowError("timestamp out of range")

    forged = message(7, b"forged", named=OFFSET[:-1] + b"T")
    deliveries = Deliveries(fail)
    assert deliveries.feed(forged + message(7, b"one") + forged) == [(0, b"forged"), (7, b"one"), (8, b"forged")]


def test_heartbeats_do_not_count() -> None:
    deliveries = new()
    deliveries.feed(HEARTBEAT + HEARTBEAT[:-1])
    assert deliveries.frames == 0
    deliveries.feed(HEARTBEAT[-1:] + message(7, b"one", b"two"))
    assert deliveries.frames == 4


def by_py_amqp(header: bytes) -> Message:
    read = Message()
    read.inbound_header(header)
    return read


def test_properties_that_nobody_can_read_are_left_out_but_for_the_offset_in_a_stream() -> None:
    size = struct.pack(">HHQ", 60, 0, 5)
    broken = size + b"\x04\x00\x01\xff"  # a correlation id
    read = by_py_amqp(frames.without_properties(broken))
    assert (read.body_size, read.properties) == (5, {"application_headers": {frames.UNREADABLE: True}})
    made_up = size + b"\x04\x00" + bytes((len(OFFSET) + 7,)) + OFFSET + b"\xff" * 7  # a correlation id
    assert frames.without_properties(made_up) == frames.without_properties(broken)
    table = OFFSET + struct.pack(">q", 2**40)
    in_stream = size + struct.pack(">HI", (1 << 13) + (1 << 10), len(table)) + table + b"\x01\xff"
    assert frames.properties_of(in_stream) == in_stream[12:]
    read = by_py_amqp(frames.without_properties(in_stream))
    assert read.headers == {frames.UNREADABLE: True, "x-stream-offset": 2**40}


DELIVER, GET_OK = b"\x00\x3c\x00\x3c", b"\x00\x3c\x00\x47"


@pytest.mark.parametrize(
    ("method", "form", "exchange"), [(DELIVER, "sLbss", 3), (GET_OK, "Lbssl", 2)], ids=["deliver", "get-ok"]
)
def test_names_that_are_no_text_lose_what_is_none(method: bytes, form: str, exchange: int) -> None:
    values: list[Any] = {DELIVER: ["tag", 7, True, "e", "k"], GET_OK: [7, True, "e", "k", 9]}[method]
    usual = method + dumps(form, values)
    assert frames.with_text(usual) == usual
    values[exchange : exchange + 2] = [b"\xffe\xfe", b"\xed\xa0\x80k"]
    values[exchange : exchange + 2], odd = ["e", "k"], method + dumps(form, values)
    assert loads(form, frames.with_text(odd), 4)[0] == values


def test_other_methods_are_left_as_they_are() -> None:
    other = b"\x00\x3c\x00\x15" + dumps("s", (b"\xff",))
    assert frames.with_text(other) == other
