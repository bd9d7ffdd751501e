"""Our own channels receive messages that py-amqp cannot read."""

from __future__ import annotations

import struct
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from amqp.method_framing import frame_handler
from amqp.serialization import dumps

from celery_rabbit_delay.amqp.transport import DelayConnection
from celery_rabbit_delay.amqp.unreadable import is_unreadable, take_anything


def table(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def deep(levels: int) -> bytes:
    data = b""
    for _ in range(levels):
        data = b"\x01aF" + table(data)
    return data


#: Properties that RabbitMQ passes on: flags, and what they announce.
BROKEN = {
    "no UTF-8": b"\x04\x00\x01\xff",
    "no time": b"\x20\x00" + table(b"\x01tT\x7f" + b"\xff" * 7),
    "too deep": b"\x20\x00" + table(deep(1500)),
    "no type": b"\x20\x00" + table(b"\x01tz"),
}
USUAL = amqp.Message(delivery_mode=2, correlation_id="1")._serialize_properties()


class Receiver:
    """Receives messages on a channel of a connection of ours."""

    def __init__(self, takes_anything: bool) -> None:
        self.got: list[Any] = []
        self.frames: list[tuple[int, int, bytes]] = []
        self.connection: Any = DelayConnection()
        self.connection._transport = SimpleNamespace(
            sock=None, having_timeout=nullcontext, read_frame=lambda: self.frames.pop(0), close=lambda: None
        )
        self.connection._on_inbound_frame = frame_handler(self.connection, self.connection.on_inbound_method)
        self.channel = amqp.Channel(self.connection, 1)
        self.channel.callbacks["tag"] = self.got.append
        if takes_anything:
            take_anything(self.channel)

    def receive(self, properties: bytes, key: Any = "k", body: bytes = b"body") -> Any:
        """Return the message, and the routing key that it came with."""
        self.frames.append((1, 1, b"\x00\x3c\x00\x3c" + dumps("sLbss", ("tag", 1, False, "e", key))))
        self.frames.append((2, 1, struct.pack(">HHQ", 60, 0, len(body)) + properties))
        if body:
            self.frames.append((3, 1, body))
        while self.frames:
            self.connection.blocking_read(1)
        message = self.got.pop()
        return message, message.delivery_info["routing_key"]


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("body", [b"body", b""])
def test_a_channel_that_takes_anything_gets_a_message_that_py_amqp_cannot_read(broken: str, body: bytes) -> None:
    receiver = Receiver(True)
    for _ in range(2):
        message, key = receiver.receive(BROKEN[broken], body=body)
        assert (is_unreadable(message), message.body or b"", key) == (True, body, "k")
        assert message.properties == {"application_headers": message.headers}
        message, key = receiver.receive(USUAL)
        assert (is_unreadable(message), message.properties["correlation_id"], key) == (False, "1", "k")


def test_an_unreadable_message_of_a_stream_keeps_its_offset_unless_the_sender_wrote_one_too() -> None:
    receiver = Receiver(True)
    offset = b"\x0fx-stream-offsetl" + struct.pack(">q", 1 << 40)
    message, _ = receiver.receive(b"\x20\x00" + table(offset + b"\x01tz"))
    assert (is_unreadable(message), message.headers["x-stream-offset"]) == (True, 1 << 40)
    message, _ = receiver.receive(b"\x20\x00" + table(offset + offset + b"\x01tz"))
    assert (is_unreadable(message), message.headers.get("x-stream-offset")) == (True, None)
    message, _ = receiver.receive(b"\x20\x00" + table(offset), key=b"\xff")
    assert (is_unreadable(message), message.headers["x-stream-offset"]) == (True, 1 << 40)


@pytest.mark.parametrize("properties", [USUAL, BROKEN["no UTF-8"]])
def test_a_message_with_a_routing_key_that_is_no_text_counts_as_one_that_nobody_can_read(properties: bytes) -> None:
    receiver = Receiver(True)
    message, key = receiver.receive(properties, key=b"k\xff")
    assert (is_unreadable(message), key) == (True, "")
    message, _ = receiver.receive(USUAL)
    assert not is_unreadable(message)


@pytest.mark.parametrize("broken", BROKEN)
def test_any_other_channel_gets_what_py_amqp_makes_of_it(broken: str) -> None:
    with pytest.raises(Exception) as ours:  # noqa: PT011
        Receiver(False).receive(BROKEN[broken])
    with pytest.raises(ours.type):
        amqp.Message()._load_properties(60, BROKEN[broken], 0)


@pytest.mark.parametrize("error", [ValueError, TimeoutError, ZeroDivisionError])
@pytest.mark.parametrize("body", [b"body", b""])
def test_errors_of_consumers_are_not_those_of_a_message(error: type[Exception], body: bytes) -> None:
    receiver = Receiver(True)
    got = []

    def consume(message: Any) -> None:
        got.append(message)
        raise error

    receiver.channel.callbacks["tag"] = consume
    with pytest.raises(error):
        receiver.receive(USUAL, body=body)
    assert [is_unreadable(message) for message in got] == [False]


def test_a_body_stays_the_bytes_that_it_is() -> None:
    """py-amqp decodes it as the sender says, even into what is no text."""
    channel = amqp.Channel(amqp.Connection())
    take_anything(channel)
    got: list[Any] = []
    channel.callbacks["tag"] = got.append
    message = amqp.Message(b"\\ud800", content_encoding="unicode_escape")
    arguments = b"\x00\x3c\x00\x3c" + dumps("sLbss", ("tag", 1, False, "e", "k"))
    channel.dispatch_method((60, 60), arguments, message)
    assert [one.body for one in got] == [b"\\ud800"]
