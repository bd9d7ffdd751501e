"""What somebody searches for among waiting messages or periodic entries: words, each anywhere in their text. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def parse(text: str) -> list[str]:
    """Return the words of a search, all of which are to be found, in upper or lower case: `mail "two words"`."""
    return [quoted or plain for quoted, plain in re.findall(r'"([^"]+)"|(\S+)', text.casefold())]


def matching(words: Collection[str], things: Iterable[T], text_of: Callable[[T], str]) -> Iterator[T]:
    """Yield those of some things whose texts have all of some words."""
    for one in things:
        text = text_of(one).casefold() if words else ""
        if all(word in text for word in words):
            yield one
