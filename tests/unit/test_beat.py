"""What the processes of a beat leave to each other, and the ids of their tasks."""

from __future__ import annotations

import contextlib
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay import InvalidOption, install
from celery_rabbit_delay.delay.app import signals
from celery_rabbit_delay.periodic.beat import heartbeat_of, queue_of
from celery_rabbit_delay.periodic.core.runs import Run, merge, remember, task_id

NOW = datetime(2026, 11, 25, 12, tzinfo=timezone.utc)
BERLIN = timezone(timedelta(hours=1))


def run(hours: float, total: int = 0) -> Run:
    return Run(NOW + timedelta(hours=hours), total)


@given(st.builds(Run, st.datetimes(timezones=st.just(timezone.utc)), st.integers(0)))
def test_a_run_is_read_as_it_was_written(run: Run) -> None:
    assert Run.load(*json.loads(json.dumps(run.dump()))) == run


def test_the_latest_run_of_each_entry_counts() -> None:
    heard = [{"a": run(-2, 7), "b": run(-1, 1)}, {"a": run(-1, 8)}, {"a": run(-3, 9)}]
    assert merge(heard, NOW) == {"a": run(-1, 8), "b": run(-1, 1)}


def test_a_clock_that_is_far_ahead_stops_no_entry() -> None:
    assert merge([{"a": run(-1)}, {"a": run(24), "b": run(24)}, {"c": run(0.5)}], NOW) == {"a": run(-1), "c": run(0.5)}


def test_new_entries_begin_now_and_removed_ones_are_remembered_for_a_day() -> None:
    runs = {"kept": run(-1000, 3), "removed": run(-23), "long removed": run(-25)}
    assert remember(runs, ["kept", "new"], NOW) == {"kept": run(-1000, 3), "removed": run(-23), "new": run(0)}


def test_a_task_id_is_a_name_of_the_queue_the_entry_and_the_run_before() -> None:
    same = {task_id("q", "a", Run(at, total)) for at in (NOW, NOW.astimezone(BERLIN)) for total in (1, 2)}
    others = {task_id("r", "a", run(0)), task_id("q", "b", run(0)), task_id("q", "a", run(1))}
    assert len(same) == 1
    assert len(same | others) == 4


def test_the_queue_has_the_name_of_the_app_and_the_prefix() -> None:
    assert queue_of(Celery("shop", broker="amqp://")) == "celery-rabbit-delay.beat.shop"
    assert queue_of(Celery(broker="amqp://")) == "celery-rabbit-delay.beat.celery"
    installed = Celery("shop", broker="amqp://")
    install(installed, prefix="mine")
    assert queue_of(installed) == "mine.beat.shop"
    installed.conf.beat_queue = "shop.beat"
    assert queue_of(installed) == "shop.beat"


def test_beats_share_the_queue_with_one_that_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_RABBIT_DELAY", "off")
    for ours, configured in (({"prefix": "mine"}, {"prefix": "other"}), ({}, {"prefix": "mine"})):
        app = Celery("shop", broker="amqp://")
        install(app, **ours)
        app.conf.rabbit_delay = configured
        assert queue_of(app) == "mine.beat.shop"


@pytest.mark.parametrize("queue", [5, "amq.beat", "x" * 256])
def test_a_bad_name_of_the_queue_is_an_error(queue: object) -> None:
    app = Celery("shop", broker="amqp://")
    app.conf.beat_queue = queue
    with pytest.raises(InvalidOption, match="beat_queue="):
        queue_of(app)


@pytest.mark.parametrize("seconds", [2, 601, "10", float("nan")])
def test_a_bad_heartbeat_is_an_error(seconds: object) -> None:
    app = Celery("shop", broker="amqp://")
    app.conf.beat_heartbeat = seconds
    with pytest.raises(InvalidOption, match="beat_heartbeat="):
        heartbeat_of(app)


@pytest.mark.parametrize(
    ("arguments", "stops", "warns"),
    [
        ({"beat": True, "statedb": "rabbit-delay"}, True, False),
        ({"beat": True, "statedb": "rabbit-delay", "scheduler": "celery.beat:PersistentScheduler"}, True, False),
        ({"beat": True, "statedb": "rabbit-delay", "scheduler": "rabbit-delay"}, False, True),
        ({"beat": False, "statedb": "rabbit-delay"}, False, True),
        ({"beat": True, "statedb": "worker.db"}, False, False),
        ({"beat": True, "scheduler": "rabbit-delay"}, False, False),
    ],
)
def test_a_worker_whose_scheduler_is_taken_for_a_file_does_not_start_a_beat_of_celerys_own(
    arguments: dict[str, Any], stops: bool, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    conf = Celery("shop", set_as_current=False).conf
    with pytest.raises(SystemExit, match="use --scheduler rabbit-delay") if stops else contextlib.nullcontext():
        signals.refuse_scheduler_as_file(conf=conf, options=arguments)
    assert ("use --scheduler rabbit-delay" in caplog.text) is warns
    conf.beat_scheduler = "rabbit-delay"
    signals.refuse_scheduler_as_file(conf=conf, options={**arguments, "scheduler": None})
