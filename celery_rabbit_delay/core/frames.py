"""Encodes published messages for an AMQP 0-9-1 connection (clause 4.2.3). Pure."""

from __future__ import annotations

from struct import Struct

_FRAME = Struct(">BHI")  # type, channel, length
_CONTENT = Struct(">HHQ")  # class, weight, length of the body
METHOD, HEADER, _BODY = 1, 2, 3
_END = b"\xce"
_BASIC, _PUBLISH = 60, 40


# The same together: the end of the frame before, type, channel, length, and what the frame begins with.
_METHOD_FRAME, _HEADER_FRAME, _BODY_FRAME = Struct(">BHIHH"), Struct(">cBHIHHQ"), Struct(">cBHI")


def publish(channel: int, arguments: bytes, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """Return basic.publish on a channel of a number, and the message, in frames of `frame_max` bytes at most.

    These are the bytes that py-amqp sends.
    """
    parts = [
        _METHOD_FRAME.pack(METHOD, channel, 4 + len(arguments), _BASIC, _PUBLISH),
        arguments,
        _HEADER_FRAME.pack(_END, HEADER, channel, _CONTENT.size + len(properties), _BASIC, 0, len(body)),
        properties,
    ]
    most = frame_max - _FRAME.size - len(_END)
    for start in range(0, len(body), most):
        part = body[start : start + most]
        parts += _BODY_FRAME.pack(_END, _BODY, channel, len(part)), part
    parts.append(_END)
    return b"".join(parts)
