"""What operators do with a cascade, as functions that return data and print nothing. Knows no Celery.

Every function takes a `kombu.Connection` with our transport, whose options say which cascade is meant.
"""

from ..amqp.reschedule import reschedule
from ..amqp.schedule import Progress, Scheduled, cancel, queue_names, scheduled
from .cascades import cascades, earlier_layout, existing
from .diff import Finding, diff
from .management import Management
from .migrate import Moved, migrate
from .native import native_waiting, teardown_native
from .orphans import Orphan, orphans, purge, replay
from .probe import probe, probe_streams
from .setup import setup, teardown, teardown_earlier
from .status import LevelStatus, OutboxStatus, Status, count_earlier, message_count, status

__all__ = [
    "Finding",
    "LevelStatus",
    "Management",
    "Moved",
    "Orphan",
    "OutboxStatus",
    "Progress",
    "Scheduled",
    "Status",
    "cancel",
    "cascades",
    "count_earlier",
    "diff",
    "earlier_layout",
    "existing",
    "message_count",
    "migrate",
    "native_waiting",
    "orphans",
    "probe",
    "probe_streams",
    "purge",
    "queue_names",
    "replay",
    "reschedule",
    "scheduled",
    "setup",
    "status",
    "teardown",
    "teardown_earlier",
    "teardown_native",
]
