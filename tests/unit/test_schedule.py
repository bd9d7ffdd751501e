"""The description of a waiting message, also of a forged one."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import kombu
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay import InvalidDelay, operate
from celery_rabbit_delay.cli.groups import standalone
from celery_rabbit_delay.delay.core import headers
from celery_rabbit_delay.operate import broker_connection
from celery_rabbit_delay.operate.queue_names import QueueNames
from celery_rabbit_delay.schedule.amqp import waiting_tasks
from celery_rabbit_delay.schedule.amqp.waiting_tasks import Scheduled, describe
from celery_rabbit_delay.schedule.core.journal import Record
from celery_rabbit_delay.schedule.core.new_due_time import due_at
from celery_rabbit_delay.unreadable import Unreadable

DUE = datetime(2030, 1, 31, 12, tzinfo=timezone.utc)
RECORD = Record(headers.milliseconds(DUE), 5, "my-id", b"", b"x")

#: What a header may hold, as py-amqp reads it.
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.just(Decimal("1.5"))
    | st.datetimes()
    | st.binary(max_size=5)
    | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
NAMES = QueueNames([kombu.Queue("Q", kombu.Exchange("orders"), routing_key="q")])
names = ("task", "argsrepr", "kwargsrepr", "retries", headers.HEADER)


def described(record: Record = RECORD, **forged: Any) -> Scheduled:
    of_task = {"task": "shop.review", "id": "my-id", "argsrepr": "(1,)", "kwargsrepr": "{}", "retries": 2}
    return describe(record, {**headers.wrap(of_task, "root.", "orders", "q", DUE, 5), **forged}, NAMES)


def test_what_a_record_says_is_shown() -> None:
    assert described() == ("my-id", "shop.review", "Q", DUE, "(1,)", "{}", "orders", "q", 2, 5)


def test_the_soonest_records_are_kept_one_of_a_message_that_was_published_again() -> None:
    numbers = {3: (30, "c"), 1: (10, "a"), 2: (10, "a"), 4: (20, ""), 5: (20, ""), 6: (20, "a")}
    for limit, kept in ((None, [1, 4, 5, 6, 3]), (2, [1, 4])):
        soonest = waiting_tasks.Soonest(limit)
        for number, (due, id_) in numbers.items():
            record = RECORD._replace(due=due, number=number, id=id_)
            if soonest.wants(record):
                soonest.add(record)
        assert [record.number for record in soonest.records()] == kept


@pytest.mark.parametrize("retries", [b"\xff", True, Decimal(1), 1.5, -1, 1 << 40, "3", {}, datetime(2030, 1, 1), None])  # noqa: DTZ001  as py-amqp reads it
def test_retries_that_are_no_number_of_them_are_none(retries: Any) -> None:
    assert described(retries=retries).retries == 0


@given(
    st.builds(Record, st.integers(0, (1 << 64) - 1), st.just(5), st.text(), st.just(b""), st.just(b"x")),
    st.dictionaries(st.sampled_from(names), values),
)
def test_whatever_somebody_made_up_is_shown_or_is_unreadable(record: Record, forged: dict[str, Any]) -> None:
    try:
        found = described(record, **forged)
    except Unreadable:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_connection, "connected", nullcontext)
        patch.setattr(operate, "require", lambda *args, **options: None)
        patch.setattr(waiting_tasks, "scheduled", lambda *args, **options: iter([found]))
        plain, data = (CliRunner().invoke(standalone, ["-b", "amqp://", "list", *more]) for more in ([], ["--json"]))
    assert plain.stdout.rstrip("\n").isprintable()
    assert json.loads(data.stdout)["retries"] == found.retries


@pytest.mark.parametrize("due", [253_402_300_800_000, (1 << 63) - 1, (1 << 64) - 1])
def test_a_due_time_beyond_the_year_9999_is_unreadable(due: int) -> None:
    with pytest.raises(Unreadable, match="it is not what this package writes"):
        described(RECORD._replace(due=due))


def test_the_queues_that_an_exchange_leads_to_are_found_by_the_type_of_the_exchange() -> None:
    topic, fanout, direct = (kombu.Exchange(kind, kind) for kind in ("topic", "fanout", "direct"))
    names = QueueNames(
        [
            kombu.Queue("mail", topic, routing_key="mail.#"),
            kombu.Queue("new", topic, routing_key="*.new"),
            kombu.Queue("news", fanout),
            kombu.Queue("two", bindings=[kombu.binding(direct, "a"), kombu.binding(direct, "b")]),
            kombu.Queue("by header", direct, routing_key="c", binding_arguments={"x-match": "all"}),
            kombu.Queue("default"),
        ]
    )
    assert names.name("topic", "mail.new") == names.name("topic", "mail") == "mail"
    assert names.name("topic", "mail.new", wanted="new") == "new"
    assert names.name("topic", "mail", wanted="new") == "mail"
    assert names.name("topic", "else") == "else"
    assert names.name("fanout", "any") == "news"
    assert names.name("direct", "a") == names.name("direct", "b") == "two"
    assert names.name("direct", "c") == "c"
    assert names.name("", "default") == "default"


BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("eta", "countdown", "due"),
    [
        ("2026-03-01T13:00:00+00:00", None, NOON + timedelta(hours=1)),
        ("2026-03-01T14:00:00", None, NOON + timedelta(hours=1)),  # Berlin's time
        (None, 0, NOON),
        (None, "1.5", NOON + timedelta(seconds=1.5)),
    ],
)
def test_a_new_due_time_is_a_moment_or_a_time_to_wait(eta: object, countdown: object, due: datetime) -> None:
    found = due_at(eta, countdown, NOON, BERLIN)
    assert found == due
    assert found.tzinfo is timezone.utc


@pytest.mark.parametrize(
    ("eta", "countdown"),
    [(None, None), ("2026-03-01T13:00:00", 5), (None, -1), (None, True), (None, "soon"), (None, 1e300)],
)
def test_any_other_due_time_is_an_error_that_says_what_to_use(eta: object, countdown: object) -> None:
    with pytest.raises(InvalidDelay, match=r"either eta or countdown|use a number of seconds, 0 or more"):
        due_at(eta, countdown, NOON, BERLIN)
