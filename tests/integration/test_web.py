"""The page and the metrics as a process of their own, on a real node, asked over HTTP."""

from __future__ import annotations

import base64
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from amqp import Message

from celery_rabbit_delay.delay.amqp.sender import settle
from celery_rabbit_delay.schedule.amqp import reschedule as reschedule_
from celery_rabbit_delay.schedule.amqp import waiting_tasks
from celery_rabbit_delay.schedule.amqp.waiting_tasks import write_changes
from celery_rabbit_delay.schedule.core import changes, journal, streams
from celery_rabbit_delay.schedule.interceptor import paused_of
from tests.kit.broker import Vhost, lead, take
from tests.kit.commands import CASCADE, QUICKLY, celery, make_orphans, management, run
from tests.kit.site import Site, serving
from tests.kit.wait import wait_until

from .conftest import MakeApp

pytestmark = pytest.mark.shared_vhost

RECORDED: dict[str, Any] = {"journal": 0}
DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart"
PASSWORD = "CELERY_RABBIT_DELAY_WEB_PASSWORD"

Serve = Callable[..., Site]

#: Options for the page about these queues.
QUEUES = ("--queue", "q", "--queue", "celery", "--queue", "mail")


@pytest.fixture
def serve(vhost: Vhost, tmp_path: Path) -> Iterator[Serve]:
    """Start the page of a virtual host."""
    with ExitStack() as stack:

        def start(*arguments: str, options: tuple[str, ...] = ("--queue", "q"), **environment: str) -> Site:
            command = ["celery-rabbit-delay", "--broker", vhost.url("amqp"), *QUICKLY, *options, "web", *arguments]
            return stack.enter_context(serving(command, tmp_path, **environment))

        yield start


def publish(connection: Any, delay: float, id_: str = "", **options: Any) -> None:
    headers = {"x-delay": delay * 1000, **options.pop("headers", {})}
    connection.Producer().publish("x", routing_key="q", headers=headers, correlation_id=id_, **options)


def shows(site: Site, *texts: str, path: str = "/") -> None:
    def all_shown() -> bool:
        page = site.ask(path).text
        return all(text in page for text in texts)

    wait_until(all_shown, f"{path} shows {texts}")


def lacks(site: Site, text: str, path: str = "/") -> None:
    wait_until(lambda: text not in site.ask(path).text, f"{path} no longer shows {text}")


def number_of(site: Site, text: str) -> int:
    """Return the number of the only row that a search finds."""
    wait_until(lambda: len(site.numbers(f"/?q={text}")) == 1, f"{text} is found")
    [number] = site.numbers(f"/?q={text}")
    return number


def test_the_page_follows_the_journal_and_reads_it_again_when_it_is_started_again(
    vhost: Vhost, make_app: MakeApp, serve: Serve
) -> None:
    app = make_app(options=RECORDED)
    vhost.declare("celery", "mail")
    first = app.send_task("shop.review", (4711, "ü"), {"k": None}, countdown=90)
    site = serve(options=QUEUES)
    shows(site, first.id, "shop.review", "4711", "celery")
    second = app.send_task("shop.remind", (4712,), countdown=100, queue="mail")
    shows(site, second.id)
    for search in (
        first.id,
        first.id[:10],
        "review",
        "4711",
        "q=ü&task=shop.review",
        "q=&task=shop.review&queue=celery",
    ):
        page = site.ask(f"/?q={search.removeprefix('q=')}".replace("ü", "%C3%BC")).text
        assert first.id in page
        assert second.id not in page, search
    assert second.id in site.ask("/?queue=mail").text
    assert site.numbers("/?q=nothing+like+it") == []
    assert site.stop() == 0
    third = app.send_task("shop.remind", (4713,), countdown=110)
    app.control.revoke(first.id)
    site = serve(options=QUEUES)
    shows(site, third.id, second.id)
    lacks(site, first.id)
    wait_until(lambda: site.metric("cancelled") == 1, "it counts as cancelled")


def test_what_is_due_is_no_longer_shown_and_levels_are_left_alone(vhost: Vhost, serve: Serve) -> None:
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 60, "id-later")
        publish(connection, 15, "id-soon")
        site = serve()
        shows(site, "id-later", "id-soon")
        [message] = take(connection, "q", 1)
        assert not message.delivery_info["redelivered"]
        lacks(site, "id-soon")
        shows(site, "id-later")


def test_tasks_are_cancelled_moved_and_run_alone_and_together(vhost: Vhost, make_app: MakeApp, serve: Serve) -> None:
    app = make_app(options=RECORDED)
    vhost.declare("celery")
    ids = [app.send_task("t", (f"argument-{n}",), countdown=100).id for n in range(5)]
    site = serve(options=("--queue", "celery"))
    numbers = [number_of(site, id_) for id_ in ids]
    assert "1 cancelled" in site.post("/cancel", number=numbers[0])
    assert ids[0] not in site.ask("/").text
    assert "2 moved to" in site.post("/reschedule", number=numbers[1:3], delay="in 1 minute")
    rows = {row.id: row.due for row in waiting_tasks.scheduled(app.connection_for_write())}
    assert rows[ids[1]] < rows[ids[3]]
    assert "1 due at once" in site.post("/run-now", number=numbers[3])
    [message] = vhost.take("celery", 1)
    assert message.headers["id"] == ids[3]
    # The copies have other numbers; the old ones are gone, and nothing can be moved twice.
    assert "1 of the selected tasks no longer waits" in site.post("/run-now", number=numbers[1])
    assert number_of(site, ids[1]) != numbers[1]
    assert "Nothing was selected" in site.ask("/cancel", {"token": site.token()}).text
    assert "cannot read the eta" in site.post("/reschedule", number=numbers[4], eta="tomorrow")
    assert "choose a delay" in site.post("/reschedule", number=numbers[4])
    past = site.post("/reschedule", number=numbers[4], eta="2020-01-31T12:00")
    assert "2020-01-31T12:00 is in the past: enter a later time, or choose “Run now”" in past
    eta = (datetime.now(timezone.utc) + timedelta(minutes=1)).isoformat()
    assert "1 moved to" in site.post("/reschedule", number=numbers[4], eta=eta)
    assert "max_delay" in site.post("/reschedule", number=number_of(site, ids[4]), delay="in 1 week")


def test_what_was_cancelled_can_be_restored_on_another_page(vhost: Vhost, make_app: MakeApp, serve: Serve) -> None:
    vhost.declare("celery", "q")
    ids = ["a", "b", "c"]
    with vhost.connection(**RECORDED) as connection:
        for id_ in ids:
            publish(connection, 100, id_, headers={"task": "t", "id": id_})
        publish(connection, 100, "stamped", headers={"task": "t", "id": "stamped", "stamps": {"batch": "red"}})
        write_changes(connection, [changes.cancelled_stamps({"batch": "red"})])
    site, another = serve(), serve()
    numbers = [number_of(site, id_) for id_ in ids]
    for number in numbers:
        assert "1 cancelled" in site.post("/cancel", number=number)
    assert site.numbers("/") == []
    [stamped] = set(site.numbers("/?state=cancelled")) - {*numbers}
    assert "stamped stays cancelled by a stamp" in site.post("/restore", number=stamped)
    assert "1 restored" in site.post("/restore", number=numbers[1])
    assert "1 of the selected tasks is not cancelled" in site.post("/restore", number=numbers[1])
    wait_until(lambda: len(another.numbers("/?state=cancelled")) == 3, "the other page lists them")
    for number in numbers[::2]:
        assert "1 restored" in another.post("/restore", number=number)
    wait_until(lambda: len(site.numbers("/")) == 3, "all wait again")


def test_a_message_without_an_id_is_cancelled(vhost: Vhost, serve: Serve) -> None:
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 100)
        site = serve()
        wait_until(lambda: len(site.numbers("/")) == 1, "it is shown")
        assert "1 cancelled" in site.post("/cancel", number=site.numbers("/"))
        assert site.numbers("/") == []
        assert list(waiting_tasks.scheduled(connection)) == []


def test_what_another_has_moved_meanwhile_is_not_moved_again(vhost: Vhost, serve: Serve) -> None:
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 60, "mine")
        site = serve()
        number = number_of(site, "mine")
        token = site.token()
        reschedule_.reschedule(connection, "mine", datetime.now(timezone.utc) + timedelta(seconds=90))
        site.ask("/run-now", {"token": token, "number": number})
        shows(site, "mine")
        assert vhost.count("q") == 0
        assert [waiting.id for waiting in waiting_tasks.scheduled(connection)] == ["mine"]


def test_the_index_begins_anew_when_somebody_deletes_a_stream(vhost: Vhost, serve: Serve) -> None:
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 60, "id-before")
        site = serve()
        shows(site, "id-before")
        vhost.delete_queue(streams.journal_for(CASCADE, 60).name)
        publish(connection, 60, "its record comes back")
        settle()
        vhost.make_streams(RECORDED)
        paused_of[connection].clear()
        publish(connection, 60, "id-after")
        shows(site, "id-after")
        lacks(site, "id-before")


def test_hostile_messages_are_shown_as_text_and_stop_nothing(vhost: Vhost, make_app: MakeApp, serve: Serve) -> None:
    app = make_app(options=RECORDED)
    vhost.declare("celery", "q")
    markup = "<script>alert(1)</script>"
    hostile = app.send_task(
        f"bad{markup}", argsrepr=f"({markup}, '\x1b[31m\x00\u202egnp', \"' onload=x\")", kwargsrepr="y" * 100_000,
        countdown=90, headers={"mine": markup, "\u202e": ["\x07"] * 50},
    )  # fmt: skip
    site = serve(options=QUEUES)
    with vhost.connection(**RECORDED) as connection:
        write_changes(connection, [b"", b"s[", b"u123", b"v1", b"r123", b"zz", b"c{"])
        stream = streams.journal_for(CASCADE, 90)
        due = int(datetime.now(timezone.utc).timestamp() * 1000) + 60_000
        made_up = [
            journal.Record(due, 7, "no properties", b"", b"x"),
            journal.Record(due, 8, "broken properties", b"\xff" * 20, b"x"),
            journal.Record(2**64 - 1, 9, "never", b"", b"x"),
        ]
        packed = [journal.pack_records([one]) for one in made_up]
        for hostile_body in [*packed, packed[0][:30], b"r"]:
            connection.default_channel.basic_publish(Message(hostile_body), CASCADE.ingest, stream.routing_key)
        connection.Producer().publish(b"\xff\x00<b>" * 500_000, routing_key="q", headers={"x-delay": 80_000})
        publish(connection, 70, "last")
    shows(site, "last", hostile.id)
    page = site.ask("/").text
    assert markup not in page
    assert "bad&lt;script&gt;" in page
    details = site.ask(f"/task/{number_of(site, hostile.id)}").text
    assert markup not in details
    assert "\\x1b[31m\\x00\\u202egnp" in details
    assert "90,000 more characters" in details
    assert len(page) < 200_000
    assert len(details) < 100_000
    body = site.ask(f"/task/{number_of(site, '%EF%BF%BD')}").text
    assert "&lt;b&gt;" in body
    assert "2,500,000 bytes" in body
    assert len(body) < 100_000
    assert site.ask("/?q=%00%ff%25_%5C<script>&task=%00&since=x&after=9-&range=x").status == 200
    assert site.ask("/task/99999999999999999999999999").status == 404


def test_orphans_are_seen_sent_on_and_removed(vhost: Vhost, serve: Serve) -> None:
    make_orphans(vhost, 4)
    site = serve(options=("--queue", "gone"))
    shows(site, "4 orphans", "shop.review", "id-0", "id-3", path="/orphans")
    marks = re.findall('name="mark" value="([^"]+)"', site.ask("/orphans").text)
    assert len(set(marks)) == 4
    page = site.ask("/orphans").text
    ids = list(dict.fromkeys(re.findall(r"id-\d", page)))  # the order in which they became orphans
    assert page.count("there is no queue &#39;gone&#39;</small>") == 4
    assert len(re.findall("<button[^>]* disabled>Replay", page)) == 2
    stays = site.post("/orphans/replay", page="/orphans", mark=marks[0])
    assert "0 sent on" in stays
    vhost.declare("gone")
    assert "disabled" not in site.ask("/orphans").text
    assert "1 sent on" in site.post("/orphans/replay", page="/orphans", mark=marks[0])
    assert vhost.take("gone", 1)[0].headers["id"] == ids[0]
    assert "1 removed" in site.post("/orphans/remove", page="/orphans", mark=marks[3])
    assert site.metric("orphans") == 2
    assert "1 removed" in site.post("/orphans/remove", page="/orphans", all="1", shown=marks[1])  # no other was shown
    assert "1 sent on" in site.post("/orphans/replay", page="/orphans", all="1", shown=marks[2])
    assert {message.headers["id"] for message in vhost.take("gone", 1)} == {ids[2]}


def test_a_mistyped_prefix_is_said(vhost: Vhost, serve: Serve) -> None:
    shows(serve(options=("--prefix", "celery-rabit-delay")), "There is no such cascade on the broker")


def test_health_shows_levels_and_outboxes(vhost: Vhost, serve: Serve) -> None:
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        lead(connection, "q", delays=[60])
        for _ in range(4):
            publish(connection, 60)
        publish(connection, 100)
    site = serve(*management(vhost), options=("--queue", "q"))
    shows(site, "Outboxes", "queue &#39;q&#39;", "1 min", "5 tasks on the broker", "All is well", path="/health")


def test_only_the_loopback_is_listened_to_without_a_password(vhost: Vhost, serve: Serve) -> None:
    refused = run(vhost.url("amqp"), "web", "--host", "0.0.0.0", "--port", "0")
    assert refused.code == 1
    assert PASSWORD in refused.err
    site = serve("--host", "0.0.0.0", **{PASSWORD: "sesame"})
    assert site.ask("/").status == 303
    assert site.ask("/").headers["Location"] == "/login"
    assert site.ask("/task/1").status == 303
    assert site.ask("/metrics").status == 401
    assert site.ask("/cancel", {"number": 1}).status == 401
    token = site.token("/login")
    assert site.ask("/login", {"password": "sesame"}).status == 403
    assert site.ask("/login", {"token": token, "password": "wrong"}).headers["Location"] == "/login"
    assert "The password is wrong" in site.ask("/login").text
    assert site.ask("/").status == 303
    for name, password, status in (("any", "sesame", 200), ("any", "wrong", 401)):
        credentials = base64.b64encode(f"{name}:{password}".encode()).decode()
        assert site.ask("/metrics", Authorization=f"Basic {credentials}").status == status
    assert site.ask("/metrics", Authorization="Basic §").status in (400, 401)
    assert site.ask("/login", {"token": token, "password": "sesame"}).headers["Location"] == "/"
    assert site.ask("/").status == 200
    assert site.ask("/metrics").status == 200
    assert site.ask("/logout", {"token": site.token()}).status == 303
    assert site.ask("/").status == 303
    token = site.token("/login")
    for _ in range(12):
        status = site.ask("/login", {"token": token, "password": "wrong"}).status
    assert status == 429


def test_other_names_and_forms_of_other_sites_are_turned_away(vhost: Vhost, serve: Serve) -> None:
    site = serve("--allow-host", "delays.example.com")
    assert site.ask("/", Host="evil.example.com").status == 421
    assert site.ask("/static/page.js", Host="evil.example.com").status == 421
    assert site.ask("/", Host="delays.example.com").status == 200
    assert site.ask("/", Host="localhost:1").status == 200
    token = site.token()
    assert site.ask("/cancel", {"number": 1}).status == 403
    assert site.ask("/cancel", {"number": 1, "token": "made up"}).status == 403
    assert site.ask("/cancel", {"number": 1, "token": token}, Sec_Fetch_Site="cross-site").status == 403
    assert site.ask("/cancel").status == 405
    assert site.ask("/cancel", {"number": "1" * 500_000, "token": token}).status in (400, 413)


def test_a_read_only_page_changes_nothing(vhost: Vhost, serve: Serve) -> None:
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 60, "mine")
        site = serve("--read-only", **{PASSWORD: "sesame"})
        token = site.token("/login")
        site.ask("/login", {"token": token, "password": "sesame"})
        number = number_of(site, "mine")
        token = site.token()  # that of the button to log out
        assert "checkbox" not in site.ask("/").text
        assert "<form" not in site.ask(f"/task/{number}").text.split("<main")[1]
        for path in ("/cancel", "/run-now", "/reschedule", "/orphans/replay", "/orphans/remove"):
            answer = site.ask(path, {"token": token, "number": number, "delay": "in 1 minute", "all": "1"})
            assert answer.status == 403, path
            assert "--read-only" in answer.text
        assert [waiting.id for waiting in waiting_tasks.scheduled(connection)] == ["mine"]


def test_metrics_are_printed_once(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 60, "a")
        publish(connection, 90, "b")
        waiting_tasks.cancel(connection, ["b"])
    for command in ("pause", "q"), ("pause", "resumed"), ("resume", "resumed"):
        assert run(vhost.url("amqp"), *command).code == 0

    def metrics() -> dict[str, str]:
        printed = run(vhost.url("amqp"), "metrics", *management(vhost))
        assert printed.code == 0, printed.err
        return dict(line.rsplit(" ", 1) for line in printed.out.splitlines() if not line.startswith("#"))

    def held() -> float:  # a message that moves from one level to the next may be counted in both
        return sum(float(value) for name, value in metrics().items() if re.search("(level|outbox)_messages{", name))

    lines = metrics()
    assert lines['celery_rabbit_delay_waiting{queue="q"}'] == "1.0"
    assert lines["celery_rabbit_delay_cancelled"] == "1.0"
    assert {name for name in lines if "_paused" in name} == {'celery_rabbit_delay_paused{queue="q"}'}
    assert lines["celery_rabbit_delay_orphans"] == "0.0"
    assert lines["celery_rabbit_delay_broker_up"] == "1.0"
    assert lines["celery_rabbit_delay_blocked_levels"] == "0.0"
    assert lines["celery_rabbit_delay_index_behind_messages"] == "0.0"
    assert 0 < float(lines["celery_rabbit_delay_next_due_timestamp_seconds"]) - time.time() <= 60
    wait_until(lambda: held() == 2, "the metrics count both messages")
    assert "blocked_levels" not in run(vhost.url("amqp"), "metrics").out


def test_without_the_extra_an_error_names_it(vhost: Vhost) -> None:
    hidden = """
import sys
sys.modules.update(flask=None, prometheus_client=None)
from click.testing import CliRunner
from celery_rabbit_delay.cli.groups import standalone
for command in ("web", "metrics"):
    done = CliRunner().invoke(standalone, [*sys.argv[1:], command])
    assert (done.exit_code, "pip install 'celery-rabbit-delay[web]'" in done.output) == (1, True), done.output
"""
    subprocess.run([sys.executable, "-c", hidden, "--broker", vhost.url("amqp")], check=True)


def test_a_broker_that_is_away_is_shown_and_found_again(vhost: Vhost, serve: Serve, tmp_path: Path) -> None:
    vhost.declare("q")
    node = vhost.broker.node
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 100, "mine")
    site = serve()
    shows(site, "mine")
    for connection_ in vhost.broker.api("GET", f"/vhosts/{vhost.name}/connections"):
        vhost.broker.api("DELETE", f"/connections/{connection_['name'].replace(' ', '%20').replace('>', '%3E')}")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 100, "another")
    shows(site, "mine", "another")
    assert node.process is not None
    site.process.send_signal(signal.SIGINT)
    assert site.process.wait(60) == 0
    assert "stopped" in site.output()


def test_the_commands_in_the_documentation_of_the_page_work(vhost: Vhost, tmp_path: Path) -> None:
    lines = re.findall(r"^\$ (.*celery.* delay .*)$", (DOCS / "web.md").read_text(), re.MULTILINE)
    assert len(lines) == 3
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {"CELERY_BROKER_URL": vhost.url("amqp"), "PATH": path, "PYTHONPATH": str(EXAMPLE)}
    for line in lines:
        words = shlex.split(line)
        given = dict(word.split("=", 1) for word in words if word.startswith("CELERY_"))
        command = [word for word in words if not word.startswith("CELERY_")]
        if command[-1] == "metrics":
            done = celery(*command[1:], directory=None, **environment)
            assert "celery_rabbit_delay_broker_up 1.0" in done.out, done.err
        else:
            with serving(command, tmp_path, **environment, **given) as site:
                assert site.ask("/").status == (303 if given else 200)


def test_every_option_of_the_page_is_documented(vhost: Vhost) -> None:
    documented = set(re.findall(r"^\| `(--[a-z-]+)`", (DOCS / "web.md").read_text(), re.MULTILINE))
    assert documented == set(re.findall(r"^  (--[a-z-]+)", run("amqp://", "web", "--help").out, re.MULTILINE)) - {
        "--help"
    }


def test_every_metric_is_documented_and_there(vhost: Vhost) -> None:
    printed = run(vhost.url("amqp"), "metrics", *management(vhost)).out
    there = set(re.findall(r"^# TYPE (\w+)", printed, re.MULTILINE))
    text = (DOCS / "web.md").read_text()
    lacking = {name for name in there if name not in text}
    assert lacking == {"celery_rabbit_delay_index_behind_messages"}  # shortened
    assert "`…_messages`" in text


def test_the_page_of_an_app_without_the_schedule_says_so_and_shows_the_rest(vhost: Vhost, serve: Serve) -> None:
    vhost.declare("q")
    with vhost.connection(schedule=False) as connection:
        publish(connection, 60)
    site = serve(options=("--no-schedule", "--queue", "q"))
    shows(site, "this app does without the schedule", "Waiting on the broker: 1.")
    shows(site, "live", path="/health")
    assert "has stopped" not in site.ask("/health").text
