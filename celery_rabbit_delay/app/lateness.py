"""How late delayed tasks start, as a histogram of Prometheus: for whoever asks for it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery.signals import task_prerun

from ..core.due import parse_eta
from ..core.errors import InvalidDelay, UnsupportedConfiguration

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Histogram

NAME = "celery_rabbit_delay_task_lateness_seconds"

#: Seconds: from a tick to where somebody should have noticed.
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


def measure_lateness(registry: CollectorRegistry | None = None) -> Histogram:
    """Observe, in workers, how many seconds after its eta each delayed task starts. Call it once, with `install`.

    The histogram has the label `task`, and is in prometheus_client's own registry unless another is given. What is not
    delayed costs a look at its eta. Raises `UnsupportedConfiguration` without prometheus_client.
    """
    try:
        from prometheus_client import REGISTRY, Histogram
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

    def observe(task: Any, **signal: Any) -> None:
        eta = task.request.eta
        if eta is not None:
            late = lateness(eta, datetime.now(timezone.utc))
            if late is not None:
                histogram.labels(task.name).observe(late)

    task_prerun.connect(observe, weak=False)
    return histogram


def lateness(eta: object, now: datetime) -> float | None:
    """Return the seconds from an eta, in UTC if naive, to now, an aware datetime; None if it cannot be read."""
    try:
        due = parse_eta(eta)
        due = due if due.tzinfo else due.replace(tzinfo=timezone.utc)
        return max(0.0, (now - due).total_seconds())
    except (InvalidDelay, ValueError, OverflowError):
        return None
