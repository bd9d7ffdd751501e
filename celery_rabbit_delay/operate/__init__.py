"""What operators do with a cascade, as functions that return data and print nothing. Knows no Celery.

Every function takes a `kombu.Connection` with our transport, whose options say which cascade is meant.
"""

from .cascades import cascades, earlier_layout, with_all_levels
from .diff import Finding, diff
from .management import Management
from .migrate import Moved, migrate
from .native import native_waiting, teardown_native
from .orphans import Orphan, orphans, purge, replay
from .probe import probe
from .setup import setup, teardown, teardown_earlier
from .status import LevelStatus, OutboxStatus, Status, count_earlier, message_count, status

__all__ = [
    "Finding",
    "LevelStatus",
    "Management",
    "Moved",
    "Orphan",
    "OutboxStatus",
    "Status",
    "cascades",
    "count_earlier",
    "diff",
    "earlier_layout",
    "message_count",
    "migrate",
    "native_waiting",
    "orphans",
    "probe",
    "purge",
    "replay",
    "setup",
    "status",
    "teardown",
    "teardown_earlier",
    "teardown_native",
    "with_all_levels",
]
