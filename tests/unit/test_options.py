from __future__ import annotations

import json
import pickle
from datetime import timedelta
from typing import Any

import pytest

from celery_rabbit_delay import InvalidOption, Options, UnsupportedConfiguration
from celery_rabbit_delay.delay.core.levels import DEFAULT_OUTBOXES, MOST_COMBINED, Route
from celery_rabbit_delay.schedule.core import streams
from celery_rabbit_delay.schedule.core.streams import options_of

SECOND = 1_000_000


def test_the_defaults_reach_a_year_in_eighths_of_a_second() -> None:
    cascade = Options().cascade
    assert cascade.tick == timedelta(seconds=0.125)
    assert cascade.powers == 28
    assert cascade.max_ticks * cascade.tick > timedelta(seconds=Options().max_delay) == timedelta(days=365)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prefix": None}, "prefix=None"),
        ({"prefix": "x" * 151}, "prefix="),
        ({"prefix": "\udce9"}, r"prefix='\udce9': use a name of 1 to 150 bytes of UTF-8"),
        ({"prefix": "amq.delay"}, "'amq.'"),
        ({"prefix": "amq"}, "'amq.'"),
        ({"tick": 0.0015}, "tick=0.0015"),
        ({"tick": float("nan")}, "tick=nan"),
        ({"tick": "fast"}, "tick='fast'"),
        ({"tick": True}, "tick=True"),
        ({"max_delay": 0.01}, "max_delay=0.01"),
        ({"max_delay": 1e12}, "max_delay=1000000000000.0"),
        ({"max_delay": float("inf")}, "max_delay=inf"),
        ({"slack": 1}, "slack=1"),
        ({"slack": (0.1,)}, "slack="),
        ({"slack": "much"}, "slack='much'"),
        ({"outboxes": 60}, "outboxes=60: use a list of seconds, such as [60, 3600]"),
        ({"outboxes": "60"}, "outboxes='60'"),
        ({"outboxes": None}, "outboxes=None"),
        ({"outboxes": [60, "3600"]}, "outboxes='3600': use seconds above 0"),
        ({"outboxes": [True]}, "outboxes=True"),
        ({"outboxes": [0]}, "outboxes=0"),
        ({"outboxes": [-1]}, "outboxes=-1"),
        ({"outboxes": [float("nan")]}, "outboxes=nan"),
        ({"outboxes": [61], "max_delay": 60}, "outboxes=61: use seconds above 0, up to max_delay=60"),
        ({"outboxes": range(1, 99)}, "outboxes=range(1, 99)"),
        ({"outboxes": list(range(1, 66))}, "65 are too many; use at most 64"),
        ({"confirm_timeout": 0}, "confirm_timeout=0: use seconds, above 0 up to a day, or None for no limit"),
        ({"confirm_timeout": float("inf")}, "confirm_timeout=inf"),
        ({"journal": "60"}, "journal='60'"),
        ({"journal": True}, "journal=True"),
        ({"declare": "never"}, "declare='never': use one of auto, passive"),
        (
            {"ticks": 1},
            "unknown option ticks: did you mean tick? use any of confirm_timeout, declare, delivery_time, journal",
        ),
        ({"jurnal": 1, "lanes": 2}, "unknown option jurnal, lanes: did you mean journal? use any of"),
        ({"lanes": (1, 2)}, "unknown option lanes: use any of"),
        (5, "rabbit_delay=5"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_option(options: Any, says: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Options.parse(options)
    assert says in str(caught.value)


def route(options: Options, delay: int) -> Route:
    return options.route(options.cascade, options.ticks(delay))


@pytest.mark.parametrize("tick", [0.001, 0.007, 0.01, 0.07, 0.125, 1, 3600])
def test_any_whole_number_of_milliseconds_is_a_tick(tick: float) -> None:
    assert Options(tick=tick, max_delay=86400).cascade.levels[0].ttl == round(tick * 1000)


@pytest.mark.parametrize(("tick", "max_delay"), [(0.001, 0.001), (0.125, 1.0), (1, 3600), (0.001, 315360000)])
def test_there_are_just_enough_levels(tick: float, max_delay: float) -> None:
    cascade = Options(tick=tick, max_delay=max_delay).cascade
    assert cascade.max_ticks * cascade.tick >= timedelta(seconds=max_delay)
    assert (cascade.max_ticks // 2) * cascade.tick < timedelta(seconds=max_delay)
    assert max(level.ttl for level in cascade.levels) <= 315360000000  # RabbitMQ's limit


def test_outboxes_are_the_ticks_that_their_delays_take_each_once_in_their_order() -> None:
    assert Options(outboxes=[60, 0.3, 0.9, 16, 60, 0.26]).outbox_ticks == (480, 3, 8, 128)
    assert Options(outboxes=()).outbox_ticks == ()


def test_default_outboxes_beyond_the_longest_delay_are_left_out() -> None:
    few = Options(max_delay=50)
    assert [outbox / 8 for outbox in few.outbox_ticks] == [5, 10, 15, 1, 2, 3, 20, 30, 45]
    assert set(DEFAULT_OUTBOXES) == {outbox / 8 for outbox in Options().outbox_ticks}
    assert Options(max_delay=50, outboxes=[10, 86400]).outbox_ticks == (80,), "it is a default one"


def test_only_the_first_outboxes_take_the_rest_of_a_delay_that_is_not_round() -> None:
    seconds = [60, *(90 * n for n in range(2, MOST_COMBINED + 1)), 5000]
    options = Options(slack=0, outboxes=seconds)
    assert len(seconds) == MOST_COMBINED + 1
    for number, outbox in enumerate(seconds, start=1):
        assert route(options, int(outbox * SECOND)).levels == ()
        ends_there = route(options, int(outbox * SECOND) + 1).outbox == outbox * 8
        assert ends_there is (number <= MOST_COMBINED)


def test_a_route_uses_only_outboxes_that_it_may() -> None:
    options = Options(outboxes=[5, 10, 15, 60, 90, 300])
    cascade = options.cascade
    assert options.route(cascade, 2400) == ((), 2400)
    assert options.route(cascade, 2400, exact=False).outbox in (0, *options.combined_in(cascade))
    for ticks in (40, 41, 480, 2400):  # the outbox of short-lived queues has no delay
        levels, outbox = options.route(cascade, ticks, (), exact=False)
        assert (sum(level.ticks for level in levels), outbox) == (ticks, 0)
        assert options.route(options.by_time_cascade, ticks) == ((), 0)


def test_options_are_equal_printable_and_picklable_by_value() -> None:
    options = Options(prefix="shop")
    _ = options.cascade
    assert pickle.loads(pickle.dumps(options)) == options
    assert repr(options) == repr(Options(prefix="shop"))
    assert Options.parse(options) is options
    assert Options.parse(None) == Options()


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, {"slack": [0.001, 1.0]}),
        ({"slack": 0.5, "prefix": "shop"}, {"slack": 0.5, "prefix": "shop"}),
    ],
)
def test_options_are_written_as_json_and_read_back(options: dict[str, Any], written: dict[str, Any]) -> None:
    found = Options(**options).to_dict()
    assert found.items() >= written.items()
    again = Options.parse(json.loads(json.dumps(found)))
    assert again.to_dict() == found
    assert again.cascade == Options(**options).cascade
    assert {type(value) for value in found.values()} <= {str, int, float, bool, list, type(None)}  # pickled by name


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(prefix="a.v3.5ms.b", tick=3600),
        Options(prefix="ü", tick=0.001),
    ],
)
def test_a_cascade_is_found_by_its_root_for_reading(options: Options) -> None:
    found = options_of(options.cascade.root)
    assert found is not None
    assert found.declare == "passive"
    assert streams.changes(found.cascade) == streams.changes(options.cascade)
    assert found.cascade.ingest == options.cascade.ingest


@pytest.mark.parametrize(
    "root",
    [
        *("", "shop", "shop.delay", ".v3.10ms", "shop.v2.10ms", "shop.v3.0ms", "shop.v3.010ms", "shop.v3.10ms.other"),
        *("shop.v3.9999999ms", "shop.v3.10000000ms", "amq.shop.v3.10ms", f"{'x' * 151}.v3.10ms", "shop.v3.\u0661ms"),
    ],
)
def test_what_is_no_root_of_a_cascade_is_none(root: str) -> None:
    assert options_of(root) is None


@pytest.mark.parametrize("value", [False, True, "", "off", [], 0, 5])
def test_what_is_no_mapping_is_an_error_that_names_the_switch(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"use a mapping .* CELERY_RABBIT_DELAY=off in the environment switches"):
        Options.parse(value)
    assert Options.parse(None) == Options.parse({}) == Options()


def test_what_needs_the_schedule_says_what_to_add() -> None:
    streams.require_schedule(Options(schedule=True))
    with pytest.raises(UnsupportedConfiguration, match=r"add schedule=True to install\(app\)"):
        streams.require_schedule(Options())


def test_the_journal_is_an_option_of_the_schedule() -> None:
    assert Options(schedule=True, journal=None).journal is None
    with pytest.raises(InvalidOption, match="journal=None: use it with schedule=True"):
        Options(journal=None)
