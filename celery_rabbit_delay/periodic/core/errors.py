"""The errors of periodic tasks, as those of the delay: see `delay.core.errors`."""

from ...delay.core.errors import DelayError


class InvalidEntry(DelayError, ValueError):
    """A periodic entry cannot be written like this: its schedule or arguments are bad, or there is no such entry."""


class EntryConflict(DelayError):
    """Somebody else has changed the periodic entry since it was looked at: look again, and try again."""
