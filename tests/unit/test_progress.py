"""The progress bar of a list that takes longer than a second."""

from __future__ import annotations

import sys
import time

import pytest

from celery_rabbit_delay.cli.output import progress


def test_a_bar_is_shown_after_a_second_and_not_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, is_terminal = 100.0, True
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with progress("reading") as show:
        show(1, 10)
        assert capsys.readouterr().err == ""
        now += 1.5
        show(5, 10)
        show(10, 10)
    found = capsys.readouterr()
    assert "reading" in found.err
    assert found.out == ""
    is_terminal = False
    with progress("reading") as show:
        now += 1.5
        show(5, 10)
    assert capsys.readouterr().err == ""  # a label alone would tell a script nothing
