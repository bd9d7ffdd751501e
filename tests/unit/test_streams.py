"""Streams that are read."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
from amqp.exceptions import RecoverableConnectionError

from celery_rabbit_delay import Options, StreamUnavailable, UnsupportedConfiguration
from celery_rabbit_delay.delay.core.topology import Stream
from celery_rabbit_delay.schedule.amqp import stream_consumer
from celery_rabbit_delay.schedule.amqp.follower import Extent, Follower
from celery_rabbit_delay.schedule.amqp.stream_consumer import PATIENCE, StreamMessage
from celery_rabbit_delay.schedule.amqp.stream_writer import StreamWriter
from celery_rabbit_delay.schedule.core import streams


class Client:
    """In place of a `kombu.Connection`."""


class Broker:
    """Streams that are lists of bodies, and in one the connections to them, which break, and their channels."""

    transport = SimpleNamespace(delay_options=Options(schedule=True))
    connected = is_open = False

    def __init__(self, **bodies: list[bytes]) -> None:
        self.connection = self
        self.bodies = bodies
        self.begun: list[int | str] = []
        self.breaks_after = 99
        self.breaks_at_the_end = False

    def collect(self) -> None:
        pass

    def channel(self) -> Broker:
        return self

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()

    def drain_events(self, timeout: float | None = None) -> None:
        raise (TimeoutError if timeout == 0 else RecoverableConnectionError)("it broke off")

    def publish(self, message: Any, exchange: str, key: str) -> None:
        self.bodies[key].append(message.body)

    def basic_qos(self, *args: Any) -> None:
        pass

    def basic_consume(self, queue: str, callback: Any, arguments: Any, on_cancel: Any) -> str:
        offset = arguments["x-stream-offset"]
        self.begun.append(offset)
        first = 0 if offset == "first" else offset
        for number, body in enumerate(self.bodies[queue][first : first + self.breaks_after], start=first):
            callback(SimpleNamespace(delivery_tag=number + 1, headers={"x-stream-offset": number}, body=body))
        return "tag"

    def basic_ack(self, tag: int, multiple: bool) -> None:
        pass

    def basic_cancel(self, tag: str) -> None:
        if self.breaks_at_the_end:
            raise RecoverableConnectionError("lost while the consumer ended")


@pytest.fixture(autouse=True)
def connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let followers use the connection that they are given."""
    monkeypatch.setattr(stream_consumer, "copy_of", lambda client, purpose: client)
    monkeypatch.setattr(stream_consumer, "ensure_connection", lambda client: None)
    monkeypatch.setattr(Follower, "extents", lambda self, wanted: {stream: Extent(9, 8) for stream in wanted})
    monkeypatch.setattr(Follower, "_extents", extents_now)


def extents_now(reader: Any, wanted: Iterable[Stream], *how: object, **more: object) -> dict[Stream, Extent]:
    amounts = {stream: len(reader._client.bodies[stream.name]) for stream in wanted}
    return {stream: Extent(amount, amount - 1) for stream, amount in amounts.items()}


STREAM, OTHER = Stream("s", "s", 1, 1), Stream("t", "t", 1, 1)


def test_a_read_that_breaks_off_is_resumed_for_as_long_as_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two messages come in a minute, and in the end none."""
    now, found = 0.0, list[int]()

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(stream_consumer, "RENEWAL", 1000)
    broker = Broker(s=[b"%d" % number for number in range(6)])
    broker.breaks_after = 3  # that at the place, and two more

    def note(message: StreamMessage) -> int:
        nonlocal now
        now += 30
        return message.offset

    with pytest.raises(StreamUnavailable, match="it broke off"):
        found.extend(map(note, Follower(broker).read(STREAM)))
    assert found == list(range(6))
    assert broker.begun[:4] == ["first", 2, 4, 5]
    assert set(broker.begun[4:]) == {5}
    assert 180 + PATIENCE <= now <= 181 + PATIENCE


def test_an_error_after_the_last_message_of_a_stream_begins_nothing_again() -> None:
    broker = Broker(s=[b"a", b"b"])
    broker.breaks_at_the_end = True
    assert [message.body for message in Follower(broker).read(STREAM, Extent(2, 1))] == [b"a", b"b"]
    assert broker.begun == ["first"]


def test_a_stream_is_read_again_from_what_was_done_with_and_from_its_beginning_if_it_is_another_one() -> None:
    broker = Broker(s=[b"a", b"b", b"c"])
    reader = Follower(broker)
    reading = reader.catch_up(STREAM)
    assert [next(reading), next(reading)] == [("s", 0, b"a"), ("s", 1, b"b")]
    reader.close()  # nobody asked for the third, so the second may not be done with
    assert [one.body for one in reader.catch_up(STREAM)] == [b"b", b"c"]
    reader.close()
    for bodies in ([b"x", b"y", b"z"], [b"1", b"2", b"3", b"4"], [b"0"]):  # as long, longer, and shorter
        broker.bodies["s"] = bodies
        assert [one.body for one in reader.catch_up(STREAM)] == bodies
        reader.close()
    assert broker.begun == ["first", 0, 2, "first", 2, "first", "first"]


def test_what_comes_of_another_stream_meanwhile_is_not_lost() -> None:
    reader = Follower(Broker(s=[b"a"], t=[b"b"]))
    reader.follow({STREAM: None})
    assert [one.body for one in reader.catch_up(OTHER)] == [b"a", b"b"]


def test_a_stream_that_appears_is_followed_and_looked_for_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = 0.0, list[float]()
    reader, there = Follower(Broker(s=[b"a"], t=[b"b"])), {STREAM}

    def extents(self: Any, wanted: Any) -> dict[Stream, Extent]:
        looks.append(now)
        return {stream: Extent(1, 0) for stream in wanted if stream in there}

    monkeypatch.setattr(Follower, "extents", extents)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    reader.follow({STREAM: None, OTHER: None})
    assert (reader.receive(), dict(reader.ends)) == (("s", 0, b"a"), {"s": 0})
    for now in map(float, range(1, 200)):  # noqa: B007
        reader.receive()
    assert [after - before for before, after in itertools.pairwise(looks)] == [11, 21, 41, 61, 61]
    there.add(OTHER)
    reader.look_soon()
    assert (reader.receive(), dict(reader.ends)) == (("t", 0, b"b"), {"s": 0, "t": 0})
    assert looks[-1] == now, "it is looked for at once if somebody knows that it is there"
    now += 100
    reader.receive()
    assert looks[-1] == now - 100, "and no more when none is lacking"


def test_a_stream_that_does_not_work_is_tried_again_after_a_minute_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    options = Options()
    publisher: Any = SimpleNamespace(channel=None, options=options, cascade=options.cascade)
    paused: dict[str, float] = {}
    journal = StreamWriter(publisher, paused, [])
    stream = streams.journal_for(options.cascade, 60)
    attempts = []
    for _ in range(3):
        journal.pause(stream, StreamUnavailable("it has no leader"))
        attempts.append(paused[stream.name])
    assert attempts == [60, 60, 60]
    assert len(caplog.records) == 1
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    journal.pause(stream, StreamUnavailable("it has no leader"))
    assert paused[stream.name] == 1060, "it has worked meanwhile, or nobody has tried"
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("url", "streams"),
    [
        ("rabbit-delays://u:p@b-c8352341-ec91-4a78-ad9c-a43f23d325bb.mq.us-west-2.amazonaws.com:5671//", False),
        ("rabbit-delays://u:p@b-1.MQ.cn-north-1.amazonaws.com.cn//", False),
        ("rabbit-delays://u:p@b-1.mq.eu-central-1.on.aws//", False),
        ("rabbit-delays://u:p@rabbit.shop.example;rabbit-delays://u:p@b-1.mq.us-west-2.amazonaws.com//", False),
        ("rabbit-delay://u:p@ec2-1-2-3-4.us-west-2.compute.amazonaws.com//", True),
        ("rabbit-delay://", True),
    ],
)
def test_the_schedule_is_refused_where_streams_lose_data(url: str, streams: bool) -> None:
    assert kombu.Connection(url).transport.delay_options == Options()
    scheduled = kombu.Connection(url, transport_options={"rabbit_delay": {"schedule": True}})
    with nullcontext() if streams else pytest.raises(UnsupportedConfiguration, match="Amazon MQ a stream loses data"):
        assert scheduled.transport.delay_options.schedule
