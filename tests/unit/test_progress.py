"""The progress bar of a list that takes longer than a second."""

from __future__ import annotations

import time

import pytest

from celery_rabbit_delay.cli import tasks


def test_a_bar_is_shown_after_a_second_and_not_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with tasks._progress() as progress:
        progress(1, 10)
        assert capsys.readouterr().err == ""
        now += 1.5
        progress(5, 10)
        progress(10, 10)
    found = capsys.readouterr()
    assert "reading" in found.err
    assert found.out == ""
