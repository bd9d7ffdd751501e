"""What a broker has confirmed survives its SIGKILL."""

from __future__ import annotations

from typing import Any

import kombu
import pytest

from tests.kit.broker import own_node
from tests.kit.wait import wait_until

pytestmark = pytest.mark.long


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
