"""The lines with `set_permissions` on the operators' page are whole: pasted for fresh users, they are all it takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import kombu
import pytest

import celery_rabbit_delay
from tests.kit.broker import QUICK, Vhost
from tests.kit.commands import PROGRAM, QUICKLY, celery, granted_by, run
from tests.kit.site import serving
from tests.kit.wait import wait_until

from .conftest import MakeShop, Shop, StartBeat

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "for-operators.md").read_text()
OPTIONS = {**QUICK, "declare": "passive", "journal": 0}


def pasted(vhost: Vhost, who: str, queue: str = "celery") -> str:
    """Return a user of the virtual host with the permissions and tags that the page grants, and nothing else."""
    granted = granted_by(PAGE)[who].items()
    user = vhost.user(**{kind: re.sub(r"(?<=[(|])celery(?=[|)])", queue, one) for kind, one in granted})
    tags = re.findall(rf"^\$ rabbitmqctl set_user_tags {who} (.*)$", PAGE, re.MULTILINE)
    vhost.broker.api("PUT", f"/users/{user}", {"password": user, "tags": ",".join(tags)})
    return user


def setup(vhost: Vhost, user: str, queue: str = "celery") -> None:
    assert run(vhost.url("amqp", user), "--journal", "0", "--queue", queue, "setup").code == 0


def as_user(shop: Shop, user: str) -> dict[str, str]:
    """Return the environment of a process of the shop that connects as a user."""
    conf = json.loads(shop.environment["SHOP_CONF"]) | {"broker_url": shop.vhost.url("amqp", user)}
    return {**shop.environment, "SHOP_CONF": json.dumps(conf)}


def test_no_other_page_has_such_a_line() -> None:
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md", DOCS.parent / "SECURITY.md"]
    found = [page.name for page in pages if re.search(r"rabbitmqctl set_permissions +\S", page.read_text())]
    assert found == ["for-operators.md"]


@pytest.mark.parametrize(("declare", "queue"), [("passive", "celery"), ("passive", "mail"), ("auto", "celery")])
def test_a_web_process_and_a_worker_can_do_all_they_do_with_what_the_operators_page_grants(
    make_shop: MakeShop, vhost: Vhost, declare: str, queue: str
) -> None:
    conf = {"task_default_queue": queue}
    options = OPTIONS | {"declare": declare}
    which = "" if declare == "passive" else "_auto"
    operator = pasted(vhost, "operator", queue)
    shop = make_shop(options, broker_url=vhost.url("amqp", pasted(vhost, f"worker{which}", queue)), **conf)
    web = make_shop(options, broker_url=vhost.url("amqp", pasted(vhost, f"web{which}", queue)), **conf)
    web.send("note", "first")  # creates Celery's queue, before a worker could
    if declare == "passive":
        setup(vhost, operator, queue)
    worker = shop.worker("-E", mingle=True)
    shop.wait_for(1, "first")
    web.send("note", "undelayed")
    web.send("note", "delayed", countdown=0.73)
    web.send("note", "round", countdown=5)
    web.send("stubborn", 1, 0.5)
    by_revoke, by_cancel = (web.send("note", "never", countdown=15) for _ in range(2))
    web.app.control.revoke(by_revoke)
    celery_rabbit_delay.cancel(web.app, by_cancel)
    for name in ("undelayed", "delayed", "round"):
        shop.wait_for(1, name)
    shop.wait_for(2, "stubborn")
    wait_until(lambda: worker.output().count("Discarding revoked task") == 2, "both are discarded")
    assert not shop.runs("never")
    assert not re.search("ERROR|ACCESS_REFUSED|permission denied", worker.output())


def test_a_publisher_that_may_only_send_does_so_with_and_without_a_delay(make_shop: MakeShop, vhost: Vhost) -> None:
    vhost.declare("celery")
    setup(vhost, pasted(vhost, "operator"))
    front = make_shop(OPTIONS, broker_url=vhost.url("amqp", pasted(vhost, "sender")))
    front.app.conf.task_queues = [kombu.Queue("celery", no_declare=True)]
    front.send("note", "now")
    front.send("note", "delayed", countdown=0.73)
    front.send("note", "round", countdown=5)
    make_shop(OPTIONS).worker()
    for name in ("now", "delayed", "round"):
        front.wait_for(1, name)


def test_a_beat_the_commands_and_who_only_watches_can_do_all_they_do_with_what_the_operators_page_grants(
    make_shop: MakeShop, vhost: Vhost, start_beat: StartBeat
) -> None:
    task = "tests.acceptance.shop.note"
    entries = {
        "now": {"task": task, "schedule": 1, "args": ["now"]},
        "later": {"task": task, "schedule": 1, "args": ["later"], "options": {"countdown": 1}},
    }
    shop = make_shop(OPTIONS, beat_schedule=entries)
    vhost.declare("celery")
    operator, watcher, of_beat = (pasted(vhost, who) for who in ("operator", "watcher", "beat"))
    setup(vhost, operator)
    shop.worker()
    shop.environment = as_user(shop, of_beat)
    beat = start_beat(shop)
    wait_until(lambda: beat.activations == 1, "the beat is active")
    wait_until(lambda: shop.runs("now") and shop.runs("later"), "both entries run")
    assert not re.search("ERROR|ACCESS_REFUSED|permission denied", beat.output())
    sent = shop.send("note", "moved", countdown=100)

    def command(user: str, *arguments: str) -> str:
        management = f"http://{user}:{user}@127.0.0.1:{vhost.broker.node.management_port}"
        words = [management if word == "API" else word for word in arguments]
        done = run(vhost.url("amqp", user), "--journal", "0", *words)
        assert done.code == 0, done.text
        assert not re.search("ACCESS_REFUSED|permission denied", done.text)
        return done.out

    for asked in ("status", "status --management-url API", "list", "metrics --management-url API"):
        command(watcher, *asked.split())
    assert sent in command(watcher, "list")
    page = [str(PROGRAM), "--broker", vhost.url("amqp", watcher), *QUICKLY, "--journal", "0", "web", "--read-only"]
    with serving(page, shop.directory) as site:
        wait_until(lambda: sent in site.ask("/").text, "the page shows the task")
        assert not re.search("ACCESS_REFUSED|permission denied", site.ask("/health").text + site.output())
    with pytest.raises(AssertionError, match=r"permission denied|ACCESS_REFUSED"):
        command(watcher, "cancel", sent)
    shown = celery("-A", "tests.acceptance.shop", "delay", "status", directory=None, **as_user(shop, operator))
    assert "beat is active" in shown.out, shown.err
    refused = celery("-A", "tests.acceptance.shop", "delay", "status", directory=None, **as_user(shop, watcher))
    assert "permission denied" in refused.err
    for done in (
        "verify --management-url API",
        "orphans list",
        "--queue celery pause celery",
        "--queue celery resume celery",
        f"--queue celery reschedule {sent} --countdown 90",
        f"--queue celery run-now {sent}",
    ):
        command(operator, *done.split())
    shop.wait_for(1, "moved")
