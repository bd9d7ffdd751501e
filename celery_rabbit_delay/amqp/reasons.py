"""Reads the reason with which a broker closes a channel or a connection."""

from __future__ import annotations

import struct
from typing import Any

from amqp import spec

#: The methods with a reason.
CLOSES = (spec.Channel.Close, spec.Connection.Close)

#: The bytes before the reason: class and method, the reply code, and the reason's length in one byte.
_LENGTH_AT = 6

#: The most bytes in a reason.
_MOST = 255


def with_readable_reason(payload: Any) -> Any:
    """Return the payload of one of these methods with a reason in UTF-8, which py-amqp demands of it.

    RabbitMQ 3.11.10 to 4.0.4 puts names into it in Latin-1. Later ones may cut a text within a character.
    """
    raw = bytes(payload)
    start = _LENGTH_AT + 1
    reason = raw[start : start + raw[_LENGTH_AT]]
    try:
        reason.decode()
    except UnicodeDecodeError as exc:
        is_cut = exc.end == len(reason) == _MOST and exc.reason == "unexpected end of data"
        text = reason[: exc.start] if is_cut else reason.decode("latin-1").encode()[:_MOST]
        text = text.decode(errors="ignore").encode()
        return raw[:_LENGTH_AT] + struct.pack("B", len(text)) + text + raw[start + len(reason) :]
    return payload
