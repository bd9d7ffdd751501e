"""What a broker has confirmed survives its SIGKILL."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

import kombu
import pytest

from tests.kit.broker import lead, own_node, take
from tests.kit.frames import routing_keys
from tests.kit.node import Node, dead_letters_again
from tests.kit.wait import wait_until

pytestmark = pytest.mark.long

AMOUNT = 200
DELAY = 8  # seconds, one level


@pytest.mark.parametrize("outboxes", [(), (DELAY,)], ids=["in a level", "in an outbox"])
def test_confirmed_messages_survive_a_kill_of_the_broker_and_are_not_early(outboxes: tuple[float, ...]) -> None:
    with Node(advanced=dead_letters_again(10)) as node:  # for what is due before the bindings are back
        url = node.url().replace("amqp", "rabbit-delay")
        options = {"rabbit_delay": {"tick": 1, "max_delay": 15, "slack": 0, "outboxes": outboxes}}
        with kombu.Connection(url, transport_options=options) as connection:
            kombu.Queue("q")(connection.default_channel).declare()
            lead(connection, "q", delays=outboxes)
            connection.Producer().publish(-1, routing_key="q", headers={"x-delay": 15_000})  # declares the cascade
            # RabbitMQ may forget what was created last: docs/operations.md, Restarts.
            kombu.Queue("last")(connection.default_channel).declare()
            last = ".out.8s.+q" if outboxes else ".out.+q"
            wait_until(lambda: node.has_registered(last), "the node has written down what it has")
            # Half a second less than one queue holds them, so that rounding up to it costs no second hop.
            due = datetime.now(timezone.utc) + timedelta(seconds=DELAY - 0.5)
            with routing_keys() as keys:
                for n in range(AMOUNT):
                    headers = {"task": "t", "eta": due.isoformat()}
                    connection.Producer().publish(n, routing_key="q", headers=headers)
            node.kill()
        assert "@.8s.+q" in keys if outboxes else "@.^3" in keys
        assert datetime.now(timezone.utc) < due
        node.start()
        with kombu.Connection(url, transport_options=options) as connection:
            messages = take(connection, "q", AMOUNT, timeout=120)
            arrived = time.time()
            payloads = [message.payload for message in messages]
            assert set(range(AMOUNT)) <= set(payloads)
            assert arrived >= due.timestamp()
            while -1 not in payloads:
                payloads += [message.payload for message in take(connection, "q", 1, timeout=120)]


@pytest.mark.parametrize("is_set_up", [False, True], ids=["with the cascade", "with its outbox"])
def test_the_first_message_survives_a_kill_right_after_its_queue_was_created(is_set_up: bool) -> None:
    with own_node() as vhost:
        node = vhost.broker.node
        vhost.declare("q")

        def publish(seconds: int) -> None:
            options: dict[str, Any] = {"rabbit_delay": {}}
            with kombu.Connection(vhost.url(), transport_options=options) as connection:
                message = {"routing_key": "q", "headers": {"x-delay": seconds * 1000}}
                connection.Producer().publish(seconds, **message)

        if is_set_up:
            publish(1_000)
            wait_until(lambda: node.has_registered(".out.+q"), "the node has written down what it has")
        for everyday in (60, 600):  # each with an outbox of its own
            publish(everyday)
            node.kill()
            node.start()
        expected = 2 + is_set_up
        wait_until(  # the first one may be due by now
            lambda: sum(vhost.waiting().values()) + vhost.count("q") == expected, "all that was confirmed is there"
        )


def test_what_is_sent_where_another_has_just_created_an_outbox_survives_a_kill() -> None:
    with own_node() as vhost:
        node = vhost.broker.node
        vhost.declare("q")
        options: dict[str, Any] = {"rabbit_delay": {}}

        def publish(connection: kombu.Connection, seconds: int) -> None:
            connection.Producer().publish(seconds, routing_key="q", headers={"x-delay": seconds * 1000})

        with kombu.Connection(vhost.url(), transport_options=options) as connection:
            publish(connection, 1_000)
        wait_until(lambda: node.has_registered(".out.+q"), "the node has written down what it has")
        for everyday in (60, 300, 600, 900):
            with (
                kombu.Connection(vhost.url(), transport_options=options) as creator,
                kombu.Connection(vhost.url(), transport_options=options) as other,
            ):
                publish(creator, everyday)
                for _ in range(4):
                    publish(other, everyday)
                node.kill()
            node.start()
        wait_until(  # the first ones may be due by now
            lambda: sum(vhost.waiting().values()) + vhost.count("q") == 1 + 4 * 5, "all that was confirmed is there"
        )
