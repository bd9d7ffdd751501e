"""Two apps share a virtual host and a prefix: each lists and changes only what waits for its own queues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kombu import Exchange, Queue

import celery_rabbit_delay
from celery_rabbit_delay import InvalidDestination
from tests.kit.broker import Vhost
from tests.kit.commands import CASCADE, Result, celery, run
from tests.kit.wait import wait_until

from .conftest import MakeApp

pytestmark = pytest.mark.shared_vhost

#: The queues of each app: one of its own, one that a route names, and one at an exchange that both use.
APPS = ("billing", "crm")


def settings(name: str) -> dict[str, Any]:
    return {
        "task_default_queue": name,
        "task_queues": [Queue(name), Queue(f"{name}.events", Exchange("events", "topic"), f"{name}.#")],
        "task_routes": {f"{name}.report": {"queue": f"{name}.reports"}},
    }


@pytest.fixture
def sent(vhost: Vhost, make_app: MakeApp) -> dict[str, dict[str, str]]:
    """Send three tasks of each app; return the ids of each app by the way."""
    ids: dict[str, dict[str, str]] = {}
    for name in APPS:
        app = make_app(options={"journal": 0}, **settings(name))
        vhost.declare(f"{name}.reports")
        with app.connection() as connection:
            for queue in app.amqp.queues.values():
                queue(connection).declare()
        ids[name] = {
            "default": app.send_task("t", countdown=100).id,
            "routed": app.send_task(f"{name}.report", countdown=101).id,
            "by an exchange": app.send_task("t", countdown=102, exchange="events", routing_key=f"{name}.new").id,
        }
    return ids


def delay_of(vhost: Vhost, directory: Path) -> Callable[..., Result]:
    """Return a function that runs `celery -A APP delay`."""
    for name in APPS:
        (directory / f"{name}.py").write_text(
            "import celery, celery_rabbit_delay\nfrom kombu import Exchange, Queue\n"
            f"app = celery.Celery({name!r}, broker={vhost.url('amqp')!r})\n"
            f"app.conf.task_default_queue = {name!r}\n"
            f"events = Queue('{name}.events', Exchange('events', 'topic'), '{name}.#')\n"
            f"app.conf.task_queues = [Queue({name!r}), events]\n"
            f"app.conf.task_routes = {{'{name}.report': {{'queue': '{name}.reports'}}}}\n"
            "celery_rabbit_delay.install(app, tick=0.01, max_delay=120, schedule=True, journal=0)\n"
        )
    return lambda app, *words: celery("-A", app, "delay", *words, directory=directory)


def test_a_program_sees_and_moves_what_waits_for_its_app(
    vhost: Vhost, make_app: MakeApp, sent: dict[str, dict[str, str]]
) -> None:
    billing = make_app(options={"journal": 0}, **settings("billing"))
    ours, theirs = sent["billing"], sent["crm"]
    before = set(billing.amqp.queues)
    assert {one.id for one in celery_rabbit_delay.scheduled(billing)} == set(ours.values())
    assert {one.id for one in celery_rabbit_delay.scheduled(billing, limit=10)} == set(ours.values())
    everything = {*ours.values(), *theirs.values()}
    assert {one.id for one in celery_rabbit_delay.scheduled(billing, any_queue=True)} == everything
    assert [one.id for one in celery_rabbit_delay.scheduled(billing, queue="billing.reports")] == [ours["routed"]]
    with pytest.raises(InvalidDestination, match=r"'crm' is not a queue of this app, whose queues are billing, .*True"):
        celery_rabbit_delay.scheduled(billing, queue="crm")
    for id_ in theirs.values():
        found = celery_rabbit_delay.find(billing, id_)
        assert found, "who names an id asks for that task"
        assert found.id == id_
    with pytest.raises(InvalidDestination, match="any_queue=True"):
        celery_rabbit_delay.reschedule(billing, theirs["default"], countdown=0)
    celery_rabbit_delay.reschedule(billing, ours["by an exchange"], countdown=0)
    celery_rabbit_delay.reschedule(billing, theirs["routed"], countdown=0, any_queue=True)
    vhost.take("billing.events", 1)
    vhost.take("crm.reports", 1)
    assert set(billing.amqp.queues) == before  # or a worker would consume from them


@pytest.mark.long
def test_a_command_lists_and_cancels_what_waits_for_its_app_after_a_question(
    vhost: Vhost, tmp_path: Path, sent: dict[str, dict[str, str]]
) -> None:
    delay = delay_of(vhost, tmp_path)
    listed = delay("billing", "list")
    assert [line.split()[2] for line in listed.out.splitlines()] == list(sent["billing"].values())
    assert "other queues than those of the app is left out: see --any-queue" in listed.err
    assert len(delay("billing", "list", "--any-queue").out.splitlines()) == 6
    assert "6 wait" in delay("billing", "status").text
    metrics = delay("billing", "metrics").out
    assert 'queue="billing.events"' in metrics
    assert 'queue="crm' not in metrics
    for words in (("cancel", "--all"), ("run-now", "--all"), ("reschedule", "--all", "--countdown", "50")):
        asked = delay("billing", *words)
        assert (asked.code, "3 tasks" in asked.err) == (1, True), asked.text
    assert delay("billing", "cancel", "--queue", "crm", "--yes").code == 1
    assert len(delay("billing", "list").out.splitlines()) == 3
    assert delay("billing", "cancel", "--all", "--yes").out == "3 cancelled\n"
    assert [line.split()[2] for line in delay("crm", "list").out.splitlines()] == list(sent["crm"].values())
    assert delay("crm", "run-now", "--all", "--yes").out.startswith("3 due ")
    for queue in ("crm", "crm.reports", "crm.events"):
        vhost.take(queue, 1)


def test_a_command_knows_the_queues_that_the_modules_of_tasks_name(vhost: Vhost, tmp_path: Path) -> None:
    (tmp_path / "mail_tasks.py").write_text("import celery\n@celery.shared_task(queue='mail')\ndef t(): pass\n")
    (tmp_path / "mail_app.py").write_text(
        "import celery, celery_rabbit_delay\n"
        f"app = celery.Celery('mail', broker={vhost.url('amqp')!r}, include=['mail_tasks'])\n"
        "celery_rabbit_delay.install(app, tick=0.01, max_delay=120, schedule=True, journal=0)\n"
    )
    vhost.declare("mail")
    with vhost.connection(journal=0) as connection:
        connection.Producer().publish((), routing_key="mail", headers={"x-delay": 90_000, "task": "t", "id": "a"})
    listed = celery("-A", "mail_app", "delay", "list", directory=tmp_path)
    assert listed.out.split()[2:4] == ["a", "mail"], listed.text
    (tmp_path / "mail_tasks.py").write_text("import no_such_module")
    assert "a module of the app cannot be imported" in celery("-A", "mail_app", "delay", "list", directory=tmp_path).err


@pytest.mark.leaves_orphans
def test_orphans_of_other_apps_are_neither_listed_nor_removed(vhost: Vhost) -> None:
    assert run(vhost.url("amqp"), "setup").code == 0
    assert "there are no orphans" in run(vhost.url("amqp"), "orphans", "list").err
    vhost.declare("billing", "crm")
    with vhost.connection(outboxes=()) as connection:
        for queue in ("billing", "crm", "crm"):
            connection.Producer().publish("x", routing_key=queue, headers={"x-delay": 6000, "task": queue, "id": "a"})
        for queue in ("billing", "crm"):
            vhost.delete_queue(f"{CASCADE.outbox_prefix}+{queue}")
            vhost.delete_queue(queue)
    wait_until(lambda: vhost.count(CASCADE.orphans) == 3, "all are orphans")
    url = vhost.url("amqp")
    listed = run(url, "--queue", "billing", "orphans", "list")
    assert "queue 'billing'" in listed.out
    assert "crm" not in listed.out
    assert "for other queues than those of the app: 2, see --any-queue" in listed.err
    assert len(run(url, "orphans", "list").out.splitlines()) == 3
    purged = run(url, "--queue", "billing", "orphans", "purge", "--yes")
    assert (purged.out, purged.err) == (
        "1 removed\n",
        "for other queues than those of the app: 2, see --any-queue\n",
    )
    assert run(url, "--queue", "billing", "orphans", "purge", "--yes", "--any-queue").out == "2 removed\n"
