"""The classes of errors of periodic tasks, one for each cause. The text of a message is where it is raised."""

from ...delay.core.errors import DelayError


class InvalidEntry(DelayError, ValueError):
    """A periodic entry cannot be written like this: its schedule or arguments are bad, or there is no such entry."""


class EntryConflict(DelayError):
    """Somebody else has changed the periodic entry since it was looked at: look again, and try again."""
