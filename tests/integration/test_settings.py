"""`verify` says when a setting of RabbitMQ's may be what holds a cascade up."""

from __future__ import annotations

import pytest

import celery_rabbit_delay
from celery_rabbit_delay import operate
from testkit.broker import Broker
from testkit.commands import management, run
from testkit.node import Node
from testkit.wait import wait_until

DEFAULT = "raise dead_letter_worker_consumer_prefetch, which is at its default of 32"
PERHAPS = "raise dead_letter_worker_consumer_prefetch, if it is at its default of 32"


@pytest.mark.parametrize(("advanced", "said"), [("", DEFAULT), ("[].", PERHAPS)])
def test_verify_names_the_setting_where_levels_are_behind(advanced: str, said: str) -> None:
    with Node(plugins=("rabbitmq_management",), advanced=advanced) as node, Broker(node).vhost() as vhost:
        vhost.declare("q")
        with vhost.connection(lanes=()) as connection:
            cascade = connection.transport.delay_options.cascade
            api = operate.Management(management(vhost)[1], vhost.name)
            assert operate.advice(api, [cascade]) == []
            operate.setup(connection, [cascade], [])
            # 10 s are 5.12 s and, however long publishing takes, others: what these refuse stays in the first level.
            vhost.policy("full", {"max-length": 1}, pattern=r"\.delay\.(\d{2,3}|1280|2560)$")
            with celery_rabbit_delay.batch(connection.Producer()) as producer:
                for _ in range(200):
                    producer.publish("x", routing_key="q", headers={"x-delay": 10_000})
            [advice] = wait_until(lambda: operate.advice(api, [cascade]), "levels are behind", 120)
        assert said in advice
        assert cascade.levels[9].queue in advice
        verified = run(vhost.url("amqp"), "--lanes", "", "verify", *management(vhost))
        assert said in verified.out
