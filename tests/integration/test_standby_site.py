"""The how-to about a second site: RabbitMQ's federation copies every delayed task and every cancellation."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Any

import pytest

from celery_rabbit_delay.schedule.amqp import waiting_tasks
from tests.kit.broker import Broker, Vhost, publish, take
from tests.kit.commands import CASCADE, QUICKLY, run
from tests.kit.node import Node
from tests.kit.pages import DOCS
from tests.kit.wait import wait_until

PAGE = DOCS / "how-to/standby-site.md"
PLUGINS = ("rabbitmq_management", "rabbitmq_federation")


def follow(first: Vhost, second: Vhost) -> None:
    """Do what the page says, but for its last commands."""
    page = PAGE.read_text().split("**When the first site is lost**")[0]
    commands = [line[2:] for line in page.splitlines() if line.startswith("$ ")]
    assert len(commands) == 5
    brokers = {f"amqp://guest:guest@{name}//": vhost for name, vhost in (("first", first), ("second", second))}
    for command in commands:
        upstream = command.replace('amqp://guest:guest@first"', f'{first.url("amqp")}"').replace("celery$", "q$")
        words = shlex.split(upstream)
        if words[0] == "rabbitmqctl":
            second.broker.node.ctl(words[1], "--vhost", second.name, *words[2:])
        else:
            assert words[:2] == ["celery-rabbit-delay", "--broker"]
            arguments = ["q" if word == "celery" else word for word in words[3:]]
            assert run(brokers[words[2]].url("amqp"), *arguments, options=QUICKLY).code == 0


def federated(vhost: Vhost) -> list[Any]:
    links: list[Any] = vhost.broker.node.api("GET", f"/federation-links/{vhost.name}")
    return [link for link in links if link["status"] == "running"]


@pytest.mark.more
def test_a_second_site_has_every_delayed_task_and_every_cancellation_and_so_has_the_first_on_the_way_back() -> None:
    plugins = (*PLUGINS, "rabbitmq_federation_management")
    with (
        Node(plugins=plugins) as one,
        Node(plugins=plugins) as two,
        Broker(one).vhost() as first,
        Broker(two).vhost() as second,
    ):
        for vhost in (first, second):
            vhost.declare("q")
        follow(first, second)
        wait_until(lambda: len(federated(second)) == 2, "both exchanges are federated")
        with first.connection() as connection:
            for name, delay in (("round", 20), ("arbitrary", 21.23), ("cancelled", 22), ("soon", 0.5)):
                publish(connection, delay, headers={"id": name, "task": "t"})
            waiting_tasks.cancel(connection, ["cancelled"])
        wait_until(lambda: sum(second.waiting().values()) == 3, "the second site has what waits")
        assert received(first, 1) == ["soon"]
        one.kill()
        try:
            two.ctl("clear_policy", "--vhost", second.name, "standby")
            assert received(second, 3) == ["soon", "round", "arbitrary"]
            wait_until(lambda: not second.waiting(), "the cancelled one has come out, too")
            assert received(second, 0) == []
            assert second.count(CASCADE.orphans) == 0
            two.ctl("clear_parameter", "--vhost", second.name, "federation-upstream", "first")
        finally:
            one.start()
        follow(second, first)  # now the first stands by
        wait_until(lambda: len(federated(first)) == 2, "both exchanges are federated the other way")
        with second.connection() as connection:
            publish(connection, 6, headers={"id": "later", "task": "t"})
        wait_until(lambda: first.waiting(), "the first site has what waits")
        two.kill()
        try:
            one.ctl("clear_policy", "--vhost", first.name, "standby")
            # The other two are those that were due within the last hour.
            assert sorted(received(first, 3)) == ["arbitrary", "later", "round"]
        finally:
            two.start()  # so that its virtual host can be deleted


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_what_the_second_site_has_goes_on_being_deleted_after_the_policy_is(vhost: Vhost, queue_type: str) -> None:
    assert """queues standby '^celery$' '{"message-ttl": 3600000}'""" in PAGE.read_text()
    vhost.declare("q", arguments={"x-queue-type": queue_type})
    vhost.policy("standby", {"message-ttl": 3_000}, pattern="^q$")
    vhost.publish("q", *[0] * 10)
    wait_until(partial(vhost.count, "q"), "they are there")
    vhost.broker.node.ctl("clear_policy", "--vhost", vhost.name, "standby")
    vhost.publish("q", 0)
    wait_until(lambda: vhost.count("q") == 1, "only the one that came later stays")


def received(vhost: Vhost, amount: int) -> list[str]:
    """Return the ids of so many messages, in the order in which they come, and of what comes with them."""
    with vhost.connection() as connection:
        connection.connection.interceptor.learn()
        messages = take(connection, "q", amount)
        while (more := connection.default_channel.basic_get("q", no_ack=True)) is not None:
            messages.append(more)
        return [message.headers["id"] for message in messages]
