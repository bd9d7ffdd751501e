"""Messages that are written together have the same bytes as py-amqp's single writes."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import amqp
import pytest
from amqp import spec
from amqp.exceptions import RecoverableConnectionError
from amqp.transport import TCPTransport

from celery_rabbit_delay import upstream
from celery_rabbit_delay.amqp.connection import Connection
from celery_rabbit_delay.amqp.writing import MessageWriter


@pytest.fixture
def connected() -> Iterator[tuple[Any, socket.socket]]:
    """Return a connection and the other end of its socket."""
    ours, theirs = socket.socketpair()
    connection = Connection()
    connection._transport = TCPTransport("localhost", 1)
    connection._transport.sock = ours
    connection._transport._setup_transport()
    connection._transport.connected = True
    connection._frame_writer = connection.frame_writer_cls(connection, connection._transport)
    yield connection, theirs
    ours.close()
    theirs.close()


def test_many_messages_are_written_at_once_as_py_amqp_would_one_by_one(connected: tuple[Any, socket.socket]) -> None:
    connection, theirs = connected
    channel = amqp.Channel(connection)
    messages = [amqp.Message("x" * length, delivery_mode=2) for length in (1, 0, 1000)]
    for message in messages:
        channel._basic_publish(message, "e", "k", mandatory=True)
    expected = theirs.recv(100_000)
    writer = MessageWriter(connection)
    writer.add(channel, messages[0], "e", "gone", None)
    writer.discard()
    for message in messages:
        writer.add(channel, message, "e", "k", None)
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    writer.flush(None)
    assert theirs.recv(100_000) == expected
    writer.add(channel, amqp.Message("x" * 65_536), "e", "k", None)  # is not kept until there is more
    assert len(theirs.recv(100_000)) > 65_536


def test_a_write_that_takes_too_long_ends_the_connection(connected: tuple[Any, socket.socket]) -> None:
    connection, _ = connected
    writer, channel = MessageWriter(connection), amqp.Channel(connection)

    def write() -> None:
        for _ in range(1000):
            writer.add(channel, amqp.Message("x" * 65_536), "e", "k", 0.01)

    with pytest.raises(RecoverableConnectionError):
        write()


def test_no_frame_of_another_thread_comes_into_the_middle_of_a_message(
    connected: tuple[Any, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, theirs = connected
    channel = amqp.Channel(connection)
    acknowledges = threading.Thread(target=channel.basic_ack, args=[1])
    write, waits = connection.transport.write, []

    def slowly(data: bytes) -> None:
        if threading.current_thread() is not acknowledges:
            acknowledges.start()
            acknowledges.join(0.1)
            waits.append(acknowledges.is_alive())
        write(data)

    monkeypatch.setattr(connection.transport, "write", slowly)
    monkeypatch.setattr(upstream, "send_at_once", lambda transport, data: 0)  # as green threads do
    connection._frame_writer = connection.frame_writer_cls(connection, connection._transport)
    writer = MessageWriter(connection)
    writer.add(channel, amqp.Message("x" * 100), "e", "k", None)
    writer.flush(None)
    acknowledges.join()
    assert waits == [True]
    sent = theirs.recv(100_000)
    assert sent.index(b"x" * 100) < sent.index(struct.pack(">HHQ", *spec.Basic.Ack, 1))
