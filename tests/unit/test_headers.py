from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay import InvalidDestination
from celery_rabbit_delay.delay.core import headers as headers_
from celery_rabbit_delay.delay.core.destination import Destination, of
from celery_rabbit_delay.delay.core.headers import HEADER, Delivery, resent, unwrap, without_native_delay

NOW = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
TASK = {"task": "shop.order", "id": "1", "eta": "2026-07-01T12:00:10+00:00"}


def arrived(wrapped: dict[str, Any], destination: Destination, **more: Any) -> Delivery:
    """Return what a consumer receives that has passed a level, with more headers."""
    cc = [*([wrapped[HEADER]["routing_key"]] if destination.key is None else []), destination.address()]
    if destination.is_short_lived:
        cc.insert(0, destination.key or "")
    key = "@.^1" if destination.key is None or destination.is_short_lived else destination.key
    return Delivery(destination.exchange, key, {**wrapped, "CC": cc, **more})


def death(queue: str, **more: Any) -> dict[str, Any]:
    return {"queue": queue, "exchange": "x", "routing-keys": ["k"], "reason": "expired", "count": 1, **more}


def test_a_wrapped_message_has_what_it_was_sent_to_and_its_due_time() -> None:
    headers = headers_.wrap({"a": 1, "x-delay": 500}, "p", "orders", "new", NOW + timedelta(seconds=1))
    ours = {"prefix": "p", "exchange": "orders", "routing_key": "new", "due": 1782907201000}
    assert headers == {"a": 1, HEADER: ours}


@pytest.mark.parametrize("name", ["CC", "BCC"])
@pytest.mark.parametrize("value", [["copy"], ["q", "@"], "copy", 5])
def test_a_copy_of_a_delayed_message_for_another_queue_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidDestination, match=f"without the header {name}=.*send a message to each"):
        headers_.wrap({name: value}, "p", "", "q", NOW)
    assert name not in headers_.wrap({name: []}, "p", "", "q", NOW)


users_headers = st.dictionaries(
    st.text(min_size=1).filter(lambda k: k not in ("CC", "BCC", HEADER, "x-delay") and not k.startswith("x-")),
    st.one_of(st.text(), st.integers()),
)
keys = st.text(min_size=1, max_size=20).filter(lambda k: not k.startswith("@"))
UUID = "5a4d6f0c-6c0e-4a0e-9f0a-7a8b9c0d1e2f"
queues = keys | st.sampled_from([UUID, "worker@host.dq2"])


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


OURS = [{}, deaths("p.out.+q", "p.delay.1"), deaths("p.out.60s.+q"), {"x-death": None}, {"x-death": []}]


@given(users_headers, st.just("") | keys, queues, st.booleans(), st.sampled_from(OURS))
def test_unwrap_undoes_wrap_whichever_way_a_message_came(
    users: dict[str, Any], exchange: str, key: str, bound: bool, more: Any
) -> None:
    destination = of(exchange, key, {(exchange, key)} if bound else ())
    came = arrived(headers_.wrap(users, "p", exchange, key, NOW, number=3), destination, **more)
    assert unwrap(came) == unwrap(came, headers_.read_state(came.headers)) == (exchange, key, users)
    straight = came._replace(routing_key=destination.address() if came.routing_key == "@.^1" else came.routing_key)
    assert unwrap(straight) == (exchange, key, users)
    state = headers_.read_state(came.headers)
    assert state is not None
    assert resent(came.headers, state) == (exchange, key, users)


def returning(users: dict[str, Any], exchange: str, key: str, queue: str) -> dict[str, Any]:
    wrapped = headers_.wrap(users, "p", exchange, key, NOW)
    wrapped[HEADER]["queue"] = queue
    return wrapped


@given(users_headers, st.text(max_size=20), st.text(max_size=20), queues, st.sampled_from(OURS))
def test_a_message_that_comes_back_to_its_queue_is_as_the_queue_delivered_it(
    users: dict[str, Any], exchange: str, key: str, queue: str, more: Any
) -> None:
    came = arrived(returning(users, exchange, key, queue), Destination("", queue), **more)
    assert unwrap(came) == (exchange, key, users)
    state = headers_.read_state(came.headers)
    assert state is not None
    assert resent(came.headers, state) == ("", queue, users), "no other queue gets a copy"


def test_what_a_users_own_dead_lettering_did_to_a_message_that_came_back_stays() -> None:
    unwrapped = unwrap(Delivery("failed", "dead", returning({"a": 1}, "orders", "new", "shop")))
    assert unwrapped == ("failed", "dead", {"a": 1})


def test_an_earlier_dead_lettering_does_not_travel() -> None:
    """RabbitMQ before 4.0.1 would take the message for one that goes round in circles."""
    earlier = {"x-death": [death("theirs")], "x-first-death-queue": "theirs", "x-last-death-reason": "expired"}
    assert headers_.wrap({"a": 1, **earlier}, "p", "", "q", NOW).keys() == {"a", HEADER}


@pytest.mark.parametrize(
    ("destination", "exchange", "keys"),
    [
        (Destination("orders"), "orders", ["@.^1", "new", "@.orders+"]),
        (Destination("orders", "new"), "orders", ["new"]),
        (Destination("", "new"), "", ["new"]),
    ],
)
@pytest.mark.parametrize("with_key", [True, False])
def test_what_a_users_own_dead_lettering_added_after_the_delay_stays(
    destination: Destination, exchange: str, keys: list[str], with_key: bool
) -> None:
    """The user's queue "shop" dead-letters to the exchange "failed", with a routing key or with those it has."""
    his = death("shop", **{"exchange": exchange, "routing-keys": keys, "reason": "rejected"})
    came = arrived(
        headers_.wrap({"a": 1}, "p", exchange, "new", NOW),
        destination,
        **{
            "x-death": [his, death("p.out.orders+"), death("p.delay.10")],
            "x-first-death-queue": "p.delay.10",
            "x-first-death-exchange": "p.ingest",
            "x-first-death-reason": "expired",
        },
    )
    came = came._replace(exchange="failed")
    if with_key:
        came = came._replace(routing_key="dead", headers={k: v for k, v in came.headers.items() if k != "CC"})
    unwrapped = unwrap(came)
    assert (unwrapped.exchange, unwrapped.routing_key) == ("failed", "dead" if with_key else "new")
    assert unwrapped.headers == {
        "a": 1,
        "x-death": [{**his, "routing-keys": ["new"]}],
        "x-first-death-queue": "shop",
        "x-first-death-exchange": exchange,
        "x-first-death-reason": "rejected",
    }


STATE = {"prefix": "p", "exchange": "e", "routing_key": "k", "due": 0}


@pytest.mark.parametrize(
    "ours",
    [
        None,
        "text",
        {},
        {**STATE, "prefix": 5},
        {**STATE, "exchange": None},
        {**STATE, "routing_key": 5},
        {**STATE, "due": "soon"},
        {**STATE, "due": 1 << 60},  # beyond the year 9999
        {**STATE, "due": -1},
    ],
)
def test_a_header_that_this_package_did_not_write_tells_nothing(ours: Any) -> None:
    assert headers_.read_state({HEADER: ours}) is None


@pytest.mark.parametrize(("number", "read"), [(0, 0), ((1 << 63) - 1, (1 << 63) - 1), (-1, None), (1 << 63, None)])
def test_a_number_that_the_streams_cannot_hold_is_none(number: int, read: int | None) -> None:
    state = headers_.read_state({HEADER: {**STATE, "n": number}})
    assert state is not None
    assert state.number == read


@pytest.mark.parametrize(("queue", "destination"), [(None, ("e", "k")), ("q", ("", "q")), (5, ("e", "k"))])
def test_a_state_says_where_a_message_goes(queue: Any, destination: tuple[str, str]) -> None:
    state = headers_.read_state({HEADER: {**STATE, "due": 1000, "queue": queue}})
    due = datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
    assert state == headers_.State("p", "e", "k", due, None, queue if queue == "q" else None)
    assert state.destination == destination


def test_messages_of_others_are_left_alone() -> None:
    delivery = Delivery("x", "k", {"CC": ["a"], "x-death": [death("theirs")], "x-first-death-queue": "theirs"})
    assert unwrap(delivery) is delivery
    forged = Delivery("x", "k", {HEADER: "not ours"})
    assert unwrap(forged) is forged


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.dictionaries(
            st.sampled_from(["queue", "exchange", "routing_key", "routing-keys", "prefix", "due", "a"]), children
        ),
    ),
)
names_of_ours = st.sampled_from([HEADER, "CC", "x-death", "x-first-death-queue", "x-last-death-queue", "a"])


@given(st.dictionaries(names_of_ours, values), st.text(), st.text())
def test_no_message_whatever_its_headers_stops_a_consumer(headers: dict[str, Any], exchange: str, key: str) -> None:
    for routing_key in (key, "@.^1"):
        unwrapped = unwrap(Delivery(exchange, routing_key, headers))
        assert isinstance(unwrapped.exchange, str)
        assert isinstance(unwrapped.routing_key, str)


def test_a_message_is_known_by_celerys_id_or_its_own() -> None:
    assert headers_.message_id({"correlation_id": "2"}, {"id": "1"}) == "1"
    assert headers_.message_id({"correlation_id": "2", "message_id": "3"}, {}) == "2"
    assert headers_.message_id({"message_id": 3}, {}) == "3"
    assert headers_.message_id({}, {}) == ""


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
