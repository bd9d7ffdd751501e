from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.utils.time import maybe_iso8601, maybe_make_aware
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay import InvalidDelay, InvalidDestination
from celery_rabbit_delay.core import headers as headers_
from celery_rabbit_delay.core.destination import Destination
from celery_rabbit_delay.core.headers import HEADER, X_DELAY_OF, X_DELAY_SENT, Delivery
from celery_rabbit_delay.core.sent import Sent
from celery_rabbit_delay.core.unwrap import resent, unwrap, without_native_delay

NOW = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
DESTINATION = Destination("", ("q",))
TASK = {"task": "shop.order", "id": "1", "eta": "2026-07-01T12:00:10+00:00"}


def addressed(wrapped: dict[str, Any], destination: Destination, delay: int = 0) -> dict[str, Any]:
    """Return headers with the addresses that a message has in a level, on its way to an outbox with a delay."""
    return headers_.addressed(wrapped, [destination.outbox_address(delay), destination.address])


def death(queue: str, **more: Any) -> dict[str, Any]:
    return {"queue": queue, "exchange": "x", "routing-keys": ["k"], "reason": "expired", "count": 1, **more}


@pytest.mark.parametrize(
    ("headers", "delayed"),
    [
        (None, False),
        ({}, False),
        ({"task": "t", "eta": None}, False),
        ({"eta": "2026-07-01T12:00:10"}, False),  # not a task: an eta of the user's own
        (TASK, True),
        ({"x-delay": 5}, True),
        ({"x-delay": 0}, True),
    ],
)
def test_tasks_with_an_eta_and_messages_with_x_delay_are_delayed(headers: Any, delayed: bool) -> None:
    assert headers_.is_delayed(headers) is delayed


@pytest.mark.parametrize("eta", ["2026-07-01T12:00:10", "2026-07-01T12:00:10+00:00", "2026-07-01T14:00:10+02:00"])
def test_an_eta_without_a_time_zone_is_in_utc_as_celerys_worker_reads_it(eta: str) -> None:
    assert headers_.delay_of({**TASK, "eta": eta}, NOW) == 10_000_000
    assert maybe_make_aware(maybe_iso8601(eta), ZoneInfo("Europe/Berlin")) == NOW + timedelta(seconds=10)


def test_an_x_delay_is_enough_and_the_later_of_eta_and_x_delay_counts() -> None:
    assert headers_.delay_of({"x-delay": 5000}, NOW) == 5_000_000
    assert headers_.delay_of({**TASK, "x-delay": 5000}, NOW) == 10_000_000
    assert headers_.delay_of({**TASK, "x-delay": 20000}, NOW) == 20_000_000


def test_a_bad_header_is_an_error_even_beside_a_good_one() -> None:
    with pytest.raises(InvalidDelay):
        headers_.delay_of({**TASK, "x-delay": "soon"}, NOW)


def test_a_wrapped_message_has_its_destination_and_due_time() -> None:
    headers = headers_.wrap({"a": 1, "x-delay": 500}, "p", "orders", "new", NOW + timedelta(seconds=1))
    assert headers == {
        "a": 1,
        "CC": ["new"],
        HEADER: {"prefix": "p", "exchange": "orders", "due": 1782907201000},
    }


@pytest.mark.parametrize("headers", [{}, {"CC": ["a", "@.^1"]}, {"BCC": ["@"]}])
def test_a_routing_key_with_the_sentinel_is_refused(headers: dict[str, Any]) -> None:
    with pytest.raises(InvalidDestination, match="begins with the word '@'"):
        headers_.wrap(headers, "p", "", "@.^1" if not headers else "ok", NOW)


@pytest.mark.parametrize("value", ["queue", 5, [1], {}])
def test_a_cc_that_rabbitmq_would_refuse_is_refused(value: Any) -> None:
    with pytest.raises(InvalidDestination, match="must be a list of routing keys"):
        headers_.wrap({"CC": value}, "p", "", "q", NOW)


users_headers = st.dictionaries(
    st.text(min_size=1).filter(lambda k: k not in ("CC", "BCC", HEADER, "x-delay") and not k.startswith("x-")),
    st.one_of(st.text(), st.integers()),
)
keys = st.text(max_size=20).filter(lambda k: not k.startswith("@"))


@given(users_headers, st.text(max_size=20), keys, st.lists(keys, max_size=3), st.integers(1, 5))
def test_unwrap_undoes_wrap_and_drops_deaths_in_levels(
    users: dict[str, Any], exchange: str, key: str, cc: list[str], hops: int
) -> None:
    sent = {**users, **({"CC": cc} if cc else {})}
    destination = Destination(exchange) if exchange else Destination("", (key, *cc))
    on_the_way = addressed(headers_.wrap(sent, "p", exchange, key, NOW), destination) | {
        "x-death": [death(f"p.delay.{n}") for n in range(hops)],
        "x-first-death-queue": "p.delay.1",
        "x-first-death-exchange": "p.ingest",
        "x-first-death-reason": "expired",
        "x-last-death-queue": "p.delay.0",
    }
    arrived = Delivery("p.delay.1.done", "@.^1", on_the_way)
    assert unwrap(arrived) == (exchange, key, sent)


@given(users_headers, st.text(max_size=20), st.text(max_size=20), st.lists(keys, max_size=3), keys)
def test_a_message_that_comes_back_to_its_queue_is_as_the_queue_delivered_it(
    users: dict[str, Any], exchange: str, key: str, cc: list[str], queue: str
) -> None:
    delivered = Delivery(exchange, key, {**users, **({"CC": cc} if cc else {})})
    wrapped = headers_.wrap_for_return(delivered, "p", queue, NOW)
    assert wrapped["CC"] == [queue], "no other queue gets a copy"
    on_the_way = addressed(wrapped, Destination("", (queue,))) | {"x-death": [death("p.delay.1")]}
    assert unwrap(Delivery("p.exit", "@.^1", on_the_way)) == delivered
    assert resent(Delivery("p.exit", "@.^1", on_the_way)) == Delivery("", queue, users)


def test_what_a_users_own_dead_lettering_did_to_a_message_that_came_back_stays() -> None:
    delivered = Delivery("orders", "new", {"a": 1})
    wrapped = headers_.wrap_for_return(delivered, "p", "shop", NOW)
    unwrapped = unwrap(Delivery("failed", "dead", wrapped))
    assert (unwrapped.exchange, unwrapped.routing_key) == ("failed", "dead")


def test_a_message_without_a_queue_of_its_own_is_sent_again_as_it_was_sent_and_when() -> None:
    """So that a cancellation counts for what is moved as well."""
    sent = {"a": 1, X_DELAY_SENT: "5@here"}
    headers = addressed(headers_.wrap(sent, "p", "orders", "new", NOW), Destination("orders"))
    assert resent(Delivery("p.exit", "@.^1", headers)) == ("orders", "new", sent)


LONG = "x" * 200  # its address is a hash


@pytest.mark.parametrize(
    ("exchange", "key", "destination"),
    [
        ("", "q", Destination("", ("q",))),
        ("", "q", Destination("", ("q",), short_lived=True)),
        ("", "q", Destination("", ("q", "blind copy"))),
        ("", LONG, Destination("", (LONG, LONG + "2"))),
        ("orders", "new", Destination("orders")),
        ("orders", "new", Destination("orders", key="new")),
        (LONG, LONG, Destination(LONG)),
        (LONG, LONG, Destination(LONG, key=LONG)),
    ],
)
@pytest.mark.parametrize("delay", [0, 60_000, 125])
def test_a_message_whose_addresses_lead_to_where_it_says_is_unwrapped(
    exchange: str, key: str, destination: Destination, delay: int
) -> None:
    sent = {"CC": list(destination.queues[1:])} if LONG in destination.queues else {}
    wrapped = headers_.wrap(sent, "p", exchange, key, NOW)
    headers = addressed(wrapped, destination, delay)
    assert unwrap(Delivery("p.exit", "@.^1", headers)) == (exchange, key, sent)
    straight = headers_.addressed(wrapped, [destination.address])
    arrived = Delivery("p.exit", destination.outbox_address(delay), straight)
    assert unwrap(arrived) == (exchange, key, sent)


@pytest.mark.parametrize(
    "cc",
    [
        ["q", "@.+other"],
        ["q", "@.=+other"],
        ["q", "@.60s.+other"],
        ["q", "@.60s.+q", "@.=+other"],
        ["q", "@.+q", "@.^4.^1"],
        ["q", "@.orders+"],
        ["q", "@.!" + "0" * 64],
        ["q", "@.=!" + "0" * 64],
        ["secret"],
        ["q", "@.short-lived"],  # which leads to no destination
        ["@.+q"],
        ["secret", "@.+q"],
        ["@.!" + "0" * 64],
        ["q"],
        [],
        "q",
    ],
)
def test_a_forged_message_is_left_as_it_is(cc: Any) -> None:
    wrapped = [
        headers_.wrap({}, "p", "", "q", NOW),
        headers_.wrap({}, "zzz", "", "secret", NOW),  # with a prefix of its own
        headers_.wrap_for_return(Delivery("orders", "new", {}), "p", "q", NOW),  # seems to return to its queue
    ]
    for headers in wrapped:
        forged = Delivery("p.exit", "@.^1", headers | {"CC": cc})
        assert unwrap(forged) is forged


def test_an_earlier_dead_lettering_travels_in_our_header_and_comes_back() -> None:
    earlier = {"x-death": [death("theirs")], "x-first-death-queue": "theirs", "x-last-death-reason": "expired"}
    wrapped = addressed(headers_.wrap({"a": 1, **earlier}, "p", "", "q", NOW), DESTINATION)
    assert not [key for key in wrapped if "death" in key]
    on_the_way = wrapped | {"x-death": [death("p.delay.10")], "x-first-death-queue": "p.delay.10"}
    assert unwrap(Delivery("p.delay.10.done", "@.^1", on_the_way)) == ("", "q", {"a": 1, **earlier})


@pytest.mark.parametrize(
    "ours",
    [
        None,
        "text",
        {},
        {"prefix": 5, "exchange": "", "due": 0},
        {"prefix": "p", "exchange": None, "due": 0},
        {"prefix": "p", "exchange": "", "due": "soon"},
        {"prefix": "p", "exchange": "", "due": 1 << 60},  # beyond the year 9999
        {"prefix": "p", "exchange": "", "due": -1},
    ],
)
def test_a_header_that_this_package_did_not_write_tells_nothing(ours: Any) -> None:
    assert headers_.read_state({HEADER: ours}) is None


@pytest.mark.parametrize(("number", "read"), [(0, 0), ((1 << 63) - 1, (1 << 63) - 1), (-1, None), (1 << 63, None)])
def test_a_number_that_the_streams_cannot_hold_is_none(number: int, read: int | None) -> None:
    state = headers_.read_state({HEADER: {"prefix": "p", "exchange": "", "due": 0, "n": number}})
    assert state is not None
    assert state.number == read


@pytest.mark.parametrize("deaths", [None, "text", {"x-death": []}])
def test_a_state_has_deaths_only_if_they_are_a_table(deaths: Any) -> None:
    state = headers_.read_state({HEADER: {"prefix": "p", "exchange": "e", "due": 1000, "deaths": deaths}})
    due = datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
    assert state == headers_.State("p", "e", due, {} if deaths in (None, "text") else deaths, None)


def test_messages_of_others_are_left_alone() -> None:
    delivery = Delivery("x", "k", {"CC": ["a"], "x-death": [death("theirs")], "x-first-death-queue": "theirs"})
    assert unwrap(delivery) is delivery
    forged = Delivery("x", "k", {HEADER: "not ours"})
    assert unwrap(forged) is forged


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.dictionaries(st.sampled_from(["queue", "exchange", "routing-keys", "deaths", "x-death", "a"]), children),
    ),
)
names_of_ours = st.sampled_from([HEADER, "CC", "x-death", "x-first-death-queue", "x-last-death-queue", "a"])


@given(st.dictionaries(names_of_ours, values), st.text(), st.text())
def test_no_message_whatever_its_headers_stops_a_consumer(headers: dict[str, Any], exchange: str, key: str) -> None:
    for routing_key in (key, "@.^1"):
        unwrapped = unwrap(Delivery(exchange, routing_key, headers))
        assert isinstance(unwrapped.exchange, str)
        assert isinstance(unwrapped.routing_key, str)


def test_what_a_users_own_dead_lettering_added_after_the_delay_stays() -> None:
    """The user's queue "shop" dead-letters to the exchange "failed" with a routing key, which drops the CC header."""
    headers = addressed(headers_.wrap({"a": 1}, "p", "orders", "new", NOW), DESTINATION) | {
        "x-death": [
            death(
                "shop",
                **{"exchange": "p.delay.10.done", "routing-keys": ["@.^1", "new", "@.orders+"], "reason": "rejected"},
            ),
            death("p.delay.10"),
        ],
        "x-first-death-queue": "p.delay.10",
        "x-first-death-exchange": "p.ingest",
        "x-first-death-reason": "expired",
    }
    del headers["CC"]
    unwrapped = unwrap(Delivery("failed", "dead", headers))
    assert unwrapped.exchange == "failed"
    assert unwrapped.routing_key == "dead"
    assert unwrapped.headers == {
        "a": 1,
        "x-death": [death("shop", **{"exchange": "orders", "routing-keys": ["new"], "reason": "rejected"})],
        "x-first-death-queue": "shop",
        "x-first-death-exchange": "orders",
        "x-first-death-reason": "rejected",
    }


def test_a_message_is_known_by_celerys_id_or_its_own() -> None:
    assert headers_.message_id({"correlation_id": "2"}, {"id": "1"}) == "1"
    assert headers_.message_id({"correlation_id": "2", "message_id": "3"}, {}) == "2"
    assert headers_.message_id({"message_id": 3}, {}) == "3"
    assert headers_.message_id({}, {}) == ""


def deaths(*queues: str) -> dict[str, Any]:
    """Return the headers that RabbitMQ 4 adds when messages are dead-lettered by queues, the last one first."""
    first, last = queues[-1], queues[0]
    return {
        "x-death": [death(queue, time=NOW) for queue in queues],
        "x-first-death-queue": first,
        "x-first-death-reason": "expired",
        "x-last-death-queue": last,
        "x-last-death-reason": "expired",
    }


EARLIER = {"x-death": [death("theirs")], "x-first-death-queue": "theirs"}


@pytest.mark.parametrize("users", [{}, {"CC": ["copy"]}, EARLIER])
@pytest.mark.parametrize("more", [{}, deaths("p.out.+q", "p.delay.1"), {"x-death": None}, {"x-death": []}])
@pytest.mark.parametrize("straight", [False, True], ids=["through levels", "straight into its outbox"])
def test_a_delayed_message_is_unwrapped_the_same_whichever_way_it_came(
    users: dict[str, Any], more: Any, straight: bool
) -> None:
    cc = users.get("CC", [])
    wrapped = headers_.wrap({"a": 1, **users}, "p", "", "q", NOW, number=3)
    destination = Destination("", ("q", *cc))
    headers = addressed(wrapped, destination, 60_000) | more
    if straight:
        headers = headers_.addressed(wrapped, [destination.address]) | more
    arrived = Delivery("p.exit", "@.60s.+q" if straight else "@.^1", headers)
    assert unwrap(arrived) == unwrap(arrived, headers_.read_state(headers)) == ("", "q", {"a": 1, **users})


def test_a_task_says_when_it_was_sent_and_its_retries_say_the_same() -> None:
    sent, later = Sent(1_000_000, "here"), Sent(2_000_000, "here")
    first = headers_.with_time_sent({**TASK, "retries": 0}, sent)
    assert first == {**TASK, "retries": 0, headers_.X_DELAY_SENT: "1000000@here"}
    for unchanged in ({**TASK, "retries": 1}, {**first, "retries": 1}, first):
        assert headers_.with_time_sent(unchanged, later) == unchanged


def delivered(id_: str = "parent", retries: int = 0) -> dict[str, Any]:
    """Return the headers that a task has when it runs, after it has waited with stamps."""
    sent = {"task": "t", "id": id_, "retries": retries, "stamps": {"customer": "7"}, X_DELAY_SENT: 5}
    wrapped = headers_.wrap(sent, "p", "", "q", NOW, number=7)
    return dict(unwrap(Delivery("p.exit", "@.^1", addressed(wrapped, DESTINATION))).headers)


def copied(**more: Any) -> dict[str, Any]:
    """Return the headers of a child that its parent has passed its own ones on to, as far as Celery leaves them."""
    return {name: value for name, value in delivered().items() if name.startswith("x-")} | {"task": "t"} | more


@pytest.mark.parametrize("retries", [0, 1], ids=["a child", "a retry of a child"])
def test_headers_that_were_copied_from_another_task_do_not_count(retries: int) -> None:
    child = {"task": "t", "id": "child", "retries": retries}
    assert headers_.own(copied(id="child", retries=retries)) == child
    retry = copied(id="parent", retries=retries)
    assert headers_.own(retry) is retry


@pytest.mark.parametrize(
    "headers",
    [{}, {"a": 1}, {"task": "t", "id": "1", X_DELAY_SENT: 5}],
    ids=str,
)
def test_headers_with_nothing_of_another_message_stay_as_they_are(headers: dict[str, Any]) -> None:
    assert headers_.own(headers) is headers


@given(
    st.dictionaries(
        st.sampled_from(["task", "id", "retries", X_DELAY_SENT, X_DELAY_OF]),
        st.none() | st.integers() | st.text(max_size=3) | st.dictionaries(st.sampled_from(["id", "key"]), st.text()),
    )
)
def test_made_up_headers_of_the_package_stop_nobody(headers: dict[str, Any]) -> None:
    assert headers_.own(headers).items() <= headers.items()
    assert headers_.own(headers_.own(headers)).items() <= headers.items()


NATIVE = "0." * 24 + "1.0.0.0."


@pytest.mark.parametrize(
    ("exchange", "key", "queue", "seen"),
    [
        ("celery_delayed_2", f"{NATIVE}orders.new", "orders", ("", "orders")),
        ("shop_celery_delayed_27", f"{NATIVE}orders", "orders", ("", "orders")),  # a native prefix of the user's
        ("celery_delayed_2", f"{NATIVE}orders", None, ("celery_delayed_2", f"{NATIVE}orders")),
        ("celery_delayed_2", "orders", "orders", ("celery_delayed_2", "orders")),  # nothing native sends so
        ("orders", f"{NATIVE}orders", "orders", ("orders", f"{NATIVE}orders")),
        ("my_celery_delayed_orders", f"{NATIVE}orders", "orders", ("my_celery_delayed_orders", f"{NATIVE}orders")),
        ("", "orders", "orders", ("", "orders")),
    ],
)
def test_what_came_through_native_delayed_delivery_is_seen_as_sent_to_its_queue(
    exchange: str, key: str, queue: str | None, seen: tuple[str, str]
) -> None:
    delivery = Delivery(exchange, key, TASK)
    assert without_native_delay(delivery, queue) == Delivery(*seen, TASK)
