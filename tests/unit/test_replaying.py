"""Where operators' commands may send messages on to."""

from __future__ import annotations

from typing import Any

import kombu
import pytest

from celery_rabbit_delay.amqp.replaying import ANYWHERE, Allowed

ADVICE = "use --any-queue, or any_queue=True, to allow any queue"
QUEUES = Allowed([kombu.Queue("q"), kombu.Queue("p", kombu.Exchange("orders"))])


@pytest.mark.parametrize("headers", [{}, {"CC": ["p"]}, {"BCC": ["p", "q"]}])
def test_queues_that_were_named_may_be_sent_to(headers: dict[str, Any]) -> None:
    assert QUEUES.refuses("", "q", headers) is None
    assert QUEUES.refuses("orders", "any", headers) is None


@pytest.mark.parametrize(
    ("key", "headers"),
    [("secret", {}), ("q", {"CC": ["secret"]}), ("q", {"BCC": ["secret"]}), ("q", {"CC": ["p"], "BCC": ["secret"]})],
)
def test_no_key_of_a_message_leads_elsewhere(key: str, headers: dict[str, Any]) -> None:
    assert QUEUES.refuses("", key, headers) == f"queue 'secret' is not one of the allowed queues: {ADVICE}"
    assert ANYWHERE.refuses("", key, headers) is None


def test_other_exchanges_may_not_be_sent_to() -> None:
    assert QUEUES.refuses("admin", "q", {}) == f"exchange 'admin' is not allowed: {ADVICE}"
