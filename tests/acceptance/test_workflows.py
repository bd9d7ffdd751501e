"""Workflows that are cancelled run no further, and others beside them do; what was cancelled can be restored."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group

import celery_rabbit_delay
from tests.kit.broker import QUICK
from tests.kit.wait import wait_until

from .conftest import MakeShop, Shop, signature

pytestmark = pytest.mark.shared_vhost


def wait_to_learn(shop: Shop, *ids: str, revoked: bool = True) -> None:
    """Wait until all workers know that some ids are cancelled, or are not any more."""

    def known() -> bool:
        answers = (shop.app.control.inspect(timeout=3).revoked() or {}).values()
        return bool(answers) and all((id_ in answer) is revoked for answer in answers for id_ in ids)

    wait_until(known, "the workers know it")


@pytest.mark.parametrize(
    "control",
    [{}, {"worker_enable_remote_control": False}, {"control_exchange": "shop"}],
    ids=["remote control", "without", "of another name"],
)
def test_the_next_step_of_a_chain_without_any_delay_does_not_run(
    make_shop: MakeShop, tmp_path: Path, control: dict[str, Any]
) -> None:
    """No stream exists when the worker starts, or one that cannot be told of it creates it."""
    shop = make_shop(**control)
    worker = shop.worker("-c", "2", "-Q", "celery,other")
    go_on = str(tmp_path / "go on")
    chains = {
        name: chain(signature(shop, "wait_for_file", go_on, f"{name} begins"), signature(shop, "note", name))
        for name in ("dead", "alive")
    }
    last = {name: one.apply_async() for name, one in chains.items()}
    for name in chains:
        shop.wait_for(1, f"{name} begins")
    root = last["dead"].parent.id
    celery_rabbit_delay.cancel(shop.app, root, workflow=True)
    celery_rabbit_delay.pause(shop.app, "other", any_queue=True)
    wait_until(lambda: "The queue 'other' is paused" in worker.output(), "it has learned of both")
    Path(go_on).touch()
    shop.wait_for(1, "alive")
    wait_until(lambda: worker.has_discarded(last["dead"].id), "it is discarded")
    assert not shop.runs("dead")


@pytest.mark.long
def test_retries_groups_and_chords_are_cancelled_for_workers_that_start_later(
    make_shop: MakeShop, tmp_path: Path
) -> None:
    (tmp_path / "results").mkdir()
    shop = make_shop({**QUICK, "max_delay": 600}, result_backend=f"file://{tmp_path}/results")
    first = shop.worker(name="first")
    dead = [shop.send("stubborn", 3, 30, "retried", countdown=1)]
    shop.wait_for(1, "retried")
    note, stays = (signature(shop, "note", name).set(countdown=30) for name in ("dead", "stays"))
    dead.append(group(note.clone() for _ in range(2)).apply_async().id)
    dead.append(chord([note.clone() for _ in range(2)], signature(shop, "join")).apply_async().parent.id)
    dead.append(chain(note.clone(), signature(shop, "note", "dead")).apply_async().parent.id)
    parts = [chain(note.clone(), signature(shop, "note", "dead")), note.clone()]
    dead.append(group(parts).apply_async().id)
    dead.append(chord(parts, signature(shop, "join")).apply_async().parent.id)
    group(stays.clone() for _ in range(2)).apply_async()
    chain(stays.clone(), signature(shop, "note", "last")).apply_async()
    joins = signature(shop, "join").set(countdown=1)
    chord([signature(shop, "note", name) for name in ("a", "b")], joins).apply_async()
    celery_rabbit_delay.cancel(shop.app, *dead, workflow=True)
    first.stop()
    second = shop.worker(name="second")
    shop.wait_for(3, "stays")
    shop.wait_for(1, "last")
    shop.wait_for(1, "a+b")
    # Two of each group, two of each chord, the first of the chain, and the retry.
    discarded = re.compile(r"Discarding revoked task: tests.acceptance.shop.(\w+)")
    wanted = Counter(note=9, stubborn=1)
    wait_until(lambda: len(discarded.findall(first.output() + second.output())) >= wanted.total(), "all are discarded")
    assert Counter(discarded.findall(first.output() + second.output())) == wanted
    assert not shop.runs("dead")
    assert len(shop.runs("retried")) == 1


@pytest.mark.long
def test_what_is_restored_runs_unless_it_was_discarded(make_shop: MakeShop) -> None:
    shop = make_shop({**QUICK, "max_delay": 600})
    worker = shop.worker()
    gone = shop.send("note", "gone", countdown=8)
    alone = shop.send("note", "alone", countdown=30)
    flow = group(signature(shop, "note", "of a group").set(countdown=30) for _ in range(2)).apply_async().id
    shop.app.control.revoke(alone)
    celery_rabbit_delay.cancel(shop.app, gone)
    celery_rabbit_delay.cancel(shop.app, flow, workflow=True)
    wait_to_learn(shop, alone, gone, flow)
    wait_until(lambda: worker.has_discarded(gone), "one is discarded")
    assert f"{gone} is not in the journal" in shop.delay("restore", alone, gone).out
    celery_rabbit_delay.restore(shop.app, flow)
    wait_to_learn(shop, alone, gone, flow, revoked=False)
    shop.wait_for(1, "alone")
    shop.wait_for(2, "of a group")
    assert not shop.runs("gone")
