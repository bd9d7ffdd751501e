from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_rabbit_delay import InvalidDestination
from celery_rabbit_delay.delay.core import routing_key
from celery_rabbit_delay.delay.core.destination import (
    SHORT_LIVED,
    Destination,
    check_key,
    is_short_lived,
    of,
)
from celery_rabbit_delay.delay.core.options import TEN_YEARS
from celery_rabbit_delay.delay.core.routing_key import MAX_LENGTH
from celery_rabbit_delay.delay.core.topology import Cascade
from celery_rabbit_delay.operate.addresses import Address, is_match, read

CASCADE = Cascade("t", timedelta(milliseconds=1), powers=49)
UUID = "5a4d6f0c-6c0e-4a0e-9f0a-7a8b9c0d1e2f"

names = st.text(min_size=1, max_size=255)
destinations = (st.builds(Destination, st.just(""), names) | st.builds(Destination, names, st.none() | names)).filter(
    lambda one: not one.is_short_lived
)
delays = st.integers(0, int(TEN_YEARS * 1000) * 30)


@pytest.mark.parametrize(
    ("destination", "delay", "address"),
    [
        (Destination("", "celery"), 0, "@.+celery"),
        (Destination("", "a.b+c"), 0, "@.+a%2Eb%2Bc"),
        (Destination("", "celery"), 60_000, "@.60s.+celery"),
        (Destination("", "celery"), 1, "@.1ms.+celery"),
        (Destination("orders"), 0, "@.orders+"),
        (Destination("orders", "new"), 1125, "@.1125ms.orders+new"),
        (Destination("", "amq.gen-1"), 0, SHORT_LIVED),
        (Destination("", "amq.gen-1"), 60_000, SHORT_LIVED),
    ],
)
def test_the_address_of_an_outbox_says_its_destination_and_its_delay(
    destination: Destination, delay: int, address: str
) -> None:
    assert destination.address(delay) == address
    assert read(address) == (None if address == SHORT_LIVED else Address(delay, destination))


@given(destinations, delays)
@example(Destination("", "short-lived"), 0)
@example(Destination("60s.", "\n"), 60_000)
def test_every_address_is_read_back_and_no_binding_takes_it_for_a_pattern(destination: Destination, delay: int) -> None:
    address = destination.address(delay)
    assert read(address) == Address(delay, destination)
    assert not set(address) & set("*#")


@given(destinations, delays, destinations, delays)
@example(Destination("a", "b"), 0, Destination("", "a+b"), 0)
@example(Destination("", "a.b"), 0, Destination("", "a%2Eb"), 0)
def test_different_outboxes_have_different_addresses(
    one: Destination, delay: int, other: Destination, its: int
) -> None:
    assert (one.address(delay) == other.address(its)) == ((one, delay) == (other, its))


@given(destinations, delays, st.integers(0, 48), st.integers(0, 48))
def test_no_level_takes_an_address_for_a_delay(destination: Destination, delay: int, level: int, lower: int) -> None:
    one, other = CASCADE.levels[level], CASCADE.levels[lower]
    patterns = routing_key.entry_pattern(one), routing_key.next_pattern(one, other), routing_key.exit_pattern(one)
    for address in (destination.address(delay), SHORT_LIVED):
        assert not any(is_match("topic", pattern, address) for pattern in patterns)


@pytest.mark.parametrize(
    "key",
    [
        *("", "@", "@.", "@.celery", "@.^9", "@.^9.^4", "+celery", "x.+celery", "@.60s.celery", "@.short-lived"),
        "@+celery",
    ],
)
def test_what_is_no_address_is_not_read_as_one(key: str) -> None:
    assert read(key) is None


@pytest.mark.parametrize("mark", ["0s.", "01s.", "60.", "60ms", "60sms.", "-1s.", "\u0661s.", "99999999999999s.", "="])
def test_a_delay_that_no_outbox_has_is_read_as_the_name_of_an_exchange(mark: str) -> None:
    assert read(f"@.{mark}+q") == Address(0, Destination(mark, "q"))


def test_a_destination_says_what_it_is() -> None:
    assert str(Destination("", "q")) == "queue 'q'"
    assert str(Destination("orders")) == "exchange 'orders'"
    assert str(Destination("orders", "new")) == "exchange 'orders' with the routing key 'new'"


@pytest.mark.parametrize(
    ("queue", "short_lived"),
    [
        ("celery", False),
        ("amq.gen-abc", True),
        (UUID, True),
        (UUID.replace("-", "").upper(), True),
        (f"{UUID}.reply.celery@host", True),
        ("worker@host.dq2", True),
        (f"celery-rabbit-delay.probe.{UUID}", True),
        (f"orders.{UUID}", False),  # as of a tenant: it may last
        ("amq", False),
        ("dq2", False),
        ("", False),
    ],
)
def test_queues_are_short_lived_by_their_names(queue: str, short_lived: bool) -> None:
    assert is_short_lived(queue) is Destination("", queue).is_short_lived is short_lived
    assert not Destination(queue or "x", queue).is_short_lived, "an exchange is not"


BOUND = {("orders", "new"), ("orders", ""), ("orders", "@.^1")}


@pytest.mark.parametrize(
    ("exchange", "key", "destination"),
    [
        ("", "q", Destination("", "q")),
        ("", "@.^1", Destination("", "@.^1")),  # a queue may have any name
        ("orders", "new", Destination("orders", "new")),
        ("orders", "@.^1", Destination("orders", "@.^1")),
        ("orders", "old", Destination("orders")),
        ("orders", "", Destination("orders")),
        ("others", "new", Destination("others")),
    ],
)
def test_a_message_goes_to_a_queue_a_bound_key_or_an_exchange(
    exchange: str, key: str, destination: Destination
) -> None:
    assert of(exchange, key, BOUND) == destination


@pytest.mark.parametrize(
    ("exchange", "key", "error"),
    [
        ("", "", "the routing key is empty"),
        ("orders", "@.^1", "begins with the word '@'"),
        ("orders", "@", "begins with the word '@'"),
        ("orders", "x" * 256, r"the routing key 'x+'\.\.\. has 256 bytes: use at most 255"),
        ("x" * 256, "new", r"the exchange 'x+'\.\.\. has 256 bytes: use at most 255"),
        ("\ud800", "new", r"the exchange '\\ud800' is not valid text"),
    ],
)
def test_a_message_that_cannot_wait_is_an_error_that_says_why(exchange: str, key: str, error: str) -> None:
    with pytest.raises(InvalidDestination, match=error):
        of(exchange, key)
    check_key("x" * 255)


@pytest.mark.parametrize("prefix", ["t", "p" * 150, "ü" * 75], ids=["short", "long", "of more bytes than letters"])
@pytest.mark.parametrize("exchange", [False, True])
def test_a_name_that_is_too_long_is_an_error_that_says_how_long_it_may_be(prefix: str, exchange: bool) -> None:
    cascade = replace(CASCADE, prefix=prefix)
    with pytest.raises(InvalidDestination, match=r"is too long for delayed messages.*it may have \d+ char") as error:
        cascade.outbox_name(Destination("x" * 255) if exchange else Destination("", "x" * 255))
    most = int(str(error.value).split("it may have ")[1].split()[0])
    for size in (most, most + 1):
        destination = Destination("x" * size) if exchange else Destination("", "x" * size)
        if size == most:
            longest = cascade.outbox_name(destination, 9_999_999_999_999)
            assert len(longest.encode()) == MAX_LENGTH
            assert len(destination.address(9_999_999_999_999).encode()) <= MAX_LENGTH
        else:
            with pytest.raises(InvalidDestination, match="is too long"):
                cascade.outbox_name(destination)
    with pytest.raises(InvalidDestination, match="is too long"):
        cascade.outbox_name(Destination("", "." * most))  # each has three characters in the name


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("#", ["", "a", "a.b"], []),
        ("a.#", ["a", "a.b", "a.b.c"], ["b", "ab", ""]),
        ("a.*", ["a.b"], ["a", "a.b.c"]),
        ("#.z", ["z", "a.z", "a.b.z"], ["z.a"]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z"], ["a", "z", "a.z.b.c"]),
        ("a.#.b.c.#", ["a.b.c", "a.b.b.c"], []),
        ("a.b", ["a.b"], ["a", "a.c"]),
    ],
)
def test_topic_exchanges_route_by_words(pattern: str, matching: list[str], others: list[str]) -> None:
    assert all(is_match("topic", pattern, key) for key in matching)
    assert not any(is_match("topic", pattern, key) for key in others)
