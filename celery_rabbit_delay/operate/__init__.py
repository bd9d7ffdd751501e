"""The operators' actions on a cascade, as functions that return data and print nothing. Knows no Celery.

Every function takes a `kombu.Connection` with our transport, whose options select the cascade.
"""

from ..amqp.connection import advice_on_release
from ..amqp.destinations import QueueNames
from ..amqp.following import Follower, Place, StreamReplaced, entry_at, mark
from ..amqp.reschedule import moving, reschedule
from ..amqp.schedule import (
    Progress,
    Report,
    Scheduled,
    cancel,
    describe,
    scheduled,
    to_message,
)
from ..amqp.streams import Entry
from ..core.journal import Record
from .cascades import cascades, earlier_layout, existing, require
from .diff import Finding, diff
from .hurry import hurry
from .management import Management
from .migrate import Moved, migrate
from .native import native_waiting, teardown_native
from .orphans import Orphan, orphans, purge, remove, replay
from .probe import probe, probe_streams
from .pruning import prune, wait_for_counts
from .settings import advice
from .setup import opaque_outboxes, setup, teardown, teardown_earlier
from .status import LevelStatus, OutboxStatus, Status, add_up, count_earlier, message_count, outboxes, status
from .verify import can_try_out, compare, try_out

__all__ = [
    "Entry",
    "Finding",
    "Follower",
    "LevelStatus",
    "Management",
    "Moved",
    "Orphan",
    "OutboxStatus",
    "Place",
    "Progress",
    "QueueNames",
    "Record",
    "Report",
    "Scheduled",
    "Status",
    "StreamReplaced",
    "add_up",
    "advice",
    "advice_on_release",
    "can_try_out",
    "cancel",
    "cascades",
    "compare",
    "count_earlier",
    "describe",
    "diff",
    "earlier_layout",
    "entry_at",
    "existing",
    "hurry",
    "mark",
    "message_count",
    "migrate",
    "moving",
    "native_waiting",
    "opaque_outboxes",
    "orphans",
    "outboxes",
    "probe",
    "probe_streams",
    "prune",
    "purge",
    "remove",
    "replay",
    "require",
    "reschedule",
    "scheduled",
    "setup",
    "status",
    "teardown",
    "teardown_earlier",
    "teardown_native",
    "to_message",
    "try_out",
    "wait_for_counts",
]
