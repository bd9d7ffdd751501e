"""The new due time of a message that is moved. Pure: `now` is an argument."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo

from ...delay.core.due import eta_in_utc
from ...delay.core.errors import InvalidDelay


def due_at(eta: object, countdown: object, now: datetime, naive_timezone: tzinfo = timezone.utc) -> datetime:
    """Return the moment, in UTC, that either an eta or a number of seconds from `now` means. Raises `InvalidDelay`."""
    if (eta is None) == (countdown is None):
        raise InvalidDelay("give either eta or countdown")
    if eta is not None:
        return eta_in_utc(eta, naive_timezone)
    try:
        if isinstance(countdown, bool) or not (seconds := float(countdown)) >= 0:  # type: ignore[arg-type]
            raise ValueError
        return now + timedelta(seconds=seconds)
    except (TypeError, ValueError, OverflowError):
        raise InvalidDelay(f"cannot read the countdown {countdown!r}: use a number of seconds, 0 or more") from None
