"""The commands without a broker, and with a mistyped URL."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import click
import pytest
from celery import Celery
from click.testing import CliRunner, Result
from kombu.utils import functional

import celery_rabbit_delay
from celery_rabbit_delay import InvalidDelay, operate
from celery_rabbit_delay.cli import groups, output, status, target, tasks
from celery_rabbit_delay.cli.output import until_interrupted
from celery_rabbit_delay.cli.target import handle_errors
from celery_rabbit_delay.operate import Orphan, Status, broker_connection
from celery_rabbit_delay.operate.status import LevelStatus
from celery_rabbit_delay.periodic.beat_status import BeatStatus
from celery_rabbit_delay.schedule.amqp import waiting_tasks
from celery_rabbit_delay.schedule.amqp.waiting_tasks import Scheduled
from tests.kit.commands import PROGRAM, closed_pipe

NOWHERE = "amqp://me:s3cret@127.0.0.1:1//"


def run(*arguments: str, broker: str | None = NOWHERE, **environment: str | None) -> Result:
    environment.setdefault("CELERY_BROKER_URL", None)
    given = [] if broker is None else ["--broker", broker, "--schedule"]
    result = CliRunner().invoke(groups.standalone, [*given, *arguments], env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_an_error_controls_no_terminal() -> None:
    """It may quote what somebody has made up, such as the name of an exchange."""
    with pytest.raises(click.ClickException) as told, handle_errors():
        raise InvalidDelay("the exchange '\x1b[2J\u202e'")
    assert told.value.message == r"the exchange '\x1b[2J\u202e'"


def commands(group: click.Group, *names: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*names, name)
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)


COMMANDS = list(commands(groups.standalone))


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove Kombu's pause of two seconds before its next attempt."""
    monkeypatch.setattr(functional, "sleep", lambda seconds: None)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the broker by a test's data."""

    monkeypatch.setattr(broker_connection, "connected", nullcontext)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_shows_its_help_without_a_broker(command: tuple[str, ...]) -> None:
    shown = run(*command, "--help", broker=None)
    assert shown.exit_code == 0
    assert shown.stdout.startswith(f"Usage: standalone {' '.join(command)} ")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("environment", [None, ""])
def test_without_a_broker_a_command_says_how_to_name_one(command: tuple[str, ...], environment: str | None) -> None:
    failed = run(*command, broker=None, CELERY_BROKER_URL=environment)
    assert failed.exit_code == 2
    assert "Missing option '--broker' / '-b'" in failed.stderr
    assert "CELERY_BROKER_URL" in failed.stderr
    assert failed.stdout == ""  # nothing is asked


@pytest.mark.parametrize("command", [("--prefix", "--help", "status"), ("cancel", "--", "--help")], ids=" ".join)
def test_an_argument_that_looks_like_help_needs_a_broker(command: tuple[str, ...]) -> None:
    failed = run(*command, broker=None)
    assert failed.exit_code == 1
    assert "use one such as amqp://" in failed.stderr


@pytest.mark.parametrize(
    "url",
    [
        "amqp://shop:s3c/ret@host//",
        "amqp://shop:s3c#ret@host//",
        "amqp://shop:s3c?ret@host//",
        "amqp://shop:s3c;ret@host//",
        "amqp://shop:s3c@r/et@host//",
        "amqp://shop:33/ret@host//",  # which seems to be a port
        "amqp://shop:s3c\u2100ret@host//",
        "amqp://shop:s3cret",  # without a host
        "shop:s3cret@host",
        "localhost",
        "amqp://me:there@host//;amqp://shop:s3c/ret@other//",
    ],
)
def test_a_url_whose_password_is_not_encoded_is_an_error_without_any_part_of_it(url: str, away: None) -> None:
    says = "the broker URL cannot be read: use one such as amqp://user:password@host:5672/vhost, and percent-encode"
    failed = run("status", broker=url)
    assert failed.exit_code == 1
    assert says in failed.stderr
    assert not [part for part in ("s3c", "ret", "33") if part in failed.output]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("amqp://me:s3cret@host:port//", "Port could not be cast to integer value as 'port'"),
        ("amqp://me:s3cret@host:99999//", "Port out of range 0-65535"),
        (f"amqp://me:s3cret@host/{'v' * 256}", "the vhost of the broker URL has 256 bytes: AMQP has room for 255"),
        (f"amqp://{'%ff' * 256}:s3cret@host//", "the user of the broker URL has 256 bytes: AMQP has room for 255"),
        ("amqp://me:s3cret\udcff@host//", "the broker URL cannot be read"),
        ("redis://:s3cret@host", "use a broker_url that begins with amqp://"),
        ("amqp://me:s3cret@host//?unknown=1", "has a parameter that Kombu does not know"),
        ("amqp://me:s3cret@host//?heartbeat=often", "the broker URL cannot be read"),
    ],
)
def test_what_else_is_wrong_with_a_url_is_said(url: str, says: str) -> None:
    failed = run("status", broker=url)
    assert failed.exit_code == 1
    assert says in failed.stderr
    assert "s3cret" not in failed.output


@pytest.mark.parametrize(
    ("name", "says"), [("", "it is empty"), ("x" * 256, "has 256 bytes: use at most 255"), ("\udcff", "not valid text")]
)
@pytest.mark.parametrize(
    "command",
    [("--queue", "NAME", "setup"), ("cancel", "fine", "NAME"), ("run-now", "NAME"), ("reschedule", "NAME")],
    ids=" ".join,
)
def test_a_name_that_amqp_cannot_carry_is_an_error(command: tuple[str, ...], name: str, says: str) -> None:
    refused = run(*(name if word == "NAME" else word for word in command))
    assert refused.exit_code == 2
    assert says in refused.stderr


@pytest.mark.parametrize(
    "url", ["amqp://", "amqps://host", "amqp://me:s3c%2Fret@[::1]:5672/a%40b?heartbeat=5", f"{NOWHERE};amqp://host//"]
)
def test_other_urls_are_read(url: str) -> None:
    assert json.loads(run("export", broker=url).stdout)["queues"]


@pytest.mark.parametrize("command", ["list", "metrics", "setup", "status", "verify"])
def test_a_broker_that_does_not_answer_is_named_without_its_password(command: str, without_pauses: None) -> None:
    failed = run(command)
    assert failed.exit_code == 1
    assert "no connection to amqp://me:**@127.0.0.1:1//: [Errno " in failed.stderr
    assert "s3cret" not in failed.output


ORPHAN = Orphan("", "gone", None, "shop.review", "1", 5, "")


@pytest.mark.parametrize("amount", [0, 1, 2, 3])
@pytest.mark.parametrize("command", [("list",), ("list", "--json"), ("replay",)], ids=" ".join)
def test_whoever_reaches_the_limit_is_told_that_more_may_be_left(
    command: tuple[str, ...], amount: int, away: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [ORPHAN] * amount
    monkeypatch.setattr(operate, "orphans", lambda connection, limit: found[:limit])
    monkeypatch.setattr(operate, "replay", lambda connection, limit, _: [(one, None) for one in found[:limit]])
    done = run("orphans", *command, "--limit", "2")
    assert done.exit_code == 0
    told = "these were the oldest 2: more may be left, raise --limit to see them\n"
    none = "" if amount or command[0] != "list" else "there are no orphans\n"
    assert done.stderr == (told if amount >= 2 else none)


def test_the_management_api_is_that_of_the_environment(away: None, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []

    def make(*arguments: Any) -> Any:
        made.append(arguments)
        return SimpleNamespace(snapshot=lambda: None)

    monkeypatch.setattr(operate, "Management", make)
    monkeypatch.setattr(operate, "status", lambda *arguments: Status([], [], 0, None, None, []))
    url = "http://me:s3cret@127.0.0.1:15672"
    values = {"URL": url, "CA": "/ca.pem", "CERT": "/me.pem"}
    environment = {f"CELERY_RABBIT_DELAY_MANAGEMENT_{name}": value for name, value in values.items()}
    assert run("status", **environment).exit_code == 0
    assert made == [(url, "/", "/ca.pem", "/me.pem")]


NO_CASCADE = (
    "there is no cascade of these options: `setup` creates it, as do workers when they start, and publishers with "
    "their first delayed task"
)


@pytest.mark.parametrize(
    ("ready", "told"),
    [((3, None), "b is missing; run `setup`"), ((None, None), NO_CASCADE), ((), NO_CASCADE)],
)
def test_status_tells_a_missing_level_from_a_missing_cascade(
    ready: tuple[int | None, ...], told: str, away: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = [LevelStatus(name, 1000, count, None) for name, count in zip("ab", ready, strict=False)]
    monkeypatch.setattr(operate, "status", lambda *arguments: Status(levels, [], None, None, None, []))
    shown = run("status")
    assert (shown.exit_code, shown.stdout) == (3, f"{sum(filter(None, ready))} wait\n{told}\n")


WAITS = Scheduled(
    "7e2b6a4c-5d4e-4e0b-8d4b-0c1f6ed7f2a1",
    "shop.ask_for_review",
    "mail",
    datetime(2030, 1, 31, 11, 30, tzinfo=timezone.utc),
    "(42,)",
    "{'customer': '" + 50 * "x" + "'}",
    "",
    "mail",
    0,
    1,
)
PIPED = f"2030-01-31 11:30:00Z  {WAITS.id}  mail  shop.ask_for_review (42,) {WAITS.kwargs}\n"


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the zone of this machine."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, berlin: None) -> None:
    """Let the output be read by people."""
    for module in (output, status, tasks):
        monkeypatch.setattr(module, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")  # less than a table may have


@pytest.fixture
def waiting(away: None, monkeypatch: pytest.MonkeyPatch) -> list[Scheduled]:
    found = [WAITS]
    monkeypatch.setattr(operate, "require", lambda *args, **kwargs: None)
    monkeypatch.setattr(waiting_tasks, "scheduled", lambda *arguments, **more: iter(found))
    return found


def test_a_list_on_a_terminal_has_headings_local_times_and_80_columns(
    terminal: None, waiting: list[Scheduled], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = run("list").stdout
    assert max(map(len, shown.splitlines())) == 80
    assert shown == (
        "DUE                       QUEUE                 TASK\n"
        "  ID                                    ARGUMENTS\n"
        "2030-01-31 12:30:00 CET   mail                  shop.ask_for_review\n"
        f"  {WAITS.id}  (42,) {{'customer': '{19 * 'x'}…\n"
    )
    assert json.loads(run("list", "--json").stdout)["due"] == "2030-01-31T11:30:00+00:00"
    waiting[:] = [WAITS._replace(id="", task=None, due=datetime.max.replace(tzinfo=timezone.utc))]
    assert run("list").stdout.splitlines()[2:] == ["9999-12-31 23:59:59Z      mail                  message", "  -"]
    waiting.clear()
    empty = run("list")
    assert (empty.stdout, empty.stderr.partition(":")[0]) == ("", "nothing is listed")
    orphan = Orphan("", "gone", WAITS.due, "shop.review", "id-1", 1, "d")
    monkeypatch.setattr(operate, "orphans", lambda *arguments: [orphan])
    assert run("orphans", "list").stdout == "2030-01-31 12:30:00 CET  queue 'gone'  shop.review[id-1]\n"


def test_a_list_in_a_pipe_is_the_data_in_utc(berlin: None, waiting: list[Scheduled]) -> None:
    assert run("list").stdout == PIPED


@pytest.mark.parametrize(("words", "is_found"), [("7E2B 42 ASK", True), ("mail nosuch", False)])
def test_a_list_is_searched_by_words(words: str, is_found: bool, waiting: list[Scheduled]) -> None:
    waiting.append(WAITS._replace(task="other", id="other", queue="other", args="()"))
    assert run("list", "--limit", "1", "--search", words).stdout == (PIPED if is_found else "")


def test_a_search_without_words_selects_nothing(waiting: list[Scheduled]) -> None:
    for given in (("list",), ("cancel", "--task", "shop.ask", "--yes"), ("run-now", "--all", "--yes")):
        failed = run(*given, "--search", " ")
        assert (failed.exit_code, "it has no word" in failed.stderr) == (2, True)


def test_status_has_headings_on_a_terminal(terminal: None, away: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Status([LevelStatus("level", 1000, 1, None)], [], 0, None, None, [])
    beat = BeatStatus("host:1", [])
    monkeypatch.setattr(operate, "status", lambda *arguments: found)
    monkeypatch.setattr(target.BrokerTarget, "beat", lambda *arguments: beat)
    shown = run("status", "--levels")
    assert (shown.stderr, shown.stdout) == (
        "",
        "1 wait, 0 are orphans\n"
        "      LEVEL      READY  UNSETTLED  QUEUE\n"
        "        1 s          1             level\n"
        "beat is active on host:1\n",
    )


@pytest.mark.parametrize(
    "command",
    [
        f"{PROGRAM} --broker {NOWHERE} export",
        pytest.param(f"{PROGRAM.with_name('celery')} delay --help", marks=pytest.mark.more),
    ],
    ids=["what it says", "its help"],
)
def test_output_that_cannot_be_written_is_an_error_and_silent_if_nobody_reads_it(command: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(command.split(), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: the output cannot be written: No space left on device\n")
    with closed_pipe() as pipe:
        done = subprocess.run(command.split(), stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((), "give either eta or countdown"),
        (("--eta", "2030-01-31", "--countdown", "5"), "give either eta or countdown"),
        (("--eta", "tom\x1borrow"), r"cannot read the eta 'tom\x1borrow': use an aware datetime, or an ISO 8601"),
        (("--countdown", "-1"), "cannot read the countdown '-1': use a number of seconds, 0 or more"),
    ],
)
def test_a_move_without_a_time_that_can_be_read_is_an_error_of_usage(given: tuple[str, ...], says: str) -> None:
    refused = run("reschedule", "an-id", *given)
    assert refused.exit_code == 2
    assert says in refused.stderr


@pytest.fixture
def sigint() -> Iterator[None]:
    """Have Python's own handler of SIGINT, which a shell has ignored for what it runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint")
def test_what_is_interrupted_ends_after_the_item_in_hand_and_a_second_time_at_once() -> None:
    handled: list[int] = []
    closed: list[bool] = []

    def numbers() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.append(True)

    with until_interrupted(numbers()) as (items, is_interrupted):
        for number in items:
            if number == 3:
                signal.raise_signal(signal.SIGINT)
            handled.append(number)
        assert handled == [0, 1, 2, 3]
        assert is_interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert closed == [True]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_bad_option_in_a_configuration_that_is_loaded_late_is_named() -> None:
    app = Celery("lazy", set_as_current=False)
    app.config_from_object(SimpleNamespace(broker_url=NOWHERE, rabbit_delay={"prefx": "x"}))
    celery_rabbit_delay.install(app)
    with pytest.raises(click.ClickException, match="unknown option prefx: did you mean prefix"):
        target.AppTarget(app).connection()


def test_a_change_of_nothing_is_an_error() -> None:
    assert "name what to change" in run("periodic", "change", "report").stderr
