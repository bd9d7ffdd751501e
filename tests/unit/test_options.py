from __future__ import annotations

import json
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from celery_rabbit_delay import InvalidDelay, InvalidOption, Options
from celery_rabbit_delay.core import streams
from celery_rabbit_delay.core.levels import Level
from celery_rabbit_delay.core.options import options_of

SECOND = 1_000_000


def test_the_defaults_reach_eight_years_in_eighths_of_a_second() -> None:
    cascade = Options().cascade
    assert cascade.tick == timedelta(seconds=0.125)
    assert cascade.powers == 31
    assert cascade.queue_type == "quorum"
    assert cascade.max_ticks * cascade.tick > timedelta(days=8 * 365)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prefix": ""}, "prefix=''"),
        ({"prefix": None}, "prefix=None"),
        ({"prefix": "x" * 151}, "prefix="),
        ({"prefix": "\udce9"}, r"prefix='\udce9': use a name of 1 to 150 bytes of UTF-8"),
        ({"prefix": "amq.delay"}, "'amq.'"),
        ({"prefix": "amq"}, "'amq.'"),
        ({"tick": 0}, "tick=0"),
        ({"tick": 0.0015}, "tick=0.0015"),
        ({"tick": float("nan")}, "tick=nan"),
        ({"tick": "fast"}, "tick='fast'"),
        ({"tick": True}, "tick=True"),
        ({"max_delay": 0.01}, "max_delay=0.01"),
        ({"max_delay": 1e12}, "max_delay=1000000000000.0"),
        ({"max_delay": float("inf")}, "max_delay=inf"),
        ({"slack": -1}, "slack=-1"),
        ({"slack": 1}, "slack=1"),
        ({"slack": (0.1,)}, "slack="),
        ({"slack": "much"}, "slack='much'"),
        ({"lanes": 60}, "lanes=60: use a list of seconds"),
        ({"lanes": [60, "3600"]}, "lanes='3600': use seconds above 0"),
        ({"lanes": [0]}, "lanes=0"),
        ({"lanes": [float("nan")]}, "lanes=nan"),
        ({"lanes": [61], "max_delay": 60}, "lanes=61: use seconds above 0, up to max_delay=60"),
        ({"lanes": range(1, 99)}, "lanes=range(1, 99)"),
        ({"lanes": list(range(1, 66))}, "65 are too many; use at most 64"),
        ({"shards": 0}, "shards=0: use a whole number, 1 to 32"),
        ({"shards": True}, "shards=True"),
        ({"shards": 2.0}, "shards=2.0"),
        ({"queue_type": "stream"}, "queue_type='stream': use one of quorum, classic"),
        ({"confirm": 1}, "confirm=1"),
        ({"hand_on": "no"}, "hand_on='no'"),
        ({"confirm_timeout": 0}, "confirm_timeout=0: use seconds, above 0 up to a day, or None for no limit"),
        ({"confirm_timeout": float("inf")}, "confirm_timeout=inf"),
        ({"journal": -1}, "journal=-1"),
        ({"journal": "60"}, "journal='60'"),
        ({"journal": True}, "journal=True"),
        ({"declare": "never"}, "declare='never': use one of auto, passive"),
        ({"timezone": "Mars/Olympus"}, "timezone='Mars/Olympus'"),
        ({"timezone": 5}, "timezone=5"),
        ({"ticks": 1}, "unknown option ticks: use any of confirm, confirm_timeout, declare, hand_on, journal, lanes"),
        (5, "rabbit_delay=5"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_option(options: Any, says: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Options.parse(options)
    assert says in str(caught.value)


def route(options: Options, delay: int) -> tuple[Level, ...]:
    return options.route(options.cascade, delay)


def ticks(options: Options, delay: int) -> int:
    return sum(level.ticks for level in route(options, delay))


@pytest.mark.parametrize("tick", [0.001, 0.007, 0.01, 0.07, 0.125, 1, 3600])
def test_any_whole_number_of_milliseconds_is_a_tick(tick: float) -> None:
    assert Options(tick=tick, max_delay=86400).cascade.levels[0].ttl == round(tick * 1000)


@pytest.mark.parametrize(("tick", "max_delay"), [(0.001, 0.001), (0.125, 1.0), (1, 3600), (0.001, 315360000)])
def test_there_are_just_enough_levels(tick: float, max_delay: float) -> None:
    cascade = Options(tick=tick, max_delay=max_delay).cascade
    assert cascade.max_ticks * cascade.tick >= timedelta(seconds=max_delay)
    assert (cascade.max_ticks // 2) * cascade.tick < timedelta(seconds=max_delay)
    assert max(level.ttl for level in cascade.levels) <= 315360000000  # RabbitMQ's limit


def test_lanes_are_the_ticks_that_their_delays_take_and_none_is_a_power_of_two() -> None:
    assert Options(lanes=[60, 0.3, 0.9, 16, 60]).cascade.lanes == (3, 480)
    assert Options(lanes=()).cascade.lanes == ()


def test_default_lanes_beyond_the_longest_delay_are_left_out() -> None:
    assert [lane / 8 for lane in Options(max_delay=200).cascade.lanes] == [3, 5, 6, 7, *range(9, 16), 30, 60, 120]


def test_a_lane_takes_one_hop_and_so_does_a_delay_that_rounds_up_to_it() -> None:
    for seconds in Options().lanes:
        assert len(route(Options(), int(seconds * SECOND))) == 1
        assert len(route(Options(), int(seconds * SECOND) - 700)) == 1


def test_a_message_that_waited_in_a_batch_keeps_its_lane_if_it_is_barely_late() -> None:
    options = Options()
    asked = 90 * SECOND
    assert len(route(options, asked)) == 2
    for waited, hops in ((0, 2), (300_000, 2), (800_000, 2), (900_000, 4)):
        assert len(options.route(options.cascade, asked - waited, asked)) == hops
    assert len(Options(slack=0).route(options.cascade, asked - 300_000, asked)) > 2


def test_shards_differ_in_nothing_but_their_number() -> None:
    options = Options(shards=3)
    assert options.shards_of(options.cascade)[0] == options.cascade
    assert [shard.base_name for shard in options.shards_of(options.high_cascade)] == [
        "celery-rabbit-delay.v2.125ms.high",
        "celery-rabbit-delay.v2.125ms.s2.high",
        "celery-rabbit-delay.v2.125ms.s3.high",
    ]


def test_options_survive_json() -> None:
    options = Options(lanes=(60, 3600), shards=2)
    assert Options.parse(json.loads(json.dumps(options.to_dict()))).cascade == options.cascade


def test_only_quorum_levels_part_by_priority() -> None:
    for priority, high in ((None, False), (0, False), (4, False), (5, True), (255, True)):
        assert Options().cascade_for(priority).high is high
        assert Options(queue_type="classic").cascade_for(priority).high is False


def test_there_is_a_cascade_for_priorities_where_levels_keep_them_apart() -> None:
    quorum, classic = Options(shards=2), Options(shards=2, queue_type="classic")
    assert [cascade.high for cascade in quorum.cascades(priorities=True)] == [False, False, True, True]
    assert [cascade.high for cascade in classic.cascades(priorities=True)] == [False, False]
    for options in (quorum, classic):
        assert options.cascades(priorities=False) == list(options.shards_of(options.cascade))


def test_default_slack_is_a_thousandth_and_at_most_a_second() -> None:
    options = Options()
    for seconds in (0.01, 1, 59, 61, 3599, 86399, 2_000_000, 200_000_001):
        delay = int(seconds * SECOND)
        late = ticks(options, delay) * 125_000 - delay
        assert 0 <= late < 125_000 + min(delay * 0.001, SECOND)


def test_a_single_number_is_a_slack_without_a_limit_in_seconds() -> None:
    assert len(route(Options(slack=0.01), 86399 * SECOND)) < len(route(Options(slack=0), 86399 * SECOND))


def test_the_maximum_is_allowed_and_beyond_it_is_an_error_that_names_it() -> None:
    options = Options(max_delay=3600)
    assert ticks(options, 3600 * SECOND) == 3600 * 8
    with pytest.raises(InvalidDelay, match=r"3600\.000 s is more than max_delay=3600 s"):
        route(options, 3600 * SECOND + 1)


def test_options_are_equal_printable_and_picklable_by_value() -> None:
    options = Options(prefix="shop", timezone=ZoneInfo("Europe/Berlin"))
    _ = options.cascade, options.naive_timezone
    assert pickle.loads(pickle.dumps(options)) == options
    assert repr(options) == repr(Options(prefix="shop", timezone=ZoneInfo("Europe/Berlin")))
    assert Options.parse(options) is options
    assert Options.parse(None) == Options()


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, {"timezone": None, "slack": [0.001, 1.0]}),
        ({"slack": 0.5, "timezone": timezone.utc}, {"slack": 0.5, "timezone": "UTC"}),
        ({"timezone": ZoneInfo("Europe/Berlin")}, {"timezone": "Europe/Berlin"}),
        ({"timezone": "local", "prefix": "shop"}, {"timezone": "local", "prefix": "shop"}),
    ],
)
def test_options_are_written_as_json_and_read_back(options: dict[str, Any], written: dict[str, Any]) -> None:
    found = Options(**options).to_dict()
    assert found.items() >= written.items()
    again = Options.parse(json.loads(json.dumps(found)))
    assert again.to_dict() == found
    assert again.cascade == Options(**options).cascade
    assert str(again.naive_timezone) == str(Options(**options).naive_timezone)


def test_local_is_the_zone_of_the_machine() -> None:
    moment = datetime(2026, 7, 1, 12)  # noqa: DTZ001
    assert moment.replace(tzinfo=Options(timezone="local").naive_timezone).timestamp() == moment.timestamp()


def test_a_naive_eta_is_meant_in_the_zone_given_or_in_utc() -> None:
    summer = datetime(2026, 7, 1, 12)  # noqa: DTZ001
    assert Options().naive_timezone is timezone.utc
    assert summer.replace(tzinfo=Options(timezone="Europe/Berlin").naive_timezone).utcoffset() == timedelta(hours=2)


def test_what_waits_long_enough_is_recorded() -> None:
    assert not Options().records(10**12)
    assert Options(journal=60).records(60 * SECOND)
    assert not Options(journal=60).records(60 * SECOND - 1)
    assert Options(journal=0).records(0)


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(prefix="a.v2.5ms.b", tick=3600),
        Options(prefix="ü", tick=0.001, queue_type="classic"),
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
        *("", "shop", "shop.delay", ".v2.10ms", "shop.v1.10ms", "shop.v2.0ms", "shop.v2.010ms", "shop.v2.10ms.other"),
        *("shop.v2.9999999ms", "shop.v2.10000000ms", "amq.shop.v2.10ms", f"{'x' * 151}.v2.10ms", "shop.v2.\u0661ms"),
    ],
)
def test_what_is_no_root_of_a_cascade_is_none(root: str) -> None:
    assert options_of(root) is None
