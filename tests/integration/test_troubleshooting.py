"""The commands of docs/troubleshooting.md and runbook.md exist, and print the documented output for each problem."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kombu
import pytest

from celery_rabbit_delay import CascadeConflict, NotPermitted, Options
from celery_rabbit_delay.delay.amqp import create
from celery_rabbit_delay.delay.core.options import OPTIONS
from tests.kit import terminal
from tests.kit.broker import REFUSING, Vhost, lead, publishing
from tests.kit.pages import commands
from tests.kit.wait import wait_until

pytestmark = pytest.mark.more

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
RUNBOOK = ROOT / "docs" / "runbook.md"
BIN = Path(sys.executable).parent
MANAGEMENT = "http://guest:guest@localhost:15672"
BROKER = "amqp://guest:guest@localhost//"
CASCADE = Options().cascade
SECOND = next(level for level in CASCADE.levels if level.ttl == 1000)


TEXT = PAGE.read_text() + RUNBOOK.read_text()
COMMANDS = sorted(
    {line.removeprefix("$ ") for line in TEXT.splitlines() if line.startswith("$ ")}
    | set(re.findall(r"`(rabbitmqctl [a-z_]+)", TEXT))
    | set(re.findall(r"`(celery -A shop [^`]+)`", TEXT))
)


def environment(vhost: Vhost) -> dict[str, str]:
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "CELERY_BROKER_URL": vhost.url("amqp")}


def ask(vhost: Vhost, command: str) -> str:
    """Return the output of a command of the page, in the folder of an app named shop."""
    here = f"http://guest:guest@127.0.0.1:{vhost.broker.node.management_port}"
    arguments = shlex.split(command.replace(MANAGEMENT, here).replace(BROKER, vhost.url("amqp")))
    done = terminal.run(arguments, ROOT / "examples" / "quickstart", environment(vhost))
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def with_any_numbers(line: str) -> str:
    """Return a pattern of a line of the page for any numbers, ids and column widths."""
    line = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", line).replace(" CET ", " … ")
    escaped = re.escape(line.strip()).replace(r"\ ", r"\s+").replace("…", ".*")
    escaped = re.sub(r"(?<![v.\d])(\d[\d,]*)(?!ms)", r"[\\d,]+", escaped)
    return escaped.replace("UUID", "[0-9a-f-]{36}").replace(r"(\s+)+", r"\s+")


def assert_printed(vhost: Vhost, command: str, lines: list[str]) -> None:
    assert lines

    def printed() -> bool:
        out = ask(vhost, command)
        return all(re.search(with_any_numbers(line), out) for line in lines)

    wait_until(printed, f"{command!r} prints what the page says", timeout=60)  # the management API counts every 5 s


def connection(vhost: Vhost, **options: Any) -> kombu.Connection:
    return kombu.Connection(vhost.url(), transport_options={OPTIONS: Options(**options)})


def publish(vhost: Vhost, queue: str, *delays: float) -> None:
    with connection(vhost) as publisher:
        lead(publisher, queue)
        for delay in delays:
            publisher.Producer().publish("x", routing_key=queue, headers={"x-delay": delay * 1000})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_page_exists(vhost: Vhost, command: str) -> None:
    program, *arguments = shlex.split(command.replace("…", ""))
    if program == "rabbitmqctl":
        assert arguments[0] in vhost.broker.node.ctl("help")
        return
    assert program in ("celery", "celery-rabbit-delay")
    # With --help it is not run, but what it does not know of the options before that is an error.
    done = subprocess.run(
        [BIN / program, *arguments, "--help"],
        cwd=ROOT / "examples" / "quickstart",
        env=environment(vhost),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: " in done.stdout


@pytest.mark.leaves_orphans
def test_a_task_that_did_not_run_shows_as_documented(vhost: Vhost) -> None:
    vhost.declare("celery", "gone")
    vhost.declare("mails", arguments=REFUSING)
    ask(vhost, "celery -A shop delay setup")
    publish(vhost, "celery", 600)
    publish(vhost, "gone", 10)
    vhost.delete_queue("gone")
    publish(vhost, "mails", 1, 1, 1)
    [(command, lines)] = commands(RUNBOOK.name, "Minute 1: where are the tasks?")
    assert_printed(vhost, command, lines)


def test_a_blocked_level_shows_as_documented(vhost: Vhost) -> None:
    vhost.declare("celery")
    ask(vhost, "celery -A shop delay setup")
    publish(vhost, "celery", 0.2)
    vhost.take("celery", 1)
    vhost.delete_exchange(SECOND.done)
    with connection(vhost, outboxes=()) as publisher:
        for _ in range(40):
            publisher.Producer().publish("x", routing_key="celery", headers={"x-delay": 1000})
    [(status, _)] = commands(RUNBOOK.name, "Minute 1: where are the tasks?")
    (verify, missing), *_ = commands(RUNBOOK.name, "Minute 5: why is a level blocked?")
    assert_printed(vhost, status, [f"{SECOND.queue} may be blocked; run `verify`"])
    assert_printed(vhost, verify, missing)
    assert "levels exist" in ask(vhost, "celery -A shop delay setup")
    assert re.search(r"^(\d+) of \1 checks passed$", ask(vhost, "celery -A shop delay verify"), re.MULTILINE)


def test_a_queue_with_a_name_of_the_cascade_shows_as_documented(vhost: Vhost) -> None:
    vhost.declare("celery")
    ask(vhost, "celery -A shop delay setup")
    vhost.delete_queue(SECOND.queue)
    vhost.declare(SECOND.queue)
    [(command, lines)] = commands(PAGE.name, "CascadeConflict")
    assert_printed(vhost, command, lines)
    with (
        connection(vhost) as client,
        pytest.raises(CascadeConflict, match="something else has the name of a part"),
        publishing(client) as publisher,
    ):
        create.create_cascade(publisher.channel, publisher.cascade)
    vhost.broker.node.ctl("delete_queue", SECOND.queue, "--vhost", vhost.name)
    assert "levels exist" in ask(vhost, "celery -A shop delay setup")


def test_a_denied_permission_shows_as_documented(vhost: Vhost) -> None:
    vhost.declare("q")
    user = vhost.user(".*", "^q$", ".*")
    [(command, _)] = commands(PAGE.name, "Permission denied")
    with vhost.connection(user) as client, pytest.raises(NotPermitted, match=r"permission denied .*refused for user"):
        client.Producer().publish("x", routing_key="q", headers={"x-delay": 30})
    assert vhost.name in vhost.broker.node.ctl(*shlex.split(command)[1:-1], user)


def test_a_journal_that_is_missing_or_records_nothing_says_so(vhost: Vhost) -> None:
    ask(vhost, "celery -A shop delay setup")
    [(command, [missing, empty])] = commands(PAGE.name, "Nothing is listed")
    assert_printed(vhost, command, [missing])
    ask(vhost, f"celery-rabbit-delay --schedule --broker {BROKER} setup")
    assert_printed(vhost, command, [empty])
