"""The cascade on a real broker."""

from __future__ import annotations

import sys
import time
from typing import Any

import kombu
import pytest
from amqp.exceptions import NotFound

from celery_rabbit_delay import CascadeConflict, CascadeMissing, NotRouted, Options, operate
from celery_rabbit_delay.delay.amqp import declare, publisher
from celery_rabbit_delay.delay.amqp.confirms import Confirm, NotStored
from celery_rabbit_delay.delay.core.destination import Destination
from tests.kit.abilities import Ability
from tests.kit.broker import QUICK, Vhost, as_another_process, own_node, publish, take
from tests.kit.frames import frames
from tests.kit.wait import wait_until

Q = Destination("", "q")


@pytest.fixture
def q(vhost: Vhost) -> str:
    vhost.declare("q")
    return "q"


def test_the_broker_holds_just_what_the_topology_says(vhost: Vhost, q: str) -> None:
    vhost.publish("q", 0.02)
    cascade = vhost.cascade
    exchanges = {e.name: e for e in cascade.exchanges()}
    queues = {queue.name: queue for queue in cascade.queues()}
    assert vhost.names("exchanges") == sorted(exchanges)
    ticks = (*Options(**QUICK).combined_in(cascade), 0)
    outboxes = {outbox.name: outbox for outbox in (cascade.outbox(Q, one) for one in ticks)}
    assert vhost.names("queues") == sorted([*queues, *outboxes, "q"])
    for name, outbox in outboxes.items():
        assert vhost.arguments("queues", name) == outbox.arguments
        assert vhost.arguments("queues", name)["x-dead-letter-routing-key"] == "q"
    for name, exchange in exchanges.items():
        assert vhost.arguments("exchanges", name) == exchange.arguments
    for name, queue in queues.items():
        assert vhost.arguments("queues", name) == queue.arguments
    declared = {(b.source, b.destination, b.destination_type, b.routing_key) for b in cascade.bindings()}
    led = {
        (b.source, b.destination, b.destination_type, b.routing_key)
        for t in ticks
        for b in cascade.outbox_bindings(Q, t)
    }
    assert vhost.bindings() == declared | led
    assert not [one for one in vhost.bindings() if one[1] == "q"], "nothing is bound to the user's queue"


@pytest.mark.shared_vhost
def test_an_existing_cascade_costs_three_round_trips_once_in_a_process(vhost: Vhost, q: str) -> None:
    vhost.publish_one()
    as_another_process()
    with vhost.connection() as connection:
        connection.default_channel  # noqa: B018
        with frames(connection) as (sent, received):
            connection.Producer().publish("x", routing_key="q", headers={"x-delay": 20})
    # The marker, the queue, and the bindings of its outboxes, of which only the last is waited for.
    assert [sent[0], *sent[-3:]] == [(20, 10), (20, 10), (85, 10), (60, 40)]
    assert received == [(20, 11), (40, 11), (50, 11), (50, 21), (20, 11), (60, 80)]
    with vhost.connection() as connection:
        connection.default_channel  # noqa: B018
        with frames(connection) as (sent, received):
            connection.Producer().publish("x", routing_key="q", headers={"x-delay": 20})
    assert sent == [(20, 10), (85, 10), (60, 40)], "another connection of the process knows it all"


def test_declaring_half_a_cascade_again_completes_it(vhost: Vhost, q: str) -> None:
    vhost.publish_one()
    cascade = vhost.cascade
    vhost.delete_exchange(cascade.marker)
    vhost.delete_queue(cascade.levels[3].queue)
    vhost.delete_exchange(cascade.levels[5].done)
    as_another_process()
    vhost.publish_one()
    assert {
        (b.source, b.destination, b.destination_type, b.routing_key) for b in cascade.bindings()
    } <= vhost.bindings()


@pytest.mark.more
def test_a_queue_that_is_just_being_created_is_no_error(vhost: Vhost, q: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment the queue is in only one of RabbitMQ's two tables, and counts as "on a node that is down"."""
    node = vhost.broker.node
    if vhost.broker.has(Ability.KEEPS_QUEUES_IN_ONE_TABLE):
        pytest.skip("RabbitMQ keeps queues in one table, with Khepri")
    vhost.publish_one()
    vhost.delete_exchange(vhost.cascade.marker)
    as_another_process()
    name = f'Name = rabbit_misc:r(<<"{vhost.name}">>, queue, <<"{vhost.cascade.levels[3].queue}">>),'
    node.ctl("eval", f"{name} ok = mnesia:dirty_delete(rabbit_queue, Name).")
    declare_exchange = declare.declare_exchange
    answers: list[str] = []

    def moment(*args: Any, **options: Any) -> None:
        if not answers and isinstance(refusal := sys.exc_info()[1], NotFound):  # it begins again
            answers.append(refusal.reply_text)
            row = "[Queue] = mnesia:dirty_read(rabbit_durable_queue, Name)"
            node.ctl("eval", f"{name} {row}, ok = mnesia:dirty_write(rabbit_queue, Queue).")
        declare_exchange(*args, **options)

    monkeypatch.setattr(declare, "declare_exchange", moment)
    vhost.publish_one(confirm_timeout=None)  # `eval` takes its time on a busy machine
    assert [" is down or inaccessible" in answer for answer in answers] == [True]
    assert len(vhost.take("q", 2)) == 2


@pytest.mark.more
def test_a_queue_whose_leader_is_not_up_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is while another process creates the queue: RabbitMQ then refuses messages at once."""
    with own_node() as vhost:  # it may not recover
        vhost.declare("q")
        vhost.publish_one()
        queues = [level.queue for level in vhost.cascade.levels]
        names = ", ".join(f'rabbit_misc:r(<<"{vhost.name}">>, queue, <<"{queue}">>)' for queue in queues)

        def tell_leaders(to: str) -> None:
            leaders = f"[begin {{ok, Q}} = rabbit_amqqueue:lookup(Name), amqqueue:get_pid(Q) end || Name <- [{names}]]"
            vhost.broker.node.ctl("eval", f"[ok = ra:{to}_server(quorum_queues, Leader) || Leader <- {leaders}].")

        tell_leaders("stop")
        refusals: list[NotStored] = []
        answer = Confirm.answer

        def note(confirm: Confirm, refusal: Exception | None) -> None:
            if isinstance(refusal, NotStored):
                if not refusals:
                    tell_leaders("restart")
                refusals.append(refusal)
            answer(confirm, refusal)

        monkeypatch.setattr(Confirm, "answer", note)
        monkeypatch.setattr(publisher, "RETRIED_FOR", 60)
        vhost.publish_one(confirm_timeout=None)  # `eval` takes its time on a busy machine
        assert refusals
        assert len(vhost.take("q", 2)) == 2


def test_something_else_with_a_name_of_ours_is_an_error_and_all_that_we_create_carries_the_prefix(
    vhost: Vhost, q: str
) -> None:
    alien = vhost.cascade.ingest
    with vhost.plain() as connection:
        connection.default_channel.exchange_declare(alien, "direct", durable=True, auto_delete=False)
    with pytest.raises(CascadeConflict, match=r"something else has the name .*use another prefix"):
        vhost.publish_one()
    vhost.publish_one(prefix="shop.delays")
    created = vhost.names("queues") + vhost.names("exchanges")
    assert {name for name in created if not name.startswith("shop.delays.")} == {"q", alien}


def test_passive_creates_nothing_uses_what_is_there_and_says_what_is_missing_and_what_to_do(
    vhost: Vhost, q: str
) -> None:
    root = r"celery-rabbit-delay\.v3\.10ms"
    with pytest.raises(CascadeMissing, match=rf"lacks {root}\.ingest, .* more: run `celery -A APP delay setup`"):
        vhost.publish_one(declare="passive")
    assert (vhost.names("queues"), vhost.names("exchanges")) == (["q"], [])
    vhost.publish_one()
    before = vhost.bindings()
    vhost.publish_one(declare="passive")
    user = vhost.user(configure="^$", write=rf"^{root}\.(ingest|out\.)", read="^$")  # needs only to write to ingest
    vhost.publish_one(user=user, declare="passive")
    assert vhost.bindings() == before
    assert len(vhost.take("q", 3)) == 3
    vhost.delete_queue(vhost.cascade.levels[4].queue)
    vhost.delete_exchange(vhost.cascade.marker)
    as_another_process()
    with pytest.raises(CascadeMissing, match=rf"lacks {root}\.ingest\.14, {root}\.delay\.160"):
        vhost.publish_one(declare="passive")
    with pytest.raises(CascadeMissing, match=rf"lacks .*{root}\.ingest\.14"):  # it may see no more than ingest
        vhost.publish_one(user=user, declare="passive")


def test_levels_for_the_longest_possible_delay_can_be_declared(vhost: Vhost, q: str) -> None:
    longest = QUICK | {"tick": 0.001, "max_delay": 10 * 365 * 24 * 3600}
    vhost.publish_one(**longest)
    assert len(vhost.take("q", 1)) == 1


@pytest.mark.parametrize("declared", ["auto", "passive"])
def test_deleted_parts_of_the_cascade_are_made_again_or_missed_loudly(vhost: Vhost, declared: str) -> None:
    vhost.declare("q")
    cascade = vhost.cascade
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 30})
        take(connection, "q", 1)
    with vhost.connection(declare=declared) as connection:
        producer = connection.Producer()
        producer.publish("x", routing_key="q", headers={"x-delay": 30})
        take(connection, "q", 1)
        for delete, name in ((vhost.delete_queue, cascade.levels[5].queue), (vhost.delete_exchange, cascade.ingest)):
            delete(name)
            if declared == "passive":
                with pytest.raises((CascadeMissing, NotRouted)):
                    producer.publish("x", routing_key="q", headers={"x-delay": 500})
            else:
                producer.publish("x", routing_key="q", headers={"x-delay": 500})
                take(connection, "q", 1)


@pytest.mark.shared_vhost
def test_a_queue_whose_leader_is_slow_to_answer_does_not_count_as_empty(vhost: Vhost) -> None:
    """RabbitMQ says after 250 ms that such a queue has no messages, and who asks may delete it then."""
    vhost.declare("q", arguments={"x-queue-type": "quorum"})
    with vhost.plain() as connection:
        channel = connection.default_channel
        connection.Producer(channel).publish("x", routing_key="q")
        wait_until(lambda: declare.message_count(channel, "q"), "the message is there")
        name = f'rabbit_misc:r(<<"{vhost.name}">>, queue, <<"q">>)'
        vhost.broker.node.ctl(
            "eval",
            f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), Leader = amqqueue:get_pid(Q), spawn(fun () -> "
            # Again and again: on a busy machine the first time may be over before this command ends.
            "[begin timer:sleep(1000), sys:suspend(Leader), timer:sleep(600), sys:resume(Leader) end"
            " || _ <- lists:seq(1, 60)] end).",
        )
        took = 0.0
        while took < 0.25:  # until it was slow, once
            asked = time.monotonic()
            assert declare.message_count(channel, "q") == 1
            took = time.monotonic() - asked


def interrupt(connection: kombu.Connection, queues: int) -> None:
    """Let a connection delete only so many queues."""
    channel = connection.default_channel
    turns = iter(range(queues))
    delete_queue = channel.queue_delete

    def delete(*args: Any, **kwargs: Any) -> Any:
        if next(turns, None) is None:
            raise OSError("interrupted")
        return delete_queue(*args, **kwargs)

    channel.queue_delete = delete


@pytest.mark.more
def test_a_teardown_that_is_interrupted_again_and_again_removes_everything_in_the_end(vhost: Vhost) -> None:
    """Also what only a process with a larger `max_delay` has declared."""
    vhost.declare("q")
    destinations = [Destination("", "q")]
    with vhost.connection(outboxes=()) as connection:
        operate.setup(connection, operate.cascades(connection), destinations)
        for _ in range(2):
            publish(connection, 60, "q")
    levels = {name for name in vhost.names("queues") if ".delay." in name}
    interrupted, finished = 0, False
    while not finished:
        with vhost.connection(max_delay=1, outboxes=()) as connection:
            if levels <= {*vhost.names("queues")}:
                status = operate.status(connection, destinations)
                assert status.waiting == 2
            interrupt(connection, 5)
            try:
                operate.teardown(connection, destinations, delete_messages=True)
                finished = True
            except OSError:
                interrupted += 1
    assert interrupted > 2
    wait_until(lambda: vhost.names("queues") == ["q"], "all queues are gone")
    assert vhost.names("exchanges") == []
