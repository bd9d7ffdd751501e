"""Messages that py-amqp cannot read: our own channels receive a placeholder in their place."""

from __future__ import annotations

import re
import struct
from typing import Any

from amqp import Message, spec
from amqp.exceptions import FrameSyntaxError
from amqp.serialization import dumps, loads

from .. import upstream

#: What py-amqp raises for text that is not UTF-8, for times that Python cannot represent, and for other properties that
#: RabbitMQ lets publishers send. Not `Exception`: an interrupt, such as a soft time limit, is one.
MALFORMED = (
    FrameSyntaxError,
    ArithmeticError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)

#: The header that marks a message as a placeholder for an unreadable one, and the one that RabbitMQ adds in a stream.
_UNREADABLE, _OFFSET = "x-unreadable", "x-stream-offset"
_OFFSET_BYTES = re.compile(rb"\x0fx-stream-offset[lL](.{8})", re.DOTALL)

#: The size of class, weight and length in a content header, before the properties (AMQP 0-9-1, clause 4.2.6.1).
_SIZES = 12

#: The arguments before exchange and routing key of the methods that bring a message; basic.get-ok has a number after.
_ARGUMENTS = {spec.Basic.Deliver: "sLb", spec.Basic.GetOk: "Lb"}
_NUMBER = bytes(4)


def take_anything(channel: Any) -> None:
    """Make one of our channels also receive messages that py-amqp cannot read, and bodies as raw bytes.

    py-amqp would raise an error at a read of the connection, which would be lost. Use `is_unreadable` instead.
    """
    channel.takes_anything = True
    channel.auto_decode = False


def is_unreadable(message: Any) -> bool:
    """Return whether an `amqp.Message` is a placeholder for one with unreadable properties or routing key.

    A placeholder has the original body, and no properties.
    """
    return _UNREADABLE in (message.headers or {})


def without_properties(header: bytes) -> bytes:
    """Return a content header of a placeholder; it keeps the offset in a stream unless the sender wrote one, too."""
    offsets = _OFFSET_BYTES.findall(header)
    known = {_OFFSET: int.from_bytes(offsets[0], "big")} if len(offsets) == 1 else {}
    properties, _ = upstream.serialize(Message(b"", application_headers={_UNREADABLE: True, **known}))
    return header[:_SIZES] + properties


def with_text(method: Any, arguments: bytes, content: Any) -> bytes:
    """Return the arguments of a method that brings a message, with names that are text.

    If its exchange or its routing key is not UTF-8, both become "", and the message becomes a placeholder.
    """
    before = _ARGUMENTS.get(method)
    if before is None:
        return arguments
    try:
        loads(f"{before}ss", arguments, 4)
        return arguments
    except UnicodeDecodeError:
        known = {name: value for name, value in (content.headers or {}).items() if name == _OFFSET}
        content.properties = {"application_headers": {_UNREADABLE: True, **known}}
        values, _ = loads(before, arguments, 4)
        return arguments[:4] + bytes(dumps(f"{before}ss", [*values, "", ""])) + _NUMBER
