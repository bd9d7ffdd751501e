"""`celery beat -S rabbit-delay`: of many processes one is active, and the next one goes on where it has stopped."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from celery_rabbit_delay import operate
from tests.kit.abilities import Ability
from tests.kit.beats import Beat, Sent, entry
from tests.kit.broker import QUICK, Broker, Vhost, own_node
from tests.kit.commands import Result, celery
from tests.kit.node import Node, alarm, cluster
from tests.kit.proxy import proxy
from tests.kit.site import serving
from tests.kit.wait import wait_until

from .conftest import MakeShop, Shop, StartBeat

TASK = "tests.acceptance.shop.note"


def every_second(name: str = "run") -> dict[str, Any]:
    return {name: entry(TASK, 1, name)}


def amount(shop: Shop) -> int:
    return shop.vhost.count("celery") if "celery" in shop.vhost.names("queues") else 0


def wait_for_more(shop: Shop, more: int) -> None:
    before = amount(shop)
    wait_until(lambda: amount(shop) >= before + more, f"{more} more runs")


def take_sent(shop: Shop) -> list[Sent]:
    """Return what was sent until now, in the order of the queue."""
    return [Sent.of(message) for message in shop.vhost.take("celery", amount(shop))]


def assert_every_second(sent: list[Sent], doubles: int = 0, late: float = 0) -> None:
    """Assert that no run is left out, none is double or so many are, and none later than so many seconds."""
    counts = Counter(one.id for one in sent)
    assert sum(counts.values()) - len(counts) <= doubles
    for one, after in itertools.pairwise(sent):
        assert after.at - one.at < timedelta(seconds=1.5 + late)
        assert one.id == after.id or after.at - one.at > timedelta(seconds=0.5)


@pytest.mark.quiet
@pytest.mark.parametrize("options", [None, pytest.param({}, marks=pytest.mark.more)], ids=["plain", "with install"])
def test_when_the_active_one_is_killed_another_goes_on_within_two_seconds(
    make_shop: MakeShop, start_beat: StartBeat, options: Any
) -> None:
    shop = make_shop(options, beat_schedule=every_second())
    active = start_beat(shop).wait_until_active()
    others = [start_beat(shop), start_beat(shop)]
    wait_for_more(shop, 3)
    active.kill()
    wait_until(lambda: sum(beat.activations for beat in others), "another one is active")
    wait_for_more(shop, 3)
    sent = take_sent(shop)
    assert len({one.process for one in sent}) == 2
    assert_every_second(sent, doubles=1, late=1)


@pytest.mark.quiet
def test_sigterm_passes_the_work_on_at_once_and_nothing_runs_twice(make_shop: MakeShop, start_beat: StartBeat) -> None:
    shop = make_shop(None, beat_schedule={name: entry(TASK, 0.05, name) for name in "abc"})
    beats = [start_beat(shop) for _ in range(3)]
    while len(beats) > 1:
        active = wait_until(lambda: next((beat for beat in beats if beat.activations), None), "one is active")
        assert active is not None
        wait_for_more(shop, 30)
        beats.remove(active)
        active.signal(signal.SIGTERM)
        assert active.process.wait(60) == 0
    wait_for_more(shop, 30)
    sent = take_sent(shop)
    assert len({one.process for one in sent}) == 3
    assert len({one.id for one in sent}) == len(sent)
    for one, after in itertools.pairwise(sent):
        assert after.at - one.at < timedelta(seconds=1)


def test_what_was_missed_while_nobody_was_at_work_is_made_up_for_once(
    make_shop: MakeShop, start_beat: StartBeat
) -> None:
    schedule = {**every_second(), "rare": entry(TASK, 5, "rare"), "daily": entry(TASK, 86_400, "daily")}
    shop = make_shop(None, beat_schedule=schedule)
    beat = start_beat(shop)
    wait_for_more(shop, 2)
    beat.signal(signal.SIGTERM)
    beat.process.wait(60)
    before = take_sent(shop)
    time.sleep(5)
    start_beat(shop)
    wait_for_more(shop, 4)
    after = take_sent(shop)
    assert Counter(one.name for one in before + after if one.name != "run") == {"rare": 1}
    runs = [one for one in before + after if one.name == "run"]
    assert len({one.id for one in runs}) == len(runs)
    gaps = [(later.at - one.at).total_seconds() for one, later in itertools.pairwise(runs)]
    assert len([gap for gap in gaps if gap > 2]) == 1
    assert min(gaps) > 0.5


@pytest.mark.quiet
@pytest.mark.more
def test_a_suspended_process_sends_nothing_when_it_wakes_up_and_another_was_active(
    make_shop: MakeShop, start_beat: StartBeat
) -> None:
    shop = make_shop(None, beat_schedule=every_second(), beat_heartbeat=6)
    one = start_beat(shop).wait_until_active()
    other = start_beat(shop)
    wait_for_more(shop, 2)
    one.signal(signal.SIGSTOP)
    suspended = time.monotonic()
    other.wait_until_active()
    assert time.monotonic() - suspended < 6 + 3
    wait_for_more(shop, 2)
    one.signal(signal.SIGCONT)
    wait_for_more(shop, 3)
    assert one.activations == 1
    assert "cannot be reached" in one.output()
    assert "cannot be reached" not in other.output()
    other.signal(signal.SIGSTOP)
    wait_until(lambda: one.activations == 2, "the first one is active again")
    wait_for_more(shop, 2)
    other.signal(signal.SIGCONT)
    # Who is suspended between sending a run and noting it leaves it to the other one, who sends it again.
    assert_every_second(take_sent(shop), doubles=2, late=9)


@pytest.mark.parametrize("silently", [pytest.param(False, marks=pytest.mark.more), True])
def test_a_process_that_the_network_has_cut_off_is_replaced_and_sends_nothing(
    make_shop: MakeShop, start_beat: StartBeat, silently: bool
) -> None:
    conf = {"beat_schedule": every_second(), "beat_heartbeat": 6}
    with proxy(make_shop(None).vhost.broker.node.port) as way:
        far = make_shop(None, **conf, broker_url=way.url(make_shop(None).vhost.url("amqp")))
        one = start_beat(far).wait_until_active()
        shop = make_shop(None, **conf)
        other = start_beat(shop)
        wait_for_more(shop, 2)
        if silently:
            way.flowing.clear()
            other.wait_until_active()
            wait_for_more(shop, 2)
            way.flowing.set()  # and what was sent meanwhile arrives
        else:
            way.cut()
            other.wait_until_active()
        wait_until(lambda: "cannot be reached" in one.output(), "the first one has noticed")
        wait_for_more(shop, 3)
        other.kill()
        wait_until(lambda: one.activations == 2, "the first one is active again")
        wait_for_more(shop, 2)
        one.kill()
    assert_every_second(take_sent(shop), doubles=2, late=30)


def test_new_entries_begin_removed_ones_end_and_changed_ones_keep_their_last_run(
    make_shop: MakeShop, start_beat: StartBeat
) -> None:
    before = {
        "kept": entry(TASK, 1, "kept"),
        "removed": entry(TASK, 1, "removed"),
        "changed": entry(TASK, 60, "changed"),
    }
    after = {"kept": entry(TASK, 1, "kept"), "new": entry(TASK, 3, "new"), "changed": entry(TASK, 3, "changed")}
    old_shop = make_shop(None, beat_schedule=before)
    old = start_beat(old_shop).wait_until_active()
    shop = make_shop(None, beat_schedule=after)
    start_beat(shop)
    wait_for_more(shop, 6)
    old.signal(signal.SIGTERM)
    old.process.wait(60)
    wait_until(lambda: amount(shop) > 12, "the new one goes on")
    sent = take_sent(shop)
    of = {name: [one for one in sent if one.name == name] for name in ("kept", "removed", "changed", "new")}
    assert len({one.process for one in of["kept"]}) == 2
    assert_every_second(of["kept"], late=20)
    first_of_new = next(one for one in of["kept"] if one.process != old.pid).at
    assert {one.process for one in of["removed"]} == {old.pid}
    assert of["changed"][0].at < of["new"][0].at  # it was due already
    assert of["new"][0].at - first_of_new > timedelta(seconds=1.5)  # it begins when the new process does


def test_each_worker_may_run_a_beat(make_shop: MakeShop) -> None:
    shop = make_shop(
        None, beat_schedule={"run": {"task": TASK, "schedule": 1, "args": ["run"]}}, beat_scheduler="rabbit-delay"
    )
    workers = [shop.worker("-B", name=name) for name in ("one", "other")]
    wait_until(lambda: len(shop.runs()) >= 3, "it runs")
    active = next(worker for worker in workers if "is the active one" in worker.output())
    os.killpg(active.process.pid, signal.SIGKILL)
    before = len(shop.runs())
    wait_until(lambda: len(shop.runs()) >= before + 3, "it runs on the other worker")
    runs = shop.runs()
    assert len({run["properties"]["correlation_id"] for run in runs}) >= len(runs) - 1


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[Shop]:
    """Yield a shop on a node that the test may kill."""
    with own_node() as vhost:
        shop = Shop(vhost, tmp_path, None, {"beat_schedule": every_second(), "queues": "quorum"})
        yield shop
        shop.close()


@pytest.mark.parametrize(
    "how", [pytest.param("killed", marks=pytest.mark.more), pytest.param("blocked", marks=pytest.mark.long)]
)
def test_the_runs_of_a_broker_that_is_killed_or_blocks_during_an_alarm_are_made_up_for(
    crashing: Shop, start_beat: StartBeat, how: str
) -> None:
    beats = [start_beat(crashing), start_beat(crashing)]
    wait_for_more(crashing, 3)
    node = crashing.vhost.broker.node
    if how == "killed":
        wait_until(lambda: node.has_registered("celery-rabbit-delay.beat.shop"), "the node knows the queue")
        node.kill()
        time.sleep(3)
        node.start()
        wait_until(lambda: sum(beat.activations for beat in beats) == 2, "one is active again")
    else:
        with alarm(node):
            wait_until(lambda: "block" in node.ctl("list_connections", "state"), "the beat is blocked")
            time.sleep(4)  # runs of which none reaches RabbitMQ
    wait_for_more(crashing, 3)
    sent = take_sent(crashing)
    assert_every_second(sent, doubles=1, late=60)
    assert len([1 for one, after in itertools.pairwise(sent) if after.at - one.at > timedelta(seconds=2)]) == 1
    assert [beat.process.poll() for beat in beats] == [None, None]


class Cluster(NamedTuple):
    nodes: list[Node]
    shops: list[Shop]  # each with its own node first
    beats: list[Beat]

    def index_of_active(self, activations: int) -> int:
        wait_until(lambda: sum(beat.activations for beat in self.beats) == activations, "one is active")
        return max(range(3), key=lambda number: self.beats[number].output().rfind("is the active one") > 0)


@pytest.fixture
def three_nodes(tmp_path: Path, start_beat: StartBeat) -> Iterator[Cluster]:
    with cluster(3, plugins=("rabbitmq_management",)) as nodes:
        shops = []
        for number in range(3):
            vhost = Vhost(Broker(nodes[number]), "%2F")
            urls = ";".join(node.url(vhost.name) for node in nodes[number:] + nodes[:number])
            conf = {"beat_schedule": every_second(), "beat_heartbeat": 6, "queues": "quorum", "broker_url": urls}
            shops.append(Shop(vhost, tmp_path, None, conf))
        yield Cluster(nodes, shops, [start_beat(shop) for shop in shops])
        for shop in shops:
            shop.close()


@pytest.mark.cluster
@pytest.mark.parametrize("how", ["killed", "suspended", "parted"])
def test_in_a_cluster_a_node_may_be_lost(three_nodes: Cluster, how: str) -> None:
    nodes, shops, _ = three_nodes
    if how == "parted" and not Broker(nodes[0]).has(Ability.GOES_ON_WITHOUT_ONE_NODE):
        pytest.skip("all nodes of this RabbitMQ pause when one is parted in this way; a suspended node shows the same")
    victim = three_nodes.index_of_active(1)
    other = shops[(victim + 1) % 3]
    wait_for_more(other, 3)
    node = nodes[victim]
    lose(how, node, nodes, True)
    wait_until(lambda: sum(beat.activations for beat in three_nodes.beats) >= 2, "another one is active")
    wait_for_more(other, 3)
    lose(how, node, nodes, False)
    wait_until(lambda: all(one.is_ready() for one in nodes), "all nodes are back")
    wait_for_more(other, 5)
    for beat in three_nodes.beats:
        beat.kill()
    # What a node sent while it was losing the others may reach the queue when they are back.
    sent = sorted(take_sent(other), key=lambda one: one.at) if how == "parted" else take_sent(other)
    assert_every_second(sent, doubles=1, late=60)


def lose(how: str, node: Node, nodes: list[Node], away: bool) -> None:
    """Let a cluster lose a node, or have it back."""
    if how == "parted":
        part(node, nodes, away)
    elif how == "suspended":
        node.suspend(away)
    elif away:
        node.kill()
    else:
        node.start()


def part(node: Node, nodes: list[Node], away: bool) -> None:
    """Let a node and the others of a cluster lose each other, or find each other, while clients reach all of them."""
    cookie = "parted" if away else node.cookie
    for other in nodes:
        if other is not node:
            node.ctl("eval", f"erlang:set_cookie('{other.name}', '{cookie}'), erlang:disconnect_node('{other.name}').")


def test_status_and_the_page_show_who_is_active_and_the_next_runs(
    make_shop: MakeShop, start_beat: StartBeat, tmp_path: Path
) -> None:
    schedule = {"hourly": entry(TASK, 3600, "hourly"), "daily": entry(TASK, 86_400, "daily")}
    shop = make_shop(QUICK, beat_schedule=schedule)
    with shop.vhost.connection() as connection:
        operate.setup(connection, [shop.vhost.cascade], [])

    def status(*arguments: str) -> Result:
        return celery("-A", "tests.acceptance.shop", "delay", "status", *arguments, directory=None, **shop.environment)

    assert "beat" not in status().out
    beat = start_beat(shop).wait_until_active()
    shown = status()
    assert shown.code == 0, shown.err
    assert re.search(rf"\nbeat is active on \S+:{beat.pid}\n", shown.out)
    told = json.loads(status("--json").out)["beat"]
    assert told["process"].endswith(f":{beat.pid}")
    assert [one["entry"] for one in told["entries"]] == ["hourly", "daily"]
    for one in told["entries"]:
        period = datetime.fromisoformat(one["next"]) - datetime.fromisoformat(one["last"])
        assert abs(period.total_seconds() - schedule[one["entry"]]["schedule"]) < 1
    web = ["celery", "-A", "tests.acceptance.shop", "delay", "web"]
    with serving(web, tmp_path, **shop.environment) as site:
        health = site.ask("/health").text
        assert f":{beat.pid}</code>" in health
        assert health.index("<td>hourly</td>") < health.index("<td>daily</td>")
        metrics = site.ask("/metrics").text
        assert re.search(rf'^celery_rabbit_delay_beat_active{{process="\S+:{beat.pid}"}} 1.0$', metrics, re.MULTILINE)
        for one in told["entries"]:
            due = datetime.fromisoformat(one["next"]).timestamp()
            name = f'beat_next_run_timestamp_seconds{{entry="{one["entry"]}"}}'
            assert site.metric(name) == pytest.approx(due, abs=0.01)
        beat.kill()
        wait_until(lambda: "No beat is active" in site.ask("/health").text, "the page says so")
        assert site.metric('beat_active{process=""}') == 0
    nobody = status()
    assert nobody.code == 3
    assert "no beat is active" in nobody.out
