"""Messages of a stream out of the bytes of a connection, cut anywhere."""

from __future__ import annotations

import struct

import pytest
from amqp.serialization import dumps

from celery_rabbit_delay.core.frames import Deliveries, UnexpectedMethod


def parse_offset(properties: bytes) -> int:
    """Says what it was asked."""
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
