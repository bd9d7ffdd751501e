"""The operators' actions on a cascade, as functions that return data and print nothing. Knows no Celery.

Every function takes a `kombu.Connection` with our transport, whose options select the cascade. The command line and the
page reach the broker through the names that are imported here, and through no others.
"""

# ruff: noqa: F401  they are used by others

from ..amqp.connecting import connected, copy_of
from ..amqp.connection import advice_on_release, warning_of_release
from ..amqp.declare import PERMISSIONS
from ..amqp.destinations import QueueNames, destinations_of
from ..amqp.follower import Follower
from ..amqp.history import history, moved_to, of_app, tell, who, within_app
from ..amqp.reschedule import move, reschedule, reschedule_all
from ..amqp.schedule import (
    About,
    Found,
    Scheduled,
    about,
    cancel,
    concerns,
    describe,
    headers_in,
    pause,
    paused,
    restore,
    resume,
    scheduled,
    to_message,
)
from ..amqp.schemes import delay_url
from ..amqp.stream_consumer import Place, StreamMessage, StreamReplaced
from ..amqp.waiting import Allowed
from ..core.changes import Pause
from ..core.fates import Fate
from ..core.journal import Record
from ..core.notes import Note
from ..core.sent import Sent
from .beat import BeatStatus, PeriodicTask, beat_queues, beat_status, delete_beat_queues
from .cascades import cascades, holds_messages, is_by_time, outbox_names, require
from .export import export
from .held_up import HeldUp, held_up
from .leaving import Revivable, revivable
from .management import Management, Snapshot
from .migrate import cancelled_workflows, is_same, migrate
from .orphans import Orphan, are_for, orphans, purge, remove, replay
from .pruning import prune, prune_levels
from .setup import setup, teardown, wanted
from .status import Recorded, Status, recorded, status
from .verify import Finding, can_try_out, compare, try_out
