from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_rabbit_delay import InvalidDestination
from celery_rabbit_delay.core import routing_key
from celery_rabbit_delay.core.destination import (
    SHORT_LIVED,
    Address,
    Declarations,
    Destination,
    check_key,
    decode,
    encode,
    is_address,
    is_match,
    is_short_lived,
    read,
)
from celery_rabbit_delay.core.options import TEN_YEARS
from celery_rabbit_delay.core.routing_key import MAX_LENGTH
from celery_rabbit_delay.core.topology import Cascade

LEVELS = Cascade("t", timedelta(milliseconds=1), powers=49).levels
UUID = "5a4d6f0c-6c0e-4a0e-9f0a-7a8b9c0d1e2f"

names = st.text(max_size=255).filter(lambda s: len(s.encode("utf-8", "surrogatepass")) <= 255)
addresses = st.lists(names, min_size=1, max_size=4).map(tuple)


marks = st.sampled_from(["", "=", "60s.", "125ms.", "315360000s."])


def test_addresses_can_be_read() -> None:
    assert Destination("", ("celery",)).address == "@.=+celery"
    assert Destination("", ("celery",), short_lived=True).address == "@.=+celery"
    assert Destination("", ("a.b", "c")).address == "@.=+a%2Eb+c"
    assert Destination("orders").address == Destination("orders", key="new").address == "@.=orders+"


def test_an_address_that_would_be_too_long_for_amqp_is_a_hash() -> None:
    longest = MAX_LENGTH - len("@.9999999999999ms.") - len("+")
    for mark in ("", "=", "60s."):
        assert encode("", "x" * longest, mark=mark) == f"@.{mark}+{'x' * longest}"
        digest = hashlib.sha256(b"+" + b"x" * (longest + 1)).hexdigest()
        assert encode("", "x" * (longest + 1), mark=mark) == f"@.{mark}!{digest}"
    assert decode(encode("", "x" * longest)) == ("", "x" * longest)
    assert decode(encode("", "x" * (longest + 1))) is None


def test_an_outbox_is_for_a_queue_an_exchange_a_key_of_it_or_all_short_lived_queues() -> None:
    assert Destination("", ("celery",)).outbox_address() == "@.+celery"
    assert Destination("orders").outbox_address() == "@.orders+"
    assert Destination("orders", key="new").outbox_address() == "@.orders+new"
    assert Destination("", ("amq.gen-1",), short_lived=True).outbox_address() == SHORT_LIVED


def test_an_outbox_with_a_delay_says_its_delay() -> None:
    assert Destination("", ("celery",)).outbox_address(60_000) == "@.60s.+celery"
    assert Destination("", ("celery",)).outbox_address(1) == "@.1ms.+celery"
    assert Destination("orders", key="new").outbox_address(1125) == "@.1125ms.orders+new"
    assert Destination("", ("amq.gen-1",), short_lived=True).outbox_address(60_000) == SHORT_LIVED


@given(st.integers(0, int(TEN_YEARS * 1000) * 30), names, names)
def test_an_address_of_an_outbox_is_read_back_and_fits_into_amqp(delay: int, exchange: str, key: str) -> None:
    destination = Destination(exchange, key=key) if exchange else Destination("", (key or "q",))
    address = destination.outbox_address(delay)
    assert len(address.encode()) <= MAX_LENGTH
    found = read(address)
    assert found is not None
    assert found.delay == delay
    assert found.names in (None, (exchange, key or ("" if exchange else "q")))
    assert address == encode(*found.names, mark=found.mark) if found.names else "!" in address
    itself = read(destination.address)
    assert itself is not None
    assert (itself.mark, itself.delay) == ("=", 0)


@pytest.mark.parametrize(
    "key",
    [
        *("", "@", "@.", "@.celery", "@.^9", "@.^9.^4", "+celery", "x.+celery", "@.x.+celery", "@.=", "@.60s.celery"),
        *("@.0s.+q", "@.01s.+q", "@.60.+q", "@.60ms+q.", "@.60sms.+q", "@.-1s.+q", "@.\u0661s.+q", "@.60s.60s.celery"),
        "@.99999999999999s.+q",
    ],
)
def test_what_is_no_address_is_not_read_as_one(key: str) -> None:
    found = read(key)
    assert found is None or found.mark == "", "a name may contain anything"
    assert read(SHORT_LIVED) is None
    assert decode(SHORT_LIVED) is None


def test_a_key_is_an_address_if_it_names_something_or_is_a_hash() -> None:
    for key in ("@.+celery", "@.60s.+celery", "@.=orders+", "@.!0", "@.=!0"):
        assert is_address(key)
    for key in ("@.^9.^4", "@", "celery", "+celery", "@+celery"):
        assert not is_address(key)
    assert read("@.60s.!0") == Address("60s.", None)


def test_who_has_not_declared_a_queue_goes_by_its_name() -> None:
    for short_lived in (True, False):
        assert Destination("", ("reply",), short_lived=short_lived).by_name == Destination("", ("reply",))
        assert Destination("", (UUID,), short_lived=short_lived).by_name == Destination("", (UUID,), short_lived=True)
    assert Destination("orders", key="new").by_name == Destination("orders", key="new")


def test_a_destination_says_what_it_is() -> None:
    assert str(Destination("", ("a", "b"))) == "queue 'a', 'b'"
    assert str(Destination("orders")) == "exchange 'orders'"
    assert str(Destination("orders", key="new")) == "exchange 'orders' with the routing key 'new'"


@given(addresses, addresses, marks, marks)
def test_different_names_have_different_addresses(
    one: tuple[str, ...], other: tuple[str, ...], mark: str, other_mark: str
) -> None:
    address = encode(*one, mark=mark)
    assert not set(address) & set("*#")
    assert address.startswith(f"@.{mark}")
    assert address.count(".") == 1 + mark.count(".")
    assert len(address.encode()) <= MAX_LENGTH
    assert address != SHORT_LIVED or one == ("short-lived",)
    assert (address == encode(*other, mark=other_mark)) == ((one, mark) == (other, other_mark))


@given(st.tuples(names, names), marks)
@example(("", "x" * 253), "")
def test_an_address_can_be_decoded_unless_it_is_a_hash(pair: tuple[str, str], mark: str) -> None:
    address = encode(*pair, mark=mark)
    assert decode(address) == (None if address.startswith(f"@.{mark}!") else pair)
    assert read(address) == Address(mark, decode(address))


@given(addresses, marks, st.integers(0, 48), st.integers(0, 48))
def test_no_level_takes_an_address_for_a_delay(destination: tuple[str, ...], mark: str, level: int, lower: int) -> None:
    one, other = LEVELS[level], LEVELS[lower]
    patterns = [
        routing_key.entry_pattern(one),
        routing_key.next_pattern(one, other),
        routing_key.exit_pattern(one),
    ]
    for address in (encode(*destination, mark=mark), SHORT_LIVED):
        assert not any(is_match("topic", pattern, address) for pattern in patterns)


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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b"), ("", "a", "b")),
        (("a+b", ""), ("a", "b")),
        (("", "a.b"), ("", "a%2Eb")),
        (("!" + "0" * 64, ""), ("%21" + "0" * 64, "")),
    ],
)
def test_names_that_use_our_separators_do_not_collide(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert encode(*one) != encode(*other)


@pytest.mark.parametrize(
    ("queue", "short_lived"),
    [
        ("celery", False),
        ("amq.gen-abc", True),
        (f"reply.{UUID}", True),
        (UUID.replace("-", "").upper(), True),
        ("1", False),
    ],
)
def test_names_that_the_broker_chose_or_that_hold_a_uuid_are_those_of_short_lived_queues(
    queue: str, short_lived: bool
) -> None:
    assert is_short_lived(queue) is short_lived
    assert Declarations().destination("", (queue,)).short_lived is short_lived


def test_how_a_queue_was_declared_counts_more_than_its_name() -> None:
    declarations = Declarations()
    declarations.add_queue(UUID, lasting=True)
    declarations.add_queue("reply", lasting=False)
    assert not declarations.destination("", (UUID,)).short_lived
    assert declarations.destination("", ("reply",)).short_lived


def test_who_makes_no_outboxes_takes_a_queue_for_short_lived_only_if_it_was_declared_so() -> None:
    declarations = Declarations()
    declarations.add_queue("reply", lasting=False)
    assert declarations.destination("", ("reply",), passive=True).short_lived
    assert not declarations.destination("", (UUID,), passive=True).short_lived


def test_reply_queues_without_number_are_not_all_remembered() -> None:
    declarations = Declarations()
    for number in range(10_001):
        declarations.add_queue("lasts", lasting=True)
        declarations.add_queue(f"reply-{number}", lasting=False)
        declarations.add_queue("again", lasting=False)
    known = [declarations.destination("", (f"reply-{number}",)).short_lived for number in range(10_001)]
    assert sum(known) == 10_000 - len(["lasts", "again"])
    assert declarations.destination("", ("again",)).short_lived
    assert declarations.destination("", ("reply-10000",)).short_lived
    assert not declarations.destination("", ("reply-0",)).short_lived
    declarations.add_queue("again", lasting=True)
    assert not declarations.destination("", ("again",)).short_lived


def test_the_queues_of_a_message_are_its_keys_each_once() -> None:
    assert Declarations().destination("", ("a", "b", "a")) == Destination("", ("a", "b"))


def test_an_empty_routing_key_is_no_queue() -> None:
    with pytest.raises(InvalidDestination, match="routing key is empty"):
        Declarations().destination("", ("",))
    assert Declarations().destination("orders", ("",)) == Destination("orders")


def test_a_key_that_a_queue_is_bound_with_has_an_outbox_of_its_own() -> None:
    declarations = Declarations()
    declarations.add_binding("q", "orders", "new")
    declarations.add_binding("celery", "", "celery")
    assert declarations.destination("orders", ("new",)) == Destination("orders", key="new")
    assert declarations.destination("orders", ("new", "cc")) == Destination("orders"), "the queue of cc may be full"
    assert declarations.destination("orders", ("old",)) == Destination("orders")
    assert declarations.destination("others", ("new",)) == Destination("others")


@pytest.mark.parametrize("queue", ["reply", "amq.gen-abc", f"reply.{UUID}"])
def test_a_key_of_a_short_lived_queue_has_none(queue: str) -> None:
    declarations = Declarations()
    declarations.add_queue("reply", lasting=False)
    declarations.add_binding(queue, "orders", queue)
    assert declarations.destination("orders", (queue,)) == Destination("orders")
    declarations.add_binding("q", "orders", queue)
    assert declarations.destination("orders", (queue,)) == Destination("orders", key=queue)


def test_a_fanout_exchange_has_one_outbox() -> None:
    declarations = Declarations()
    declarations.add_exchange("news", "fanout")
    declarations.add_exchange("orders", "direct")
    declarations.add_binding("q", "news", "new")
    assert declarations.destination("news", ("new",)) == Destination("news", fanout=True)
    assert not declarations.destination("orders", ("new",)).fanout
    assert declarations.destination("amq.fanout", ("new",)).fanout, "though nobody declares it"


def test_a_key_that_amqp_cannot_carry_is_an_error() -> None:
    check_key("x" * 255)
    with pytest.raises(InvalidDestination, match=r"the routing key 'x+'\.\.\. has 256 bytes: use at most 255"):
        check_key("x" * 256)
    with pytest.raises(InvalidDestination, match=r"the exchange '\\ud800' is not valid text"):
        check_key("\ud800", "exchange")
