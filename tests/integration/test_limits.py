"""What a limit, a permission or a policy keeps from being created costs hops, or is an error that names it."""

from __future__ import annotations

import logging
import re

import kombu
import pytest
from amqp.exceptions import NotAllowed

from celery_rabbit_delay import LimitReached, operate
from celery_rabbit_delay.delay.app.consumers import DelayedConsumer
from celery_rabbit_delay.delay.core.options import Options
from celery_rabbit_delay.operate.management import Management
from tests.kit.broker import QUICK, Vhost, lead, publish, take
from tests.kit.commands import management, run
from tests.kit.wait import wait_until

OPTIONS = {**QUICK, "max_delay": 7200}


def limit_queues(vhost: Vhost, amount: int) -> None:
    vhost.broker.api("PUT", f"/vhost-limits/{vhost.name}/max-queues", {"value": amount})


def test_a_limit_of_queues_below_the_cascade_is_named_with_the_number_that_is_needed(vhost: Vhost) -> None:
    vhost.declare("q")
    limit_queues(vhost, 3)
    needed = len(list(Options(**OPTIONS).cascade.queues()))
    with vhost.connection(**OPTIONS) as connection:
        for _ in range(2):
            with pytest.raises(
                LimitReached, match=rf"limit.*3.*reached.* needs {needed} queues.*set_vhost_limits"
            ) as found:
                publish(connection, 1)
            assert "something else has the name" not in str(found.value)
        limit_queues(vhost, 100)
        publish(connection, 0.01)
        assert len(take(connection, "q", 1)) == 1


def test_where_a_limit_leaves_no_room_for_outboxes_every_delay_is_still_sent(
    vhost: Vhost, caplog: pytest.LogCaptureFixture
) -> None:
    vhost.declare("q", "r", "s")
    with vhost.connection(**OPTIONS, journal=None) as connection:
        lead(connection, "q")
        lead(connection, "r")
        limit_queues(vhost, len(vhost.names("queues")) + 1)
        with caplog.at_level(logging.WARNING):
            for _ in range(5):
                for seconds in (0.07, 0.3, 3, 7, 60, 61.7, 900, 3600):
                    publish(connection, seconds, "q")
                    publish(connection, seconds, "r")
        take(connection, "q", 10)
        take(connection, "r", 10)
        assert "queue limit" in caplog.text
        with pytest.raises(LimitReached):
            publish(connection, 1, "s")
    # Those of 3 s may have come meanwhile, and one that passes on may be counted twice.
    wait_until(lambda: sum(vhost.waiting().values()) + vhost.count("q") + vhost.count("r") == 60, "none was lost")
    with vhost.connection(**OPTIONS, journal=None) as again:
        publish(again, 3600, "q")


def test_verify_names_a_policy_that_limits_any_of_our_queues_and_none_of_others(vhost: Vhost) -> None:
    vhost.declare("q", "celery-rabbit-delay")
    with vhost.connection(journal=0) as connection:
        publish(connection, 100, "q")
        ours = [name for name in vhost.names("queues") if name.startswith("celery-rabbit-delay.")]
        for name in ("celery-rabbit-delay.beat.shop", f"{vhost.cascade.root}.ingest.probe"):
            vhost.declare(name, arguments={"x-queue-type": "quorum"})
            ours.append(name)
        assert any(".journal." in name for name in ours)
        policy = {"pattern": "", "apply-to": "all", "definition": {"max-length-bytes": 10**12}}
        vhost.broker.api("PUT", f"/policies/{vhost.name}/roomy", policy)
        api = Management(management(vhost)[1], vhost.name)

        def named() -> list[str]:
            return [one.name for one in operate.compare(connection, [], api.snapshot()) if one.kind == "policy"]

        wait_until(lambda: named() == sorted(ours), "each of them is named")


@pytest.mark.parametrize(
    ("of", "limit", "too_few", "enough"),
    [("user", "max-connections", 1, 2), ("vhost", "max-connections", 1, 2), ("user", "max-channels", 1, 6)],
)
def test_a_limit_of_connections_or_channels_is_named_with_what_is_needed(
    vhost: Vhost, of: str, limit: str, too_few: int, enough: int
) -> None:
    def put(value: int) -> None:
        name = user if of == "user" else vhost.name
        vhost.broker.api("PUT", f"/{of}-limits/{name}/{limit}", {"value": value})

    vhost.declare("q")
    user = vhost.user(".*", ".*", ".*")
    put(too_few)
    with vhost.connection(user, **OPTIONS) as connection:
        connection.default_channel  # noqa: B018
        shown = "connections" if limit == "max-connections" else "channels"
        wait_until(lambda: vhost.broker.api("GET", f"/vhosts/{vhost.name}/{shown}"), "RabbitMQ counts it")
        says = rf"limit (of )?\(?{too_few}.*needs one more connection.*up to 5 channels.*{limit}"
        with pytest.raises(NotAllowed, match=says):
            publish(connection, 1)
        asked = run(vhost.url("amqp", user), "status")
        assert (asked.code, re.search(says, asked.err.replace("\n", " ")) is not None) == (1, True), asked.err
        put(enough)
        publish(connection, 0.01)
        assert len(take(connection, "q", 1)) == 1


def test_a_worker_for_whose_own_connection_there_is_no_room_consumes_and_says_what_is_needed(
    vhost: Vhost, caplog: pytest.LogCaptureFixture
) -> None:
    vhost.declare("q")
    user = vhost.user(".*", ".*", ".*")
    vhost.broker.api("PUT", f"/user-limits/{user}/max-connections", {"value": 1})
    with vhost.connection(user, **OPTIONS) as connection:
        channel = connection.default_channel
        wait_until(lambda: vhost.broker.api("GET", f"/vhosts/{vhost.name}/connections"), "RabbitMQ counts it")
        DelayedConsumer(channel, [kombu.Queue("q")])
    assert "cannot create the cascade or the outboxes of 'q'" in caplog.text
    assert "needs one more connection" in caplog.text
