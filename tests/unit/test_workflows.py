"""The groups that tasks of Celery's own canvas belong to, by their headers and bodies."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from celery import Celery, chain, chord, group

from celery_rabbit_delay.core import changes
from celery_rabbit_delay.core.changes import Changes, with_groups
from celery_rabbit_delay.core.sent import Sent

FLOWS: dict[str, Any] = {
    "group": lambda t: group(t("a"), t("b")),
    "chains in a group": lambda t: group(chain(t("a"), t("later"), t("later")), t("b")),
    "a chain in a chord": lambda t: chord([chain(t("a"), t("later")), t("b")], t("later")),
    "a chord in a chord": lambda t: chord([chord([t("a"), t("b")], t("later")), t("c")], t("later")),
    "a chord in a chord in a chord": lambda t: chord(
        [chord([chord([t("a"), t("b")], t("later")), t("c")], t("later")), t("d")], t("later")
    ),
}


def sent(app: Celery, flow: Any) -> tuple[Any, dict[str, tuple[dict[str, Any], bytes | str]]]:
    """Send a flow; return its result, and the headers and bodies of the tasks that go out at once, by their names."""
    result = flow.apply_async()
    found = {}
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        while (message := channel.basic_get("celery", no_ack=True)) is not None:
            found[message.headers["task"]] = message.headers, message.body
    return result, found


@pytest.fixture
def app() -> Any:
    app = Celery("flows", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.broker_transport_options = {"polling_interval": 0}
    with app.connection_for_write() as connection:
        connection.default_channel.queue_declare("celery")
    yield app
    app.close()


@pytest.mark.parametrize("name", FLOWS)
def test_all_tasks_of_a_group_are_cancelled_with_it(app: Celery, name: str) -> None:
    flow = FLOWS[name](lambda task: app.signature(task, immutable=True, app=app))
    result, messages = sent(app, flow)
    assert messages.keys() >= {"a", "b"}
    outer = result.id if isinstance(flow, group) else result.parent.id
    known = Changes(time.time)
    for message in changes.cancelled_workflows([outer], Sent(0)):
        known.apply(message)
    for task, (headers, body) in messages.items():
        assert known.cancels_workflow(headers["id"], with_groups(headers, body)), task


def test_what_only_leads_to_a_group_is_no_part_of_it(app: Celery) -> None:
    first = app.signature("a", immutable=True, app=app)
    result, messages = sent(app, chain(first, group(app.signature("b", app=app), app.signature("c", app=app))))
    known = Changes(time.time)
    for message in changes.cancelled_workflows([result.id], Sent(0)):
        known.apply(message)
    [(headers, body)] = messages.values()
    assert not known.cancels_workflow(headers["id"], with_groups(headers, body))


@pytest.mark.parametrize(
    "body",
    [
        b'"group_id"',
        b'[["group_id"], {}]',
        b'[[], {}, {"chain": 5, "x": "group_id"}]',
        b'[[], {}, {"chain": [5], "x": {"group_id": 1}}]',
        b'[[], {}, {"chain": [{"options": 5, "group_id": ""}]}]',
        b'\xff"group_id"',
        json.dumps([[{"options": {"group_id": "g"}}], {"chain": [{"options": {"group_id": "g"}}]}, {"chain": None}]),
        b"[" * 100_000 + b'"group_id"',
        ([], {}, {"chain": [{"options": {"group_id": "g"}}]}),
    ],
)
def test_nothing_in_a_body_is_taken_for_a_group_that_is_none(body: Any) -> None:
    assert not with_groups({"id": "a"}, body).get(changes.GROUPS)


def test_an_empty_id_cancels_nothing() -> None:
    known = Changes(time.time)
    for message in (*changes.cancelled([""], Sent(0)), *changes.cancelled_workflows([""], Sent(0))):
        known.apply(message)
    assert known.cancelled_at("") is None
    assert not known.cancels("", {})
    assert not known.cancels("id", {"root_id": "", "group": ""})
