"""Whether the cascade leads to a destination: one that is declared again, and for those who may declare nothing."""

from __future__ import annotations

import kombu
import pytest

from celery_rabbit_delay import DestinationNotFound
from tests.kit.broker import Vhost, take
from tests.kit.commands import run
from tests.kit.frames import frames

pytestmark = pytest.mark.shared_vhost

UUID = "550e8400-e29b-41d4-a716-446655440000"
SOON = {"x-delay": 200}
SLOW = {"x-delay": 10_000}


def test_a_passive_publisher_reaches_a_queue_with_a_uuid_in_its_name_if_anything_leads_to_it(vhost: Vhost) -> None:
    vhost.declare(f"jobs-{UUID}", f"reply-{UUID}")
    assert run(vhost.url("amqp"), "--queue", f"jobs-{UUID}", "setup").code == 0
    with vhost.connection(declare="passive") as connection:
        connection.Producer().publish("x", routing_key=f"jobs-{UUID}", headers=SOON)
        assert len(take(connection, f"jobs-{UUID}", 1)) == 1
        with pytest.raises(DestinationNotFound, match=f"nothing leads to queue 'reply-{UUID}': run"):
            connection.Producer().publish("x", routing_key=f"reply-{UUID}", headers=SOON)


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("exchange", ["", "orders"])
def test_a_passive_publisher_is_told_that_a_destination_is_gone_although_its_outbox_is_left(
    vhost: Vhost, exchange: str
) -> None:
    vhost.declare("q", exchange=exchange)
    with vhost.connection() as connection:
        connection.Producer().publish("x", exchange=exchange, routing_key="q", headers=SOON)
        take(connection, "q", 1)
    if exchange:
        vhost.delete_exchange(exchange)
    else:
        vhost.delete_queue("q")
    with (
        vhost.connection(declare="passive") as connection,
        pytest.raises(DestinationNotFound, match="does not exist: declare it before you publish"),
    ):
        connection.Producer().publish("x", exchange=exchange, routing_key="q", headers=SOON)


@pytest.mark.parametrize("exchange", ["", "orders"])
def test_a_publisher_that_declares_its_destination_again_leads_to_it_again(vhost: Vhost, exchange: str) -> None:
    def declare(connection: kombu.Connection) -> None:
        channel = connection.default_channel
        channel.queue_declare("q", durable=True, auto_delete=False)
        if exchange:
            channel.exchange_declare(exchange, "direct", durable=True, auto_delete=False)
            channel.queue_bind("q", exchange, "q")

    with vhost.connection(outboxes=()) as connection:
        declare(connection)
        for _ in range(2):
            connection.Producer().publish("x", exchange=exchange, routing_key="q", headers=SOON)
            take(connection, "q", 1)
            vhost.delete_queue("q")
            if exchange:
                vhost.delete_exchange(exchange)
            declare(connection)
        connection.Producer().publish("x", exchange=exchange, routing_key="q", headers=SOON)
        take(connection, "q", 1)
        with frames(connection) as (sent, _):
            connection.Producer().publish("x", exchange=exchange, routing_key="q", headers=SOON)
        assert sent == [(60, 40)], "it leads to it once"
