"""What a load takes agrees with what was measured, and the command says it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from celery_rabbit_delay.cli.groups import standalone
from celery_rabbit_delay.core.options import Options
from celery_rabbit_delay.core.sizing import Load, Size, size
from tests.kit.pages import DOCS

EVIDENCE = Path(__file__).parents[2] / "evidence" / "benchmarks"
RESULTS: dict[str, Any] = json.loads((EVIDENCE / "results.json").read_text())
AT_LENGTH: dict[str, Any] = json.loads((EVIDENCE / "at_length.json").read_text())


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(standalone, arguments)


def sized(**load: Any) -> Size:
    return size(Load(**load), Options())


def cpu(found: Size, nodes: int) -> tuple[float, float]:
    """Return the microseconds of all nodes for a task, at a rate of one a second."""
    least, most = found.cpus
    return least * nodes * 1_000_000, most * nodes * 1_000_000


@pytest.mark.parametrize("rabbitmq", RESULTS)
def test_the_measured_cpu_is_in_the_range(rabbitmq: str) -> None:
    rows = RESULTS[rabbitmq]["rows"]
    undelayed = rows["broker_cpu"]["no delay"]["median"]
    for row, delay, is_spread in (
        ("broker_cpu_confirmed", 15, True),
        ("everyday_cpu_confirmed", 15, False),
        ("hour_cpu_confirmed", 3600, True),
    ):
        least, most = cpu(sized(rate=1, delay=delay, is_spread=is_spread, nodes=1), 1)
        assert least <= rows[row]["celery-rabbit-delay"]["median"] - rows[row]["no delay"]["median"] <= most
    least, most = cpu(sized(rate=1, delay=15, is_spread=True, nodes=1), 1)
    assert rows["broker_cpu"]["celery-rabbit-delay"]["median"] - undelayed <= least


def test_the_measured_cpu_of_a_cluster_is_in_the_range() -> None:
    minute = AT_LENGTH["minute"]
    least, most = cpu(sized(rate=1, delay=60, nodes=3), 3)
    assert least <= 1_000_000 * minute["cpu"] / minute["amount"] <= most


def test_memory_and_disk_are_what_a_million_took() -> None:
    month = AT_LENGTH["month"]
    found = sized(rate=month["amount"] / 3600, delay=3600, body=200, nodes=1)
    assert found.waiting == found.longest == month["amount"]
    assert found.memory == pytest.approx(month["memory"], rel=0.1)
    assert found.disk == pytest.approx(month["disk"], rel=0.1)


def test_an_everyday_delay_takes_one_hop_and_two_queues() -> None:
    found = sized(rate=500, delay=86_400, destinations=10)
    assert (found.hops, found.cascade, found.outboxes) == (1, 31, 2)
    assert found.waiting == 500 * 86_400
    assert found.longest == found.waiting // 10


def test_arbitrary_delays_take_six_outboxes_and_their_levels() -> None:
    found = sized(rate=10, delay=3600, is_spread=True)
    assert found.outboxes == 6
    for results in RESULTS.values():
        levels = results["rows"]["hops"]["default, an hour"]["mean"]
        assert found.hops == pytest.approx(levels + 1, abs=0.1)
    assert found.waiting / 4 < found.longest < found.waiting


@pytest.mark.parametrize("spread", [False, True])
def test_where_rabbitmq_holds_messages_each_takes_one_hop_and_its_queue_one_outbox(spread: bool) -> None:
    found = size(Load(100, 3600, spread, destinations=4), Options(delivery_time=True))
    assert (found.hops, found.cascade, found.outboxes) == (1, 4, 1)
    assert found.longest == found.waiting // 4


def test_the_page_says_what_a_cancelled_id_costs_a_worker_that_starts() -> None:
    schedule = json.loads((EVIDENCE / "schedule.json").read_text())
    starts = [found["rows"]["cancelled"] for found in schedule.values()]
    each = [(one["100,000 ids"]["seconds"]["median"] - one["no id"]["seconds"]["median"]) * 10 for one in starts]
    [shown] = re.findall(r"140 bytes of memory and \[(\d+) µs\]", (DOCS / "sizing.md").read_text())
    assert int(shown) == pytest.approx(sum(each) / len(each), abs=1)


def test_a_quorum_queue_has_three_members_at_most() -> None:
    three, nine = (sized(rate=500, delay=60, nodes=nodes) for nodes in (3, 9))
    assert nine.cpus[1] == pytest.approx(three.cpus[1] / 3)
    assert nine.memory == three.memory // 3


def test_the_documented_example_is_what_the_command_prints() -> None:
    page = (DOCS / "sizing.md").read_text()
    examples = re.findall(r"```console\n\$ celery-rabbit-delay (size [^\n]+)\n(.*?)```", page, re.DOTALL)
    assert examples
    for command, shown in examples:
        assert invoke(*command.split()).stdout == shown


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--rate", "5", "--delay", "1x"], "'1x': write a number with a unit, such as 90s, 15m, 1h or 30d"),
        (["--rate", "5", "--delay", "90000d"], "the longest delay is max_delay"),
        (["--rate", "0", "--delay", "1d"], "--rate"),
        (["--delay", "1d"], "Missing option '--rate'"),
    ],
)
def test_a_mistake_is_a_usage_error(arguments: list[str], error: str) -> None:
    found = invoke("size", *arguments)
    assert found.exit_code == 2
    assert error in found.stderr
