"""Properties are serialized and read as py-amqp does it, byte for byte, and what is odd is left to it."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import amqp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay.amqp.pending import OwnMessage
from celery_rabbit_delay.core import wire

short_strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
fields = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda items: st.lists(items) | st.tuples(items) | st.dictionaries(short_strings, items),
    max_leaves=10,
)
texts = ["content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type"]
properties = st.fixed_dictionaries(
    {},
    optional={
        "application_headers": st.dictionaries(short_strings, fields),
        "delivery_mode": st.integers(1, 2),
        "priority": st.none() | st.integers(0, 255),
        "timestamp": st.integers(0, (1 << 64) - 1),
        **dict.fromkeys([*texts, "user_id", "app_id", "cluster_id"], short_strings),
    },
)


def by_py_amqp(properties: dict[str, Any]) -> Any:
    return amqp.Message("", **properties)._serialize_properties()


@given(properties)
def test_properties_are_the_bytes_that_py_amqp_sends(properties: dict[str, Any]) -> None:
    assert wire.encode_properties(properties) == by_py_amqp(properties)


@pytest.mark.parametrize(
    "odd",
    [
        {"application_headers": {"at": datetime(2026, 1, 1, tzinfo=timezone.utc)}},
        {"application_headers": {"price": Decimal("1.5")}},
        {"application_headers": {"raw": b"\xff"}},
        {"correlation_id": b"raw"},
        {"application_headers": {"lone surrogate": "\ud800"}},
        {"unknown": "left out"},
    ],
)
def test_py_amqp_serializes_what_is_odd(odd: dict[str, Any]) -> None:
    with pytest.raises((LookupError, ValueError, AttributeError)):
        wire.encode_properties(odd)
    assert OwnMessage("", **odd)._serialize_properties() == by_py_amqp(odd)


def test_what_nobody_can_serialize_is_the_error_of_py_amqp() -> None:
    with pytest.raises(amqp.exceptions.FrameSyntaxError, match="set"):
        OwnMessage("", application_headers={"items": {1, 2}})._serialize_properties()
