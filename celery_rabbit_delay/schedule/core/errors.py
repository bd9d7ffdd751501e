"""The classes of the schedule's errors, one for each cause. The text of a message is where it is raised."""

from ...delay.core.errors import DelayError


class StreamUnavailable(DelayError):
    """The broker cannot read or write a stream of the schedule now, or has lost its data."""


class NotWaiting(DelayError, LookupError):
    """The journal has no waiting message with this id. Only delays of at least the option `journal` are recorded."""


class TooLate(DelayError):
    """The message is due within 2 s, too soon to be moved."""


class DifferentMessages(DelayError):
    """Waiting messages with the same id differ in more than their due times, so that no move can make them one."""
