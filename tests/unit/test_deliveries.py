"""Deliveries during a wait are passed on later, in order; unreadable messages are received, too."""

from __future__ import annotations

import struct
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from amqp.method_framing import frame_handler
from amqp.serialization import dumps

from celery_rabbit_delay.amqp.deliveries import DeferredDeliveries, Method, is_unreadable, take_anything
from celery_rabbit_delay.amqp.transport import DelayConnection


class Oops(Exception):
    pass


def delivery(number: int) -> Method:
    return number, None, None, None


@pytest.fixture
def got() -> list[int]:
    return []


@pytest.fixture
def deliveries(got: list[int]) -> DeferredDeliveries:
    return DeferredDeliveries(lambda one: got.append(one[0]))


def test_held_deliveries_are_handed_on_in_order_when_the_block_ends(
    deliveries: DeferredDeliveries, got: list[int]
) -> None:
    with deliveries.hold():
        assert deliveries.holds
        for number in range(3):
            deliveries.add(delivery(number))
        assert not deliveries.flush()
        assert got == []
    assert got == [0, 1, 2]
    assert not deliveries.holds


def test_only_the_outermost_block_lets_go(deliveries: DeferredDeliveries, got: list[int]) -> None:
    with deliveries.hold():
        with deliveries.hold():
            deliveries.add(delivery(1))
        assert got == []
        deliveries.add(delivery(2))
    assert got == [1, 2]


def test_a_block_that_raises_lets_go_too(deliveries: DeferredDeliveries, got: list[int]) -> None:
    def fail() -> None:
        with deliveries.hold():
            deliveries.add(delivery(1))
            raise Oops

    with pytest.raises(Oops):
        fail()
    assert got == [1]


def test_a_consumer_that_waits_itself_is_not_called_again_meanwhile() -> None:
    """What comes in while it waits is handed on at the next read."""
    log: list[Any] = []

    def consume(one: Method) -> None:
        log.append(("begin", one[0]))
        with waiting.hold():
            if one[0] == 0:
                waiting.add(delivery(2))
        assert not waiting.flush()
        log.append(("end", one[0]))

    waiting = DeferredDeliveries(consume)
    with waiting.hold():
        waiting.add(delivery(0))
        waiting.add(delivery(1))
    assert waiting.flush()
    assert not waiting.flush()
    assert log == [(what, number) for number in (0, 1, 2) for what in ("begin", "end")]


def test_deliveries_that_do_not_end_let_others_have_a_turn() -> None:
    """Such as the messages of a long queue, each of which comes because the consumer has acknowledged another."""
    left: list[int] = []

    def consume(one: Method) -> None:
        with waiting.hold():
            waiting.add(delivery(one[0] + 2))

    waiting = DeferredDeliveries(consume)
    waiting.on_left = lambda: left.append(len(waiting.waiting))
    with waiting.hold():
        waiting.add(delivery(0))
        waiting.add(delivery(1))
    assert left == [2]  # the next read is asked for, as no message needs to arrive
    assert waiting.flush()
    assert [one[0] for one in waiting.waiting] == [4, 5]
    assert left == [2, 2]


def test_a_consumer_that_raises_leaves_the_others_for_the_next_flush() -> None:
    got: list[int] = []

    def consume(one: Method) -> None:
        got.append(one[0])
        if one[0] == 1:
            raise Oops

    waiting = DeferredDeliveries(consume)

    def hold() -> None:
        with waiting.hold():
            for number in range(4):
                waiting.add(delivery(number))

    with pytest.raises(Oops):
        hold()
    assert got == [0, 1]
    assert waiting.flush()
    assert got == [0, 1, 2, 3]
    assert not waiting.flush()


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


@pytest.mark.parametrize("error", [ValueError, TimeoutError, Oops])
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
