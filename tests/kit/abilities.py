"""What RabbitMQ does from one release on, or up to another one, as far as tests depend on it.

Tests ask for these, and not for a release: `vhost.broker.has(Ability.…)`. Read in RabbitMQ's source by tag, or seen.
"""

from __future__ import annotations

from enum import Enum

Version = tuple[int, ...]


class Ability(Enum):
    """The first release that has it, and the first one that has it no more, if there is one."""

    #: Two crashes of dead-letter workers within 5 s do not end all dead-lettering of the node (rabbitmq-server #16652).
    SURVIVES_TWO_CRASHES = (3, 12), None
    NAMES_THE_PERMISSION = (3, 12), None  # in the text of a refusal
    TIMES_OUT_BY_POLICY = (3, 12), None  # consumer-timeout
    DENIES_TRANSIENT_QUEUES = (3, 13), None  # has a switch to deny those that connections share
    LIMITS_MESSAGES_TO_16_MB = (4, 0), None
    #: With Mnesia, as 3.10 and 4.0 were seen to, nodes may stay apart until they are restarted.
    HEALS_PARTITIONS = (4, 2), None
    #: Quorum queues have priorities, and look for expired messages only at the head, where the high ones are.
    HOLDS_UP_LOW_PRIORITIES = (4, 0), (4, 3)
    KEEPS_QUEUES_IN_ONE_TABLE = (4, 2), None  # Khepri by default; with Mnesia there are two
    HIDES_WHAT_ONE_MAY_NOT_USE = (4, 2, 6), None  # a passive declaration needs some permission (#16085, #16272)
    DELAYS_RETRIES = (4, 3), None  # a policy may make what comes back to a quorum queue wait
    HOLDS_MESSAGES = (4, 4), None  # in quorum queues until a delivery time
    GOES_ON_WITHOUT_ONE_NODE = (4, 3), None  # that has another cookie; earlier, all pause. 4.2 was not tried

    def is_in(self, version: Version) -> bool:
        since, until = self.value
        return version >= since and (until is None or version < until)
