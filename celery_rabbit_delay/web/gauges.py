"""Prometheus metrics of waiting messages (https://prometheus.io/docs/concepts/metric_types)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.registry import Collector

from ..operate import Status
from ..periodic.beat_status import BeatStatus
from .overview import Overview
from .printing import clean


class _Collector(Collector):
    def __init__(self, overview: Overview) -> None:
        self._overview = overview

    def collect(self) -> Iterator[Gauge]:
        status, beat = self._overview.status(), self._overview.beat()
        yield from _of_the_index(self._overview)
        yield _gauge("broker_up", "Whether the broker answered.", int(not isinstance(status, str)))
        if not isinstance(status, str):
            yield from _of_the_broker(status)
        if isinstance(beat, BeatStatus):
            yield from _of_the_beat(beat)


def exposition(overview: Overview) -> bytes:
    """Return the metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Collector(overview))
    return generate_latest(registry)


def _of_the_index(overview: Overview) -> Iterator[Gauge]:
    summary, indexer = overview.summary(), overview.indexer
    yield _gauges("waiting", "Waiting messages in the journal, by their queue.", ["queue"], summary.queues.items())
    yield _gauge("cancelled", "Cancelled messages in the journal that are not due yet.", summary.cancelled)
    paused = [(clean(name), 1) for name in sorted(indexer.paused)]
    yield _gauges("paused", "1 for each queue that is paused.", ["queue"], paused)
    if summary.soonest is not None:
        soonest = summary.soonest / 1000
        yield _gauge("next_due_timestamp_seconds", "When the next message in the journal is due.", soonest)
    behind = indexer.progress
    yield _gauge("index_behind_seconds", "Seconds since the index last held all of the journal.", behind.behind)
    yield _gauge("index_behind_messages", "Messages of streams that the index has not read yet.", behind.left)


def _of_the_broker(status: Status) -> Iterator[Gauge]:
    levels = [(one.queue, _seconds(one.ttl), one.held) for one in status.levels if one.held]
    yield _gauges("level_messages", "Waiting messages in a level, if there are any.", ["level", "ttl_seconds"], levels)
    yield _gauges(
        "outbox_messages",
        "Waiting messages in an outbox with a delay, or held there by RabbitMQ (delay 0), if there are any.",
        ["outbox", "destination", "delay_seconds"],
        [(one.queue, one.destination, _seconds(one.delay), one.ready) for one in status.outboxes],
    )
    yield _gauge("missing_levels", "Levels that do not exist.", len(status.missing))
    yield _gauge("orphans", "Messages whose outbox was deleted.", status.orphans or 0)
    if status.held_up is not None:  # AMQP does not show this
        yield _gauge("blocked_levels", "Levels that cannot forward their due messages.", len(status.blocked))
        stuck = sum(one.stuck for one in status.held_up if one.is_stuck)  # others may be on their way
        yield _gauge("stuck", "Due messages that their destinations have not accepted.", stuck)


def _of_the_beat(beat: BeatStatus) -> Iterator[Gauge]:
    active = [(clean(beat.process or ""), int(beat.process is not None))]
    yield _gauges("beat_active", "Whether a process of the app's beat is active.", ["process"], active)
    runs = [(clean(one.entry), one.next.timestamp()) for one in beat.entries if one.next is not None]
    yield _gauges("beat_next_run_timestamp_seconds", "When an entry runs next.", ["entry"], runs)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.13g}"


def _named(name: str) -> str:
    return f"celery_rabbit_delay_{name}"


def _gauges(name: str, help_: str, labels: Sequence[str], rows: Iterable[Sequence[Any]]) -> Gauge:
    """Return a gauge for each row: the values of its labels, and at last its own."""
    gauges = Gauge(_named(name), help_, labels=labels)
    for *values, amount in rows:
        gauges.add_metric(values, amount)
    return gauges


def _gauge(name: str, help_: str, value: float) -> Gauge:
    return Gauge(_named(name), help_, value=value)
