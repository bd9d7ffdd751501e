"""The lines with `set_permissions` on the operators' page are whole: pasted for fresh users, they are all it takes."""

from __future__ import annotations

import re
from pathlib import Path

import celery_rabbit_delay
from tests.kit.broker import QUICK, Vhost
from tests.kit.commands import granted_by, run
from tests.kit.wait import wait_until

from .conftest import MakeShop

DOCS = Path(__file__).parents[2] / "docs"


def pasted(vhost: Vhost, who: str) -> str:
    """Return a user of the virtual host with the permissions that the page grants, and nothing else."""
    return vhost.user(**granted_by((DOCS / "for-operators.md").read_text())[who])


def test_no_other_page_has_such_a_line() -> None:
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md", DOCS.parent / "SECURITY.md"]
    found = [page.name for page in pages if re.search(r"rabbitmqctl set_permissions +\S", page.read_text())]
    assert found == ["for-operators.md"]


def test_a_web_process_and_a_worker_can_do_all_they_do_with_what_the_operators_page_grants(
    make_shop: MakeShop, vhost: Vhost
) -> None:
    options = {**QUICK, "declare": "passive", "journal": 0}
    assert run(vhost.url("amqp"), "--journal", "0", "--queue", "celery", "setup").code == 0
    shop = make_shop(options, broker_url=vhost.url("amqp", pasted(vhost, "worker")))
    web = make_shop(options, broker_url=vhost.url("amqp", pasted(vhost, "web")))
    web.send("note", "first")  # creates Celery's queue, before a worker could
    worker = shop.worker("-E", mingle=True)
    shop.wait_for(1, "first")
    assert run(vhost.url("amqp"), "--journal", "0", "--queue", "celery", "setup").code == 0
    web.send("note", "undelayed")
    web.send("note", "delayed", countdown=0.73)
    web.send("note", "round", countdown=5)
    web.send("stubborn", 1, 0.5)
    by_revoke, by_cancel = (web.send("note", "never", countdown=20) for _ in range(2))
    web.app.control.revoke(by_revoke)
    celery_rabbit_delay.cancel(web.app, by_cancel)
    for name in ("undelayed", "delayed", "round"):
        shop.wait_for(1, name)
    shop.wait_for(2, "stubborn")
    wait_until(lambda: worker.output().count("Discarding revoked task") == 2, "both are discarded")
    assert not shop.runs("never")
    assert not re.search("ERROR|ACCESS_REFUSED|permission denied", worker.output())
