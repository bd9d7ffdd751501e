"""The operators' actions on a cascade, as functions that return data and print nothing. Knows no Celery.

Every function takes a `kombu.Connection` with our transport, whose options select the cascade.
"""

from ..amqp.connection import advice_on_release
from ..amqp.destinations import QueueNames
from ..amqp.following import Follower, Place, StreamReplaced, message_at
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
from ..amqp.streams import StreamMessage, StreamReader
from ..core.journal import Record
from .cascades import cascades, existing, require
from .diff import Finding, diff
from .hurry import hurry
from .management import Management
from .migrate import Moved, migrate
from .native import native_waiting, teardown_native
from .orphans import Orphan, orphans, purge, remove, replay
from .outboxes import Outbox, existing_outboxes, outbox_names
from .probe import probe, probe_streams
from .pruning import prune, wait_for_counts
from .settings import advice
from .setup import opaque_outboxes, setup, teardown
from .status import HeldUp, LevelStatus, OutboxStatus, Status, add_up, held_up, message_count, status
from .verify import can_try_out, compare, try_out

__all__ = [
    "Finding",
    "Follower",
    "HeldUp",
    "LevelStatus",
    "Management",
    "Moved",
    "Orphan",
    "Outbox",
    "OutboxStatus",
    "Place",
    "Progress",
    "QueueNames",
    "Record",
    "Report",
    "Scheduled",
    "Status",
    "StreamMessage",
    "StreamReader",
    "StreamReplaced",
    "add_up",
    "advice",
    "advice_on_release",
    "can_try_out",
    "cancel",
    "cascades",
    "compare",
    "describe",
    "diff",
    "existing",
    "existing_outboxes",
    "held_up",
    "hurry",
    "message_at",
    "message_count",
    "migrate",
    "moving",
    "native_waiting",
    "opaque_outboxes",
    "orphans",
    "outbox_names",
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
    "teardown_native",
    "to_message",
    "try_out",
    "wait_for_counts",
]
