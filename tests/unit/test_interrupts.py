"""A connection of which a frame was torn by an interrupt is given up, and nothing waits for it or for a pool."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
from amqp import spec
from amqp.exceptions import RecoverableConnectionError, UnexpectedFrame
from amqp.transport import TCPTransport

from celery_rabbit_delay import upstream
from celery_rabbit_delay.amqp import blocks
from celery_rabbit_delay.amqp import connection as connection_
from celery_rabbit_delay.amqp import transport as transport_
from celery_rabbit_delay.amqp.confirms import ConfirmedChannel
from celery_rabbit_delay.amqp.transport import Channel, DelayConnection

BLOCKED = struct.pack(">BHIHHB", 1, 0, 5, *spec.Connection.Blocked, 0) + b"\xce"


class Interrupt(Exception):
    """What a signal handler raises."""


@pytest.fixture
def ends() -> Iterator[tuple[Any, Any]]:
    """Yield the sockets of the connection and of the broker."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


class Interrupted:
    """The socket's method, which is interrupted at one of its calls: before it has done anything, or after."""

    def __init__(self, function: Any, at: int, after: bool = False, exc: type[BaseException] = Interrupt) -> None:
        self._function, self._left, self._after, self._exc = function, at, after, exc

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        if self._left:
            return self._function(*args)
        if self._after:
            self._function(*args)
        raise self._exc


@pytest.fixture
def connection(ends: tuple[Any, Any]) -> Any:
    connection: Any = DelayConnection()
    connection._transport = transport = TCPTransport("localhost")
    transport.sock, _ = ends
    transport._quick_recv, transport._write = transport.sock.recv, transport.sock.sendall
    transport.connected = True
    connection._on_inbound_frame = connection.frame_handler_cls(connection, connection.on_inbound_method)
    connection._frame_writer = connection.frame_writer_cls(connection, transport)
    connection.on_blocked = bool
    return connection


def assert_given_up(connection: Any) -> None:
    assert not connection.connected
    with pytest.raises(RecoverableConnectionError):
        connection.drain_events()
    with pytest.raises(RecoverableConnectionError):
        connection.send_heartbeat()
    connection.close()
    connection.collect()


@pytest.mark.parametrize("exc", [Interrupt, KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("after", [False, True], ids=["before it is received", "before it is kept"])
@pytest.mark.parametrize("part", [1, 2, 3], ids=["header", "payload", "end"])
def test_a_torn_read_gives_the_connection_up(
    connection: Any, ends: tuple[Any, Any], part: int, after: bool, exc: type[BaseException]
) -> None:
    ends[1].sendall(BLOCKED)
    transport = connection.transport
    transport._quick_recv = Interrupted(transport._quick_recv, part, after, exc)
    with pytest.raises(exc):
        connection.drain_events()
    assert_given_up(connection)


def test_a_frame_that_is_read_but_not_handed_over_gives_the_connection_up(
    connection: Any, ends: tuple[Any, Any]
) -> None:
    ends[1].sendall(BLOCKED)
    connection._on_inbound_frame = Interrupted(None, 1)
    with pytest.raises(Interrupt):
        connection.drain_events()
    assert_given_up(connection)


def test_so_does_a_frame_out_of_turn(connection: Any, ends: tuple[Any, Any]) -> None:
    ends[1].sendall(struct.pack(">BHIB", 3, 1, 1, 0) + b"\xce")
    with pytest.raises(UnexpectedFrame):
        connection.drain_events()
    assert_given_up(connection)


def test_a_wait_that_is_interrupted_before_anything_came_goes_on(
    connection: Any, ends: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(upstream, "await_input", Interrupted(None, 1))
        with pytest.raises(Interrupt):
            connection.drain_events()
    ends[1].sendall(BLOCKED)
    connection.drain_events()
    assert connection.connected


def test_an_error_of_a_consumer_leaves_the_connection_alone(connection: Any, ends: tuple[Any, Any]) -> None:
    connection.on_blocked = Interrupted(None, 1)
    ends[1].sendall(2 * BLOCKED)
    with pytest.raises(Interrupt):
        connection.drain_events()
    connection.on_blocked = bool
    connection.drain_events()
    assert connection.connected


def test_a_time_out_of_the_socket_keeps_what_came(connection: Any, ends: tuple[Any, Any]) -> None:
    ends[1].sendall(BLOCKED[:9])
    for _ in range(2):
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.15)
    ends[1].sendall(BLOCKED[9:])
    connection.drain_events(timeout=1)
    assert connection.connected


def test_waiting_for_input_notices_a_closed_connection(connection: Any, ends: tuple[Any, Any]) -> None:
    connection.transport.sock = SimpleNamespace()  # of which nothing is known
    upstream.await_input(connection.transport)
    connection.transport.sock = ends[0]
    connection.transport._read_buffer = b"\x01"
    upstream.await_input(connection.transport)
    connection.transport._read_buffer = b""
    ends[0].close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        upstream.await_input(connection.transport)
    assert not connection.connected


@pytest.mark.parametrize("after", [False, True], ids=["before it is sent", "after it is sent"])
def test_a_torn_write_gives_the_connection_up(connection: Any, after: bool) -> None:
    transport = connection.transport
    transport._write = Interrupted(transport._write, 1, after)
    with pytest.raises(Interrupt):
        connection.send_heartbeat()
    assert_given_up(connection)


def test_a_write_that_has_not_begun_leaves_the_connection_alone(connection: Any) -> None:
    with pytest.raises(AttributeError):
        connection.frame_writer(1, 1, spec.Basic.Publish, b"", SimpleNamespace(body=3))
    connection.send_heartbeat()
    assert connection.connected


def test_a_lock_that_another_thread_holds_is_not_waited_for_beyond_the_limit(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "SENDING", 0.01)
    with connection.write_lock, connection.within(0.01), pytest.raises(RecoverableConnectionError, match="too long"):
        connection.send_heartbeat()
    assert connection.connected


def test_an_interrupted_question_gives_the_connection_up(connection: Any) -> None:
    channel = Channel(connection)
    connection.drain_events = Interrupted(None, 1)
    with pytest.raises(Interrupt):
        channel.queue_declare("q")
    del connection.drain_events
    assert_given_up(connection)
    assert channel.close() is None
    with pytest.raises(RecoverableConnectionError):
        channel.wait(spec.Queue.DeclareOk)


def test_so_does_an_interrupt_while_publishing(connection: Any) -> None:
    with pytest.raises(Interrupt), connection.exclusively(ConfirmedChannel(connection), 1):
        raise Interrupt
    assert_given_up(connection)
    assert not connection.exclusive


def test_a_channel_that_was_interrupted_while_it_was_made_can_be_collected(connection: Any) -> None:
    channel = Channel.__new__(Channel)
    channel.connection, channel.channel_id = connection, 7
    connection.channels[7] = channel
    connection.give_up()
    assert connection.channels is None


def test_closing_waits_for_the_broker_only_so_long(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (connection_, transport_):
        monkeypatch.setattr(module, "CLOSING", 0.05)
    channel = Channel(connection)
    channel.is_open = True
    with pytest.raises(TimeoutError):
        channel.close()
    connection.is_silent = False
    with pytest.raises(TimeoutError):
        connection.close()
    assert not connection.connected


def test_so_does_every_other_question(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (connection_, transport_):
        monkeypatch.setattr(module, "ANSWERING", 0.05)
    with pytest.raises(TimeoutError):
        Channel(connection).queue_declare("q")
    with pytest.raises(TimeoutError):
        connection.wait(spec.Connection.OpenOk)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(upstream.RestoresLosses, "patience", 0.02)
    pool = kombu.Connection("memory://").Pool(2)
    for _ in range(2):
        upstream.restore_losses(pool)
    return pool


def test_a_pool_replaces_what_nobody_holds_any_more(pool: Any) -> None:
    pool.acquire()  # and never released
    pool._resource.get()
    held = pool.acquire(block=True)
    assert held is not pool.acquire(block=True)
    with pytest.raises(pool.LimitExceeded):
        pool.acquire(block=True, timeout=0.01)
    held.release()
    assert pool.acquire(block=True) is held


def test_a_pool_replaces_a_lock_that_nobody_releases_any_more(pool: Any) -> None:
    held = pool.acquire(block=True)
    pool._resource.mutex.acquire()
    held.release()
    pool._resource.mutex.acquire()
    assert pool.acquire(block=True) is held
