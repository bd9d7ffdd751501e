"""Waits for a broker end in time although it sends heartbeats, and channels that open too late are closed."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from amqp import spec
from amqp.exceptions import AMQPError, MessageNacked, PreconditionFailed
from kombu.transport import pyamqp

from celery_rabbit_delay import NotRouted, Options, StreamUnavailable
from celery_rabbit_delay.delay.amqp import limited
from celery_rabbit_delay.delay.amqp.confirms import Confirm, ConfirmedChannel, NotStored, Outgoing
from celery_rabbit_delay.delay.amqp.transport import UserConnection
from celery_rabbit_delay.delay.core.topology import Stream
from celery_rabbit_delay.schedule.amqp import follower, stream_consumer
from celery_rabbit_delay.schedule.amqp.follower import Extent, Follower

Frame = tuple[int, int, bytes]

HEARTBEAT = 8, 0, b""

#: What is asked for, and the answer.
ANSWERS = {
    spec.Channel.Open: (spec.Channel.OpenOk, b"\0\0\0\0"),
    spec.Channel.Close: (spec.Channel.CloseOk, b""),
    spec.Basic.Cancel: (spec.Basic.CancelOk, b"\3tag"),
}


def method(channel: int, signature: tuple[int, int], arguments: bytes = b"") -> Frame:
    return 1, channel, struct.pack(">HH", *signature) + arguments


class Broker:
    """A transport to a broker that answers some questions, and sends nothing else but a heartbeat every second."""

    connected = True

    def __init__(self) -> None:
        self.answers: list[Frame] = []
        self.now = 0.0
        self._timeout: float | None = None

    def monotonic(self) -> float:
        return self.now

    @property
    def sock(self) -> Broker:
        return self

    def gettimeout(self) -> float | None:
        return self._timeout

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    @contextmanager
    def having_timeout(self, seconds: float | None) -> Iterator[None]:
        before, self._timeout = self._timeout, seconds
        yield
        self._timeout = before

    def read_frame(self) -> Frame:
        if self.answers:
            return self.answers.pop(0)
        if self._pass(1):
            return HEARTBEAT
        raise TimeoutError

    def write(self, data: Any) -> None:
        _, channel, _, *signature = struct.unpack_from(">BHIHH", data)
        if answer := ANSWERS.get((signature[0], signature[1])):
            self.answers.append(method(channel, *answer))

    def _pass(self, seconds: float) -> bool:
        """Advance the clock; return whether no time-out has expired."""
        self.now += seconds if self._timeout is None else min(seconds, self._timeout)
        assert self.now < 100, "somebody waits for ever"
        return self._timeout is None or self._timeout >= seconds

    def close(self) -> None:
        self.connected = False


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(limited, "time", SimpleNamespace(monotonic=broker.monotonic))
    return broker


@pytest.fixture
def connection(broker: Broker) -> Any:
    connection: Any = UserConnection()
    connection._transport = broker
    connection._frame_writer = connection.frame_writer_cls(connection, broker)
    connection._on_inbound_frame = connection.frame_handler_cls(connection, connection.on_inbound_method)
    return connection


def test_refusals_that_are_on_their_way_hit_nobody_else(broker: Broker, connection: Any) -> None:
    """A limit of queues refuses what was asked for on several channels, one after the other."""
    refusal = struct.pack(">H", 406) + b"\5limit" + struct.pack(">HH", 50, 10)
    confirmed, numbers = ConfirmedChannel(connection), list[int]()

    def declare() -> None:
        with confirmed.several(3) as channels:
            numbers.extend(channel.channel_id for channel in channels)
            broker.answers += [method(number, spec.Channel.Close, refusal) for number in numbers]
            connection.drain_events()

    with connection.within(3):
        with pytest.raises(PreconditionFailed):
            declare()
        assert confirmed.get_channel().channel_id not in numbers
        assert not broker.answers


def test_what_waits_without_a_limit_does_so_as_py_amqp_does(broker: Broker, connection: Any) -> None:
    with connection.within(None), pytest.raises(AssertionError, match="for ever"):
        connection.drain_events()


def test_a_wait_that_has_ended_leaves_the_socket_the_limit_that_it_had(broker: Broker, connection: Any) -> None:
    connection.limit(30, broker.now + 30)
    assert not connection.wait_until(lambda: False, 3)
    assert broker.gettimeout() == 30, "a write that has to wait would fail at once"
    connection.limit(None, None)
    assert not connection.wait_until(lambda: False, 3)
    assert broker.gettimeout() is None


def test_a_time_out_of_a_consumer_is_its_own(broker: Broker, connection: Any) -> None:
    def fail(*args: Any) -> None:
        raise TimeoutError("of a consumer")

    connection._on_inbound_frame = fail
    with connection.within(3), pytest.raises(TimeoutError, match="of a consumer"):
        connection.drain_events()


@pytest.fixture
def client(connection: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a Kombu connection with a stream that holds a message, but sends none."""
    transport = SimpleNamespace(delay_options=Options(schedule=True), driver_type="")
    client: Any = SimpleNamespace(connection=connection, drain_events=connection.drain_events, transport=transport)
    client.connect = client.collect = lambda: None
    client.ensure_connection = lambda **options: None
    client.alt, client.connect_timeout = [], 4
    client.connected = False
    monkeypatch.setattr(connection, "channel", Channel)
    monkeypatch.setattr(stream_consumer, "copy_of", lambda client, purpose: client)
    return client


class Channel:
    """A channel to a stream that holds a message, and sends those with some offsets at once."""

    is_open = False
    offsets: Sequence[int | None] = ()

    def basic_qos(self, *args: Any) -> None:
        pass

    def queue_declare(self, *args: Any, **kwargs: Any) -> Any:
        return SimpleNamespace(message_count=1)

    def basic_consume(self, queue: str, callback: Any, **arguments: Any) -> str:
        for tag, number in enumerate(self.offsets, start=1):
            headers = {} if number is None else {"x-stream-offset": number}
            callback(SimpleNamespace(delivery_tag=tag, headers=headers, body=b""))
        return "tag"

    def basic_cancel(self, tag: str) -> None:
        pass


STREAM = Stream("s", "@.s", 1, 1)


def test_a_follower_comes_back_in_time(broker: Broker, client: Any) -> None:
    assert Follower(client).receive(2.5) is None
    assert broker.now == 2.5


def test_a_stream_that_sends_nothing_but_heartbeats_is_silent(
    broker: Broker, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "PATIENCE", 0)
    with pytest.raises(StreamUnavailable, match="has not answered in time"):
        Follower(client).extents([STREAM])
    assert broker.now == stream_consumer.PATIENCE


@pytest.mark.parametrize(("offsets", "last"), [([4], 4), ([None], None), ([0, None], 1), ([0, None, None], 2)])
def test_a_message_that_does_not_say_its_offset_comes_after_the_one_before(
    client: Any, monkeypatch: pytest.MonkeyPatch, offsets: list[int | None], last: int | None
) -> None:
    monkeypatch.setattr(Channel, "offsets", offsets)
    assert Follower(client).extents([STREAM]) == {STREAM: Extent(1, last)}


def test_a_message_that_is_gone_from_a_stream_is_waited_for_in_vain(broker: Broker, client: Any) -> None:
    assert Follower(client).at(STREAM, 7) is None
    assert broker.now == stream_consumer.PATIENCE


def test_a_refusal_to_store_is_py_amqps_own_and_one_of_its_errors() -> None:
    """Kombu treats it as the former."""
    assert issubclass(NotStored, MessageNacked)
    assert issubclass(NotStored, AMQPError)
    for errors in (
        pyamqp.Transport.connection_errors,
        pyamqp.Transport.channel_errors,
        pyamqp.Transport.recoverable_connection_errors,
        pyamqp.Transport.recoverable_channel_errors,
    ):
        assert issubclass(NotStored, errors) == issubclass(MessageNacked, errors)


def test_a_refusal_to_store_says_so_in_another_process_too() -> None:
    assert "could not store the message" in str(NotStored())
    copy = pickle.loads(pickle.dumps(NotStored("why")))
    assert (type(copy), str(copy), copy.reply_text) == (NotStored, "why", "why")


@pytest.fixture
def confirmed(broker: Broker, connection: Any) -> ConfirmedChannel:
    return ConfirmedChannel(connection)


def send(confirmed: ConfirmedChannel, key: str) -> Confirm:
    return confirmed.send(Outgoing(amqp.Message(key), "e", key))


def give_back(broker: Broker, connection: Any) -> None:
    """Return a message with the key "a", as the broker does if no queue takes it."""
    returned = struct.pack(">H", 312) + b"\x08NO_ROUTE\1e\1a"
    broker.answers += [method(1, spec.Basic.Return, returned), (2, 1, struct.pack(">HHQH", 60, 0, 0, 0))]
    connection.drain_events()


def test_each_message_gets_the_answer_that_is_for_it(broker: Broker, connection: Any, confirmed: Any) -> None:
    first, second, third = (send(confirmed, key) for key in "abc")
    broker.answers += [method(1, spec.Basic.Nack, struct.pack(">QB", 2, 0))]
    broker.answers += [method(1, spec.Basic.Ack, struct.pack(">QB", 3, 1))]
    with connection.within(3):
        confirmed.wait(first)
        with pytest.raises(NotStored):
            confirmed.wait(second)
        confirmed.wait(third)
    assert confirmed.unanswered == 0


def test_a_returned_message_is_not_taken_for_a_later_one_with_its_key(
    broker: Broker, connection: Any, confirmed: Any
) -> None:
    first, other = send(confirmed, "a"), send(confirmed, "b")
    give_back(broker, connection)
    again = send(confirmed, "a")
    broker.answers += [method(1, spec.Basic.Ack, struct.pack(">QB", 3, 1))]
    connection.drain_events()
    assert isinstance(first.refusal, NotRouted)
    assert (other.refusal, again.refusal) == (None, None)


def test_what_was_returned_on_a_closed_channel_is_not_taken_for_what_is_sent_on_the_next(
    broker: Broker, connection: Any, confirmed: Any
) -> None:
    send(confirmed, "a"), send(confirmed, "b")
    give_back(broker, connection)
    confirmed.reset()
    again = send(confirmed, "a")
    broker.answers.append(method(max(connection.channels), spec.Basic.Ack, struct.pack(">QB", 1, 0)))
    with connection.within(3):
        confirmed.wait(again)


def test_the_error_that_closes_the_channel_answers_all_and_raises_nowhere_else(
    broker: Broker, connection: Any, confirmed: Any
) -> None:
    declaring = confirmed.get_channel()
    sent = [send(confirmed, key) for key in "ab"]
    arguments = struct.pack(">HB", 406, 3) + b"why" + struct.pack(">HH", 60, 40)
    broker.answers.append(method(2, spec.Channel.Close, arguments))
    with connection.within(3), pytest.raises(PreconditionFailed, match="why"):
        confirmed.wait(sent[0])
    assert isinstance(sent[1].refusal, PreconditionFailed)
    assert declaring.is_closing
    assert confirmed.unanswered == 0
    assert not send(confirmed, "c").is_answered
