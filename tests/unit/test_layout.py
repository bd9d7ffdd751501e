"""The layout on a broker outlives a release, so it changes only together with its number."""

from __future__ import annotations

import json

from celery_rabbit_delay.delay.core.names import LAYOUT
from tools import layout

CHANGED = (
    "layout changed: raise LAYOUT in names.py, and tell users in CHANGELOG.md and docs/deployment.md how a later "
    "layout takes the place of an earlier one; then run `make layout`. While no release has this LAYOUT yet, `make "
    "layout` is enough."
)


def test_the_layout_changes_only_together_with_its_number() -> None:
    written = json.loads(layout.PATH.read_text())
    assert written["layout"] == LAYOUT, "LAYOUT was raised: run `make layout`"
    # As text: the order of declaring counts, too.
    assert layout.PATH.read_text() == layout.text(), CHANGED
