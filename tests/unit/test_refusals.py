"""What is said of the broker's refusals."""

from __future__ import annotations

import pytest
from amqp.exceptions import NotFound, PreconditionFailed

from celery_rabbit_delay import CascadeConflict, CascadeMissing, DestinationNotFound, LimitReached, Options
from celery_rabbit_delay.delay.amqp.declare import translate_errors


def refused(text: str) -> None:
    with translate_errors(Options().cascade):
        raise PreconditionFailed(text)


def test_a_message_that_is_too_large_is_not_taken_for_something_that_has_a_name_of_ours() -> None:
    text = "PRECONDITION_FAILED - message size 17000000 is larger than configured max size 16777216"
    with pytest.raises(PreconditionFailed, match="message size 17000000"):
        refused(text)
    with pytest.raises(CascadeConflict, match="something else has the name of a part"):
        refused("PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost '/'")


@pytest.mark.parametrize(
    "limit",
    [
        "cannot declare queue 'x.delay.1' in vhost 'shop': vhost queue limit (20) is reached",
        "cannot declare queue 'x': queue limit in cluster (500) is reached",
        "cannot declare exchange 'x': exchange limit of 30 is reached",
    ],
)
def test_a_limit_is_named_with_what_is_needed_and_nothing_else_is_blamed(limit: str) -> None:
    with pytest.raises(LimitReached) as found:
        refused(f"PRECONDITION_FAILED - {limit}")
    text = str(found.value)
    assert limit in text
    assert "needs 30 queues and 35 exchanges" in text
    assert "another prefix" not in text


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("shop.mails", DestinationNotFound),
        ("shop.v3.125ms-of-mine", DestinationNotFound),
        ("shop.v3.125ms", CascadeMissing),
        ("shop.v3.125ms.ingest", CascadeMissing),
    ],
)
def test_a_name_that_begins_with_the_prefix_is_ours_only_with_layout_and_tick(name: str, error: type) -> None:
    with pytest.raises(error), translate_errors(Options(prefix="shop").cascade):
        raise NotFound(f"NOT_FOUND - no queue '{name}' in vhost '/'")
