"""Moves a waiting message to another due time: it sends a copy, and drops the original when that arrives."""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

import kombu
from amqp import Message

from ...delay.core import headers as headers_
from ...delay.core import plan
from ...delay.core.due import MICROSECOND, eta_in_utc
from ...delay.core.errors import DelayError, DestinationNotFound, InvalidDelay, InvalidDestination, MessageRefused
from ...delay.core.headers import resent
from ...delay.core.options import Options
from ...delay.core.plan import Now
from ...operate.replaying import ANYWHERE, Allowed
from ...text import escape
from ...unreadable import Unreadable
from ..core import changes, streams
from ..core.errors import DifferentMessages, NotWaiting, TooLate
from ..core.journal import Record
from .waiting_tasks import to_message, waiting, write_changes

logger = logging.getLogger(__name__)

#: Milliseconds before its due time within which a message cannot be moved: consumers must learn of the move in time.
TOO_LATE = 2000


#: Errors of one message, which do not concern others.
REFUSALS = (
    NotWaiting,
    TooLate,
    InvalidDelay,
    InvalidDestination,
    DestinationNotFound,
    MessageRefused,
    DifferentMessages,
    Unreadable,
)


def reschedule(connection: kombu.Connection, id_: str, due: datetime, allowed: Allowed = ANYWHERE) -> None:
    """Give the message with an id another due time, an aware datetime; a past one means at once.

    The message keeps its id, body, priority and headers. An interruption never loses it; an interruption in the middle
    delivers it at both times, unless it is moved again, and so do two moves at the same moment.

    Raises `InvalidDestination` if its destination is not `allowed`, `NotWaiting`, `TooLate`, `InvalidDelay`,
    `DifferentMessages`, `NotPermitted`, and the errors of publishing.
    """
    for _, refused in reschedule_all(connection, [id_], (), due, allowed):
        if refused:
            raise refused


def reschedule_all(
    connection: kombu.Connection, ids: Iterable[str], chosen: Container[object], due: datetime, allowed: Allowed
) -> Iterator[tuple[str, DelayError | None]]:
    """Give messages with some ids, or identities, another due time; yield the id of each, and why it was not moved.

    Raises the errors of the broker as `reschedule` does.
    """
    found: dict[str | int, dict[int, Record]] = {id_: {} for id_ in ids}
    for record in waiting(connection):
        if record.id in found or record.identity in chosen:
            found.setdefault(record.id or record.number, {})[record.number] = record
    for name, records in found.items():
        try:
            if not records:
                raise NotWaiting(
                    f"the journal has no waiting message with the id {name!r}: it is due, was cancelled, was sent with "
                    "another prefix, or has a shorter delay than the option `journal` of its publisher: see `list`"
                )
            move(connection, list(records.values()), due, allowed)
            refused: DelayError | None = None
        except REFUSALS as exc:
            refused = exc
        yield str(name), refused


def move(connection: kombu.Connection, records: Sequence[Record], due: datetime, allowed: Allowed = ANYWHERE) -> None:
    """Give a message another due time, by the records of all its copies that wait.

    Raises the errors of `reschedule` except `NotWaiting`.
    """
    now = Now(datetime.now(timezone.utc), time.monotonic_ns())
    first = min(records, key=lambda record: record.due)
    if first.due < headers_.milliseconds(now.utc) + TOO_LATE:
        raise TooLate(
            f"{first.id!r} is due at {headers_.moment(first.due).isoformat()}: it is too late to move it, which is "
            "possible until 2 s before that"
        )
    copy = _copy(first, due)
    # Copies are equal if a message was published again after an error, or if its move was interrupted.
    if any(_content(_copy(record, due)) != _content(copy) for record in records):
        raise DifferentMessages(
            f"{len(records)} different messages with the id {first.id!r} wait, and a move would keep only one of them: "
            "none was moved; send each with its own id, or cancel them all"
        )
    message, exchange, routing_key = copy
    options: Options = connection.transport.delay_options
    if due != headers_.moment(first.due):
        _check_expires(first.id, message.headers, max(due, now.utc))
    if refused := allowed.refuses(exchange, routing_key):
        raise InvalidDestination(f"{first.id!r} was not moved: {refused}")
    delay = max(1, (due - now.utc) // MICROSECOND)  # one tick for "at once"
    ours, recorded = connection.default_channel.connection, partial(streams.ticket, replace(options, journal=0))
    planned = plan.of_new(message, message.headers, exchange, routing_key, delay, now, options, ours.bound, recorded)
    ours.sender.publish(planned)
    # Only now: without the copy, the message would be lost.
    write_changes(connection, [changes.void(record.number, record.due) for record in records])
    logger.info("The task %s is moved from %s to %s", escape(first.id), headers_.moment(first.due), due)


def _copy(record: Record, due: datetime) -> tuple[Message, str, str]:
    """Return a message as it was sent, to be sent with another due time, its exchange and its routing key."""
    message = to_message(record)
    state = headers_.read_state(message.headers or {})
    if state is None:
        raise NotWaiting(f"the record of {record.id!r} in the journal cannot be used: its message has no delay")
    if state.queue is not None and "task" not in message.headers:
        raise InvalidDelay(f"{record.id!r} cannot be moved: its eta is in its body, as in task protocol 1")
    delivery = resent(message.headers, state)
    headers = dict(delivery.headers)
    if headers.get("eta"):
        headers["eta"] = due.isoformat()
    message.properties["application_headers"] = headers
    return message, delivery.exchange, delivery.routing_key


def _check_expires(id_: str, headers: Mapping[str, Any], due: datetime) -> None:
    """Raise `InvalidDelay` if a task expires before it would be due: Celery's worker would discard it."""
    if "task" not in headers or not headers.get("expires"):
        return
    try:
        expires = eta_in_utc(headers["expires"])
    except InvalidDelay:  # Celery reports the error
        return
    if expires <= due:
        raise InvalidDelay(
            f"{id_!r} was not moved: it expires at {expires.isoformat()}, before its new due time. Choose an earlier "
            "one, or cancel the task and send it again"
        )


def _content(copy: tuple[Message, str, str]) -> tuple[Any, ...]:
    """Return everything that a consumer receives with a message."""
    message, exchange, routing_key = copy
    return message.body, message.properties, exchange, routing_key
