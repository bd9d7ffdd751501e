"""The classes of errors, one for each cause. The text of a message is where it is raised, and says what to do next."""

#: The documentation of the permissions.
PERMISSIONS = "https://github.com/celery-rabbit-delay/celery-rabbit-delay/blob/main/docs/for-operators.md#permissions"


class DelayError(Exception):
    """Base of all errors of this package. If one is raised, nothing was sent, but `BatchFailed` names what may be."""


class InvalidOption(DelayError, ValueError):
    """An option of `install`, or of `transport_options["rabbit_delay"]`, is unknown or has a bad value."""


class InvalidDelay(DelayError, ValueError):
    """An `eta` or `x-delay` cannot be read, or lies beyond `max_delay`."""


class InvalidDestination(DelayError, ValueError):
    """A delayed message cannot be sent to this exchange or routing key, or not with this priority.

    A delayed message cannot carry a routing key that begins with the word `@` or is empty for the default exchange, nor
    a name that is too long for that of an outbox, nor CC or BCC.
    """


class UnsupportedConfiguration(DelayError):
    """The app's broker is not RabbitMQ over AMQP 0-9-1, or too old, or has no streams; or `task_protocol` is 1."""


class CascadeConflict(DelayError):
    """An exchange or queue has the name of a part of the cascade, but another type or arguments: `verify` names it."""


class LimitReached(DelayError):
    """A limit of the broker or of the virtual host, such as `max-queues`, allows no further part of the cascade."""


class CascadeMissing(DelayError):
    """The broker lacks a part of the cascade that `declare="passive"` forbids to create, or loses it repeatedly."""


class DestinationNotFound(DelayError):
    """The exchange or queue that the message is for does not exist."""


class NotPermitted(DelayError):
    """The broker's user lacks a permission, which the message names."""


class MessageRefused(DelayError, ValueError):
    """RabbitMQ refuses this message itself: it is too large, for example, or has the `user_id` of another user."""


class NotRouted(DelayError):
    """No queue took the message: its outbox or a level is missing. Where messages are delayed, it is sent again."""
