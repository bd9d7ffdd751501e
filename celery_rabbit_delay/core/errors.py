"""What can go wrong: one class for each thing a caller may want to tell apart. Every message says what to do next."""


class DelayError(Exception):
    """Base of all errors that this package raises. Nothing was sent when one is raised, except for `BatchFailed`."""


class InvalidOption(DelayError, ValueError):
    """An option of `install` or of `transport_options["rabbit_delay"]` is unknown or has an invalid value."""


class InvalidDelay(DelayError, ValueError):
    """An `eta` or `x-delay` cannot be read, or lies beyond `max_delay`."""


class InvalidDestination(DelayError, ValueError):
    """A routing key or a CC header is one that a delayed message cannot carry."""


class UnsupportedConfiguration(DelayError):
    """The app's broker is not RabbitMQ over AMQP 0-9-1, or its task protocol hides the eta."""


class CascadeConflict(DelayError):
    """Something with the name of a part of the cascade exists, declared with other arguments."""


class CascadeMissing(DelayError):
    """`declare="passive"`, and the broker lacks a part of the cascade."""


class LayoutMismatch(CascadeMissing):
    """`declare="passive"`, and the broker has only the cascade of another release, laid out in another way."""


class DestinationNotFound(DelayError):
    """The exchange or queue that the message is for does not exist."""


class NotPermitted(DelayError):
    """The broker's user lacks a permission."""


class StreamUnavailable(DelayError):
    """A stream of the schedule exists, but the broker cannot read or write it now."""


class NotWaiting(DelayError, LookupError):
    """No message that waits has this id, as far as the journal knows."""


class TooLate(DelayError):
    """A message is due too soon to be moved."""


class NotRouted(DelayError):
    """The broker took the message but no level of the cascade did, even after the cascade was declared again."""
