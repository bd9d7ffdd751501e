"""Deliveries during a wait are passed on later, in order; unreadable messages are received, too."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from amqp.method_framing import frame_handler
from amqp.serialization import dumps, loads

from celery_rabbit_delay.amqp.deliveries import (
    DeferredDeliveries,
    Delivery,
    TolerantFrames,
    is_unreadable,
    take_anything,
)
from celery_rabbit_delay.core.headers import HEADER


class Oops(Exception):
    pass


def delivery(number: int) -> Delivery:
    return number, None, None, None


@pytest.fixture
def got() -> list[int]:
    return []


@pytest.fixture
def deliveries(got: list[int]) -> DeferredDeliveries:
    return DeferredDeliveries(lambda one: got.append(one[0]))


def test_a_delivery_is_not_taken_while_none_is_held(deliveries: DeferredDeliveries, got: list[int]) -> None:
    assert not deliveries.offer(delivery(1))
    assert not deliveries.flush()
    assert got == []


def test_held_deliveries_are_handed_on_in_order_when_the_block_ends(
    deliveries: DeferredDeliveries, got: list[int]
) -> None:
    with deliveries.hold():
        assert all(deliveries.offer(delivery(number)) for number in range(3))
        assert not deliveries.flush()
        assert got == []
    assert got == [0, 1, 2]
    assert not deliveries.offer(delivery(3))


def test_only_the_outermost_block_lets_go(deliveries: DeferredDeliveries, got: list[int]) -> None:
    with deliveries.hold():
        with deliveries.hold():
            deliveries.offer(delivery(1))
        assert got == []
        assert deliveries.offer(delivery(2))
    assert got == [1, 2]


def test_a_block_that_raises_lets_go_too(deliveries: DeferredDeliveries, got: list[int]) -> None:
    def fail() -> None:
        with deliveries.hold():
            deliveries.offer(delivery(1))
            raise Oops

    with pytest.raises(Oops):
        fail()
    assert got == [1]


def test_a_consumer_that_waits_itself_is_not_called_again_meanwhile() -> None:
    """What comes in while it waits is handed on when it has returned."""
    log: list[Any] = []

    def consume(one: Delivery) -> None:
        log.append(("begin", one[0]))
        with waiting.hold():
            if one[0] == 0:
                waiting.offer(delivery(2))
        assert not waiting.flush()
        log.append(("end", one[0]))

    waiting = DeferredDeliveries(consume)
    with waiting.hold():
        waiting.offer(delivery(0))
        waiting.offer(delivery(1))
    assert log == [(what, number) for number in (0, 1, 2) for what in ("begin", "end")]


def test_a_consumer_that_raises_leaves_the_others_for_the_next_flush() -> None:
    got: list[int] = []

    def consume(one: Delivery) -> None:
        got.append(one[0])
        if one[0] == 1:
            raise Oops

    waiting = DeferredDeliveries(consume)

    def hold() -> None:
        with waiting.hold():
            for number in range(4):
                waiting.offer(delivery(number))

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
    """Takes the frames of messages on channel 1 as a connection of ours does."""

    def __init__(self, takes_anything: bool) -> None:
        self.got: list[Any] = []
        channel = SimpleNamespace()
        if takes_anything:
            take_anything(channel)
        connection = SimpleNamespace(channels={1: channel}, bytes_recv=0)
        self.handle = TolerantFrames(frame_handler, connection, lambda *args: self.got.append(args))

    def receive(self, properties: bytes, key: Any = "k", body: bytes = b"body") -> Any:
        """Return the message, and the routing key that it came with."""
        self.handle((1, 1, b"\x00\x3c\x00\x3c" + dumps("sLbss", ("tag", 1, False, "e", key))))
        self.handle((2, 1, struct.pack(">HHQ", 60, 0, len(body)) + properties))
        if body:
            self.handle((3, 1, body))
        _, _, arguments, message = self.got.pop()
        return message, loads("sLbss", arguments, 4)[0][-1]


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


@pytest.mark.parametrize("properties", [USUAL, BROKEN["no UTF-8"]])
def test_a_message_with_a_routing_key_that_is_no_text_counts_as_one_that_nobody_can_read(properties: bytes) -> None:
    receiver = Receiver(True)
    message, key = receiver.receive(properties, key=b"k\xff")
    assert (is_unreadable(message), key) == (True, "k")
    message, _ = receiver.receive(USUAL)
    assert not is_unreadable(message)


@pytest.mark.parametrize("broken", BROKEN)
def test_any_other_channel_gets_what_py_amqp_makes_of_it(broken: str) -> None:
    with pytest.raises(Exception) as ours:  # noqa: PT011
        Receiver(False).receive(BROKEN[broken])
    with pytest.raises(ours.type):
        amqp.Message()._load_properties(60, BROKEN[broken], 0)


DELAYED = {HEADER: {"prefix": "p", "exchange": "", "due": 0}, "CC": ["q", "@.+q"], "id": "1"}


@pytest.mark.parametrize("body", [b"body", b""])
@pytest.mark.parametrize("takes_anything", [False, True])
def test_delayed_messages_have_all_their_properties(takes_anything: bool, body: bytes) -> None:
    receiver = Receiver(takes_anything)
    sent = {"delivery_mode": 2, "correlation_id": "1", "application_headers": DELAYED}
    message, key = receiver.receive(amqp.Message(**sent)._serialize_properties(), body=body)
    assert (message.properties, message.body or b"", key) == (sent, body, "k")
    assert ("delay_state" in vars(message)) is not takes_anything
    message, _ = receiver.receive(USUAL)
    assert message.properties == {"delivery_mode": 2, "correlation_id": "1"}


def test_messages_on_several_channels_keep_their_own_properties() -> None:
    got: list[Any] = []
    connection = SimpleNamespace(channels={}, bytes_recv=0)
    handle = TolerantFrames(frame_handler, connection, lambda *args: got.append(args))
    for channel in (1, 2, 3):
        handle((1, channel, b"\x00\x3c\x00\x3c" + dumps("sLbss", ("tag", 1, False, "e", "k"))))
    for channel, headers in ((1, DELAYED | {"id": "1"}), (2, {"id": "2"}), (3, DELAYED | {"id": "3"})):
        properties = amqp.Message(application_headers=headers)._serialize_properties()
        handle((2, channel, struct.pack(">HHQ", 60, 0, 4) + properties))
    for channel in (3, 2, 1):
        handle((3, channel, b"body"))
    assert [(channel, message.headers["id"]) for channel, _, _, message in got] == [(3, "3"), (2, "2"), (1, "1")]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_message_that_names_our_header_is_what_py_amqp_makes_of_it(broken: str) -> None:
    properties = BROKEN[broken] + HEADER.encode()
    with pytest.raises(Exception) as ours:  # noqa: PT011
        Receiver(False).receive(properties)
    with pytest.raises(ours.type):
        amqp.Message()._load_properties(60, properties, 0)


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


def test_frames_of_a_closed_connection_are_left_to_py_amqp() -> None:
    got: list[Any] = []
    handle = TolerantFrames(lambda *args: got.append, SimpleNamespace(channels=None), None)
    handle((1, 1, b"\x00\x14\x00\x28"))
    handle((8, 0, b""))
    assert got == [(1, 1, b"\x00\x14\x00\x28"), (8, 0, b"")]
