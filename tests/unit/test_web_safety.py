from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay.web.printing import body_text, printable
from celery_rabbit_delay.web.safety import Passwords, is_known, is_loopback, same


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]"])
def test_the_loopback_is_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "example.com", "localhost.example.com", "*"])
def test_anything_else_may_be_reached_by_others(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("header", "listening", "known"),
    [
        ("localhost:5566", "127.0.0.1", True),
        ("[::1]:5566", "::1", True),
        ("LOCALHOST.", "127.0.0.1", True),
        ("Delays.example.com:80", "127.0.0.1", True),
        ("evil.example.com", "127.0.0.1", False),
        ("localhost.evil.org", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        ("10.0.0.1:5566", "127.0.0.1", False),
        ("10.0.0.1:5566", "0.0.0.0", True),
        ("evil.example.com", "0.0.0.0", False),
        ("[::1", "127.0.0.1", False),
        ("[::1].evil.example.com:5566", "127.0.0.1", False),
        ("[::1]]:5566", "::1", False),
        ("127.0.0.1:evil.example.com", "127.0.0.1", False),
        ("[localhost]", "127.0.0.1", False),
    ],
)
def test_only_names_that_were_told_and_addresses_are_known(header: str, listening: str, known: bool) -> None:
    assert is_known(header, listening, ["delays.example.com"]) == known


def test_secrets_are_compared_whatever_is_in_them() -> None:
    assert same("ü\ud800", "ü\ud800")
    assert not same("", "x")


def test_who_sends_wrong_passwords_has_to_wait_and_nobody_else() -> None:
    moment = 0.0
    passwords = Passwords("sesame", lambda: moment)
    assert [passwords.accept("a", "wrong") for _ in range(10)] == [False] * 10
    assert passwords.is_blocked("a")
    assert not passwords.accept("a", "sesame")
    assert passwords.accept("b", "sesame")
    moment = 61
    assert not passwords.is_blocked("a")
    assert passwords.accept("a", "sesame")


def test_not_every_address_is_remembered() -> None:
    passwords = Passwords("sesame", lambda: 0.0)
    for number in range(10_050):
        passwords.accept(str(number), "wrong")
    assert len(passwords._wrong) == 10_000


@given(st.text(), st.integers(1, 50))
def test_nothing_that_cannot_be_seen_is_shown(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    if text.isprintable() and len(text) <= limit:
        assert shown == text


def test_what_is_long_is_cut_and_says_so() -> None:
    assert printable("x" * 30, 10) == "x" * 10 + "… (20 more characters)"
    assert printable(["\x1b"]) == "['\\\\x1b']".replace("\\\\", "\\")
    assert body_text(b"\xff\x00<", 10) == "\ufffd\\x00<"
    assert body_text(b"x" * 30, 10) == "x" * 10 + "… (30 bytes)"
