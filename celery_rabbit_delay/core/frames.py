"""Decodes received messages from the bytes of an AMQP 0-9-1 connection (clause 4.2.3). Pure.

py-amqp decodes each of a message's three frames in some fifty calls, but a stream reader needs only two values. py-amqp
also fails on text that is not UTF-8 and on times that Python cannot represent, which RabbitMQ lets publishers send.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from .wire import encode_properties

_FRAME = Struct(">BHI")  # type, channel, length
_CONTENT = Struct(">HHQ")  # class, weight, length of the body
_OFFSET = Struct(">q")
METHOD, HEADER, _BODY = 1, 2, 3
_END = b"\xce"
_DELIVER, _GET_OK = b"\x00\x3c\x00\x3c", b"\x00\x3c\x00\x47"  # basic.deliver, basic.get-ok

#: The header that RabbitMQ adds to each message of a stream: a short string and a 64-bit number.
_NAME = b"\x0fx-stream-offset"

#: The header that marks a message as a placeholder for an unreadable one.
UNREADABLE = "x-unreadable"


class UnexpectedMethod(Exception):
    """The broker sent another method; the argument has its bytes."""


class Deliveries:
    """Takes bytes as they arrive, and returns the messages that are complete."""

    def __init__(self, parse_offset: Callable[[bytes], int]) -> None:
        """Use `parse_offset` to find an offset in properties (clause 4.2.6.1) that `find_offset` cannot find."""
        #: The number of received frames without heartbeats.
        self.frames = 0
        self._parse_offset = parse_offset
        self._buffer = b""
        self._offset = -1
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
            self.frames += kind in (METHOD, HEADER, _BODY)
            if kind == METHOD:
                if not buffer.startswith(_DELIVER, start):
                    raise UnexpectedMethod(buffer[start:end])
                continue
            if kind == HEADER:
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
        offset = find_offset(header)
        if offset is not None:
            return offset
        try:
            return self._parse_offset(properties_of(header))
        except Exception:  # the properties are unreadable
            return self._offset + 1


def properties_of(header: bytes) -> bytes:
    """Return the properties in a content header (clause 4.2.6.1)."""
    return header[_CONTENT.size :]


def bare(header: bytes) -> bytes:
    """Return a content header without properties."""
    return header[: _CONTENT.size] + b"\0\0"


def find_offset(header: bytes) -> int | None:
    """Return the offset of a message of a stream, out of its content header.

    None if there is none, or if the sender wrote the name into a header, too.
    """
    at = header.find(_NAME) + len(_NAME)
    offset = header[at + 1 : at + 1 + _OFFSET.size]
    if header.count(_NAME) == 1 and header[at : at + 1] in (b"l", b"L") and len(offset) == _OFFSET.size:
        return int(_OFFSET.unpack(offset)[0])
    return None


def without_properties(header: bytes) -> bytes:
    """Return a placeholder for an unreadable content header, marked as such, with the offset in a stream if known."""
    offset = find_offset(header)
    headers = {UNREADABLE: True} if offset is None else {UNREADABLE: True, "x-stream-offset": offset}
    return header[: _CONTENT.size] + encode_properties({"application_headers": headers})


def with_text(method: bytes) -> bytes:
    """Return basic.deliver or basic.get-ok with an exchange and a routing key that are valid UTF-8.

    Any other method is returned as it is.
    """
    if method.startswith(_DELIVER):
        at = 4 + 1 + method[4] + 9  # the consumer's tag, the delivery's, and whether it is redelivered
    elif method.startswith(_GET_OK):
        at = 4 + 9
    else:
        return method
    end, names = at, b""
    for _ in range(2):
        start, end = end + 1, end + 1 + method[end]
        name = method[start:end].decode(errors="ignore").encode()
        names += bytes((len(name),)) + name
    return method[:at] + names + method[end:]
