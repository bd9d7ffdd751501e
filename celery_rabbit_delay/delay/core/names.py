"""The names of a cascade's exchanges and queues, and the version of the layout. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from .destination import SHORT_LIVED, Destination
from .errors import InvalidDestination
from .routing_key import MAX_LENGTH, SENTINEL

#: The version of the layout on a broker. Raise it with each change of names, arguments or keys, because a broker keeps
#: the parts that an earlier release declared (docs/contributing/layout.md, Versions).
LAYOUT = 3

#: Bytes that the delay in the name of an outbox may take.
_ROOM = len("9999999999999ms.")


@dataclass(frozen=True)
class Names:
    """The names of a cascade, which begin with `prefix`.

    They contain everything that decides how a part is declared: the version of the layout and the tick. Cascades that
    differ in one of them exist side by side, and no release publishes into the layout of another one. Only the name of
    `marker` contains the number of levels: cascades with more or fewer levels share those that they have in common, and
    a message needs only the levels in its key.
    """

    prefix: str
    tick: timedelta  # whole milliseconds
    powers: int  # levels of 2^0 to 2^(powers - 1) ticks
    #: The messages wait in the outboxes of their destinations until a delivery time (`x-opt-delivery-time`), on a
    #: RabbitMQ whose quorum queues hold them: there are no levels. Both kinds share everything else.
    by_time: bool = False

    def milliseconds(self, ticks: int) -> int:
        return ticks * (self.tick // timedelta(milliseconds=1))

    @cached_property
    def root(self) -> str:
        """The common prefix of all names of the cascade."""
        return f"{self.streams_root}.{self.milliseconds(1)}ms"

    @property
    def streams_root(self) -> str:
        """The common prefix of the names of the streams, which all cascades with the same `prefix` share.

        The exchange of that name is bound to each cascade that leads to them: `teardown` sees whether there is another.
        """
        return f"{self.prefix}.v{LAYOUT}"

    @cached_property
    def ingest(self) -> str:
        return f"{self.root}.ingest"

    @property
    def behind_ingest(self) -> str:
        """The exchange that leads from ingest to the levels and to the streams."""
        return f"{self.root}.route"

    @property
    def outbox_ingest(self) -> str:
        """The exchange for messages whose delay is that of an outbox.

        It has no alternate exchange, unlike `done`: a message for an outbox that was deleted returns to its publisher.
        """
        return f"{self.root}.ingest.outboxes"

    @property
    def done(self) -> str:
        return f"{self.root}.done"

    @property
    def orphans(self) -> str:
        return f"{self.root}.orphans"

    @property
    def lost(self) -> str:
        """The exchange of the orphans. No queue has its name, so that permission to bind it does not allow purging."""
        return f"{self.root}.lost"

    @property
    def marker(self) -> str:
        """The exchange that is declared last: if it exists, all levels and their bindings to each other exist.

        That of a cascade `by_time` shows that RabbitMQ was seen to hold messages.

        RabbitMQ from 4.3 shows an exchange only to users with some permission on it
        (https://github.com/rabbitmq/rabbitmq-server/releases/tag/v4.3.1), hence a name that a publisher's permission
        to write to ingest can cover.
        """
        return f"{self.ingest}.{'by-time' if self.by_time else self.powers}"

    @property
    def probe(self) -> str:
        """The queue that shows whether quorum queues hold messages, and the exchange that it hands them on to.

        Both names, and those of the queues of whoever asks, are covered as that of `marker` is.
        """
        return f"{self.ingest}.probe"

    @property
    def outbox_prefix(self) -> str:
        """The common prefix of the names of outboxes."""
        return f"{self.root}.out."

    @property
    def short_lived_outbox(self) -> str:
        """The outbox that short-lived queues share."""
        return self.outbox_prefix + SHORT_LIVED.removeprefix(f"{SENTINEL}.")

    def outbox_name(self, destination: Destination, ticks: int = 0) -> str:
        """Return the name of the queue in which messages wait for a delay, and until their destination accepts them.

        Raises `InvalidDestination` if the name of the destination, with its routing key, is too long.
        """
        name, room = self.outbox_prefix + destination.address().removeprefix(f"{SENTINEL}."), MAX_LENGTH - _ROOM
        if len(name.encode()) > room:
            raise InvalidDestination(
                f"the name of the {destination} is too long for delayed messages: with the prefix {self.prefix!r} it "
                f"may have {room - len(self.outbox_prefix.encode()) - 1} characters, or fewer if some are not "
                "ASCII letters, digits, `_`, `-` or `~`"
            )
        return self.outbox_prefix + destination.address(self.milliseconds(ticks)).removeprefix(f"{SENTINEL}.")
