"""The words of a search."""

from __future__ import annotations

import pytest

from celery_rabbit_delay.schedule.core.search import matching, parse


@pytest.mark.parametrize(
    ("text", "words"), [("", []), ("  ", []), ('Mail "Two words" "', ["mail", "two words", '"']), ("a:1", ["a:1"])]
)
def test_words_are_apart_unless_they_are_quoted(text: str, words: list[str]) -> None:
    assert parse(text) == words


@pytest.mark.parametrize(
    ("text", "found"), [("", ["Abc mail", "def"]), ("AB ail", ["Abc mail"]), ('"c mail"', ["Abc mail"]), ("ab de", [])]
)
def test_all_words_are_found_anywhere(text: str, found: list[str]) -> None:
    assert list(matching(parse(text), ["Abc mail", "def"], str)) == found
