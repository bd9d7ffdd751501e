"""Decoding messages of a stream from bytes that are cut anywhere; frames that py-amqp cannot read, or writes."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from amqp import Message, spec
from amqp.method_framing import frame_writer

from celery_rabbit_delay.core import frames


@pytest.mark.parametrize("size", [0, 1, 40, 91, 92, 93, 184, 1000])
def test_a_message_is_published_in_the_frames_that_py_amqp_sends(size: int) -> None:
    sent: list[bytes] = []
    transport: Any = SimpleNamespace(write=lambda data: sent.append(bytes(data)))
    body, properties = b"x" * size, struct.pack(">HB", 1 << 12, 2)
    write = frame_writer(SimpleNamespace(frame_max=100, bytes_sent=0), transport)
    write(1, 7, spec.Basic.Publish, b"arguments", Message(body, delivery_mode=2))
    assert frames.publish(7, b"arguments", properties, body, 100) == b"".join(sent)
