"""When something was sent, and by which clock: a cancellation counts for what was sent before it. Pure."""

from __future__ import annotations

import struct
from typing import NamedTuple

#: Seconds by which the clocks of two hosts may differ. What was sent so soon after a cancellation counts as cancelled,
#: unless both were sent on the same host.
CLOCKS_DIFFER = 5

_PACKED = struct.Struct(">Q8s")

#: Bytes of a moment that is packed.
SIZE = _PACKED.size


class Sent(NamedTuple):
    """A moment by the clock of the host where a message or a cancellation was sent."""

    at: int  # microseconds since 1970
    clock: str = ""  # 8 characters at most that tell the clock from those of other hosts; "": unknown

    def __str__(self) -> str:
        return f"{self.at}@{self.clock}"

    @classmethod
    def read(cls, text: object) -> Sent | None:
        """Return what `str` has written; None for anything else: whoever sends a message chooses its headers."""
        at, found, clock = text.partition("@") if isinstance(text, str) else ("", "", "")
        return cls(int(at), clock) if found and len(at) <= 20 and at.isascii() and at.isdigit() else None

    def pack(self) -> bytes:
        return _PACKED.pack(self.at, self.clock.encode())

    @classmethod
    def unpack(cls, packed: bytes) -> Sent:
        """Return what `pack` has written. Raises `struct.error`."""
        at, clock = _PACKED.unpack(packed)
        return cls(at, clock.rstrip(b"\0").decode(errors="replace"))

    def may_precede(self, cancelled: Sent) -> bool:
        """Return whether a message that was sent at this moment may have been sent before it was cancelled."""
        differ = 0 if self.clock and self.clock == cancelled.clock else CLOCKS_DIFFER * 1_000_000
        return self.at <= cancelled.at + differ
