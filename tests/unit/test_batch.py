"""A batch keeps messages until they are stored, also after errors. No broker is contacted."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from amqp import Message
from amqp.exceptions import RecoverableConnectionError

from celery_rabbit_delay import BatchFailed, CascadeMissing, MessageRefused
from celery_rabbit_delay.delay.amqp import batch
from celery_rabbit_delay.delay.amqp.batch import Batch, collecting, current
from celery_rabbit_delay.delay.amqp.confirms import NotStored
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.delay.core.options import Options
from celery_rabbit_delay.delay.core.plan import Plan, Ticket
from celery_rabbit_delay.schedule.core import streams

STREAM = streams.journal_for(Options().cascade, 60)


def plan(name: str, recorded: bool = False) -> Plan:
    message = Message(name, correlation_id=name)
    return Plan(message, {}, Destination("", "q"), 0, ticket=Ticket(int(name), STREAM) if recorded else None)


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "Turn", nullcontext)


class Sender:
    """Takes messages, and answers when somebody waits: those that it refuses once, with the reason."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.alone: list[str] = []
        self.records: list[Any] = []
        self.refuses: dict[str, Exception] = {}
        self.refuses_alone: dict[str, Exception] = {}
        self.asked: list[tuple[str, Callable[[Exception | None], None]]] = []
        self.is_lost = False
        self.interceptor = self

    def publisher(self, through_levels: bool = False) -> Sender:
        return self

    def submit(self, plan: Plan, answered: Callable[[Exception | None], None]) -> Any:
        self.asked.append((plan.message.body, answered))
        return plan.message

    def settle(self, seconds: float | None) -> None:
        while self.asked:
            body, answered = self.asked.pop(0)
            refusal = RecoverableConnectionError("lost") if self.is_lost else self.refuses.pop(body, None)
            self.done += [] if refusal else [body]
            answered(refusal)

    def stored(self, publisher: Any, sent: Any) -> None:
        assert not self.asked, "it may close the connection"
        self.records += [f"record {plan.ticket.number}" for plan, _ in sent]

    def close_if_left(self) -> None:
        assert not self.asked

    def publish(self, plan: Plan) -> None:
        if refusal := self.refuses_alone.get(plan.message.body):
            raise refusal
        self.alone.append(plan.message.body)


@pytest.fixture
def sender() -> Any:
    return Sender()


def add(sender: Any, *names: str, recorded: bool = False) -> None:
    batch = current()
    assert batch is not None
    for name in names:
        batch.add(sender, plan(name, recorded))


def test_messages_of_several_connections_are_waited_for_on_each(sender: Any) -> None:
    other: Any = Sender()
    with collecting(3):
        add(sender, "1", "2")
        add(other, "3", "4")
    assert (sender.done, other.done) == (["1", "2"], ["3", "4"])


@pytest.mark.parametrize("most", [1, 5])
def test_an_answer_that_an_interrupt_has_swallowed_is_not_waited_for(sender: Any, most: int) -> None:
    with collecting(most):
        add(sender, "1")
        sender.asked.clear()
        add(sender, "2")
    assert sorted(sender.done + sender.alone) == ["1", "2"]


@pytest.mark.parametrize("refusal", [CascadeMissing("a level is gone"), NotStored(), MessageRefused("of another")])
def test_a_message_that_was_refused_at_first_is_sent_alone(sender: Any, refusal: Exception) -> None:
    sender.refuses = {"1": refusal}
    with collecting(10):
        add(sender, "1", "2", "3", recorded=True)
    assert (sender.done, sender.alone) == (["2", "3"], ["1"])
    assert sender.records == ["record 2", "record 3"]


def test_what_is_refused_again_alone_fails_with_its_id_and_all_others_are_stored(sender: Any) -> None:
    sender.refuses = {"1": NotStored(), "3": NotStored()}
    sender.refuses_alone = {"1": NotStored()}
    with (
        pytest.raises(BatchFailed, match="1 delayed messages may not be stored, send them again") as failed,
        collecting(9),
    ):
        add(sender, "1", "2", "3")
    assert failed.value.ids == ["1"]
    assert (sender.done, sender.alone) == (["2"], ["3"])
    again = pickle.loads(pickle.dumps(failed.value))
    assert (again.ids, str(again)) == (["1"], str(failed.value))


def test_a_connection_that_is_lost_while_there_is_no_more_room_keeps_nobody_from_sending(sender: Any) -> None:
    sender.is_lost = True

    def send() -> None:
        with collecting(2):
            add(sender, "1", "2")
            add(sender, "3")
            sender.is_lost = False

    with pytest.raises(BatchFailed) as failed:
        send()
    assert (failed.value.ids, sender.done) == (["1", "2"], ["3"])


def test_other_threads_and_forked_processes_do_not_collect(sender: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    with collecting(10):
        add(sender, "1")
        thread = threading.Thread(target=lambda: found.append(current()))
        thread.start()
        thread.join()
        child = os.getpid() + 1
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: child)
            found.append(current())
        assert current() is not None
    assert found == [None, None]


@pytest.mark.parametrize("size", [0, -3, 2.5, "a", True, None])
def test_a_size_is_a_whole_number_of_messages(size: Any) -> None:
    with pytest.raises(ValueError, match=r"max_size=.*: use a whole number, 1 or more"):
        Batch(size)
