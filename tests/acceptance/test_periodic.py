"""Periodic entries that are written while several processes of `celery beat -S rabbit-delay` run."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

from celery_rabbit_delay import operate, periodic
from tests.kit.beats import EXPIRES, Sent, entry
from tests.kit.broker import QUICK
from tests.kit.commands import Result, celery
from tests.kit.site import serving
from tests.kit.wait import wait_until

from .conftest import MakeShop, Shop, StartBeat

TASK = "tests.acceptance.shop.note"


def command(shop: Shop, *arguments: str) -> Result:
    delay = "-A", "tests.acceptance.shop", "delay", "periodic"
    return celery(*delay, *arguments, directory=None, **shop.environment)


def add(shop: Shop, name: str, schedule: Any, **more: Any) -> None:
    periodic.add(shop.app, name, TASK, schedule, [name], options={"expires": EXPIRES}, **more)


def sent(shop: Shop) -> list[Sent]:
    return [Sent.of(message) for message in shop.vhost.take("celery", shop.vhost.count("celery"))]


def wait_for_runs(shop: Shop, name: str, times: int = 1) -> list[Sent]:
    """Return what is sent until an entry has run so often."""
    found: list[Sent] = []

    def look() -> bool:
        found.extend(sent(shop))
        return sum(one.name == name for one in found) >= times

    wait_until(look, f"{name} runs")
    return found


def test_what_is_written_reaches_the_active_beat_at_once_and_the_next_ones_keep_it(
    make_shop: MakeShop, start_beat: StartBeat
) -> None:
    code = {"code": entry(TASK, 1, "code"), "monthly": entry(TASK, 2_500_000, "monthly")}
    shop = make_shop(None, beat_schedule=code)
    shop.vhost.declare("celery")
    beats = [start_beat(shop).wait_until_active(), start_beat(shop)]
    began = time.monotonic()
    add(shop, "new", 0.5)
    assert "new" in {one.entry for one in periodic.entries(shop.app)}
    assert time.monotonic() - began < 30  # it takes seconds on a busy machine
    wait_for_runs(shop, "new", 2)
    periodic.disable(shop.app, "code")
    sent(shop)
    assert {one.name for one in wait_for_runs(shop, "new", 4)} == {"new"}
    for number in (signal.SIGKILL, signal.SIGTERM):
        beats.append(start_beat(shop))
        beats[0].signal(number)
        beats.pop(0).process.wait(60)
        wait_until(lambda: sum(beat.activations for beat in beats), "another one is active")
        sent(shop)
        found = wait_for_runs(shop, "new", 3)
        assert {one.name for one in found} == {"new"}
        assert len({one.id for one in found}) >= len(found) - 1
    periodic.remove(shop.app, "new")
    periodic.enable(shop.app, "code")
    sent(shop)
    assert {one.name for one in wait_for_runs(shop, "code", 3)} == {"code"}
    assert not any("Traceback" in beat.output() for beat in beats)


def test_the_command_and_the_page_do_the_same(make_shop: MakeShop, start_beat: StartBeat, tmp_path: Path) -> None:
    shop = make_shop(QUICK, beat_schedule={"hourly": entry(TASK, 3600, "hourly")})
    shop.vhost.declare("celery")
    with shop.vhost.connection() as connection:
        operate.setup(connection, [shop.vhost.cascade], [])
    start_beat(shop).wait_until_active()
    added = command(shop, "add", "report", TASK, "crontab 30 4 1 * *", "--args", '["r"]', "--options", '{"expires": 9}')
    assert (added.code, added.text) == (0, "")
    twice = command(shop, "add", "report", TASK, "every 30 s")
    assert (twice.code, "Error: the entry 'report' was changed meanwhile" in twice.err) == (1, True)
    assert command(shop, "change", "report", "--schedule", "every 7200 s").code == 0
    assert command(shop, "disable", "hourly").code == 0
    shown = command(shop, "list").out.splitlines()
    assert re.fullmatch(rf"\S+ \S+Z  report  {TASK}  -  every 7200 s  written", shown[0])
    assert re.fullmatch(rf"disabled  hourly  {TASK}  -  every 3600 s  in the code", shown[1])
    [told, _] = map(json.loads, command(shop, "list", "--json").out.splitlines())
    assert (told["entry"], told["definition"]["args"], told["total"]) == ("report", ["r"], 0)
    for arguments, error in [
        (("add", "bad", TASK, "crontab 61 * * * *"), "cannot use the schedule"),
        (("add", "bad", TASK, "every 1", "--args", "1"), "use JSON such as"),
        (("run", "bad"), "there is no entry 'bad'"),
    ]:
        failed = command(shop, *arguments)
        assert failed.code
        assert error in failed.err
    id_ = command(shop, "run", "report").out.strip()
    assert [one.headers["id"] for one in shop.vhost.take("celery", 1)] == [id_]
    web = ["celery", "-A", "tests.acceptance.shop", "delay", "web"]
    with serving(web, tmp_path, **shop.environment) as site:
        health = site.ask("/health").text
        assert "every 7200 s" in health
        version = {one.entry: one.version for one in periodic.entries(shop.app)}
        for act, name, done in [
            ("enable", "hourly", "1 periodic entry enabled"),
            ("run_now", "hourly", "1 run of a periodic entry sent"),
            ("remove", "report", "1 periodic entry removed"),
            (
                "disable",
                "hourly",
                "was removed meanwhile: look at it, and try again",
            ),
        ]:
            assert done in site.post(f"/periodic/{act}", "/health", name=name, version=version[name])
    assert len(shop.vhost.take("celery", 1)) == 1
    [hourly] = periodic.entries(shop.app)
    assert (hourly.entry, hourly.is_enabled) == ("hourly", True)
