"""What can go wrong, one class for each thing a caller may want to tell apart. Every message says what to do next."""

try:
    from kombu.exceptions import BatchPublishError
except ImportError:  # before Kombu 5.7
    from kombu.exceptions import KombuError as BatchPublishError


class DelayError(Exception):
    """Base of all errors that this package raises. Nothing was sent when it is raised, but for `BatchFailed`."""


class InvalidOption(DelayError, ValueError):
    """An option of `install` or of `transport_options["rabbit_delay"]` is unknown, or has a value it cannot have."""


class InvalidDelay(DelayError, ValueError):
    """An `eta` or `x-delay` that cannot be read, or that lies beyond `max_delay`."""


class InvalidDestination(DelayError, ValueError):
    """A routing key or a CC header that a delayed message cannot carry."""


class UnsupportedConfiguration(DelayError):
    """The app's broker is not RabbitMQ over AMQP 0-9-1, or its task protocol hides the eta."""


class CascadeConflict(DelayError):
    """The broker has a cascade of the same prefix with other parameters."""


class CascadeMissing(DelayError):
    """`declare="passive"`, and the broker lacks a part of the cascade."""


class DestinationNotFound(DelayError):
    """The exchange or queue that the message is for does not exist."""


class NotPermitted(DelayError):
    """The broker's user lacks a permission."""


class NotRouted(DelayError):
    """The broker took the message but no level of the cascade did, even after the cascade was declared again."""


class BatchFailed(DelayError, BatchPublishError):  # type: ignore[misc]
    """Some messages of a batch may not be stored: those of `ids`, Celery's task ids. All others are."""

    def __init__(self, message: str, ids: list[str | None]) -> None:
        super().__init__(message, ids)  # both, so that it can be pickled
        self.ids = ids

    def __str__(self) -> str:
        return str(self.args[0])
