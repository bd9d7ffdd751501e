"""The layout on a broker outlives a release, so it changes only together with its number."""

from __future__ import annotations

import json

import click
import pytest

from celery_rabbit_delay.cli import delay
from celery_rabbit_delay.core import layouts
from celery_rabbit_delay.core.topology import LAYOUT
from tools import layout

UPGRADING = layout.PATH.parents[2] / "docs" / "upgrading.md"

CHANGED = (
    "layout changed: raise LAYOUT in core/topology.py, describe the earlier one in core/layouts.py, write an upgrade "
    "note in docs/upgrading.md, then run `make layout`. While no release has this LAYOUT yet, `make layout` is enough."
)

EARLIER = range(1, LAYOUT)


def test_the_layout_changes_only_together_with_its_number() -> None:
    written = json.loads(layout.PATH.read_text())
    assert written["layout"] == LAYOUT, "LAYOUT was raised: run `make layout`"
    # As text: the order of declaring counts, too.
    assert layout.PATH.read_text() == layout.text(), CHANGED


@pytest.mark.parametrize("number", EARLIER)
def test_each_earlier_layout_is_described(number: int) -> None:
    assert getattr(layouts, f"Layout{number}").layout == number


@pytest.mark.parametrize("number", EARLIER)
def test_each_earlier_layout_has_an_upgrade_note_with_its_commands(number: int) -> None:
    heading, _, note = UPGRADING.read_text().partition(f"\n## From layout {number} to {number + 1}\n")
    note = note.split("\n## ")[0]
    assert note, heading
    assert f"migrate --from-layout {number}" in note
    assert f"teardown --layout {number}" in note


def test_the_commands_know_each_earlier_layout() -> None:
    numbers = [str(number) for number in EARLIER]
    for command, option in (("migrate", "from_layout"), ("teardown", "layout")):
        [found] = [one for one in delay.commands[command].params if one.name == option]
        assert isinstance(found.type, click.Choice)
        assert list(found.type.choices) == numbers
