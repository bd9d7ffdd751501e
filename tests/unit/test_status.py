"""The cause why messages stay in an outbox, from rows of the management API."""

from __future__ import annotations

from typing import Any

import pytest

from celery_rabbit_delay import Options
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.delay.core.topology import Binding
from celery_rabbit_delay.operate import HeldUp, Snapshot, held_up
from celery_rabbit_delay.operate.held_up import held

CASCADE = Options().cascade
QUEUE, EXCHANGE, KEY = Destination("", "q"), Destination("orders"), Destination("orders", "new")
REFUSING = {"x-max-length": 1, "x-overflow": "reject-publish"}
BY_POLICY = {"max-length-bytes": 1, "overflow": "reject-publish-dlx"}
ROOM = "queue 'q' was full, and has room now: RabbitMQ tries again within six minutes"
FULL = "queue 'q' is full and refuses more: consume from it, or raise its limit"
GONE = "it does not exist: declare it, and they come within minutes, or purge the outbox"
NOBODY = "no queue is bound for it: bind one"
PASSING = "it may be on its way"
UNROUTED = f"{PASSING}, or no queue is bound for its routing key: bind one"


def held_up_for(destination: Destination, rows: dict[str, Any], *bindings: Binding, ticks: int = 0) -> list[HeldUp]:
    """Return what the outbox of a destination holds up that has four due messages, beside other queues."""
    name = CASCADE.outbox_name(destination, ticks)
    counts = {"messages": 9, "messages_ready": 5, "messages_dlx": 4} if ticks else {"messages": 4}
    return all_held_up({name: {"name": name, **counts}, **rows}, *bindings)


def all_held_up(rows: dict[str, Any], *bindings: Binding) -> list[HeldUp]:
    return held_up(CASCADE, Snapshot(rows, set(bindings)))


def test_what_rabbitmq_holds_in_an_outbox_until_it_is_due_is_not_held_up() -> None:
    name = CASCADE.outbox_name(QUEUE)
    assert all_held_up({name: {"name": name, "messages": 3, "messages_delayed": 3}}) == []
    [outbox] = all_held_up({name: {"name": name, "messages": 4, "messages_delayed": 3}})
    assert outbox.stuck == 1


def test_what_rabbitmq_holds_is_counted_for_each_destination() -> None:
    names = [CASCADE.outbox_name(one) for one in (QUEUE, EXCHANGE)]
    rows = {name: {"messages_delayed": amount} for name, amount in zip([*names, "other"], (2, 0, 7), strict=True)}
    assert [*held(CASCADE, Snapshot(rows, set()))] == [(names[0], "queue 'q'", 2)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"arguments": REFUSING, "state": "running", "messages_ready": 1}, FULL),
        ({"arguments": REFUSING, "state": "running", "messages_ready": 0, "messages_unacknowledged": 1}, ROOM),
        ({"arguments": REFUSING, "messages_dlx": 1}, FULL),
        ({"arguments": REFUSING, "messages_ready": 0, "messages_delayed": 1}, FULL),
        ({"arguments": {**REFUSING, "x-max-length": 3}, "messages_ready": 2}, ROOM),
        ({"arguments": {**REFUSING, "x-max-length-bytes": 9}, "messages_ready": 1, "message_bytes_ready": 0}, FULL),
        ({"arguments": {**REFUSING, "x-max-length-bytes": 9}, "messages_ready": 0, "message_bytes_ready": 9}, FULL),
        ({"arguments": REFUSING, "effective_policy_definition": {"max-length": 5}, "messages_ready": 1}, FULL),
        ({"effective_policy_definition": BY_POLICY, "arguments": {}, "message_bytes_ready": 1}, FULL),
        ({"effective_policy_definition": BY_POLICY, "arguments": {}, "messages_ready": 1}, ROOM),
        ({"arguments": {"x-overflow": "reject-publish"}}, PASSING),
        ({"arguments": {"x-max-length": 1}, "effective_policy_definition": {"overflow": "drop-head"}}, PASSING),
        ({"arguments": {**REFUSING, "x-overflow": "drop-head"}, "effective_policy_definition": BY_POLICY}, PASSING),
        ({"state": "down"}, "queue 'q' is down: start the node that it is on"),
        ({"state": "running"}, PASSING),
        ({"state": "flow"}, PASSING),  # it is busy
        ({}, PASSING),
    ],
)
def test_a_queue_that_takes_nothing_is_full_or_down(row: dict[str, Any], reason: str) -> None:
    [outbox] = held_up_for(QUEUE, {"q": row})
    assert str(outbox) == f"4 due for queue 'q': {reason}"
    assert outbox.is_stuck is (reason != PASSING)


def test_the_queue_that_accepts_nothing_is_named_among_several() -> None:
    had_room = {"arguments": REFUSING, "messages_ready": 0}
    rows = {"p": {}, "q": {"arguments": REFUSING, "messages_ready": 1}, "r": had_room}
    [outbox] = held_up_for(KEY, rows, *(Binding("orders", name, "queue", "new") for name in rows))
    assert str(outbox) == f"4 due for {KEY}: {FULL}"


def test_what_is_due_for_a_queue_that_is_gone_says_so() -> None:
    [outbox] = held_up_for(QUEUE, {})
    assert (str(outbox), outbox.is_stuck) == (f"4 due for queue 'q': {GONE}", True)


@pytest.mark.parametrize(
    ("destination", "bindings", "row", "reason"),
    [
        (EXCHANGE, [], {}, NOBODY),
        (EXCHANGE, [("others", "q", "queue", "new")], {}, NOBODY),
        (EXCHANGE, [("orders", "q", "queue", "old")], {}, UNROUTED),
        (EXCHANGE, [("orders", "q", "queue", "old")], {"arguments": REFUSING, "messages_ready": 1}, FULL),
        (KEY, [("orders", "q", "queue", "old")], {"arguments": REFUSING, "messages_ready": 1}, NOBODY),
        (KEY, [("orders", "q", "queue", "new")], {"arguments": REFUSING, "messages_ready": 1}, FULL),
        (KEY, [("orders", "q", "queue", "new")], {}, PASSING),
        (KEY, [("orders", "q", "exchange", "new")], {"arguments": REFUSING}, PASSING),
    ],
)
def test_an_exchange_takes_nothing_that_no_queue_is_bound_for_or_that_one_of_these_refuses(
    destination: Destination, bindings: list[tuple[Any, ...]], row: dict[str, Any], reason: str
) -> None:
    [outbox] = held_up_for(destination, {"q": row}, *(Binding(*binding) for binding in bindings))
    assert str(outbox) == f"4 due for {destination}: {reason}"
    assert outbox.is_stuck is not reason.startswith(PASSING)


def test_the_outbox_of_short_lived_queues_holds_nothing_up() -> None:
    """It drops what is for a queue that is gone, as RabbitMQ does without a delay."""
    assert held_up_for(Destination("", "amq.gen-1"), {}) == []


def test_what_waits_in_an_outbox_with_a_delay_is_not_held_up() -> None:
    [outbox] = held_up_for(QUEUE, {"q": {}}, ticks=480)
    assert (outbox.queue, outbox.stuck) == (CASCADE.outbox_name(QUEUE, 480), 4)
    name = CASCADE.outbox_name(QUEUE, 480)
    assert all_held_up({name: {"name": name, "messages": 5, "messages_ready": 5}}) == []


def test_outboxes_of_a_destination_are_added_up_as_long_as_the_cause_is_the_same() -> None:
    rows: dict[str, Any] = {
        (name := CASCADE.outbox_name(destination, ticks)): {"name": name, "messages": 1, "messages_dlx": 1 + ticks}
        for destination in (QUEUE, KEY)
        for ticks in (0, 8, 480)
    }
    assert [(one.queue, one.destination, one.stuck) for one in all_held_up(rows)] == [
        (CASCADE.outbox_name(QUEUE), str(QUEUE), 1 + 9 + 481),
        (CASCADE.outbox_name(KEY), str(KEY), 1 + 9 + 481),
    ]


def test_a_queue_that_somebody_named_like_an_outbox_misleads_nobody() -> None:
    name = f"{CASCADE.root}.out.mine"
    found = held_up_for(QUEUE, {name: {"name": name, "messages": 1}})
    assert [one.destination for one in found] == ["queue 'q'"]


def test_an_empty_outbox_and_other_queues_hold_nothing_up() -> None:
    name = CASCADE.outbox_name(QUEUE)
    assert held_up_for(QUEUE, {name: {"name": name, "messages": 0}, "q": {"name": "q", "messages": 9}}) == []
