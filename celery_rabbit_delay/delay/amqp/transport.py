"""Kombu's AMQP transport, which sends delayed messages into the cascade and unwraps them when they come out of it.

Registered under the URL schemes `rabbit-delay://` and `rabbit-delays://` (TLS).
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import cached_property, partial
from typing import Any

from amqp.exceptions import AMQPError, InternalError, PreconditionFailed, RecoverableConnectionError
from kombu.transport import pyamqp

from ..core import due, plan
from ..core.destination import is_short_lived
from ..core.errors import DelayError, UnsupportedConfiguration
from ..core.headers import X_DELIVERY_TIME, Delivery, State, read_state, unwrap, without_native_delay
from ..core.options import DRIVER_TYPE, OPTIONS, Options
from ..core.plan import Now
from . import batch
from .broker_url import tls_of
from .connecting import PerClient
from .interceptor import Interceptor
from .limited import ANSWER_WITHIN, PAUSE, LimitedConnection
from .sender import Sender

logger = logging.getLogger(__name__)

#: The exchange type of the delayed-message-exchange plug-in, and the argument with the underlying type.
PLUG_IN_TYPE, PLUG_IN_ARGUMENT = "x-delayed-message", "x-delayed-type"

#: Seconds by which the clocks of two hosts may differ.
CLOCKS_DIFFER = 5


#: Return whether the app of a `kombu.Connection` consumes from quorum queues. Its queues may change later.
uses_quorum_queues: PerClient[Callable[[], bool]] = PerClient(lambda: lambda: False)


class DeliveredMessage(pyamqp.Message):  # type: ignore[misc]
    """A message as Kombu passes it to consumers."""

    #: The `amqp.Message` that it was made from.
    amqp_message: Any = None
    #: The due time of a message that comes out of the cascade.
    delayed_until: datetime | None = None


def state_of(message: Any) -> State | None:
    """Return what the package's header of an `amqp.Message` says; None if there is none, or if it is malformed."""
    known = vars(message)
    if "delay_state" not in known:
        message.delay_state = read_state(message.headers or {})
    state: State | None = known["delay_state"]
    return state


class Channel(pyamqp.Channel):  # type: ignore[misc]
    """Delays published messages that ask for a delay, and unwraps received ones."""

    Message = DeliveredMessage
    _paused_until = 0.0  # nothing is sent back before; `time.monotonic`

    def basic_publish(self, msg: Any, exchange: str = "", routing_key: str = "", *args: Any, **kwargs: Any) -> Any:
        return self._publish(super().basic_publish, msg, exchange, routing_key, *args, **kwargs)

    def basic_publish_confirm(
        self, msg: Any, exchange: str = "", routing_key: str = "", *args: Any, **kwargs: Any
    ) -> Any:
        # With confirm_publish, amqp.Channel.__init__ puts this in basic_publish's place on the instance.
        return self._publish(super().basic_publish_confirm, msg, exchange, routing_key, *args, **kwargs)

    def _publish(
        self, publish: Callable[..., Any], msg: Any, exchange: str, routing_key: str, *args: Any, **kwargs: Any
    ) -> Any:
        now = Now(datetime.now(timezone.utc), time.monotonic_ns())
        delay, connection = due.delay_of(msg.headers, now.utc), self.connection
        if delay <= 0:
            return publish(msg, exchange, routing_key, *args, **kwargs)
        if connection is None:  # what py-amqp raises for a message without a delay
            raise RecoverableConnectionError("basic_publish: connection closed")
        options, bound, get_ticket = connection.delay_options, connection.bound, connection.interceptor.ticket
        planned = plan.of_new(msg, msg.headers, exchange, routing_key, delay, now, options, bound, get_ticket)
        if collected_by := batch.current():
            return collected_by.add(connection.sender, planned)
        return connection.sender.publish(planned, kwargs.get("confirm_timeout") or kwargs.get("timeout"))

    def close(self, *args: Any, **kwargs: Any) -> Any:
        with contextlib.nullcontext() if self.connection is None else self.connection.within(ANSWER_WITHIN):
            return super().close(*args, **kwargs)

    def collect(self) -> None:
        with contextlib.suppress(AttributeError):  # of a channel that was interrupted while it was made
            super().collect()

    def basic_consume(
        self,
        queue: str = "",
        consumer_tag: str = "",
        no_local: bool = False,
        no_ack: bool = False,
        exclusive: bool = False,
        nowait: bool = False,
        callback: Callable[[Any], Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        def on_message(message: Any) -> None:
            message.taken_from = queue
            if not self._drops(message, no_ack) and callback is not None:
                callback(message)

        return super().basic_consume(
            queue, consumer_tag, no_local, no_ack, exclusive, nowait, on_message, *args, **kwargs
        )

    def basic_get(self, queue: str = "", no_ack: bool = False, *args: Any, **kwargs: Any) -> Any:
        while True:
            message = super().basic_get(queue, no_ack, *args, **kwargs)
            if message is None:
                return None
            message.taken_from = queue
            if not self._drops(message, no_ack):
                return message

    def peek(self, queue: str) -> Any:
        """Get a message of a queue, even one that must not be delivered; None if the queue is empty."""
        return super().basic_get(queue)

    def _drops(self, message: Any, no_ack: bool) -> bool:
        """Return whether a message is not passed on: it is acknowledged then, unless it is to come again."""
        if self.connection.client is None:  # Kombu is closing the connection: RabbitMQ delivers the message again
            return not no_ack and state_of(message) is not None
        if self.connection.interceptor.drops(message, state_of(message)):
            if not no_ack:
                self.basic_ack(message.delivery_tag)
            return True
        return not no_ack and self._sends_back(message)

    def _sends_back(self, message: Any) -> bool:
        """Send back a message that a queue has not held until its delivery time; return whether it is not passed on.

        What cannot be sent is neither passed on nor acknowledged: it comes again once the connection is closed. What
        `take` gets, without `auto_decode`, stays where it is.
        """
        state = state_of(message)
        if state is None or X_DELIVERY_TIME not in message.headers or not self.auto_decode:
            return False
        connection, now = self.connection, Now(datetime.now(timezone.utc), time.monotonic_ns())
        early = state.due - now.utc
        if early <= timedelta(0):
            return False
        if early <= timedelta(seconds=CLOCKS_DIFFER) and due.has_eta(message.headers, state.due):
            return False  # Celery's worker holds it
        if time.monotonic() < self._paused_until:
            return True
        options, info, queue = connection.delay_options, message.delivery_info, message.taken_from
        received = unwrap(Delivery(info["exchange"], info["routing_key"], message.headers), state)
        try:
            planned = plan.of_received(message, received, queue, state.due, now, options, state)
            connection.sender.publish(planned, ANSWER_WITHIN)
        except (DelayError, AMQPError, OSError) as exc:
            self._paused_until = time.monotonic() + PAUSE
            logger.warning("A message came from %r before it was due, and is kept from consumers: %s", queue, exc)
            return True
        self.basic_ack(message.delivery_tag)
        return True

    def message_to_python(self, raw_message: Any) -> Any:
        state, info = state_of(raw_message), raw_message.delivery_info
        received = Delivery(info["exchange"], info["routing_key"], raw_message.headers)
        sent = without_native_delay(unwrap(received, state) if state else received, vars(raw_message).get("taken_from"))
        info.update(exchange=sent.exchange, routing_key=sent.routing_key)
        if state:
            raw_message.properties["application_headers"] = sent.headers
        message = super().message_to_python(raw_message)
        message.amqp_message = raw_message
        message.delayed_until = state.due if state else None
        return message

    def exchange_declare(self, exchange: str, type: str, passive: bool = False, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        plug_in = type == PLUG_IN_TYPE
        if plug_in:
            type, kwargs["arguments"] = _without_plug_in(exchange, kwargs.get("arguments"))  # noqa: A001
        try:
            return super().exchange_declare(exchange, type, passive, *args, **kwargs)
        except PreconditionFailed as exc:
            if not plug_in:
                raise
            raise UnsupportedConfiguration(
                f"the exchange {exchange!r} exists with other properties ({exc.reply_text}). If it belongs to the "
                "delayed-message plug-in, wait until it has delivered its messages, delete it, and restart your "
                "programs, so that they declare it and bind their queues; or give the exchange another name"
            ) from exc

    def queue_declare(
        self,
        queue: str = "",
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = True,
        nowait: bool = False,
        arguments: Any = None,
    ) -> Any:
        try:
            return super().queue_declare(queue, passive, durable, exclusive, auto_delete, nowait, arguments)
        except InternalError as exc:
            if "transient_nonexcl_queues" not in str(exc):
                raise
            # Kombu would take it for a lost connection, and the worker would reconnect in a loop.
            raise UnsupportedConfiguration(
                "this RabbitMQ permits no transient queue that several connections may share, but this Celery declares "
                "one: use Celery 5.7; or Celery 5.6 with control_queue_exclusive = True, event_queue_exclusive = True "
                "and no result_backend = 'rpc://'; or put deprecated_features.permit.transient_nonexcl_queues = true "
                f"into rabbitmq.conf ({exc.reply_text})"
            ) from exc

    def queue_bind(self, queue: str, exchange: str = "", routing_key: str = "", *args: Any, **kwargs: Any) -> Any:
        bound = super().queue_bind(queue, exchange, routing_key, *args, **kwargs)
        if exchange and not kwargs.get("arguments") and not is_short_lived(queue):
            self.connection.bound.add((exchange, routing_key))
        return bound


class UserConnection(LimitedConnection):
    """An `amqp.Connection` that has others: one to send what it delays, and those of its interceptor."""

    Channel = Channel

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Exchanges and routing keys that lasting queues were bound with on this connection. Kombu may bind them just
        #: before it publishes.
        self.bound: set[tuple[str, str]] = set()
        self._senders: dict[int, Sender] = {}  # by the id of their process
        #: Makes an event loop read what came with an answer: its data may show nowhere that there is more to read.
        self.read_soon: Callable[[], object] = lambda: None

    @property
    def sender(self) -> Sender:
        """What sends the messages that are delayed; a forked process has its own."""
        process = os.getpid()
        found = self._senders.get(process)
        if found is None:
            found = self._senders.setdefault(process, Sender(self))
        return found

    @cached_property
    def interceptor(self) -> Interceptor:
        if self.client is None:
            raise RecoverableConnectionError("the connection is closed")
        interceptor: Interceptor = self.client.transport.intercept(self.client)
        return interceptor

    def close(self, *args: Any, **kwargs: Any) -> None:
        if collected_by := batch.current():  # without a pool, Celery closes after each task
            collected_by.settle()
        if sender := self._senders.get(os.getpid()):
            sender.settle()
        super().close(*args, **kwargs)

    def collect(self) -> None:
        senders, interceptor = list(self._senders.values()), self.__dict__.pop("interceptor", None)
        self._senders = {}
        for one in (*senders, interceptor):
            if one is not None:
                one.close()
        super().collect()


class Transport(pyamqp.Transport):  # type: ignore[misc]
    Connection = UserConnection

    driver_type = DRIVER_TYPE

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        client.ssl = tls_of(client.ssl)
        # Read here, so that a bad option is an error before anything is sent.
        given = (client.transport_options or {}).get(OPTIONS)
        self.delay_options = Options.parse(given)
        if isinstance(given, Options):  # a worker tells other programs of its connection, which know no such type
            client.transport_options = {**client.transport_options, OPTIONS: given.to_dict()}

    def intercept(self, client: Any) -> Interceptor:
        """Return what an add-on does to the delayed messages of a `kombu.Connection`: nothing."""
        return Interceptor()

    def qos_semantics_matches_spec(self, connection: UserConnection) -> bool:
        """Return whether `basic.qos` must be sent per consumer: RabbitMQ 4.3 and quorum queues support only this."""
        return bool(
            super().qos_semantics_matches_spec(connection)
            or connection.server_version >= (4, 0)
            or uses_quorum_queues[self.client]()
        )

    def register_with_event_loop(self, connection: UserConnection, loop: Any) -> None:
        super().register_with_event_loop(connection, loop)
        # Celery's event loop does this only for the driver type "amqp": it reads the data that arrived together with
        # the answer to basic.consume, because a TLS socket is not reported as readable for data that it has buffered.
        connection.read_soon = partial(loop.call_soon, _drain_once, connection)
        connection.read_soon()


def _without_plug_in(exchange: str, arguments: Any) -> tuple[str, dict[str, Any]]:
    """Return the underlying type of an exchange of the plug-in, and its other arguments."""
    others = dict(arguments or {})
    if PLUG_IN_ARGUMENT not in others:
        raise UnsupportedConfiguration(
            f"the exchange {exchange!r} is declared with the type {PLUG_IN_TYPE!r}, but without the argument "
            f'{PLUG_IN_ARGUMENT!r}: set it to the type of the exchange, such as "direct"'
        )
    return others.pop(PLUG_IN_ARGUMENT), others


def _drain_once(connection: UserConnection) -> None:
    if connection.connected:  # a closed loop still runs its pending calls
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
