"""What an add-on may do to delayed messages on their way. The delay itself does nothing of it.

The word is that of Kafka's clients, whose interceptors see each record as it is sent, confirmed and received.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from amqp import Message

from ..core.headers import State
from ..core.plan import Plan, Ticket
from ..core.topology import Cascade, Stream
from .confirms import ConfirmedChannel


class Interceptor:
    """One for each AMQP connection of a user, made by `Transport.intercept`, which a subclass overrides.

    Whoever publishes or consumes on the connection calls it, in his thread.
    """

    def ticket(self, headers: Mapping[str, Any], delay: int) -> Ticket | None:
        """Return a ticket for a message with a delay in microseconds: our header carries its number.

        Nothing is sent yet, and an error raised here is raised by `publish`.
        """
        return None

    def stored(self, publisher: Any, sent: Sequence[tuple[Plan, Message]]) -> None:
        """Take note of messages with tickets, as they were sent, once the broker has stored them: one, or a batch.

        Called in a turn of the publisher, a `DelayedPublisher`, whose channel it may use. Raises nothing.
        """

    def drops(self, message: Any, state: State | None) -> bool:
        """Return whether an `amqp.Message` that arrives is acknowledged instead of delivered."""
        return False

    def learn(self) -> None:
        """Get to know what `drops` is to drop, before messages are taken to be sent again."""

    def streams(self, wanted: bool = False) -> list[Stream]:
        """Return the streams that may stand beside the cascade, or those that the options want there."""
        return []

    def create(self, channel: ConfirmedChannel, cascade: Cascade) -> None:
        """Create what the options want to stand beside a cascade, for `setup`."""

    def problems(self) -> Iterator[str]:
        """Yield what does not work of what stands beside the cascade, for `verify`."""
        return iter(())

    def close(self) -> None:
        """Close connections, and wait for nothing. Called when the user's connection is closed or lost."""
