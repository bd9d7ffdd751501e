"""The table of what releases of RabbitMQ do is the only place where tests tell them apart."""

from __future__ import annotations

import re
from pathlib import Path

from tests.kit.abilities import Ability

TESTS = Path(__file__).parents[1]


def test_a_release_between_two_that_are_tested_has_what_belongs_to_it() -> None:
    def of(*version: int) -> set[str]:
        return {ability.name for ability in Ability if ability.is_in(version)}

    assert of(3, 10, 8) == set()
    assert of(3, 13, 7) == of(3, 12, 14) | {"DENIES_TRANSIENT_QUEUES"}
    assert of(4, 0, 5) == of(4, 1, 8)
    assert "HOLDS_UP_LOW_PRIORITIES" in of(4, 2, 9) - of(4, 3, 0)
    assert "HIDES_WHAT_ONE_MAY_NOT_USE" in of(4, 2, 9) - of(4, 2, 5)


def test_no_test_asks_for_the_release_itself() -> None:
    asks = re.compile(r"(?:\.version|server_version)\b *(?:[<>]=?|\[)|[<>]=? *\w[\w.]*\.(?:version|server_version)\b")
    found = [
        path.name
        for tier in ("integration", "acceptance")
        for path in (TESTS / tier).glob("*.py")
        if asks.search(path.read_text())
    ]
    assert found == []
