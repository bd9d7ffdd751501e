"""Kombu code written for the delayed-message-exchange plug-in, with only the scheme of its URL changed."""

from __future__ import annotations

import time
from typing import Any

import kombu
import kombu.pools
import pytest
from celery import Celery

from celery_rabbit_delay import UnsupportedConfiguration, install
from tests.kit.broker import QUICK, Vhost, take

pytestmark = pytest.mark.shared_vhost


def exchange_of(kind: str, name: str = "mails") -> kombu.Exchange:
    return kombu.Exchange(name, type="x-delayed-message", arguments={"x-delayed-type": kind})


def test_an_exchange_of_the_plug_in_is_one_of_the_type_within(vhost: Vhost) -> None:
    kinds = ("direct", "topic", "fanout", "headers")
    matching = {"binding_arguments": {"to": "ada", "x-match": "any"}}
    queues = {
        kind: kombu.Queue(kind, exchange_of(kind, f"mails {kind}"), "new", **(matching if kind == "headers" else {}))
        for kind in kinds
    }
    with vhost.connection() as connection:
        started = time.monotonic()
        for queue in queues.values():
            producer = connection.Producer(exchange=queue.exchange)
            for n in range(3):
                producer.publish(n, routing_key="new", declare=[queue], headers={"x-delay": 8000, "to": "ada"})
            producer.publish("at once", routing_key="new", headers={"to": "ada"})
            assert [message.payload for message in take(connection, queue.name, 1)] == ["at once"]
        for kind in kinds:
            found = take(connection, kind, 3)
            assert time.monotonic() - started >= 8
            assert sorted(message.payload for message in found) == [0, 1, 2]
            assert {message.delivery_info["exchange"] for message in found} == {f"mails {kind}"}
    rows = {row["name"]: row for row in vhost.broker.api("GET", f"/exchanges/{vhost.name}")}
    for kind in kinds:
        assert (rows[f"mails {kind}"]["type"], rows[f"mails {kind}"]["arguments"]) == (kind, {})


def test_what_the_plug_in_has_delayed_is_not_delayed_again(vhost: Vhost) -> None:
    """It negates the header of what it delivers, and consumers publish such headers again."""
    vhost.declare("q")
    with vhost.connection() as connection:
        connection.Producer().publish("again", routing_key="q", headers={"x-delay": -5000})
        assert len(take(connection, "q", 1)) == 1


def test_an_exchange_that_the_plug_in_still_has_is_an_error_that_says_what_to_do(vhost: Vhost) -> None:
    vhost.declare(
        exchange="mails", kind="topic"
    )  # the plug-in cannot be installed here; the broker's answer is the same
    with vhost.connection() as connection:
        with pytest.raises(UnsupportedConfiguration, match="wait until it has delivered its messages, delete it"):
            exchange_of("direct")(connection.default_channel).declare()
        connection.Producer().publish("x", routing_key="q", declare=[kombu.Queue("q")], headers={"x-delay": 10})
        take(connection, "q", 1)


def test_an_exchange_without_a_type_within_is_an_error(vhost: Vhost) -> None:
    with vhost.connection() as connection, pytest.raises(UnsupportedConfiguration, match="set it to the type"):
        kombu.Exchange("mails", "x-delayed-message")(connection.default_channel).declare()


def test_a_celery_app_that_used_the_plug_in_works(vhost: Vhost) -> None:
    conf: dict[str, Any] = {"task_queues": [kombu.Queue("mail", exchange_of("direct"), "mail")]}
    with Celery("shop", broker=vhost.url("amqp"), set_as_current=False) as app:
        app.conf.update(conf)
        install(app, **QUICK)
        app.send_task("t", queue="mail", headers={"x-delay": 200})
        app.send_task("t", queue="mail", countdown=0.2)
        assert len(vhost.take("mail", 2)) == 2
    kombu.pools.reset()
