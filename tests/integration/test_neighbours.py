"""Known defects of other ways to delay messages in RabbitMQ do not occur here.

Celery's native delayed delivery also sends retries to the default queue (`test_fifty_retries_stay_on_their_queue…`), is
frozen by 32 messages that nobody can receive (`test_orphans_block_no_other_message`), knows no prefix
(`…_all_that_we_create_carries_the_prefix`) and lets a worker without permissions look ready
(`test_an_auto_worker_without_the_permission_says_what_to_do_and_works`).
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import kombu
import pytest
from kombu.common import Broadcast

from celery_rabbit_delay import Options
from tests.kit.broker import Vhost, lead, take
from tests.kit.wait import wait_until

from .conftest import MakeApp

pytestmark = pytest.mark.shared_vhost

QUORUM = {"x-queue-type": "quorum"}


def declared(vhost: Vhost, *queues: kombu.Queue) -> None:
    with vhost.plain() as connection:
        for queue in queues:
            queue(connection.default_channel).declare()


def arrived(vhost: Vhost, queue: str) -> int:
    """Return the number of messages that came to a queue, after a wait for an extra one."""
    wait_until(lambda: vhost.count(queue), f"something comes to {queue}")
    time.sleep(0.3)
    return vhost.count(queue)


def test_native_ignores_an_explicit_exchange_and_routing_key(vhost: Vhost, make_app: MakeApp) -> None:
    declared(vhost, kombu.Queue("mail", kombu.Exchange("mails", "topic"), "mail.*"))
    app = make_app(task_default_queue_type="quorum", task_default_exchange_type="topic")
    app.send_task("t", countdown=0.1, exchange="mails", routing_key="mail.urgent")
    assert arrived(vhost, "mail") == 1


def test_native_runs_a_task_twice_whose_routing_key_is_bound_to_two_exchanges(vhost: Vhost, make_app: MakeApp) -> None:
    one, two = (kombu.Queue(name, kombu.Exchange(f"{name}s", "topic"), "key") for name in ("one", "two"))
    declared(vhost, one, two)
    make_app(task_queues=[one, two]).send_task("t", countdown=0.1, queue="one")
    assert arrived(vhost, "one") == 1
    assert vhost.count("two") == 0


def test_native_takes_the_key_a_b_for_b(vhost: Vhost, make_app: MakeApp) -> None:
    queues = [kombu.Queue(name, kombu.Exchange("shop", "topic"), name) for name in ("b", "a.b")]
    declared(vhost, *queues)
    app = make_app(task_queues=queues)
    app.send_task("t", countdown=0.1, queue="a.b")
    assert arrived(vhost, "a.b") == 1
    app.send_task("t", countdown=0.1, queue="b")
    assert (arrived(vhost, "b"), vhost.count("a.b")) == (1, 1)


def test_native_runs_every_delayed_task_twice_beside_a_fanout_queue(vhost: Vhost, make_app: MakeApp) -> None:
    queues = [kombu.Queue("celery", queue_arguments=QUORUM), Broadcast("news", queue="news.one", auto_delete=False)]
    declared(vhost, *queues)
    make_app(task_queues=queues).send_task("t", countdown=0.1, queue="celery")
    assert arrived(vhost, "celery") == 1
    assert vhost.count("news.one") == 0


def test_native_refuses_fractions_of_a_second(vhost: Vhost, make_app: MakeApp) -> None:
    make_app(task_default_queue_type="quorum", task_default_exchange_type="topic").send_task("t", countdown=0.5)
    assert arrived(vhost, "celery") == 1


@pytest.mark.parametrize(
    "delay",
    [
        timedelta(seconds=2**28 + 60),  # native delivers after half of it
        timedelta(days=50),  # the delayed-message-exchange plug-in delivers at once beyond 2**32 - 1 ms
    ],
)
@pytest.mark.long
def test_long_delays_are_as_long_as_they_say(vhost: Vhost, delay: timedelta) -> None:
    vhost.declare("q")
    options = Options(max_delay=3.1e8, slack=0)
    now = datetime.now(timezone.utc)
    with vhost.connection(**options.to_dict()) as connection:
        lead(connection, "q")
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": delay // timedelta(milliseconds=1)})
    # The longest outbox is for a month.
    level = options.route(options.cascade, options.ticks(delay // timedelta(microseconds=1))).levels[0]
    [message] = vhost.take(level.queue, 1)
    assert message.headers["x-celery-rabbit-delay"]["due"] >= (now + delay).timestamp() * 1000 - 1


@pytest.mark.own_vhost
def test_native_loses_the_first_task_if_no_worker_ran_before(vhost: Vhost, make_app: MakeApp) -> None:
    make_app().send_task("t", countdown=0.05, queue="never-heard-of")
    assert len(vhost.take("never-heard-of", 1)) == 1


def test_native_fails_in_the_configuration_of_its_own_documentation(vhost: Vhost, make_app: MakeApp) -> None:
    queue = kombu.Queue("my-queue", queue_arguments=QUORUM)
    app = make_app(
        task_queues=[queue],
        task_default_queue_type="quorum",
        task_default_exchange_type="topic",
        broker_transport_options={"confirm_publish": True},
    )
    app.send_task("t", countdown=0.1, queue="my-queue")
    assert arrived(vhost, "my-queue") == 1


def test_a_ttl_for_each_message_holds_short_delays_up_behind_long_ones(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        producer = connection.Producer()
        for delay in (60_000, 45_000, 300, 100):
            producer.publish(delay, routing_key="q", headers={"x-delay": delay})
        assert [message.payload for message in take(connection, "q", 2)] == [100, 300]


def test_queues_that_expire_lose_what_is_in_them() -> None:
    for queue in Options().cascade.queues():
        assert not queue.arguments.keys() & {"x-expires", "x-max-length", "x-max-length-bytes"}
