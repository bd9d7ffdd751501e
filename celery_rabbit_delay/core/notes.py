"""Who has changed what, as the stream of changes tells people. No worker looks at it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from .changes import check_size
from .streams import reading
from .text import counted

_NOTE = b"n"

#: The ids that a note names, and the most characters of a text in it.
_NAMED, _LONGEST = 3, 255

#: A time that no clock shows, and every program can: in the year 6429.
_LATEST = 1 << 47


class Note(NamedTuple):
    """A change that somebody has made."""

    at: int  # milliseconds since 1970, by the clock of who did it
    who: str  # a user and a host, with a program if it called this package; or a user of the page
    what: str
    amount: int  # of tasks, workflows or orphans
    ids: tuple[str, ...]  # the first ones

    def __str__(self) -> str:
        """Return what was done, to how many, and to which."""
        ids = ", ".join((*self.ids, "…") if len(self.ids) < self.amount else self.ids)
        return counted(self.amount, self.what) + (f": {ids}" if ids else "")


def note(at: int, who: str, what: str, amount: int, ids: Iterable[str] = ()) -> bytes:
    """Return a message for the stream of changes."""
    texts = [text[:_LONGEST] for text in (who, what, *islice(ids, _NAMED))]
    return _NOTE + json.dumps([at, *texts[:2], amount, texts[2:]]).encode()


@reading
def read(message: bytes) -> list[Note]:
    """Return the note in a message of the stream; none if the message has another kind. Raises `Unreadable`."""
    if message[:1] != _NOTE:
        return []
    check_size(message)
    at, by, what, amount, named = json.loads(message[1:])
    if not 0 <= at < _LATEST:
        raise ValueError(f"it is of {at}")
    by, what, *ids = (str(text)[:_LONGEST] for text in (by, what, *named[:_NAMED]))
    return [Note(int(at), by, what, int(amount), tuple(ids))]
