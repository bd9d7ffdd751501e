"""Where operators' commands may send messages on to."""

from __future__ import annotations

import kombu
import pytest

from celery_rabbit_delay.operate.replaying import ANYWHERE, Allowed

ADVICE = "use --any-queue, or any_queue=True, to allow any queue"
QUEUES = Allowed([kombu.Queue("q"), kombu.Queue("p", kombu.Exchange("orders"))])


@pytest.mark.parametrize(("exchange", "key"), [("", "q"), ("", "p"), ("orders", "any")])
def test_queues_that_were_named_and_their_exchanges_may_be_sent_to(exchange: str, key: str) -> None:
    assert QUEUES.refuses(exchange, key) is None


def test_others_may_not_be_sent_to() -> None:
    assert QUEUES.refuses("", "secret") == f"queue 'secret' is not one of the allowed queues: {ADVICE}"
    assert QUEUES.refuses("admin", "q") == f"exchange 'admin' is not allowed: {ADVICE}"
    assert ANYWHERE.refuses("", "secret") is None
