"""The commands of the tutorial and the how-tos have the documented output."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit import background
from tests.kit.abilities import Ability
from tests.kit.broker import Vhost
from tests.kit.node import free_port
from tests.kit.pages import commands
from tests.kit.reader import ROOT, UUID, Reader
from tests.kit.wait import wait_until

pytestmark = pytest.mark.more


@pytest.fixture
def reader(vhost: Vhost, tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(vhost, tmp_path)
    yield reader
    reader.close()


def test_the_readme_pastes_and_runs(reader: Reader) -> None:
    [program] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    reader.directory = reader.examples.parent / "empty"
    reader.directory.mkdir()
    shop = reader.directory / "shop.py"
    shop.write_text(reader.with_broker(program))
    (worker, _), (send, _), (look, _), (cancel, _), (serve, _) = commands("../README.md")
    reader.start(worker)
    reader.run(send)
    assert not [name for name in reader.vhost.names("queues") if ".journal." in name]
    reader.stop(worker)
    shop.write_text(shop.read_text().replace("install(app)", "install(app, schedule=True)"))
    reader.start(worker)
    reader.run(send)
    assert reader.run(look).count("shop.ask_for_review") == 1, "the one before is not recorded"
    reader.run(cancel)
    assert "shop.ask_for_review" not in reader.run(look)
    reader.start(f"{serve} --port {free_port()}")
    reader.sees("http://127.0.0.1:")


@pytest.mark.long
def test_the_tutorial_shows_what_happens_from_start_to_end(reader: Reader) -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    reader.directory = reader.examples.parent / "empty"
    reader.directory.mkdir()
    (reader.directory / "shop.py").write_text(reader.with_broker(program))
    called = [command for command, _ in commands("tutorial.md") if " call " in command]
    printed = re.findall(r"^    \[.*\] (.*)$", text, re.MULTILINE)
    assert len(called) == 4
    assert len(printed) == 1
    worker = "celery -A shop worker"
    # What is looked at still waits then, however long the commands take, and two of an hour are in the same level.
    reader.ids = {"--countdown 40": "--countdown 75", "--countdown 3600": "--countdown 4000"}

    def all_ran() -> None:
        reader.sees("How was order 45?", timeout=120)
        reader.stop(worker)

    reader.follow(
        "tutorial.md",
        before={
            called[1]: lambda: reader.sees(printed[0], timeout=120),
            called[2]: lambda: reader.sees("How was order 43?", timeout=120),
        },
        then={
            called[1]: lambda: reader.stop(worker),
            "celery -A shop delay run-now f07e16f4-9fe0-4ed0-9e8d-d46362d5cf6a": all_ran,
        },
    )
    assert "How was order 44?" not in reader.terminals()
    assert reader.vhost.names("queues") == ["celery"]


def test_the_guide_to_reminders_shows_what_happens(reader: Reader) -> None:
    reader.follow("how-to/reminders.md")
    reader.sees("Reminder: haircut")
    assert "dentist" not in reader.terminals()
    assert "massage" not in reader.terminals()
    assert "remind" not in reader.run("celery -A reminders delay list")


def test_the_guide_to_periodic_tasks_shows_what_happens(reader: Reader) -> None:
    beat = "celery -A periodic beat"
    reader.follow("how-to/periodic-tasks.md", beside=(beat,))
    reader.sees("tick")
    process, _ = reader.running.pop(beat)
    background.kill(process)
    before = reader.terminals().count("] tick\n")
    wait_until(lambda: reader.terminals().count("] tick\n") > before + 2, "the beat of the worker goes on")


def test_the_guide_to_retries_shows_what_happens(reader: Reader) -> None:
    reader.follow("how-to/retries.md")
    reader.sees("order 42 is paid", "try 4 of order 42")
    wait_until(lambda: reader.terminals().count("notify order 42") == 2, "the second one comes")
    [again] = re.findall(r"notify order 42 after (\d+\.\d) s", reader.terminals())[1:]
    assert float(again) >= 1.5


@pytest.mark.long
def test_the_guide_to_failed_tasks_shows_what_happens(reader: Reader) -> None:
    reader.vhost.delay_retries(r"\.failed$")
    vhost = reader.vhost

    def all_are_paid() -> None:
        reader.sees("order 1 is paid", "order 2 is paid", "order 3 is paid", "order 4 is paid")
        assert vhost.count("orders.failed") == 0

    reader.follow(
        "how-to/failed-tasks.md",
        then={
            "python failed_tasks.py send": lambda: wait_until(
                lambda: vhost.count("orders.failed") == 3, "three failed for good"
            ),
            "python failed_tasks.py replay 2": all_are_paid,
        },
    )
    tries = re.findall(r"order (\d), try (\d)", reader.terminals())
    assert tries.count(("2", "1")) == 2  # its tries are counted anew
    assert tries.count(("2", "3")) == 1
    assert tries.count(("4", "1")) == 5  # four times and, repaired, once


@pytest.mark.long
def test_the_guide_to_debounce_shows_what_happens(reader: Reader) -> None:
    program = reader.examples / "debounce.py"
    program.write_text(program.read_text().replace("QUIET = 10", "QUIET = 25"))  # longer than any pause in between
    reader.follow("how-to/debounce.md")
    reader.sees("document 7 is indexed", "document 8 is indexed")
    assert reader.terminals().count("document 7 is indexed") == 1
    reader.run("python debounce.py")  # an id that has run is sent again
    wait_until(lambda: reader.terminals().count("document 7 is indexed") == 2, "it is indexed again")


def test_the_guide_to_autoscaling_shows_what_happens(reader: Reader) -> None:
    reader.directory = reader.examples / "quickstart"
    reader.vhost.declare("celery")
    reader.run("celery -A shop delay setup")
    reader.follow("how-to/autoscaling.md")


def test_the_guide_to_many_tasks_shows_what_happens(reader: Reader) -> None:
    reader.follow("how-to/many-tasks.md")
    reader.sees("mail to reader 0")
    assert int(re.findall(r"([\d,]+) wait", reader.run("celery -A many_tasks delay status"))[0].replace(",", "")) > 1500


def test_the_guide_to_plain_kombu_shows_what_happens(reader: Reader) -> None:
    reader.follow("how-to/plain-kombu.md", beside=("python plain_kombu.py consume",))
    reader.sees("mail to ada by mail.de after ")


def test_the_guide_to_one_off_entries_moves_them(reader: Reader) -> None:
    pytest.importorskip("django_celery_beat")
    reader.directory = reader.examples / "one_off"
    reader.follow("how-to/from-one-off-entries.md")
    reader.start("celery -A shop worker")
    again = reader.run("python move.py")
    assert again.endswith("0 entries moved\n")


def test_a_table_of_django_celery_beat_is_moved_but_for_what_has_no_equal(reader: Reader) -> None:
    pytest.importorskip("django_celery_beat")
    reader.directory = reader.examples / "one_off"
    (reader.directory / "fill.py").write_text(
        """
import shop
from datetime import datetime, timedelta, timezone
from django.core.management import call_command
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask

call_command("migrate", verbosity=0)
add = PeriodicTask.objects.create
hour = IntervalSchedule.objects.create(every=1, period="hours")
cron = CrontabSchedule.objects.create(minute="30", hour="4", day_of_week="mon", timezone="UTC")
day = ClockedSchedule.objects.create(clocked_time=datetime.now(timezone.utc) + timedelta(days=1))
add(name="hourly", task="remind", interval=hour, args='["a"]', kwargs='{"b": 1}', queue="mail", priority=3)
add(name="weekly", task="remind", crontab=cron, enabled=False, expire_seconds=60)
add(name="once", task="remind", clocked=day, one_off=True)
add(name="later", task="remind", interval=hour, start_time=day.clocked_time)
add(name="far", task="remind", crontab=CrontabSchedule.objects.create(minute="0", timezone="Asia/Tokyo"))
"""
    )
    reader.run("python fill.py")
    reader.start("celery -A shop beat -S rabbit-delay -l info")
    reader.sees("is the active one of")
    moved = [f"{name}: moved" for name in ("hourly", "weekly")]
    first = reader.run("python move_periodic.py").splitlines()
    assert sorted(line for line in first if line.endswith("moved")) == moved
    assert [line.partition(":")[0] for line in sorted(first) if "stays" in line] == ["far", "later", "once"]
    again = reader.run("python move_periodic.py")
    assert "hourly: stays, the entry 'hourly' was changed" in again
    told = reader.run("celery -A shop delay periodic list --json").splitlines()
    found = {one["entry"]: one for one in map(json.loads, told)}
    assert found["hourly"]["definition"] == {
        "task": "remind",
        "schedule": "every 3600 s",
        "args": ["a"],
        "kwargs": {"b": 1},
        "options": {"queue": "mail", "priority": 3},
    }
    assert found["weekly"]["schedule"] == "crontab 30 4 * * mon"
    assert (found["weekly"]["is_enabled"], found["weekly"]["definition"]["options"]) == (False, {"expires": 60})


def test_the_example_for_flask_answers_and_its_task_runs(reader: Reader) -> None:
    pytest.importorskip("flask")
    port = free_port()
    reader.start("celery -A flask_shop.celery_app worker")
    reader.start(f"flask --app flask_shop run --port {port}")
    request = urllib.request.Request(f"http://127.0.0.1:{port}/orders/42", method="POST")

    def answer() -> str:
        with suppress(OSError), urllib.request.urlopen(request, timeout=10) as response:
            return str(response.read().decode())
        return ""

    assert re.search(UUID, wait_until(answer, "the server answers"))
    reader.sees("the shop asks: how was order 42?")


@pytest.mark.long
def test_the_guide_to_infrastructure_as_code_shows_what_happens(reader: Reader) -> None:
    vhost = reader.vhost
    vhost.declare("celery")
    reader.run("python infrastructure.py", code=1)
    assert vhost.names("queues") == ["celery"]
    reader.follow("how-to/infrastructure-as-code.md")
    reader.run("python infrastructure.py")
    vhost.take("celery", 1)


@pytest.mark.parametrize(
    ("page", "directory", "sees"),
    [
        ("how-to/django.md", "django_shop", ["How was order 42?"]),
        ("how-to/testing.md", "testing", []),
        # What it does while tasks wait there is in test_coming_from_others.py.
        ("how-to/from-native-delayed-delivery.md", ".", []),
        ("how-to/from-the-plug-in.md", ".", []),
    ],
    ids=lambda value: value if str(value).startswith("how-to") else "",
)
def test_the_guide_shows_what_happens(reader: Reader, page: str, directory: str, sees: list[str]) -> None:
    if "django" in directory:
        pytest.importorskip("django")
    reader.directory = reader.examples / directory
    reader.follow(page)
    reader.sees(*sees)


def test_the_template_for_workers_shows_what_happens(reader: Reader) -> None:
    policies = reader.vhost.broker.has(Ability.TIMES_OUT_BY_POLICY)
    reader.follow(
        "workers.md",
        skip=() if policies else ("rabbitmqctl set_policy long ",),
        then={
            "celery -A worker_configuration worker -c 2": lambda: wait_until(
                lambda: reader.prefetch_counts() == {"short": 2, "long": 2}, "it fetches one task for each process"
            ),
            "python worker_configuration.py": lambda: reader.sees(
                "order 1 is shipped",
                "order 2 is shipped",
                "FAILED ship",
                "LookupError('no address')",
                "order 4 is shipped",
                "the report is done",
            ),
        },
    )
    assert reader.vhost.count("failed") == 1
    assert not reader.vhost.count("short")
