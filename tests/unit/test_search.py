"""The words of a search."""

from __future__ import annotations

import pytest

from celery_rabbit_delay.schedule.core.search import Word, parse


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("  ", []),
        ("mail task:remind", [("", "mail"), ("task", "remind")]),
        ('args:"two words" id:7', [("args", "two words"), ("id", "7")]),
        ("{'a': 1}", [("", "{'a':"), ("", "1}")]),
        ('task: other:x "', [("", "task:"), ("", "other:x"), ("", '"')]),
    ],
)
def test_words_are_apart_unless_they_are_quoted_and_may_have_a_field(text: str, words: list[tuple[str, str]]) -> None:
    assert parse(text) == words


@pytest.mark.parametrize(
    ("field", "text", "is_found"),
    [
        ("", "AB", True),
        ("", "bc", False),
        ("id", "ab", True),
        ("id", "remind", False),
        ("", "MIND", True),
        ("task", "mind", True),
        ("task", "mail", False),
        ("queue", "ai", True),
        ("args", "(4", True),
        ("", "42", True),
    ],
)
def test_a_word_is_the_beginning_of_an_id_or_a_part_of_the_others(field: str, text: str, is_found: bool) -> None:
    message = {"id": "abc", "task": "shop.Remind", "queue": "mail", "args": "(42,)"}
    assert Word(field, text).is_in(message) is is_found
