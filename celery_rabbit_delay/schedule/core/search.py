"""What somebody searches for among waiting messages or periodic entries: words, each anywhere or in a field. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

T = TypeVar("T")

#: The fields of a message, and of a periodic entry; an id is found by its beginning, the others by any part.
FIELDS = ("id", "task", "queue", "args")
ENTRY_FIELDS = ("entry", "task", "queue", "args")


class Word(NamedTuple):
    """A text to be found in a field; "" is all of them."""

    field: str
    text: str

    def is_in(self, values: Mapping[str, str]) -> bool:
        """Return whether something has the word in a field, by the fields' names, in upper or lower case."""
        text = self.text.casefold()
        return any(
            value.casefold().startswith(text) if name == "id" else text in value.casefold()
            for name, value in values.items()
            if self.field in ("", name)
        )


def matching(words: Collection[Word], things: Iterable[T], values_of: Callable[[T], Mapping[str, str]]) -> Iterator[T]:
    """Yield those of some things that have all of some words; `values_of` returns the texts of one by their fields."""
    for one in things:
        values = values_of(one) if words else {}
        if all(word.is_in(values) for word in words):
            yield one


def parse(text: str, fields: tuple[str, ...] = FIELDS) -> list[Word]:
    """Return the words of a search, all of which are to be found: `mail task:remind args:"two words"`."""
    found = re.findall(rf'(?:({"|".join(fields)}):)?(?:"([^"]+)"|(\S+))', text)
    return [Word(field or "", quoted or plain) for field, quoted, plain in found]
