"""What is said of the broker's refusals."""

from __future__ import annotations

import pytest
from amqp.exceptions import PreconditionFailed

from celery_rabbit_delay import CascadeConflict, Options
from celery_rabbit_delay.amqp.declare import translate_errors


def refused(text: str) -> None:
    with translate_errors(Options().cascade):
        raise PreconditionFailed(text)


def test_a_message_that_is_too_large_is_not_taken_for_something_that_has_a_name_of_ours() -> None:
    text = "PRECONDITION_FAILED - message size 17000000 is larger than configured max size 16777216"
    with pytest.raises(PreconditionFailed, match="message size 17000000"):
        refused(text)
    with pytest.raises(CascadeConflict, match="something else has the name of a part"):
        refused("PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost '/'")
