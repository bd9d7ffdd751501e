"""Periodic entries that are written at run time: what an edit makes of them, and schedules as texts."""

from __future__ import annotations

import itertools
import json
import sys
import zlib
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay import EntryConflict, InvalidEntry
from celery_rabbit_delay.periodic.core import entries as periodic
from celery_rabbit_delay.periodic.core.entries import (
    Edit,
    State,
    Written,
    apply,
    dump,
    load,
    load_edit,
    merge,
    part,
)
from celery_rabbit_delay.periodic.core.runs import Run
from celery_rabbit_delay.periodic.schedules import definition_of, entry_of, schedule_of, text_of
from celery_rabbit_delay.unreadable import Unreadable

CODE = {"code"}
AT = "2026-11-27T12:00:00+00:00"
DEFINITION = {"task": "t", "schedule": "every 1 s", "args": [], "kwargs": {}, "options": {}}
RUN = Run(datetime.fromisoformat(AT), 3)
APP = Celery("shop", set_as_current=False, timezone="Europe/Berlin")

ids = map(str, itertools.count())


def edit(name: str = "a", version: int = 0, **what: Any) -> Edit:
    return Edit(next(ids), name, version, **what)


def after(*edits: Edit) -> State:
    state = State()
    for one in edits:
        state = apply(state, one, CODE)
    return state


ADDED = edit(definition=DEFINITION, is_enabled=True)


def test_an_entry_is_written_disabled_changed_and_removed() -> None:
    state = after(ADDED)
    assert state.entries == {"a": Written(1, True, DEFINITION)}
    state = apply(state, edit(version=1, is_enabled=False), CODE)
    assert state.entries == {"a": Written(2, False, DEFINITION)}
    other = {**DEFINITION, "task": "u"}
    state = apply(state, edit(version=2, definition=other), CODE)
    assert state.entries == {"a": Written(3, False, other)}  # it stays disabled
    state = apply(state, edit(version=3, removes=True), CODE)
    assert (state.entries, state.version) == ({}, 4)


def test_an_entry_of_the_code_is_disabled_enabled_and_covered() -> None:
    disabled = after(edit("code", is_enabled=False))
    assert disabled.entries == {"code": Written(1, False, None)}
    assert apply(disabled, edit("code", 1, is_enabled=True), CODE).entries == {}
    covered = after(edit("code", definition=DEFINITION))
    assert covered.entries["code"].definition == DEFINITION
    assert apply(covered, edit("code", 1, removes=True), CODE).entries == {}


@pytest.mark.parametrize("what", [{"is_enabled": True}, {"removes": True}])
def test_what_is_not_there_cannot_be_changed(what: Any) -> None:
    with pytest.raises(InvalidEntry, match="there is no entry 'a'"):
        after(edit(**what))


def test_an_entry_of_the_code_cannot_be_removed() -> None:
    for before in ([], [edit("code", is_enabled=False)]):
        with pytest.raises(InvalidEntry, match="is in the code: disable it"):
            after(*before, edit("code", len(before), removes=True))


def test_the_second_of_two_who_edit_at_once_learns_that_another_was_quicker() -> None:
    with pytest.raises(EntryConflict, match="'a' was changed meanwhile"):
        after(ADDED, edit(definition=DEFINITION))
    with pytest.raises(EntryConflict, match="'a' was removed"):
        after(ADDED, edit(version=1, removes=True), edit(version=1, is_enabled=False))


def test_an_edit_that_comes_again_changes_nothing() -> None:
    state = after(ADDED)
    assert apply(state, ADDED, CODE) is state


edits = st.builds(
    lambda name, lag, definition, is_enabled, removes: (name, lag, definition, is_enabled, removes),
    st.sampled_from(["a", "code"]),
    st.integers(0, 2),
    st.sampled_from([None, DEFINITION]),
    st.sampled_from([None, True, False]),
    st.booleans(),
)


@given(st.lists(edits, max_size=12))
def test_of_editors_who_saw_the_same_version_at_most_one_wins(several: list[Any]) -> None:
    state, seen, won = State(), [State()], set()
    for name, lag, definition, is_enabled, removes in several:
        looked = seen[max(0, len(seen) - 1 - lag)]  # perhaps some edits ago
        version = looked.entries[name].version if name in looked.entries else 0
        with suppress(EntryConflict, InvalidEntry):
            state = apply(
                state, edit(name, version, definition=definition, is_enabled=is_enabled, removes=removes), CODE
            )
            assert not version or (name, version) not in won
            won.add((name, version))
            seen.append(state)
        assert load(dump(state)) == state
        parts = [part(after, name, RUN) for after in seen for name in ("a", "code")]
        assert merge([state, *parts]) == merge([*parts, seen[-1]]) == state
        assert all(not one.is_enabled or one.definition for one in state.entries.values())
        assert "a" not in state.entries or state.entries["a"].definition


def left(entries: Any = None, runs: Any = None, version: Any = 1) -> bytes:
    return json.dumps([version, "x", entries or {}, runs or {}, False]).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        left([1]),
        left(version="1"),
        left({"a": [1, "yes", None]}),
        left({"a": [1, True, []]}),
        left({"\udce9": [1, True, None]}),
        *(left(runs={"a": run}) for run in (None, [AT], [1, 2], ["then", 2], [AT, "2"], [AT, True])),
        *(left(runs={"a": [at, 2]}) for at in ("2026-11-25T12:00:00", "0001-01-01T00:00:00+14:00")),
    ],
)
def test_what_no_beat_has_written_is_an_error(body: bytes) -> None:
    assert load(zlib.compress(left({"a": [1, True, None]}, {"a": [AT, 2]}))).runs["a"].total == 2
    for written in (body, zlib.compress(body)):
        with pytest.raises(Unreadable, match=r"."):
            load(written)


@pytest.mark.parametrize("fields", [None, 1, [], ["id"], ["id", "a", 0, [], None, False], ["id", "a", "now"]])
def test_what_is_no_edit_is_an_error(fields: Any) -> None:
    assert load_edit(json.loads(json.dumps(ADDED))) == ADDED
    with pytest.raises(Unreadable, match=r"."):
        load_edit(fields)


def test_entries_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "MOST", 50)
    with pytest.raises(InvalidEntry, match="more than 50 bytes: remove some"):
        after(ADDED)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_parts_add_up_to_the_whole_in_any_order_and_however_often_they_come(lost: int) -> None:
    """Of what a beat has left the last messages may be missing, and the first may come again."""
    edits = [ADDED, edit("b", definition=DEFINITION), edit("a", 1, removes=True), edit("code", is_enabled=False)]
    states = list(itertools.accumulate(edits, lambda state, one: apply(state, one, CODE), initial=State()))
    parts = [part(state, one.name, RUN) for one, state in zip(edits, states[1:], strict=True)]
    kept = parts[: len(parts) - lost]
    for whole in range(len(kept) + 1):
        for several in itertools.permutations([states[whole], *kept]):
            assert merge(map(load, map(dump, [*several, *several[:2]]))) == states[len(kept)]
    assert merge([]) == State()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (30, "every 30 s"),
        (0.25, "every 0.25 s"),
        (timedelta(hours=1), "every 3600 s"),
        (schedule(60, relative=True), "every 60 s aligned"),
        ("every  30", "every 30 s"),
        (crontab(), "crontab * * * * *"),
        (crontab(hour=4, minute="30", day_of_month="1"), "crontab 30 4 1 * *"),
        (crontab(minute="0, 30"), "crontab 0,30 * * * *"),
        (crontab("*/15", "8-17", "mon,fri", "*", [1, 2]), "crontab */15 8-17 * 1,2 mon,fri"),
    ],
)
def test_a_schedule_is_a_text_and_back(value: Any, text: str) -> None:
    assert text_of(value, APP) == text
    again = schedule_of(text, APP)
    assert text_of(again, APP) == text
    assert again.app is APP
    if isinstance(value, (schedule, crontab)):
        assert again == value


def test_a_solar_schedule_is_due_at_the_sunset_of_its_place() -> None:
    """In Vienna at midsummer the sun sets at 20:59, in summer time."""
    text = "solar sunset 48.2 16.4"
    assert text_of(text, APP) == text
    made = entry_of("lights", definition_of("t", text, (), {}, {}, APP), APP)
    noon = datetime(2026, 6, 21, 10, tzinfo=timezone.utc)
    made.schedule.nowfun = lambda: noon
    sunset = noon + made.schedule.remaining_estimate(noon)
    assert abs(sunset - datetime(2026, 6, 21, 18, 59, tzinfo=timezone.utc)) < timedelta(minutes=2)
    assert text_of(made.schedule, APP) == text


def test_a_solar_schedule_without_its_library_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ephem", None)
    with pytest.raises(InvalidEntry, match="ephem"):
        schedule_of("solar sunset 48.2 16.4", APP)


class Own(crontab):  # type: ignore[misc]
    """A schedule of somebody's own."""


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, True, None, float("nan"), float("inf"), Own(), "", "every", "every x", "every 0", "every nan"),
        *("every 1 min", "crontab * * *", "crontab 61 * * * *", "crontab x * * * *", "once 2030-01-31"),
        *("solar dawn 1 2", "solar sunset north 2", "daily"),
    ],
)
def test_a_bad_schedule_is_an_error_where_it_is_written(value: Any) -> None:
    with pytest.raises((InvalidEntry, ValueError, OverflowError)):
        text_of(value, APP)
    with pytest.raises(InvalidEntry):
        definition_of("t", value, (), {}, {}, APP)


def test_a_definition_is_what_celery_makes_an_entry_of() -> None:
    definition = definition_of("t", crontab(minute=5), (1, (2,)), {"a": None}, {"queue": "mail"}, APP)
    assert definition == {
        "task": "t",
        "schedule": "crontab 5 * * * *",
        "args": [1, [2]],
        "kwargs": {"a": None},
        "options": {"queue": "mail"},
    }
    made = entry_of("a", definition, APP)
    assert (made.name, made.task, made.schedule) == ("a", "t", crontab(minute=5))
    assert (made.args, made.kwargs, made.options) == ([1, [2]], {"a": None}, {"queue": "mail"})


@pytest.mark.parametrize(
    ("task", "args", "kwargs", "options"),
    [
        ("", (), {}, {}),
        (None, (), {}, {}),
        ("t", (object(),), {}, {}),
        ("t", (float("nan"),), {}, {}),
        *(("t", args, {}, {}) for args in (5, "abc", b"abc", {"a": 1})),
        *(("t", (), {}, {name: value}) for name in ("countdown", "expires") for value in ("x", [1])),
        *(("t", (), {}, {"priority": value}) for value in ("high", -1, 256, 1.5, True)),
        *(("t", (), {}, {"headers": value}) for value in (5, "x", [1])),
        ("t", (), {}, {"serializer": "nope"}),
        ("t", (), {}, {"compression": "nope"}),
        ("t", (), {}, {"expires": datetime.now(timezone.utc)}),
    ],
)
def test_a_bad_definition_is_an_error_where_it_is_written(task: Any, args: Any, kwargs: Any, options: Any) -> None:
    with pytest.raises(InvalidEntry):
        definition_of(task, 1, args, kwargs, options, APP)


def test_options_of_apply_async_are_taken_as_celery_takes_them() -> None:
    options = {
        "countdown": 1.5,
        "expires": "2030-01-31T12:00:00+01:00",
        "priority": 9,
        "headers": {"a": 1},
        "queue": "q",
    }
    options |= {"serializer": "json", "compression": "gzip", "retry": False}
    assert definition_of("t", 1, (), {}, options, APP)["options"] == options
    assert definition_of("t", 1, (), {}, {"expires": 60}, APP)["options"] == {"expires": 60}


@pytest.mark.parametrize("name", ["\udce9", 256 * "x"])
def test_a_name_is_one_that_every_page_can_show(name: str) -> None:
    with pytest.raises(InvalidEntry):
        apply(State(), ADDED._replace(name=name), ())
