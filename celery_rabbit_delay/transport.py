"""Kombu's AMQP transport, with delayed messages diverted into the cascade and restored when they come out of it.

Registered under the URL schemes `rabbit-delay://` and `rabbit-delays://` (TLS). Knows kombu and py-amqp, not Celery.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from amqp import Message, spec
from amqp.exceptions import InternalError, RecoverableConnectionError
from kombu.transport import pyamqp
from kombu.utils.text import version_string_as_tuple

from . import message as headers_
from .batching import Batch, Delayed, PublishBatch
from .exceptions import DestinationNotFound, UnsupportedConfiguration
from .message import Delivery
from .options import DRIVER_TYPE, OPTIONS, Options
from .publish import DelayedPublisher
from .routing_key import Destination


class Channel(pyamqp.Channel):  # type: ignore[misc]
    """Diverts what asks for a delay, restores what comes back."""

    def basic_publish(self, msg: Any, exchange: str = "", routing_key: str = "", *args: Any, **kwargs: Any) -> Any:
        if headers_.is_delayed(msg.headers):
            msg = self._divert(msg, exchange, routing_key, **kwargs)
        return msg and super().basic_publish(msg, exchange, routing_key, *args, **kwargs)

    def basic_publish_confirm(
        self, msg: Any, exchange: str = "", routing_key: str = "", *args: Any, **kwargs: Any
    ) -> Any:
        # With confirm_publish, amqp.Channel.__init__ puts this in basic_publish's place on the instance.
        if headers_.is_delayed(msg.headers):
            msg = self._divert(msg, exchange, routing_key, **kwargs)
        return msg and super().basic_publish_confirm(msg, exchange, routing_key, *args, **kwargs)

    def _divert(
        self,
        msg: Any,
        exchange: str,
        routing_key: str,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Sends a message into the cascade; returns what is left to publish: nothing, unless it is due already."""
        if self.connection is None:  # what py-amqp raises for a message without a delay
            raise RecoverableConnectionError("basic_publish: connection closed")
        options: Options = self.connection.delay_options
        now = datetime.now(timezone.utc)
        delay, headers = headers_.delay_of(msg.headers, now, options.naive_in)
        if delay <= 0:
            return msg if headers is msg.headers else _with_headers(msg, headers)
        ticks = options.ticks(delay)  # refuses what is too long before anything is declared
        due = now + timedelta(microseconds=delay)
        delayed: DelayedPublisher = self.connection.delayed(msg.properties.get("priority"))
        headers = headers_.divert(headers, delayed.cascade.track, exchange, routing_key, due)
        destination = self.connection.destination(exchange, headers)
        if not delayed.leads_to(destination):
            try:
                delayed.bind(destination)
            except DestinationNotFound:
                if not (exchange and destination.queues):
                    raise
                # A queue that was bound here has been deleted since; the exchange may have others.
                destination = Destination(exchange, ())
                delayed.bind(destination)
            ticks = options.ticks_until(due, datetime.now(timezone.utc))  # declaring the cascade took a while
        diverted = _with_headers(msg, headers_.addressed(headers, destination))
        diverted.properties.pop("expiration", None)  # RabbitMQ would let it expire in its first level
        batch: Batch | None = getattr(self.connection.client, "delayed_batch", None)
        if batch is None:
            delayed.publish(diverted, ticks, destination, timeout, confirm_timeout)
        else:
            batch.add(self.connection, Delayed(diverted, due, destination, timeout, confirm_timeout))
        return None

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """For `kombu.Producer.batch`."""
        return PublishBatch(self, max_size)

    def message_to_python(self, raw_message: Any) -> Any:
        headers = raw_message.headers
        if headers and headers_.HEADER in headers:
            info = raw_message.delivery_info
            restored = headers_.restore(Delivery(info["exchange"], info["routing_key"], headers))
            info.update(exchange=restored.exchange, routing_key=restored.routing_key)
            raw_message.properties["application_headers"] = restored.headers
        return super().message_to_python(raw_message)

    def queue_declare(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().queue_declare(*args, **kwargs)
        except InternalError as exc:
            if "transient_nonexcl_queues" not in str(exc):
                raise
            # Kombu would take it for a lost connection, and the worker connect again and again.
            raise UnsupportedConfiguration(
                "this RabbitMQ permits no transient queue that several connections may share, and this Celery declares "
                "one: use Celery 5.7; or Celery 5.6 with control_queue_exclusive = True, event_queue_exclusive = True "
                "and no result_backend = 'rpc://'; or put deprecated_features.permit.transient_nonexcl_queues = true "
                f"into rabbitmq.conf ({exc.reply_text})"
            ) from exc

    def queue_bind(self, queue: str, exchange: str = "", routing_key: str = "", *args: Any, **kwargs: Any) -> Any:
        bound = super().queue_bind(queue, exchange, routing_key, *args, **kwargs)
        if exchange and not args and not kwargs.get("arguments"):
            self.connection.known_queues[exchange, routing_key] = queue
        return bound


class Connection(pyamqp.Connection):  # type: ignore[misc]
    """One AMQP connection and what it knows of the broker."""

    Channel = Channel

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._process = os.getpid()
        self.known_queues: dict[tuple[str, str], str] = {}  # (exchange, binding key) -> queue, as bound here
        self._publishers: dict[bool, DelayedPublisher] = {}  # by whether their cascade is the high one
        self._holding = 0
        self._delivering = False
        self._held: deque[tuple[Any, ...]] = deque()

    @property
    def _is_inherited(self) -> bool:
        return self._process != os.getpid()

    def collect(self) -> None:
        if self._is_inherited and self._transport is not None and self._transport.sock is not None:
            self._transport.sock.close()  # py-amqp would shut it down, for the parent as well
            self._transport.sock = None
        super().collect()

    @contextmanager
    def holding_deliveries(self) -> Iterator[None]:
        """Keeps messages for consumers on this connection back until the block ends.

        Waiting for the broker's answer, py-amqp calls consumers for whatever comes in meanwhile. One that publishes
        with a delay itself would wait in its turn, and so on, as deep as the consumer's prefetch count.
        """
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
            self._deliver_held()

    def _deliver_held(self) -> None:
        if self._holding or self._delivering:
            return
        self._delivering = True  # a consumer called from here must not call the next one
        try:
            while self._held:
                channel_id, *method = self._held.popleft()
                if channel_id in (self.channels or ()):  # or else it was closed: the broker delivers the message again
                    super().on_inbound_method(channel_id, *method)
        finally:
            self._delivering = False

    def on_inbound_method(self, channel_id: int, method_sig: Any, payload: Any, content: Any) -> Any:
        if self._holding and method_sig == spec.Basic.Deliver:
            self._held.append((channel_id, method_sig, payload, content))
            return None
        return super().on_inbound_method(channel_id, method_sig, payload, content)

    def drain_events(self, timeout: float | None = None) -> Any:
        if self._held and not (self._holding or self._delivering):  # left behind by a consumer that raised an error
            return self._deliver_held()
        return super().drain_events(timeout)

    @property
    def delay_options(self) -> Options:
        options: Options = self.client.transport.delay_options
        return options

    def delayed(self, priority: int | None = None) -> DelayedPublisher:
        """What publishes messages of a priority into their cascade.

        Raises `UnsupportedConfiguration`, and `amqp.RecoverableConnectionError`, after which Kombu connects again, in a
        process that was forked since.
        """
        if self._is_inherited:  # parent and child would take the broker's answers from each other
            raise RecoverableConnectionError("the connection is that of the process that forked this one")
        cascade = self.delay_options.cascade_for(priority)
        if cascade.high not in self._publishers:
            if cascade.queue_type == "quorum" and server_version(self) < (3, 10):
                raise UnsupportedConfiguration(
                    "at-least-once dead lettering came with RabbitMQ 3.10, and without it delayed messages get lost. "
                    f"This is {self.server_properties.get('version')}: upgrade it, or choose "
                    'queue_type="classic" for throwaway work'
                )
            self._publishers[cascade.high] = DelayedPublisher(self, cascade, self.delay_options)
        return self._publishers[cascade.high]

    def destination(self, exchange: str, diverted: headers_.Headers) -> Destination:
        """Where a diverted message goes when it is due.

        A queue bound to an exchange with just the message's routing key, without arguments, gets it from there for
        sure, whatever the exchange's type.
        """
        keys = [*diverted["CC"], *headers_.copies(diverted, "BCC")]
        if exchange == "":
            return Destination("", tuple(dict.fromkeys(keys)))
        queues = (self.known_queues.get((exchange, key)) for key in keys)
        return Destination(exchange, tuple(dict.fromkeys(queue for queue in queues if queue)))


class Transport(pyamqp.Transport):  # type: ignore[misc]
    Connection = Connection

    driver_type = DRIVER_TYPE
    implements = pyamqp.Transport.implements.extend(batch_publish=True)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        # Read here, so that a bad option is an error before anything is sent.
        self.delay_options = Options.of((client.transport_options or {}).get(OPTIONS))

    def qos_semantics_matches_spec(self, connection: Any) -> bool:
        """Whether `basic.qos` is to be sent per consumer: RabbitMQ 4.3 and quorum queues know no other kind."""
        uses_quorum_queues = getattr(self.client, "uses_quorum_queues", None)  # `install` knows the app's queues
        return bool(
            super().qos_semantics_matches_spec(connection)
            or server_version(connection) >= (4, 0)
            or (uses_quorum_queues is not None and uses_quorum_queues())
        )

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        super().register_with_event_loop(connection, loop)
        # Celery's event loop does this for the driver type "amqp" alone: read what came in with the answer to
        # basic.consume, for a TLS socket will not be readable again for data that it has already buffered.
        loop.call_soon(_drain_once, connection)


class SSLTransport(Transport):
    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        if not client.ssl:
            client.ssl = True


def server_version(connection: Any) -> tuple[Any, ...]:
    """Of an `amqp.Connection`."""
    version: tuple[Any, ...] = version_string_as_tuple(connection.server_properties.get("version") or "0")
    return version


def _drain_once(connection: Any) -> None:
    if connection.connected:  # a loop that is closed runs what it has not run yet
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.1)


def _with_headers(msg: Any, headers: headers_.Headers) -> Any:
    """A copy of an `amqp.Message` with other headers; the user's own objects stay as they are."""
    return Message(msg.body, **{**msg.properties, "application_headers": dict(headers)})
