"""Connections that are cut after every frame, in both directions."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from contextlib import closing, suppress

import kombu
import pytest

from tests.kit.broker import QUICK, Vhost
from tests.kit.proxy import Proxy
from tests.kit.wait import wait_until

pytestmark = [pytest.mark.shared_vhost, pytest.mark.long]


class Cutter(Proxy):
    """Cuts a connection, once, after so many frames that clients have sent, or received; counts those of both."""

    def __init__(self, port: int, sent: int | None = None, received: int | None = None) -> None:
        self.limits = {True: sent, False: received}
        self.passed = Counter[bool]()
        super().__init__(port)

    def _pass(self, source: socket.socket, target: socket.socket, sending: bool) -> None:
        with suppress(OSError), source.makefile("rb") as stream:
            if sending:
                target.sendall(stream.read(8))  # "AMQP" and the version
            # Type, channel, size; the payload, and an octet at its end (AMQP 0-9-1, 4.2.3).
            while self.passed[sending] != self.limits[sending] and (head := stream.read(7)):
                [size] = struct.unpack(">L", head[3:])
                target.sendall(head + stream.read(size + 1))
                self.passed[sending] += 1
            if self.passed[sending] == self.limits[sending]:
                self.limits = {True: None, False: None}
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def publish(cutter: Cutter, vhost: Vhost, queue: str, prefix: str) -> None:
    options = {"rabbit_delay": QUICK | {"journal": 1, "prefix": prefix}}
    message = {"routing_key": queue, "headers": {"x-delay": 3_000}}
    again = {"retry": True, "retry_policy": {"interval_start": 0, "max_retries": 3}}
    with closing(cutter), kombu.Connection(cutter.url(vhost.url()), transport_options=options) as connection:
        connection.Producer().publish(queue, **message, **again)


@pytest.mark.parametrize(
    ("is_new", "step"),
    [(False, 1), pytest.param(True, 9, marks=pytest.mark.own_vhost)],
    ids=["the cascade exists", "it is created"],
)
def test_what_is_published_again_after_a_cut_at_any_frame_comes_at_least_once(
    vhost: Vhost, is_new: bool, step: int
) -> None:
    port = vhost.broker.node.port
    whole = Cutter(port)
    vhost.declare("whole")
    publish(whole, vhost, "whole", "whole" if is_new else vhost.cascade.prefix)
    cuts = [{"sent": n} for n in range(0, whole.passed[True], step)]
    cuts += [{"received": n} for n in range(0, whole.passed[False], step)]
    assert len(cuts) > 10
    for number, cut in enumerate(cuts):
        vhost.declare(f"q{number}")
        publish(Cutter(port, **cut), vhost, f"q{number}", f"p{number}" if is_new else vhost.cascade.prefix)
    with vhost.plain() as connection:
        declare = connection.default_channel.queue_declare

        def counts() -> list[int]:
            return [declare(f"q{number}", passive=True).message_count for number in range(len(cuts))]

        wait_until(lambda: all(counts()), "every message has come")
        wait_until(lambda: not vhost.waiting(), "all messages have come")
        by_count = Counter(counts())
    assert by_count.keys() <= {1, 2}, "a message comes twice if its confirm was cut off"
    assert by_count[1] > by_count[2]
