"""What a consumer of a stream receives, out of the bytes of an AMQP 0-9-1 connection (clause 4.2.3). Pure.

py-amqp decodes each of a message's three frames in some fifty calls; of a stream only two things are of interest.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

_FRAME = Struct(">BHI")  # type, channel, length
_CONTENT = Struct(">HHQ")  # class, weight, length of the body
_OFFSET = Struct(">q")
_METHOD, _HEADER, _BODY = 1, 2, 3
_DELIVER = b"\x00\x3c\x00\x3c"  # basic.deliver

#: RabbitMQ puts it into the headers of each message: a short string and a number of 64 bits.
_NAME = b"\x0fx-stream-offset"


class UnexpectedMethod(Exception):
    """The broker said something else: what it was is the argument, in bytes."""


class Deliveries:
    """Takes bytes as they arrive, and gives the messages that are complete."""

    def __init__(self, parse_offset: Callable[[bytes], int]) -> None:
        """`parse_offset` finds a message's offset in its properties (clause 4.2.6.1) where this does not know it."""
        self._parse_offset = parse_offset
        self._buffer = b""
        self._offset = 0
        self._missing = 0  # bytes of the body
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return (offset, body) of each message that these bytes complete. Raises `UnexpectedMethod`."""
        buffer = self._buffer + data
        found = []
        at = 0
        while len(buffer) >= at + _FRAME.size:
            kind, _, length = _FRAME.unpack_from(buffer, at)
            start, end = at + _FRAME.size, at + _FRAME.size + length
            if len(buffer) <= end:  # one octet more ends a frame
                break
            at = end + 1
            if kind == _METHOD:
                if not buffer.startswith(_DELIVER, start):
                    raise UnexpectedMethod(buffer[start:end])
                continue
            if kind == _HEADER:
                self._missing = _CONTENT.unpack_from(buffer, start)[2]
                self._offset = self._find_offset(buffer[start:end])
                self._parts = []
            elif kind == _BODY:
                self._missing -= length
                self._parts.append(buffer[start:end])
            else:  # a heartbeat
                continue
            if not self._missing:
                found.append((self._offset, b"".join(self._parts)))
        self._buffer = buffer[at:]
        return found

    def _find_offset(self, header: bytes) -> int:
        at = header.find(_NAME) + len(_NAME)
        if header.count(_NAME) == 1 and header[at : at + 1] in (b"l", b"L"):
            return int(_OFFSET.unpack_from(header, at + 1)[0])
        return self._parse_offset(header[_CONTENT.size :])  # somebody else wrote the name into a header
