"""Moving to this package from what people had before, and back, while tasks wait."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import celery
import pytest

from celery_rabbit_delay.delay.core.headers import HEADER
from tests.kit.broker import Vhost
from tests.kit.reader import Reader
from tests.kit.wait import wait_until

from .conftest import MakeShop, Shop

pytestmark = pytest.mark.more

TOPIC = {"queues": "quorum by default, topic exchange", "task_default_routing_key": "celery"}


def seen_by_plain(shop: Shop) -> bool:
    """Return whether a worker without this package has retried a task that came through the cascade."""
    retried = [run["properties"]["application_headers"] for run in shop.runs() if run["retries"]]
    return any(HEADER in headers for headers in retried)


def not_native(vhost: Vhost) -> set[str]:
    return {
        name for kind in ("exchanges", "queues") for name in vhost.names(kind) if not name.startswith("celery_delayed_")
    }


@pytest.mark.long
@pytest.mark.skipif(celery.VERSION < (5, 5), reason="native delayed delivery came with Celery 5.5")
def test_what_waits_in_native_delayed_delivery_arrives_and_then_it_can_be_removed(
    make_shop: MakeShop, tmp_path: Path
) -> None:
    ours, before = make_shop(**TOPIC), make_shop(None, **TOPIC)
    vhost = ours.vhost
    old = before.worker(name="old")
    for n in range(20):
        before.send("note", n, countdown=60)
    before.send("stubborn", 3, 0.5, countdown=55)
    assert old.stop() == 0
    assert not ours.runs()
    ours.worker(name="new")
    ours.send("note", "ours", countdown=1)
    ours.wait_for(1, "ours")
    leave = "python from_native_delayed_delivery.py 2>&1"
    reader = Reader(vhost, tmp_path)
    assert "tasks wait: run this again when they have arrived" in reader.run(leave, code=1)
    for n in range(20):
        ours.wait_for(1, n, timeout=150)
    ours.wait_for(4, "stubborn")
    others = not_native(vhost)
    for _ in range(2):  # running it again is harmless
        reader.run(leave)
        assert not_native(vhost) == others == set(vhost.names("exchanges") + vhost.names("queues"))
    ours.send("note", "afterwards", countdown=0.5)
    ours.wait_for(1, "afterwards")


@pytest.mark.long
@pytest.mark.parametrize("conf", [{}, {"queues": "quorum"}], ids=["classic", "quorum"])
@pytest.mark.parametrize("first", ["publisher", "worker"])
def test_the_package_is_rolled_out_and_rolled_back_in_any_order(
    make_shop: MakeShop, first: str, conf: dict[str, Any]
) -> None:
    """Publishers with and without this package all the time; workers without it, both, with it, both, without it."""
    if conf and celery.VERSION < (5, 5):
        pytest.skip("workers of Celery 5.4 cannot consume from quorum queues without us")
    ours, plain = make_shop(**conf), make_shop(None, **conf)
    sent: dict[str, int] = {}  # name -> how often it is to run

    def send(*shops: Shop) -> None:
        for shop in shops:
            for _ in range(4):
                sent[str(len(sent))] = 1
                shop.send("note", str(len(sent) - 1), countdown=6)
            sent[str(len(sent))] = 3
            shop.send("stubborn", 2, 0.5, str(len(sent) - 1), countdown=1)

    workers = [plain.worker(name="plain")]
    send(plain)
    if first == "worker":
        workers.append(ours.worker(name="ours"))
        send(plain)
    else:
        send(ours, plain)
        wait_until(lambda: seen_by_plain(ours), "a worker without this package retries a task that came delayed")
        workers.append(ours.worker(name="ours"))
    send(ours, plain)
    assert workers.pop(0).stop() == 0  # rolled out
    send(ours, plain)
    ours.send("note", "immediate")
    ours.wait_for(1, "immediate")
    workers.append(plain.worker(name="again"))  # and back
    send(ours, plain)
    assert workers.pop(0).stop() == 0
    send(plain)
    for name, times in sent.items():
        ours.wait_for(times, name)
    for run_ in ours.runs():
        if run_["eta"]:
            assert run_["at"] >= datetime.fromisoformat(run_["eta"]).timestamp()
    assert ours.vhost.count(ours.vhost.cascade.orphans) == 0
