"""The page without a broker: its responses when the broker is away."""

from __future__ import annotations

import re
import time
from contextlib import nullcontext
from html import unescape
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
from amqp import Message
from kombu.utils import functional

from celery_rabbit_delay import upstream
from celery_rabbit_delay.cli.target import BrokerTarget
from celery_rabbit_delay.delay.core import headers
from celery_rabbit_delay.operate import HeldUp
from celery_rabbit_delay.operate.queue_names import QueueNames
from celery_rabbit_delay.operate.status import LevelStatus, OutboxStatus, Status
from celery_rabbit_delay.periodic.beat_status import BeatStatus, PeriodicTask
from celery_rabbit_delay.periodic.core.errors import EntryConflict
from celery_rabbit_delay.schedule.amqp.stream_consumer import StreamMessage
from celery_rabbit_delay.schedule.amqp.waiting_tasks import utc_ms
from celery_rabbit_delay.schedule.core import changes, journal
from celery_rabbit_delay.schedule.core.journal import Record
from celery_rabbit_delay.web import search
from celery_rabbit_delay.web.gauges import exposition
from celery_rabbit_delay.web.index import Index
from celery_rabbit_delay.web.indexer import Indexer, Progress
from celery_rabbit_delay.web.operations import Broker, Done, Operations
from celery_rabbit_delay.web.overview import Summary
from celery_rabbit_delay.web.setting import Setting
from celery_rabbit_delay.web.site import create
from tests.kit.wait import wait_until


def away() -> kombu.Connection:
    raise OSError("the broker is away")


def apply(index: Index, *bodies: bytes) -> None:
    for body in bodies:
        index.apply(StreamMessage("s", 0, body), utc_ms())
    index.settle(utc_ms())


def store(index: Index, *numbers: int, **more: Any) -> None:
    """Store a record for each number, with more headers. The task with a higher one is due later."""
    moment = time.time_ns() // 1_000_000
    records = []
    for number in numbers:
        due = moment + 90_000 + (number - 5) * 1000
        of_task = {
            "task": f"shop.<b>{number % 2}",
            "id": f"my-id-{number}",
            "argsrepr": "('<i>',)",
            "kwargsrepr": "{}",
            "retries": number % 3,
            **more,
        }
        wrapped = headers.wrap(of_task, "root.", "", "q", headers.moment(due), number)
        properties, body = upstream.serialize(Message(b"x", application_headers=wrapped))
        records.append(Record(due, number, f"my-id-{number}", properties, body))
    apply(index, journal.pack_records(records))


@pytest.fixture
def indexer() -> Indexer:
    return Indexer(away, QueueNames())


@pytest.fixture
def client(indexer: Indexer) -> Any:
    """Return a client of a page whose broker is away, whose forms have the token "t", and whose index has one task."""
    store(indexer.index, 5)
    client = create(Setting(), Broker("here", away, QueueNames(), [], lambda _: None), indexer).test_client()
    with client.session_transaction() as session:
        session["token"] = "t"
    return client


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Indexer]:
    """Return a client of a page whose broker's port refuses connections, and its indexer."""
    monkeypatch.setattr(functional, "sleep", lambda seconds: None)  # Kombu's pause before it tries again

    def connect() -> kombu.Connection:
        return kombu.Connection("rabbit-delay://me:s3cret@127.0.0.1:1//")

    indexer = Indexer(connect, QueueNames())
    return create(Setting(), Broker("here", connect, QueueNames(), [], lambda _: None), indexer).test_client(), indexer


def text(answer: Any) -> str:
    return str(answer.get_data(as_text=True))


def test_what_is_known_is_shown_without_a_broker(client: Any) -> None:
    page = text(client.get("/"))
    assert "my-id" in page
    assert "shop.&lt;b&gt;" in page
    assert "<i>" not in page
    assert "no answer" in page
    assert "the broker is away" in text(client.get("/health"))
    assert "the broker is away" in text(client.get("/orphans"))
    assert "the broker is away" in text(client.get("/task/5"))
    metrics = text(client.get("/metrics"))
    assert 'celery_rabbit_delay_waiting{queue="q"} 1.0' in metrics
    assert "celery_rabbit_delay_broker_up 0.0" in metrics
    assert "celery_rabbit_delay_orphans" not in metrics


@pytest.mark.parametrize(
    ("order", "key"),
    [
        ("", lambda number: number),
        ("latest", lambda number: -number),
    ],
)
def test_pages_follow_each_other_in_both_orders_and_back(client: Any, indexer: Indexer, order: str, key: Any) -> None:
    store(indexer.index, *range(120))
    expected = sorted(range(120), key=key)
    pages = [expected[:50], expected[50:100], expected[100:]]
    link = f"/?order={order}"
    for page in pages:
        shown = text(client.get(link))
        assert [int(number) for number in re.findall(r'id="row-(\d+)"', shown)] == page
        found = re.search(r'id="next" rel="next" href="([^"]+)"', shown)
        link = unescape(found[1]) if found else link
    assert found is None
    for page in pages[1::-1]:
        back = re.search(r'id="previous" rel="prev" href="([^"]+)"', shown)
        assert back
        shown = text(client.get(unescape(back[1])))
        assert [int(number) for number in re.findall(r'id="row-(\d+)"', shown)] == page
    assert 'id="previous"' not in text(client.get(f"/?order={order}"))


@pytest.mark.parametrize(
    ("came_from", "back"),
    [
        ("http://localhost/?queue=q&order=latest", "/?queue=q&amp;order=latest"),
        ("http://localhost/task/5", "/"),
        ("http://evil.example/?queue=q", "/"),
        ("", "/"),
    ],
)
def test_a_task_leads_back_to_the_schedule_with_its_filters(client: Any, came_from: str, back: str) -> None:
    assert f'<p class="crumb"><a href="{back}">' in text(client.get("/task/5", headers={"Referer": came_from}))


def test_a_broker_that_does_not_answer_is_named_without_its_password(refused: tuple[Any, Indexer]) -> None:
    client, indexer = refused
    says = "no connection to amqp://me:**@127.0.0.1:1//: [Errno "
    for path in ("/health", "/orphans"):
        page = text(client.get(path))
        assert says in page
        assert "s3cret" not in page
    indexer.start()
    wait_until(lambda: indexer.progress.error, "it has tried")
    indexer.stop()
    assert (indexer.progress.error or "").startswith(says)
    assert says in text(client.get("/"))


def test_the_page_says_what_it_cannot_do(client: Any) -> None:
    for path, fields in (
        ("/cancel", {"number": "5"}),
        ("/reschedule", {"number": "5", "delay": "in 1 hour"}),
        ("/orphans/replay", {"all": "1", "shown": "x"}),
        ("/orphans/remove", {"mark": "x"}),
    ):
        answer = client.post(path, data={"token": "t", "back": "/?q=my", **fields}, follow_redirects=True)
        assert answer.status_code == 200, path
        assert "the broker is away" in text(answer), path


@pytest.mark.parametrize(
    ("eta", "zone"),
    [("9999-12-31T23:59", "America/New_York"), ("0001-01-01T00:00", "Asia/Kolkata"), ("soon", "UTC")],
)
def test_a_time_that_cannot_be_read_is_said(client: Any, eta: str, zone: str) -> None:
    client.set_cookie("zone", zone)
    answer = client.post("/reschedule", data={"token": "t", "number": "5", "eta": eta}, follow_redirects=True)
    assert answer.status_code == 200
    assert "cannot read the eta" in text(answer)


@pytest.mark.parametrize("cc", [5, {"a": "q"}])
def test_a_record_that_somebody_made_up_is_said_to_be_one(
    client: Any, cc: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties, body = upstream.serialize(Message(b"x", application_headers={"CC": cc}))
    monkeypatch.setattr(Operations, "record", lambda self, row: Record(row.due, row.number, row.id, properties, body))
    answer = client.get("/task/5")
    assert answer.status_code == 200
    assert "it is not what this package writes" in text(answer)


@pytest.mark.parametrize("back", ["//evil.example", "https://evil.example", "/\\evil.example", "", "/\x07"])
def test_a_form_never_redirects_to_another_site(client: Any, back: str) -> None:
    answer = client.post("/cancel", data={"token": "t", "back": back, "number": "5"})
    assert answer.status_code == 303
    assert answer.headers["Location"] == "/"


@pytest.mark.parametrize(
    "zone", ["Asia/Kolkata", "../../etc/passwd", "/etc/passwd", "\x00", "x" * 100, "Nowhere/Atall"]
)
def test_a_zone_that_a_browser_tells_is_used_if_there_is_one(client: Any, zone: str) -> None:
    client.set_cookie("zone", zone)
    page = text(client.get("/"))
    assert f"Times are in {'Asia/Kolkata' if zone == 'Asia/Kolkata' else 'UTC'}." in page


def test_every_page_has_the_policy_and_no_style_or_script_of_its_own(client: Any) -> None:
    for path in ("/", "/health", "/orphans", "/task/5", "/login", "/nothing", "/static/page.js"):
        answer = client.get(path)
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Frame-Options"] == "DENY"
        for forbidden in (" style=", "<style", "onclick", "javascript:", "http://", "https://"):
            assert forbidden not in text(answer), (path, forbidden)
        answer.close()


@pytest.mark.parametrize("authorization", ["Basic bWU6dGhlaXJz", "Basic \xa7", "Bearer theirs"])
def test_a_page_without_a_password_takes_no_notice_of_what_a_proxy_in_front_asks_for(
    client: Any, authorization: str
) -> None:
    assert client.get("/metrics", headers={"Authorization": authorization}).status_code == 200


@pytest.mark.parametrize(("is_stuck", "verdict"), [(False, "All is well"), (True, "1 problem")])
def test_what_may_be_on_its_way_is_shown_and_is_no_problem(
    client: Any, is_stuck: bool, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_up = HeldUp("o", "queue 'q'", 3, "the cause", is_stuck)
    monkeypatch.setattr(Operations, "status", lambda operations: Status([], [], 0, [], [held_up], []))
    monkeypatch.setattr(Operations, "beat", lambda operations: None)
    health = text(client.get("/health"))
    assert f"<h1>{verdict}</h1>" in health
    assert "<td>the cause</td>" in health


@pytest.mark.parametrize("is_app", [False, True])
def test_the_page_of_an_app_adds_its_first_entry_before_any_beat_has_run(
    is_app: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Operations, "status", lambda operations: Status([], [], 0, [], [], []))
    monkeypatch.setattr(Operations, "beat", lambda operations: None)
    broker = Broker("here", away, QueueNames(), [], lambda connection: None, is_app=is_app)
    client = create(Setting(), broker, Indexer(away, QueueNames())).test_client()
    assert ("Add an entry" in text(client.get("/health"))) == is_app


def test_metrics_say_what_is_known_and_leave_out_the_rest() -> None:
    levels = [LevelStatus("l1", 125, 3, 40), LevelStatus("l2", 250, None, None), LevelStatus("l3", 1_048_576_125, 1, 0)]
    outboxes = [OutboxStatus("o1", "queue 'q'", 60_000, 5, 1)]
    status = Status(levels, outboxes, 2, [], [], [])
    beat = BeatStatus("web1:7", [PeriodicTask("broken", "t", None, headers.moment(0))])
    progress = Progress(0.5, 7, 9, None)

    def metrics(status: Status | str, beat: BeatStatus | str | None, soonest: int | None = 1500) -> str:
        overview: Any = SimpleNamespace(
            indexer=SimpleNamespace(progress=progress, paused={}),
            summary=lambda: Summary(3, soonest, soonest, 4, {'a"\n': 3}),
            status=lambda: status,
            beat=lambda: beat,
        )
        return exposition(overview).decode()

    lines = metrics(status, beat).splitlines()
    for line in (
        'celery_rabbit_delay_waiting{queue="a\\"\\n"} 3.0',
        'celery_rabbit_delay_level_messages{level="l3",ttl_seconds="1048576.125"} 1.0',
        "celery_rabbit_delay_missing_levels 1.0",
        'celery_rabbit_delay_level_messages{level="l1",ttl_seconds="0.125"} 43.0',
        'celery_rabbit_delay_outbox_messages{delay_seconds="60",destination="queue \'q\'",outbox="o1"} 5.0',
    ):
        assert line in lines
    assert not [line for line in lines if '"l2"' in line]
    less = metrics(status._replace(held_up=None), None, soonest=None)
    assert "beat" not in less
    assert "next_due" not in less
    assert "blocked" not in less


def test_cancelled_tasks_are_a_list_of_their_own_that_can_be_restored(client: Any, indexer: Indexer) -> None:
    store(indexer.index, 6)
    apply(indexer.index, next(changes.cancelled(["my-id-6"])))
    waiting, cancelled = text(client.get("/")), text(client.get("/?state=cancelled"))
    assert "my-id-5" in waiting
    assert "my-id-6" not in waiting
    assert '<a href="/?range=hour&amp;state=cancelled">1</a>' in waiting
    assert "my-id-6" in cancelled
    assert "my-id-5" not in cancelled
    assert ("Restore tasks" in cancelled, "Restore tasks" in waiting) == (True, False)
    assert ("Run now" in cancelled, "Run now" in waiting) == (False, True)
    assert "my-id-6" not in text(client.get("/?state=cancelled&q=nothing"))
    # What is counted beside a list is what it lists.
    assert "shop.&lt;b&gt;1</span>" in waiting
    assert "shop.&lt;b&gt;0</span>" not in waiting
    assert "shop.&lt;b&gt;0</span>" in cancelled
    assert "shop.&lt;b&gt;1</span>" not in cancelled


REPORT = PeriodicTask(
    "report",
    "t",
    None,
    None,
    "every 30 s",
    is_enabled=False,
    is_written=True,
    version=7,
    definition={"args": ["ä"], "kwargs": {}},
)
TYPED = {
    "name": "report",
    "task": "t",
    "schedule": "every 5 s",
    "args": "[1]",
    "kwargs": "",
    "options": '{"queue": "q"}',
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """Return a client of a page for the app shop, and what its forms have asked of the API, which knows one entry."""
    told: list[Any] = []

    def api(act: str, name: str, **more: Any) -> None:
        if more.get("version") == 6:
            raise EntryConflict("the entry 'report' was changed, <look>")
        told.append((act, name, more))

    entries = [REPORT, REPORT._replace(entry="odd", definition=None)]
    broker = Broker("here", away, QueueNames(), [], lambda _: None, periodic=api, is_app=True)
    broker = broker._replace(beat=lambda _: BeatStatus("host:1", entries))
    monkeypatch.setattr(Operations, "_connected", lambda operations: nullcontext())
    site = create(Setting(), broker, Indexer(away, QueueNames()))
    client = site.test_client()
    client.environ_base["REMOTE_USER"] = "ada"
    return client, told


def values(page: str) -> dict[str, str]:
    """Return what the fields of the form for an entry hold."""
    inputs = [tag for tag in re.findall("<input[^>]*>", page) if 'name="' in tag]
    inputs = [tag for tag in inputs if "checkbox" not in tag or " checked" in tag]
    found = [(re.search('name="([^"]*)"', tag), re.search('value="([^"]*)"', tag)) for tag in inputs]
    return {name[1]: unescape(value[1]) for name, value in found if name and value}


def test_a_periodic_entry_is_added_and_changed_in_a_form(asked: tuple[Any, list[Any]]) -> None:
    client, told = asked
    empty = values(text(client.get("/periodic")))
    assert "version" not in empty
    assert not any(empty[name] for name in TYPED)
    hidden = {name: empty[name] for name in ("token", "back")}
    definition = {"task": "t", "schedule": "every 5 s", "args": [1], "kwargs": {}, "options": {"queue": "q"}}
    answer = client.post("/periodic", data={**hidden, **TYPED})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/health")
    assert told.pop() == ("add", "report", {**definition, "enabled": True})
    client.post("/periodic", data={**hidden, **TYPED, "disabled": "yes"})
    assert told.pop()[2]["enabled"] is False
    page = text(client.get("/periodic?name=report"))
    shown = values(page)
    assert {name: shown[name] for name in TYPED} == {
        "name": "report",
        "task": "t",
        "schedule": "every 30 s",
        "args": '["ä"]',
        "kwargs": "",
        "options": "",
    }
    assert re.search('<input name="name"[^>]* readonly', page)
    client.post("/periodic", data={**shown, "schedule": " every 9 s "})
    assert told.pop() == (
        "change",
        "report",
        {
            "version": 7,
            "task": "t",
            "schedule": "every 9 s",
            "args": ["ä"],
            "kwargs": {},
            "options": {},
            "enabled": False,
        },
    )
    for name in ("odd", "nothing"):
        assert client.get(f"/periodic?name={name}").status_code == 404


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"args": '{"a": 1}'}, "cannot read positional arguments: use JSON such as [1, 2]"),
        ({"args": "[" * 50_000}, "cannot read positional arguments"),
        ({"kwargs": "<b>"}, "cannot read keyword arguments: use JSON such as {&#34;a&#34;: 1}"),
        ({"options": "queue=mail"}, "cannot read the options of apply_async"),
        ({"version": "6", "disabled": "yes"}, "was changed, &lt;look&gt;"),
    ],
)
def test_what_was_typed_stays_beside_the_error(asked: tuple[Any, list[Any]], typed: dict[str, str], says: str) -> None:
    client, told = asked
    sent = {**values(text(client.get("/periodic"))), **TYPED, **typed}
    page = text(client.post("/periodic", data=sent))
    assert says in page
    assert values(page) == sent
    assert ("Show the entry as it is now" in page) is ("version" in typed)
    assert told == []


def test_a_page_without_an_app_or_for_those_who_look_changes_no_entry(client: Any, indexer: Indexer) -> None:
    target = BrokerTarget("amqp://", {}, ())
    broker = Broker("here", away, QueueNames(), [], lambda _: None, periodic=target.periodic)
    another = create(Setting(), broker, Indexer(away, QueueNames())).test_client()
    token = values(text(another.get("/periodic")))["token"]
    assert "this needs the code of an app" in text(another.post("/periodic", data={**TYPED, "token": token}))
    looking = create(Setting(read_only=True), broker, Indexer(away, QueueNames())).test_client()
    page = text(looking.get("/periodic"))
    assert "<button" not in page.partition("<main")[2]
    assert looking.post("/periodic", data={**TYPED, "token": values(page)["token"]}).status_code == 403


def test_all_that_match_can_be_changed_at_once_and_the_log_says_by_whom(
    client: Any, indexer: Indexer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store(indexer.index, *range(10, 130))
    asked: list[Any] = []

    def cancel(operations: Operations, *what: Any) -> Done:
        asked.append(what)
        return Done(len(what[0]), "cancelled")

    monkeypatch.setattr(Operations, "cancel", cancel)
    link = "/?task=shop.%3Cb%3E1&range=day"
    page = text(client.get(link))
    [chosen] = re.findall(r'name="matching" value="([^"]*)" data-amount="61"', page)
    fields = {"token": "t", "matching": unescape(chosen)}
    caplog.set_level("INFO", "celery_rabbit_delay.web.actions")
    client.post("/cancel", data=fields, environ_overrides={"REMOTE_USER": "ada"})
    assert caplog.messages == ["61 cancelled, by ada"]
    assert asked == [([5, *range(11, 130, 2)],)]
    monkeypatch.setattr(search, "MOST", 100)
    refused = client.post("/cancel", data={**fields, "matching": ""})
    assert refused.status_code == 400
    assert "More than 100 match" in text(refused)
