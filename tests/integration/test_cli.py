"""The operators' commands, as subprocesses on a real node."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from celery_rabbit_delay import Options, operate
from celery_rabbit_delay.cli import groups
from celery_rabbit_delay.cli.target import Target
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.delay.core.topology import Cascade
from celery_rabbit_delay.operate.all_parts import Topology
from celery_rabbit_delay.schedule.amqp import waiting_tasks
from celery_rabbit_delay.schedule.core import streams
from tests.kit.abilities import Ability
from tests.kit.broker import QUICK, Vhost
from tests.kit.commands import (
    CASCADE,
    QUICKLY,
    celery,
    make_orphans,
    management,
    run,
    running,
)
from tests.kit.wait import wait_until

pytestmark = pytest.mark.shared_vhost

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart"


#: Those that are there even without a journal.
STREAMS = [stream.name for stream in streams.wanted(Options(tick=0.01, max_delay=120, schedule=True))]


def unbind(vhost: Vhost, level: int, cascade: Cascade = CASCADE) -> None:
    """Delete the binding from a level to `done`."""
    binding = next(
        b for b in cascade.bindings() if b.source == cascade.levels[level].done and b.destination == cascade.done
    )
    with vhost.plain() as connection:
        connection.default_channel.exchange_unbind(binding.destination, binding.source, binding.routing_key)


@pytest.mark.own_vhost
def test_verify_says_what_setup_then_creates_and_both_may_be_repeated(vhost: Vhost) -> None:
    url = vhost.url("amqp")
    parts = len(list(CASCADE.exchanges())) + len(list(CASCADE.queues()))
    found = run(url, "verify")
    assert found.code == 3
    assert len(re.findall(r"^missing ", found.out, re.MULTILINE)) == parts
    assert vhost.names("exchanges") == []
    for _ in range(2):
        assert run(url, "setup").code == 0
    assert sorted(vhost.names("queues")) == sorted([*(queue.name for queue in CASCADE.queues()), *STREAMS])
    for more in ((), management(vhost)):
        verified = run(url, "verify", *more)
        assert verified.code == 0
        assert "probe: all messages on time" in verified.out
    wait_until(lambda: not [name for name in vhost.names("queues") if "probe" in name], "the probe's queue is gone")
    assert not [binding for binding in vhost.bindings() if "probe" in str(binding)]


@pytest.mark.own_vhost
def test_verify_is_content_with_what_publishers_and_workers_create(vhost: Vhost) -> None:
    """A stream is created when the first message goes to it."""
    vhost.declare("q")
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 100_000})
        for more in ((), management(vhost)):
            found = run(vhost.url("amqp"), "verify", *more)
            assert found.code == 0, found.out
        vhost.delete_queue(CASCADE.orphans)
        assert run(vhost.url("amqp"), "verify").code == 3


def test_setup_leads_to_the_queues_that_are_there(vhost: Vhost) -> None:
    vhost.declare("here")
    done = run(vhost.url("amqp"), "--queue", "here", "--queue", "missing", "setup")
    assert done.code == 0
    assert "skipped queue 'missing': it does not exist" in done.out
    assert not [one for one in vhost.bindings() if one[1] == "here"]
    delays = Options(**QUICK).outbox_ticks
    assert outboxes(vhost) == {"+here", *(f"{ticks // 100}s.+here" for ticks in delays)}
    assert run(vhost.url("amqp"), "--queue", "here", "verify").code == 0
    with vhost.connection(declare="passive") as connection:
        connection.Producer().publish("x", routing_key="here", headers={"x-delay": 30})
    vhost.take("here", 1)


def outboxes(vhost: Vhost) -> set[str]:
    return {name.partition(".out.")[2] for name in vhost.names("queues") if ".out." in name} - {"short-lived"}


@pytest.mark.own_vhost
def test_something_else_of_the_same_name_stays_as_it_is(vhost: Vhost) -> None:
    url = vhost.url("amqp")
    vhost.declare(CASCADE.levels[0].queue)
    found = run(url, "verify")
    assert found.code == 3
    name = re.escape(CASCADE.levels[0].queue)
    assert re.search(rf"^different  queue    {name}: PRECONDITION_FAILED", found.out, re.MULTILINE)
    refused = run(url, "setup")
    assert refused.code == 1
    assert "something else has the name of a part of the cascade" in refused.err
    vhost.declare(CASCADE.levels[0].queue)


@pytest.mark.leaves_orphans
def test_verify_finds_each_kind_of_damage(vhost: Vhost) -> None:
    url = vhost.url("amqp")
    assert run(url, "setup").code == 0

    def finds(*expected: str, over_amqp: bool) -> str:
        with running(url, "verify", *management(vhost)) as one, running(url, "verify") as other:
            verified, without = one.wait(), other.wait()
        assert verified.code == 3
        for line in expected:
            assert re.search(line, verified.out, re.MULTILINE), verified.out
        assert without.code == (3 if over_amqp else 0), without.out
        return without.out

    vhost.policy("everything", {"message-ttl": 60_000, "delivery-limit": 20}, pattern="")
    vhost.declare("stranger")
    with vhost.plain() as connection:
        connection.default_channel.queue_bind("stranger", CASCADE.ingest, "#")
    finds(
        rf"^unexpected policy   {re.escape(CASCADE.levels[3].queue)}: 'everything' sets message-ttl: give the cascade",
        rf"^unexpected binding  {re.escape(CASCADE.ingest)} -> stranger \(#\): messages may arrive twice",
        over_amqp=False,
    )
    unbind(vhost, 3)
    missing = rf"^missing    binding  {re.escape(CASCADE.levels[3].done)} -> {re.escape(CASCADE.done)} "
    assert f"a message through {CASCADE.levels[3].queue} has not come back" in finds(missing, over_amqp=True)
    vhost.delete_queue(CASCADE.levels[4].queue)
    vhost.delete_exchange(CASCADE.levels[5].done)
    finds(
        rf"^missing    queue    {re.escape(CASCADE.levels[4].queue)}$",
        rf"^missing    exchange {re.escape(CASCADE.levels[5].done)}$",
        over_amqp=True,
    )


@pytest.mark.long
@pytest.mark.own_vhost
def test_a_policy_of_their_own_keeps_others_away_from_the_levels(vhost: Vhost) -> None:
    url = vhost.url("amqp")
    assert run(url, "setup").code == 0
    vhost.policy("everything", {"expires": 60_000, "max-length": 10})
    found = run(url, "verify", *management(vhost))
    assert (found.code, "unexpected policy" in found.out) == (3, True)
    # As in docs/operations.md.
    vhost.policy("delays", {"delivery-limit": 1_000_000}, pattern=r"^celery-rabbit-delay\.", priority=100)
    found = run(url, "verify", *management(vhost))
    assert "unexpected policy" not in found.out + found.err
    assert found.code == 0, found.out + found.err


@pytest.mark.own_vhost
def test_status_counts_what_waits(vhost: Vhost) -> None:
    vhost.declare("q")
    vhost.publish("q", 100, 100, 100, 50)
    vhost.publish("q", 100, priority=9)
    vhost.publish("q", 60)
    high = "high.delay.81920" if vhost.broker.has(Ability.HOLDS_UP_LOW_PRIORITIES) else "delay.81920"
    expected = Counter({"delay.81920": 3, "delay.40960": 1}) + Counter({high: 1})
    for named, more in ((("--queue", "q"), ()), ((), management(vhost))):
        asked = run(vhost.url("amqp"), *named, "status", "--json", *more)
        assert asked.code == 0
        found = json.loads(asked.out)
        assert found["waiting"] == 6
        assert found["orphans"] == 0
        assert {
            level["queue"].removeprefix(f"{CASCADE.root}."): level["ready"]
            for level in found["levels"]
            if level["ready"]
        } == expected
        outbox = {"queue": f"{CASCADE.root}.out.60s.+q", "destination": "queue 'q'", "delay": 60_000, "ready": 1}
        assert [{**one, "unsettled": None} for one in found["outboxes"]] == [{**outbox, "unsettled": None}]
        assert found["destinations"] == (["q"] if more else None)
    text = run(vhost.url("amqp"), "status", "--levels", *management(vhost)).out
    assert re.search(r"^ +1 min 21 s +[34] +0  celery-rabbit-delay\.v3\.10ms\.delay\.81920$", text, re.MULTILINE)
    assert re.search(r"^ +1 min +1 +\d  queue 'q'$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 83
    summary = run(vhost.url("amqp"), "status", *management(vhost)).out
    assert summary == "6 wait, 0 are orphans\nleads to 'q'\n"
    assert text.startswith(summary)


def test_status_counts_what_waits_where_no_beat_answers(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    """As during an alarm, which lets nobody publish a question."""

    def fails(self: Target, connection: object) -> None:
        raise TimeoutError("RabbitMQ has not answered")

    monkeypatch.setattr(Target, "beat", fails)
    vhost.declare("q")
    vhost.publish("q", 100)
    shown = CliRunner().invoke(groups.standalone, ["--broker", vhost.url("amqp"), *QUICKLY, "status"])
    assert (shown.exit_code, "1 wait" in shown.output, "RabbitMQ has not answered" in shown.output) == (1, True, True)


@pytest.mark.leaves_orphans
def test_status_warns_of_orphans_which_are_left_in_place_until_they_are_removed(vhost: Vhost) -> None:
    """RabbitMQ 4 drops what was put back into a quorum queue for the 21st time, unless the queue says otherwise."""
    make_orphans(vhost, 3)
    asked = run(vhost.url("amqp"), "status")
    assert asked.code == 3
    assert re.match(r"0 wait\b.*, 3 are orphans\n", asked.out)
    [page] = re.findall(r"^what to do: https://.*/(docs/\S+)$", asked.err, re.MULTILINE)
    assert (Path(__file__).parents[2] / page).exists()
    listed = run(vhost.url("amqp"), "orphans", "list").out
    assert re.fullmatch(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  queue 'gone'  shop\.review\[id-\d\]\n){3}", listed)
    one = json.loads(run(vhost.url("amqp"), "orphans", "list", "--json", "--limit", "1").out)
    assert (one["exchange"], one["routing_key"], one["task"], one["task_id"]) == ("", "gone", "shop.review", "id-0")
    with vhost.connection() as connection:
        for _ in range(30):
            found = wait_until(lambda: operate.orphans(connection, 10), "they are given back")
    assert sorted(str(orphan.task_id) for orphan in found) == ["id-0", "id-1", "id-2"]
    wait_until(lambda: vhost.count(CASCADE.orphans) == 3, "they are given back")
    assert run(vhost.url("amqp"), "orphans", "purge").code == 1  # nobody answers the question
    assert vhost.count(CASCADE.orphans) == 3
    assert "3 removed" in run(vhost.url("amqp"), "orphans", "purge", "--yes").out
    assert vhost.count(CASCADE.orphans) == 0


def test_replayed_orphans_go_where_they_were_going_and_others_stay(vhost: Vhost) -> None:
    make_orphans(vhost, 3)
    url = vhost.url("amqp")
    refused = run(url, "orphans", "replay", "--any-queue")
    assert refused.code == 3
    assert "0 sent on, 3 stay" in refused.out
    assert "NO_ROUTE" in refused.out
    wait_until(lambda: vhost.count(CASCADE.orphans) == 3, "they are given back")
    vhost.declare("gone")
    assert "2 sent on, 0 stay" in run(url, "orphans", "replay", "--any-queue", "--limit", "2").out
    assert run(url, "orphans", "replay", "--any-queue").code == 0
    assert vhost.count(CASCADE.orphans) == 0
    messages = vhost.take("gone", 3)
    assert sorted(message.payload["n"] for message in messages) == [0, 1, 2]
    for message in messages:
        assert message.headers.keys() == {"task", "id"}
        assert message.delivery_info["routing_key"] == "gone"


def test_a_cancelled_orphan_is_not_replayed_although_nobody_says_that_there_is_a_schedule(vhost: Vhost) -> None:
    make_orphans(vhost, 2)
    url = vhost.url("amqp")
    with vhost.connection(schedule=True) as connection:
        waiting_tasks.cancel(connection, ["id-0"])
    vhost.declare("gone")
    unsaid = tuple(option for option in QUICKLY if option != "--schedule")
    assert run(url, "orphans", "replay", "--any-queue", options=unsaid).code == 0
    [message] = vhost.take("gone", 1)
    assert (message.payload["n"], vhost.count(CASCADE.orphans, "gone")) == (1, 0)


@pytest.mark.leaves_orphans
def test_an_orphan_whose_exchange_is_gone_stays_and_those_behind_it_go_on(vhost: Vhost) -> None:
    vhost.declare("good", exchange="e")
    with vhost.connection(outboxes=()) as connection:
        for exchange in ("e", ""):
            connection.Producer().publish(1, exchange=exchange, routing_key="good", headers={"x-delay": 5000})
        for outbox in outboxes(vhost):
            vhost.delete_queue(f"{CASCADE.outbox_prefix}{outbox}")
    vhost.delete_exchange("e")
    wait_until(lambda: vhost.count(CASCADE.orphans) == 2, "both are orphans")
    replayed = run(vhost.url("amqp"), "orphans", "replay", "--any-queue")
    assert replayed.code == 3
    assert "1 sent on, 1 stay" in replayed.out
    assert "no exchange 'e'" in replayed.out
    [message] = vhost.take("good", 1)
    assert message.delivery_info["exchange"] == ""


def test_status_warns_of_a_blocked_level(vhost: Vhost) -> None:
    vhost.declare("q")
    vhost.publish("q", 0.01)
    level = CASCADE.levels[3]  # of 80 ms: that of a delay of 150 ms, also where publishing takes 70 ms
    vhost.delete_exchange(level.done)
    vhost.publish("q", *[0.15] * 40)

    def blocked() -> bool:
        found = json.loads(run(vhost.url("amqp"), "status", "--json", *management(vhost)).out)
        return bool(found["blocked"] == [level.queue])

    wait_until(blocked, "the management API has counted")  # every five seconds
    asked = run(vhost.url("amqp"), "status", *management(vhost))
    assert asked.code == 3
    assert f"{level.queue} may be blocked; run `verify`" in asked.out


def test_a_blocked_level_that_was_mended_goes_on_at_once_when_a_policy_changes(vhost: Vhost) -> None:
    vhost.declare("q")
    vhost.publish("q", 0.01)
    vhost.take("q", 1)
    vhost.delete_exchange(CASCADE.levels[3].done)
    vhost.publish("q", *[0.08] * 40)
    wait_until(lambda: vhost.count(CASCADE.levels[3].queue) == 0, "all are due")
    assert run(vhost.url("amqp"), "setup").code == 0
    assert vhost.count("q") < 32  # what was slow to be published has taken shorter levels
    vhost.policy("again", {"delivery-limit": 1_000_000}, r"^celery-rabbit-delay\.")
    vhost.take("q", 40)  # by itself within three minutes


@pytest.mark.long
def test_a_replay_killed_in_between_loses_nothing(vhost: Vhost) -> None:
    amount = 200
    make_orphans(vhost, amount)
    vhost.declare("gone")
    with running(vhost.url("amqp"), "orphans", "replay", "--any-queue", "--limit", str(amount)):
        wait_until(lambda: vhost.count("gone"), "some are sent on")
    wait_until(lambda: vhost.count("gone") + vhost.count(CASCADE.orphans) >= amount, "the others are given back")
    assert run(vhost.url("amqp"), "orphans", "replay", "--any-queue", "--limit", str(amount)).code == 0
    found = [message.payload["n"] for message in vhost.take("gone", vhost.count("gone"))]
    assert set(found) == set(range(amount))
    assert len(found) <= amount + 1


def test_status_watches_until_interrupted(vhost: Vhost) -> None:
    with running(vhost.url("amqp"), "status", "--watch") as watching:
        shown = re.compile(r"^0 wait\b.*, 0 are orphans$", re.MULTILINE)
        wait_until(lambda: len(shown.findall(watching.out)) >= 2, "it has looked twice")
        watching.process.send_signal(signal.SIGINT)
        watching.wait()


def test_exported_terraform_has_every_part(vhost: Vhost) -> None:
    text = run(vhost.url("amqp"), "--prefix", 'odd "${name}', "export", "--format", "terraform", options=()).out
    options = Options(prefix='odd "${name}')
    topology = Topology.of([options.cascade], (), streams.wanted(options))
    resources = json.loads(text)["resource"]
    assert {kind: len(found) for kind, found in resources.items()} == {
        "rabbitmq_exchange": len(topology.exchanges),
        "rabbitmq_queue": len(topology.queues),
        "rabbitmq_binding": len(topology.bindings),
    }
    names = {queue["name"].replace("$${", "${") for queue in resources["rabbitmq_queue"].values()}
    assert names == set(topology.queues)
    for queue in resources["rabbitmq_queue"].values():
        arguments = json.loads(queue["settings"]["arguments_json"].replace("$${", "${"))
        assert arguments == topology.queues[queue["name"].replace("$${", "${")].arguments


@pytest.mark.own_vhost
@pytest.mark.parametrize("exists", [False, True], ids=["without a cascade", "with a cascade"])
def test_each_command_tells_a_user_without_permissions_so(vhost: Vhost, exists: bool) -> None:
    vhost.declare("q")
    if exists:
        with vhost.connection(journal=0) as connection:
            connection.Producer().publish("x", routing_key="q", headers={"x-delay": 100_000}, correlation_id="a")
    user = vhost.url("amqp", vhost.user(configure="^$", write="^$", read="^$"))
    visible = ["verify", "status", "orphans list --any-queue", "orphans replay"] + ["metrics"] * (not exists)
    visible = [] if vhost.broker.has(Ability.HIDES_WHAT_ONE_MAY_NOT_USE) else visible
    for command in COMMANDS:
        if command not in ("export", "status --watch", *visible):
            refused = run(user, "--queue", "q", *command.split())
            assert refused.code == 1, command
            assert re.search("permission denied|there is no cascade|messages wait", refused.err), (command, refused.err)


@pytest.mark.own_vhost
def test_the_commands_work_with_an_app(vhost: Vhost) -> None:
    delay = partial(celery, "-A", "shop", "delay", directory=EXAMPLE, CELERY_BROKER_URL=vhost.url("amqp"))
    assert delay("verify").code == 3
    assert " levels exist" in delay("setup").out
    assert not any("changes" in name for name in vhost.names("queues"))  # no stream is created to note this
    assert delay("verify").code == 0
    assert "0 wait" in delay("status").out
    assert json.loads(delay("export").out)["vhosts"] == [{"name": vhost.name}]
    url = vhost.url("amqp")
    assert run(url, "setup", options=("--schedule",)).code == 0
    assert "streams stay" in delay("teardown", "--yes", "--delete-messages").out
    assert not [name for name in vhost.names("queues") if ".delay." in name]
    assert "streams stay" not in run(url, "teardown", "--yes", options=()).out
    assert not vhost.names("queues")


COMMANDS = (
    *("setup", "export", "verify", "status", "status --watch", "orphans list --any-queue", "orphans replay"),
    *("list", "run-now a", "cancel a", "metrics", "orphans purge --yes --any-queue"),
    "teardown --yes --delete-messages",
)


def test_an_app_without_install_is_told_to_install() -> None:
    done = celery("-b", "amqp://127.0.0.1:1//", "delay", "status")
    assert done.code == 1
    assert "call celery_rabbit_delay.install(app)" in done.err


def test_other_commands_of_celery_import_nothing_heavy() -> None:
    code = "import sys, celery.bin.celery; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "celery_rabbit_delay.cli.plugin" in imported
    heavy = ("delay.amqp", "delay.app", "operate", "schedule", "periodic", "web")
    ours = {name.removeprefix("celery_rabbit_delay.") for name in imported if name.startswith("celery_rabbit_delay.")}
    light = {"delay.amqp", "delay.amqp.broker_url", "delay.app", "delay.app.signals"}
    assert {name for name in ours if name.startswith(heavy)} == light
    assert "kombu.transport.pyamqp" not in imported


def test_an_app_that_creates_nothing_gets_its_outboxes_from_setup_and_others_from_publishers(
    vhost: Vhost, tmp_path: Path
) -> None:
    vhost.declare("celery", exchange="celery")
    delays = [1, 2, 3, 4, 5, 60]
    combined = {"+celery", *(f"{delay}s.+celery" for delay in delays[:5])}
    namesake = {name.replace("+celery", other) for name in combined for other in ("celery+", "celery+celery")}
    for declared, expected in (("auto", combined), ("passive", {*combined, "60s.+celery", *namesake})):
        (tmp_path / "shop.py").write_text(
            "import celery, celery_rabbit_delay\n"
            f"app = celery.Celery('shop', broker={vhost.url('amqp')!r})\n"
            "celery_rabbit_delay.install(app, tick=0.01, max_delay=120, schedule=True,"
            f" outboxes={delays}, declare={declared!r})\n"
        )
        done = celery("-A", "shop", "delay", "setup", directory=tmp_path)
        assert done.code == 0, done.err
        assert outboxes(vhost) == expected
        assert celery("-A", "shop", "delay", "verify", directory=tmp_path).code == 0


def test_verify_checks_the_outboxes_that_exist(vhost: Vhost) -> None:
    vhost.declare("q")
    url = vhost.url("amqp")
    assert run(url, "--queue", "q", "setup").code == 0
    one, other = (CASCADE.outbox_name(Destination("", "q"), ticks) for ticks in (6000, 1000))
    vhost.delete_queue(one)
    for more in (("--queue", "q", "verify"), ("verify", *management(vhost))):
        assert run(url, *more).code == 0  # a missing one costs a hop, never a message
    vhost.declare(one)  # as something else
    with vhost.plain() as connection:
        connection.default_channel.queue_unbind(other, CASCADE.outbox_ingest, "@.10s.+q")
    verified = run(url, "--queue", "q", "verify")
    assert (verified.code, f"different  queue    {one}: PRECONDITION_FAILED" in verified.out) == (3, True)
    verified = run(url, "verify", *management(vhost))
    assert f"different  queue    {one}: PRECONDITION_FAILED" in verified.out
    assert f"missing    binding  {CASCADE.outbox_ingest} -> {other} (@.10s.+q)" in verified.out
