"""`measure_lateness`: Prometheus metrics of workers: how late delayed tasks start, and how many were handed on."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery.signals import task_prerun

from ..core.due import eta_in_utc
from ..core.errors import InvalidDelay, UnsupportedConfiguration
from .handing_on import handed_on

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Histogram

NAME = "celery_rabbit_delay_task_lateness_seconds"

HANDED_ON = "celery_rabbit_delay_handed_on"

#: Seconds: from less than a tick up to half an hour, when an alert should have fired.
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


def measure_lateness(registry: CollectorRegistry | None = None) -> Histogram:
    """Observe, in workers, how many seconds after its eta each delayed task starts. Call it once, with `install`.

    The histogram has the label `task`. A counter, `celery_rabbit_delay_handed_on_total`, grows once a minute by the
    tasks that the worker has handed on. Both go into prometheus_client's default registry, or into `registry`. For
    tasks without a delay, only the eta is checked. Raises `UnsupportedConfiguration` without prometheus_client.
    """
    try:
        from prometheus_client import REGISTRY, Counter, Histogram
    except ModuleNotFoundError as exc:
        raise UnsupportedConfiguration(
            "measuring needs prometheus_client: pip install 'celery-rabbit-delay[metrics]'"
        ) from exc
    histogram = Histogram(
        NAME,
        "How long after its eta a delayed task started.",
        ["task"],
        registry=registry or REGISTRY,
        buckets=_BUCKETS,
    )

    counter = Counter(HANDED_ON, "Tasks that came before they were due.", registry=registry or REGISTRY)

    def count(amount: int, **signal: Any) -> None:
        counter.inc(amount)

    def observe(task: Any, **signal: Any) -> None:
        eta = task.request.eta
        if eta is not None:
            late = lateness(eta, datetime.now(timezone.utc))
            if late is not None:
                histogram.labels(task.name).observe(late)

    task_prerun.connect(observe, weak=False)
    handed_on.connect(count, weak=False)
    return histogram


def lateness(eta: object, now: datetime) -> float | None:
    """Return the seconds from an eta (UTC if naive) to `now`, an aware datetime; None if the eta cannot be read."""
    try:
        return max(0.0, (now - eta_in_utc(eta, timezone.utc)).total_seconds())
    except InvalidDelay:
        return None
