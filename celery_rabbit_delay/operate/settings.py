"""Recommends settings of the broker for a cascade that is too slow. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..core.topology import Cascade
from .management import Management
from .status import held_up, unsettled

#: The number of unsettled messages per queue: RabbitMQ's default of `dead_letter_worker_consumer_prefetch`.
AT_A_TIME = 32

#: The first RabbitMQ that keeps queues and bindings in Khepri by default, and so brings both back at the same moment.
KHEPRI = (4, 2)


def advice(management: Management, wanted: Iterable[Cascade]) -> list[str]:
    """Return recommendations if a setting makes tasks late or may do so.

    The management API does not show settings, but only configuration files: these settings need an `advanced.config`.
    """
    files = management.config_files()
    at_defaults = files is not None and not any(file.endswith("advanced.config") for file in files)
    found = list(_behind(management, list(wanted), at_defaults))
    version = management.version()
    if at_defaults and tuple(map(int, version.split(".")[:2])) < KHEPRI:
        found.append(
            f"RabbitMQ {version}: tasks that are due just when the only node starts again after a crash may come three "
            "minutes late, unless dead_letter_worker_publisher_confirm_timeout is set (docs/operations.md, Restarts)"
        )
    return found


def _behind(management: Management, wanted: list[Cascade], at_defaults: bool) -> Iterator[str]:
    """Yield a recommendation if levels and outboxes forward fewer messages than become due."""
    rows = management.queues()
    queues = [level.queue for cascade in wanted for level in cascade.levels]
    # If it is known why an outbox is stuck, the cause is not a setting.
    queues += [outbox.queue for outbox in held_up(wanted[0], management) if not outbox.is_stuck]
    behind = {queue: unsettled(rows[queue]) for queue in queues if queue in rows and unsettled(rows[queue]) > AT_A_TIME}
    if behind:
        known = "which" if at_defaults else "if it"
        yield (
            f"{sum(behind.values()):,} messages are due and still in {len(behind)} levels and outboxes, most of them "
            f"in {max(behind, key=behind.__getitem__)}. If this happens repeatedly, raise "
            f"dead_letter_worker_consumer_prefetch, {known} is at its default of {AT_A_TIME} (docs/sizing.md)"
        )
