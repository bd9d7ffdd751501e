"""Which of the broker's own settings hold a cascade up. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.topology import Cascade
from .management import Management
from .status import unsettled

#: Messages of one queue that are handed on at a time: RabbitMQ's default of `dead_letter_worker_consumer_prefetch`.
AT_A_TIME = 32


def advice(management: Management, wanted: Iterable[Cascade]) -> list[str]:
    """Return what to change where levels hand on less than becomes due, as far as the management API tells.

    It does not tell the settings themselves, but where they are: this one can only be in an `advanced.config`.
    """
    rows = management.queues()
    levels = [level.queue for cascade in wanted for level in cascade.levels]
    behind = {queue: unsettled(rows[queue]) for queue in levels if queue in rows and unsettled(rows[queue]) > AT_A_TIME}
    if not behind:
        return []
    files = management.config_files()
    if files is None or any(file.endswith("advanced.config") for file in files):
        setting = f"raise dead_letter_worker_consumer_prefetch, if it is at its default of {AT_A_TIME}"
    else:
        setting = f"raise dead_letter_worker_consumer_prefetch, which is at its default of {AT_A_TIME}"
    return [
        f"{sum(behind.values()):,} messages are due and still in {len(behind)} levels, most of them in "
        f"{max(behind, key=behind.__getitem__)}. If that is so time and again, {setting}, or the option `shards` "
        "(docs/sizing.md)"
    ]
