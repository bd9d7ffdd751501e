"""An option is a field, a check, a flag if it decides what stands on the broker, and a row of the reference."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

from celery_rabbit_delay import InvalidOption, Options
from celery_rabbit_delay.cli import groups
from celery_rabbit_delay.cli.parameters import given
from celery_rabbit_delay.delay.core.levels import DEFAULT_OUTBOXES
from celery_rabbit_delay.schedule.core import streams

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"

NAMES = [field.name for field in fields(Options)]

#: Another value of each option, and one that is refused.
VALUES: dict[str, tuple[Any, Any]] = {
    "prefix": ("shop", ""),
    "tick": (1.0, 0),
    "max_delay": (3600.0, 0),
    "slack": (0.5, -1),
    "outboxes": ([60.0, 3600.0], 60),
    "confirm_timeout": (None, 0),
    "declare": ("passive", "never"),
    "schedule": (True, "no"),
    "journal": (None, -1),
    "delivery_time": (True, "no"),
}


#: What an option is used with.
BESIDE: dict[str, dict[str, Any]] = {"journal": {"schedule": True}}


def declared(options: Options) -> Any:
    return options.cascade, options.outbox_ticks, streams.wanted(options), options.delivery_time


#: Those that decide what stands on the broker. The others are about publishing.
DECLARED = [
    name
    for name in NAMES
    if declared(Options(**{name: VALUES[name][0]}, **BESIDE.get(name, {}))) != declared(Options(**BESIDE.get(name, {})))
]


def flags(command: click.Command) -> dict[str, click.Option]:
    return {one.name: one for one in command.params if isinstance(one, click.Option) and one.name}


@pytest.mark.parametrize("name", NAMES)
def test_an_option_is_checked_and_its_error_names_it(name: str) -> None:
    other, bad = VALUES[name]
    given = {name: other, **BESIDE.get(name, {})}
    assert getattr(Options.parse(given), name) == other != getattr(Options(), name)
    with pytest.raises(InvalidOption, match=rf"^{name}={re.escape(repr(bad))}: .*use "):
        Options.parse({name: bad})


#: Options that commands heed beside them.
HEEDED = ["confirm_timeout"]


def test_the_command_line_has_a_flag_for_each_option_that_decides_what_stands_on_the_broker() -> None:
    found = flags(groups.standalone)
    assert [name for name in found if name not in ("version", "broker", "queues")] == DECLARED + HEEDED
    for name in DECLARED + HEEDED:
        assert found[name].opts == [f"--{name.replace('_', '-')}"]
    with groups.standalone.make_context("celery-rabbit-delay", ["--broker", "amqp://", "verify"]) as context:
        assert [context.params[name] for name in DECLARED] == [None] * len(DECLARED), "Options knows the defaults"


@pytest.mark.parametrize("name", DECLARED)
def test_a_flag_takes_what_the_option_takes(name: str) -> None:
    flag = flags(groups.standalone)[name]
    other, _ = VALUES[name]
    if isinstance(other, bool):
        assert flag.is_flag
        dashed = name.replace("_", "-")
        assert flag.secondary_opts == [flag.opts[0].replace(dashed, f"no-{dashed}")]
    else:
        text = ",".join(map(str, other)) if isinstance(other, list) else "none" if other is None else str(other)
        written = given({name: flag.type.convert(text, None, None)})
        assert written == {name: tuple(other) if isinstance(other, list) else other}
        assert flag.type.convert("10", None, None) in (10.0, (10.0,), "10")


def rows() -> list[tuple[str, str, str]]:
    """Return (name, default, text) of each row in the table of options."""
    section = REFERENCE.read_text().split("\n## ")[1]
    assert section.startswith("`install(app, **options)`")
    return re.findall(r"^\| `(\w+)` \| (.*?) \| (.+) \|$", section, re.MULTILINE)


def test_the_reference_has_a_row_for_each_option_with_its_default() -> None:
    assert [name for name, *_ in rows()] == NAMES
    words = {"a year": 365 * 24 * 3600.0, "31 of them": DEFAULT_OUTBOXES, "the app's": None}
    for name, default, text in rows():
        value = words[default] if default in words else ast.literal_eval(default.strip("`"))
        assert value == getattr(Options(), name), name
        assert text.strip(), name


def test_what_a_worker_says_of_the_options_when_it_starts() -> None:
    recorded, none = Options(schedule=True, journal=5.5), Options(schedule=True, journal=None)
    assert Options().summary.endswith("tick 0.125 s, at most 365 days, without the schedule")
    assert recorded.summary.endswith("at most 365 days, with the schedule, recorded from 5.5 s")
    assert none.summary.endswith("with the schedule, none is recorded")
