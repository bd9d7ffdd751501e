"""A plan says where a message goes, when it is due, and what the streams have to know of it."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay import InvalidDelay, InvalidDestination, Options
from celery_rabbit_delay.delay.core import plan
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.delay.core.headers import HEADER, Delivery, State, read_state, unwrap
from celery_rabbit_delay.delay.core.plan import Now, Plan
from celery_rabbit_delay.schedule.core import streams

NOW = Now(datetime(2030, 1, 1, tzinfo=timezone.utc), 7_000_000_000)
SECOND = 1_000_000
MINUTE = 60 * SECOND


def message(headers: Any = (), **properties: Any) -> Any:
    return SimpleNamespace(headers=dict(headers), properties=properties)


def new(headers: Any = (), delay: int = MINUTE, options: Any = (), **properties: Any) -> Plan:
    sent, chosen = message(**properties), options if isinstance(options, Options) else Options(**dict(options))
    return plan.of_new(sent, dict(headers), "", "q", delay, NOW, chosen, get_ticket=partial(streams.ticket, chosen))


def test_a_new_message_is_due_by_both_clocks_and_goes_to_its_queue() -> None:
    planned = new({"task": "t"}, options={"schedule": True, "journal": None}, priority=3)
    state = read_state(planned.headers)
    assert state is not None
    assert planned.due == NOW.monotonic + 60_000_000_000
    assert state.due == NOW.utc + timedelta(seconds=60)
    assert planned.due_ms == 1893456060000
    assert planned.destination == Destination("", "q")
    assert (planned.ticket, planned.message.properties["priority"]) == (None, 3)
    assert "n" not in planned.headers[HEADER]


def test_a_key_with_which_a_queue_is_bound_has_a_destination_of_its_own() -> None:
    def destination(*bound: tuple[str, str]) -> Destination:
        return plan.of_new(message(), {}, "orders", "new", MINUTE, NOW, Options(), bound).destination

    assert destination(("orders", "new")) == Destination("orders", "new")
    assert destination(("orders", "old")) == Destination("orders")


def test_the_maximum_is_allowed_and_beyond_it_is_an_error_that_names_it() -> None:
    new(delay=3600 * SECOND, options={"max_delay": 3600})
    with pytest.raises(InvalidDelay, match=r"a delay of 3600\.000001 s is more than the option max_delay, 3600 s"):
        new(delay=3600 * SECOND + 1, options={"max_delay": 3600})


@pytest.mark.parametrize("priority", [-1, 256, 1.5, "high"])
def test_a_priority_that_no_queue_knows_is_an_error(priority: Any) -> None:
    with pytest.raises(InvalidDestination, match="use a whole number from 0 to 255"):
        new(priority=priority)


RECORDING = {"schedule": True, "journal": 60}


def test_what_waits_long_enough_is_recorded_with_its_number() -> None:
    recorded = new({"id": "7"}, options=RECORDING)
    assert recorded.ticket is not None
    assert recorded.ticket.stream == streams.journal_for(Options().cascade, 60)
    assert recorded.ticket.number == recorded.headers[HEADER]["n"]
    assert new({"id": "7"}, options={"schedule": True, "journal": None}).ticket is None


@given(
    st.sampled_from([1, 10, 60, 300, 3600, 86_400]) | st.floats(0.001, 86_400),
    st.integers(1, 3_600_000).map(lambda milliseconds: milliseconds / 1000),
    st.floats(0, 1),
)
def test_a_countdown_of_the_limit_is_recorded_whatever_part_has_passed_and_one_that_is_shorter_is_not(
    limit: float, tick: float, part: float
) -> None:
    options = Options(schedule=True, journal=limit, tick=tick, max_delay=31_536_000)
    passed = math.floor(min(limit / 10, 5) * part * SECOND)  # Celery has connected, or waited for a producer
    asked = math.ceil(limit * SECOND)
    task = {"task": "t", "eta": "2030-01-01T00:01:00+00:00"}
    assert new(task, asked - passed, options).ticket is not None
    shorter = asked - min(asked // 10, 5 * SECOND) - math.ceil(tick * SECOND) - 2
    if shorter > 0:
        assert new(task, shorter, options).ticket is None


@pytest.mark.parametrize(("less", "recorded"), [(0, True), (1, False)])
def test_a_delay_in_milliseconds_is_recorded_from_the_limit_on(less: int, recorded: bool) -> None:
    planned = new({"x-delay": 1}, 10 * SECOND - less, {"schedule": True, "journal": 10})
    assert (planned.ticket is not None) is recorded


def test_without_the_schedule_nothing_is_recorded() -> None:
    assert new({"task": "t"}).ticket is None


RECEIVED = Delivery("orders", "new", {"task": "t", "id": "7"})


@pytest.mark.parametrize(("journal", "recorded"), [(60, True), (None, False)])
def test_a_received_message_returns_to_its_queue_alone(journal: float | None, recorded: bool) -> None:
    due, options = NOW.utc + timedelta(seconds=60), Options(schedule=True, journal=journal)
    planned = plan.of_received(message(), RECEIVED, "q", due, NOW, options, get_ticket=partial(streams.ticket, options))
    assert (planned.destination, planned.due) == (Destination("", "q"), NOW.monotonic + 60_000_000_000)
    assert (planned.ticket is not None) is ("n" in planned.headers[HEADER]) is recorded
    assert unwrap(Delivery("", "q", planned.headers)) == RECEIVED
    with pytest.raises(InvalidDelay, match="more than the option max_delay"):
        plan.of_received(message(), RECEIVED, "q", due, NOW, Options(max_delay=59))


@pytest.mark.parametrize("number", [5, None])
def test_a_message_that_came_before_its_delivery_time_keeps_its_number_and_its_record(number: int | None) -> None:
    due = NOW.utc + timedelta(seconds=600)
    early = State("root", "orders", "new", due, number=number)
    planned = plan.of_received(message(), RECEIVED, "q", due, NOW, Options(schedule=True, journal=0), early)
    assert planned.came_early
    assert (planned.ticket, planned.headers[HEADER].get("n")) == (None, number)
    assert read_state(planned.headers) == State(Options().cascade.root, "orders", "new", due, number, "q")


@pytest.mark.parametrize("queue", ["q", None])
def test_an_orphan_waits_once_more_with_its_number(queue: str | None) -> None:
    state = State(Options().cascade.root, "orders", "new", NOW.utc + timedelta(seconds=60), 5, queue)
    planned = plan.of_orphan(message({"task": "t"}), state, MINUTE, NOW, Options(schedule=True, journal=0))
    assert planned.destination == (Destination("", "q") if queue else Destination("orders"))
    assert planned.ticket is None
    assert read_state(planned.headers) == state
