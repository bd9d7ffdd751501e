"""Known defects of other ways to delay messages in RabbitMQ do not occur here.

Celery's native delayed delivery also

- sends retries to the default queue (`test_fifty_retries_stay_on_their_queue…`);
- is frozen by 32 messages that nobody can receive (`test_orphans_block_no_other_message`);
- ignores an explicit exchange and routing key (`test_a_task_goes_to_the_queue_or_the_exchange_it_was_sent_to`);
- runs a task twice whose routing key is bound to two exchanges (`test_exchanges_with_the_same_routing_key_do_not_mix`);
- takes the key a.b for b (`test_a_message_reaches_its_queue_through_the_default_exchange`);
- refuses fractions of a second (`test_a_countdown_of_any_size_is_exact`);
- loses the first task if no worker ran before (`test_forked_children_publish_beside_their_parent`);
- knows no prefix (`…_all_that_we_create_carries_the_prefix`);
- lets a worker without permissions look ready (`test_an_auto_worker_without_the_permission_says_what_to_do_and_works`).

A TTL for each message holds short delays up behind long ones (`test_order_follows_the_delays_and_not_the_sending`), and
queues that expire lose what is in them (tests/unit/layout.json has the arguments of ours).
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import kombu
import pytest
from kombu.common import Broadcast

from celery_rabbit_delay import Options
from tests.kit.broker import Vhost, lead
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


def test_native_runs_every_delayed_task_twice_beside_a_fanout_queue(vhost: Vhost, make_app: MakeApp) -> None:
    queues = [kombu.Queue("celery", queue_arguments=QUORUM), Broadcast("news", queue="news.one", auto_delete=False)]
    declared(vhost, *queues)
    make_app(task_queues=queues).send_task("t", countdown=0.1, queue="celery")
    assert arrived(vhost, "celery") == 1
    assert vhost.count("news.one") == 0


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
