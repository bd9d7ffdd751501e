"""The permissions that docs/for-operators.md lists are enough, and each of them is needed."""

from __future__ import annotations

import re

import pytest

from celery_rabbit_delay import NotPermitted, Options
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.operate.all_parts import Topology
from celery_rabbit_delay.schedule.amqp import waiting_tasks
from celery_rabbit_delay.schedule.core import streams
from celery_rabbit_delay.schedule.interceptor import known_to
from tests.kit.abilities import Ability
from tests.kit.broker import Vhost, as_another_process, publish
from tests.kit.commands import documented_permissions as documented
from tests.kit.commands import make_orphans, run
from tests.kit.recorded import wait_to_learn
from tests.kit.wait import wait_until

pytestmark = pytest.mark.shared_vhost

NOTHING = "^$"


def refused(vhost: Vhost, permission: str) -> str:
    """Return a pattern of the broker's refusal. Before 3.12 RabbitMQ does not name the permission."""
    which = f"{permission} " if vhost.broker.has(Ability.NAMES_THE_PERMISSION) else ""
    return rf"{which}access to \w+ '[^']+'"


@pytest.mark.own_vhost
@pytest.mark.parametrize("lacking", ["configure", "write", "read"])
def test_an_error_names_the_permission_that_a_publisher_lacks(vhost: Vhost, lacking: str) -> None:
    vhost.declare("q")
    with pytest.raises(NotPermitted, match=refused(vhost, lacking) + ".*grant the permission"):
        vhost.publish_one(vhost.user(**documented("publisher") | {lacking: NOTHING}))


def test_a_passive_publisher_that_may_see_no_destination_reaches_one_after_the_other(vhost: Vhost) -> None:
    vhost.declare("q", "r")
    assert run(vhost.url("amqp"), "--queue", "q", "--queue", "r", "setup").code == 0
    user = vhost.user(**documented('publisher, `declare="passive"`'))
    with vhost.connection(user, declare="passive", confirm_timeout=5) as connection:
        for queue in ("q", "r"):
            connection.Producer().publish("x", routing_key=queue, headers={"x-delay": 30})
    for queue in ("q", "r"):
        assert len(vhost.take(queue, 1)) == 1


@pytest.mark.own_vhost
def test_an_operator_needs_no_more_than_its_row(vhost: Vhost) -> None:
    vhost.declare("q")
    url = vhost.url("amqp", vhost.user(**documented("operator")))
    assert run(url, "--queue", "q", "setup").code == 0
    for command in ("verify", "status"):
        assert run(url, command).code == 0, command
    make_orphans(vhost, 1)
    vhost.declare("gone")
    assert len(run(url, "orphans", "list").out.splitlines()) == 1
    assert run(url, "--queue", "gone", "orphans", "replay").code == 0
    vhost.take("gone", 1)
    assert "0 removed" in run(url, "orphans", "purge", "--yes").out
    with vhost.connection() as connection:
        for id_ in ("a", "b"):
            publish(connection, 60, correlation_id=id_)
    assert run(url, "cancel", "a", "b").code == 0
    done = run(url, "--queue", "q", "teardown", "--yes", "--delete-messages")
    assert done.code == 0, done.text
    wait_until(lambda: "celery-rabbit-delay.v3.10ms.ingest" not in vhost.names("exchanges"), "the cascade is gone")


def test_a_worker_reaches_no_task_of_others() -> None:
    """Who may read or configure a queue may purge or delete it."""
    cascade = Options().cascade
    others = [Destination("", "secret"), Destination("orders", "q"), Destination("news")]
    recording = [stream for stream in streams.all_streams(cascade) if "journal" in stream.name]
    topology = Topology.of([cascade], others, recording, Options().outbox_ticks)
    for what, pattern in documented("worker").items():
        reached = [name for name in topology.queues if re.search(pattern, name)]
        assert reached == [f"{cascade.root}.out.short-lived"], what
        for ticks in (0, 1, 480):
            assert re.search(pattern, cascade.outbox_name(Destination("", "q"), ticks)), what


@pytest.mark.own_vhost
@pytest.mark.parametrize("lacking", ["configure", "write", "read"])
def test_an_error_names_the_permission_that_an_operator_lacks(vhost: Vhost, lacking: str) -> None:
    vhost.declare("q")
    url = vhost.url("amqp", vhost.user(**documented("operator") | {lacking: NOTHING}))
    failed = run(url, "--queue", "q", "setup")
    assert failed.code == 1
    assert re.search(refused(vhost, lacking), failed.err)


def test_a_worker_learns_what_is_cancelled(vhost: Vhost) -> None:
    assert run(vhost.url("amqp"), "setup").code == 0
    with vhost.connection() as connection:
        waiting_tasks.cancel(connection, ["before"])
    for who, declare in (("worker", "auto"), ('worker, `declare="passive"`', "passive")):
        permissions = documented(who)
        for lacking in (None, "read"):
            user = vhost.user(**permissions | ({lacking: NOTHING} if lacking else {}))
            with vhost.connection(user, declare=declare) as connection:
                if lacking:
                    with pytest.raises(NotPermitted, match=refused(vhost, lacking)):
                        connection.connection.interceptor.learn()
                else:
                    connection.connection.interceptor.learn()
                    assert known_to[connection].changes.cancels("before")


@pytest.mark.own_vhost
def test_a_worker_creates_the_streams_that_it_reads(vhost: Vhost) -> None:
    assert run(vhost.url("amqp"), "setup").code == 0
    stream = streams.changes(vhost.cascade)
    vhost.delete_queue(stream.name)
    told: list[bytes] = []
    with vhost.connection(vhost.user(**documented("worker"))) as connection:
        connection.connection.interceptor.following.catch_up(stream, told.append)
        waiting_tasks.cancel(connection, ["later"])
        wait_to_learn(connection, lambda: len(told) == 2)  # the first message of a stream, and what is cancelled


@pytest.mark.parametrize(
    ("write", "read", "says"),
    [
        (r"^q$|\.out\.", ".*", "celery-rabbit-delay.v3.10ms.ingest"),  # may not publish
        (".*", "^q$", "celery-rabbit-delay.v3.10ms."),  # may not bind to done
    ],
)
@pytest.mark.parametrize("confirm_publish", [False, True])
def test_a_missing_permission_is_an_error_that_names_it_and_the_connection_stays_usable(
    vhost: Vhost, write: str, read: str, says: str, confirm_publish: bool
) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 30})
    as_another_process()
    user = vhost.user(configure=r"\.out\.", write=write, read=read)
    with vhost.connection(user, confirm_publish) as connection:
        channel = connection.default_channel
        for _ in range(2):
            with pytest.raises(NotPermitted, match="grant the permission") as caught:
                connection.Producer().publish("x", routing_key="q", headers={"x-delay": 30})
            assert says in str(caught.value)
        assert channel.is_open
        channel.queue_declare("q", passive=True)
    vhost.take("q", 1)  # in the next test it would be an orphan
