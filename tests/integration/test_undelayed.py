"""The package does not change messages without a delay."""

from __future__ import annotations

import kombu
import pytest

from tests.kit.broker import Vhost, take
from tests.kit.proxy import proxy


@pytest.mark.parametrize("confirm_publish", [False, True])
def test_undelayed_publishes_are_the_same_bytes_on_the_wire(vhost: Vhost, confirm_publish: bool) -> None:
    vhost.declare("q", exchange="x")
    wire: list[bytes] = []
    with proxy(vhost.broker.node.port) as proxying:
        for scheme in ("amqp", "rabbit-delay"):
            url = f"{scheme}://guest:guest@127.0.0.1:{proxying.port}/{vhost.name}"
            with kombu.Connection(url, transport_options={"confirm_publish": confirm_publish}) as connection:
                proxying.sent.clear()
                producer = connection.Producer()
                for headers in ({}, None, {"a": 1}, {"task": "t", "id": "1", "eta": None}, {"eta": "x", "CC": ["q"]}):
                    producer.publish({"n": 1}, routing_key="q", exchange="x", headers=headers, expiration=9, priority=3)
                assert len(take(connection, "q", 5)) == 5
                wire.append(bytes(proxying.sent))
    # basic.consume differs: there are consumer tags in it, and their length is in its frame's seven bytes before.
    plain, ours = (sent.split(b"\x00\x3c\x00\x14")[0][:-7] for sent in wire)
    assert plain == ours
    assert plain.count(b'{"n": 1}') == 5


def test_messages_without_a_delay_create_nothing(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q")
        take(connection, "q", 1)
    assert vhost.names("queues") == ["q"]
    assert vhost.names("exchanges") == []
