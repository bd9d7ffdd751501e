"""`verify` recommends RabbitMQ's setting if a cascade is too slow."""

from __future__ import annotations

import pytest

import celery_rabbit_delay
from celery_rabbit_delay import operate
from testkit.broker import Vhost, own_node
from testkit.commands import management, run
from testkit.wait import wait_until

pytestmark = pytest.mark.more

DEFAULT = "raise dead_letter_worker_consumer_prefetch, which is at its default of 32"
PERHAPS = "raise dead_letter_worker_consumer_prefetch, if it is at its default of 32"
AFTER_A_CRASH = "unless dead_letter_worker_publisher_confirm_timeout is set"


@pytest.mark.long
@pytest.mark.parametrize(("advanced", "said"), [("", DEFAULT), ("[].", PERHAPS)])
def test_verify_names_the_setting_where_levels_are_behind(advanced: str, said: str) -> None:
    with own_node(advanced=advanced) as vhost:
        vhost.declare("q")
        with vhost.connection(outboxes=()) as connection:
            cascade = connection.transport.delay_options.cascade
            api = operate.Management(management(vhost)[1], vhost.name)
            operate.setup(connection, [cascade], [])
            wait_until(api.config_files, "the node says where its settings are")
            before = operate.advice(api, [cascade])
            concerned = not advanced and vhost.broker.version < (4, 2)  # with an advanced.config it may be set
            assert [AFTER_A_CRASH in text for text in before] == [True] * concerned
            verified = run(vhost.url("amqp"), "--outboxes", "", "verify", *management(vhost))
            assert all(text in verified.out for text in before)
            assert verified.code == 0, verified.text  # it is no problem
            # 10 s are 5.12 s and, however long publishing takes, others: what these refuse stays in the first level.
            vhost.policy("full", {"max-length": 1}, pattern=r"\.delay\.(\d{2,3}|1280|2560)$")
            with celery_rabbit_delay.batch(connection.Producer()) as producer:
                for _ in range(200):
                    producer.publish("x", routing_key="q", headers={"x-delay": 10_000})
            wait_until(lambda: len(operate.advice(api, [cascade])) > len(before), "levels are behind", 120)
            advice = operate.advice(api, [cascade])[0]
        assert said in advice
        assert cascade.levels[9].queue in advice
        verified = run(vhost.url("amqp"), "--outboxes", "", "verify", *management(vhost))
        assert said in verified.out


def test_verify_names_the_setting_where_an_outbox_is_behind_unless_it_is_known_why(vhost: Vhost) -> None:
    with vhost.plain() as connection:
        channel = connection.default_channel
        channel.queue_declare("full", auto_delete=False, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        for exchange in ("first", "second"):
            channel.exchange_declare(exchange, "direct", durable=True, auto_delete=False)
        channel.exchange_bind("second", "first", "k")  # which leads nowhere, as far as nobody looks that far
    api = operate.Management(management(vhost)[1], vhost.name)
    with vhost.connection() as connection:
        cascade = connection.transport.delay_options.cascade
        for exchange, key in (("", "full"), ("first", "k")):
            with celery_rabbit_delay.batch(connection.Producer()) as producer:
                for _ in range(100):
                    producer.publish("x", exchange=exchange, routing_key=key, headers={"x-delay": 20})
        stuck = {False: "first", True: "full"}

        def held_up() -> bool:
            found = {outbox.is_stuck: outbox for outbox in operate.held_up(cascade, api) if outbox.stuck > 90}
            return all(stuck[known] in outbox.queue for known, outbox in found.items()) and len(found) == 2

        wait_until(held_up, "both outboxes hold their messages")
        [advice] = wait_until(lambda: operate.advice(api, [cascade]), "an outbox is behind")
    assert PERHAPS in advice
    assert "still in 1 levels and outboxes" in advice
    assert f"{cascade.outbox_prefix}first" in advice
