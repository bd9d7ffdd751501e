"""The operators' actions on a cascade, as functions that return data and print nothing. Knows no Celery.

Every function takes a `kombu.Connection` with our transport, whose options select the cascade.
"""

# ruff: noqa: F401  they are used by others

from .cascades import cascades, is_by_time, require
from .export import export
from .held_up import HeldUp, held_up
from .management import Management, Snapshot
from .orphans import Orphan, are_for, orphans, purge, remove, replay
from .setup import setup, teardown, wanted
from .status import Status, status
from .verify import Finding, can_try_out, compare, try_out
