"""What somebody searches for among waiting messages: words, each anywhere or in a field. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

#: The fields of a message; an id is found by its beginning, the others by any part. "" is all of them.
FIELDS = ("id", "task", "queue", "args")

_WORD = re.compile(rf'(?:({"|".join(FIELDS)}):)?(?:"([^"]+)"|(\S+))')


class Word(NamedTuple):
    """A text to be found in a field."""

    field: str
    text: str

    def is_in(self, id_: str, task: str, queue: str, arguments: str) -> bool:
        """Return whether a message has the word, in upper or lower case."""
        text = self.text.casefold()
        values = dict(zip(FIELDS, (id_, task, queue, arguments), strict=True))
        return any(
            value.casefold().startswith(text) if name == "id" else text in value.casefold()
            for name, value in values.items()
            if self.field in ("", name)
        )


def parse(text: str) -> list[Word]:
    """Return the words of a search, all of which are to be found: `mail task:remind args:"two words"`."""
    return [Word(field or "", quoted or plain) for field, quoted, plain in _WORD.findall(text)]
