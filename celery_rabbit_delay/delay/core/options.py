"""The options that a user may set: validated once, frozen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Literal, get_args

from .due import to_ticks
from .errors import InvalidOption
from .levels import DEFAULT_OUTBOXES, MOST_COMBINED, Route, split
from .topology import Cascade

Declare = Literal["auto", "passive"]

#: Not "amqp": with that, Celery's native delayed delivery would rewrite the destination before the transport sees it.
#: OpenTelemetry's name for RabbitMQ, because Sentry takes it for `messaging.system`.
DRIVER_TYPE = "rabbitmq"

#: Key of the options in `transport_options`: an `Options` or a mapping.
OPTIONS = "rabbit_delay"

YEAR = 365 * 24 * 3600

#: Seconds: a day. Sockets have no time-outs of more than 24 days.
_LONGEST_TIMEOUT = 24 * 3600

#: RabbitMQ refuses a queue TTL over ten years.
TEN_YEARS = 10.0 * YEAR

#: The first release of RabbitMQ whose quorum queues may hold messages until a delivery time (rabbitmq-server #16583).
HOLDS_MESSAGES = (4, 4)

_MOST_OUTBOXES = 64
_MAX_PREFIX = 150  # bytes; AMQP allows a name 255


@dataclass(frozen=True)
class Options:
    """The options of `install`, checked and frozen.

    Apps that share a vhost and a prefix share a cascade if they use the same `tick`; otherwise their cascades stand
    side by side. Each declares the levels that its `max_delay` needs.

    Raises `InvalidOption`, which names the option.
    """

    #: The prefix of the names of all exchanges and queues of the cascade, 1 to 150 bytes.
    prefix: str = "celery-rabbit-delay"
    #: Seconds, a whole number of milliseconds: the shortest delay, and the most that rounding up may add.
    tick: float = 0.125
    #: Seconds: the longest delay. It decides how many levels, one queue each, the cascade has.
    max_delay: float = float(YEAR)
    #: Lateness that may be traded for fewer hops: (fraction of the delay, at most this many seconds), or a fraction.
    slack: float | tuple[float, float] = (0.001, 1.0)
    #: Seconds: delays that each destination may have a queue for, which makes them one hop. Others end in one of the
    #: first 5, or in the queue without a delay, the only one with `()`. May differ between processes.
    outboxes: Sequence[float] = DEFAULT_OUTBOXES
    #: Seconds that publishing a delayed message may wait for the broker, then `TimeoutError`; None waits for ever.
    confirm_timeout: float | None = 60.0
    #: "auto" creates missing parts on the broker; "passive" never creates anything, and names missing parts.
    declare: Declare = "auto"
    #: Keep cancellations, and a copy of each message, in streams: what waits can be listed, cancelled, moved.
    schedule: bool = False
    #: Seconds: of the schedule, the shortest delay that is recorded; None records none.
    journal: float | None = 60
    #: Let RabbitMQ 4.4 hold each message until it is due, without levels. Tried on a branch of it, not on the release.
    delivery_time: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for `parse` of plain types: `inspect stats` sends `transport_options` to other programs."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(self.slack, tuple):
            values["slack"] = list(self.slack)
        values["outboxes"] = list(self.outboxes)
        return values

    def __post_init__(self) -> None:
        if not _is_name(self.prefix):
            raise InvalidOption(f"prefix={self.prefix!r}: use a name of 1 to {_MAX_PREFIX} bytes of UTF-8")
        if f"{self.prefix}.".startswith("amq."):
            raise InvalidOption(f"prefix={self.prefix!r}: RabbitMQ reserves 'amq.'; use another name")
        if not _is_number(self.tick) or not 0.001 <= self.tick <= 3600 or not _is_whole(self.tick * 1000):
            raise InvalidOption(f"tick={self.tick!r}: use seconds, 0.001 to 3600, a whole number of milliseconds")
        if not _is_number(self.max_delay) or not self.tick <= self.max_delay <= TEN_YEARS:
            raise InvalidOption(f"max_delay={self.max_delay!r}: use seconds, one tick to ten years ({TEN_YEARS:.0f})")
        pair = self._slack_pair
        if len(pair) != 2 or not all(_is_number(n) and n >= 0 for n in pair) or pair[0] >= 1:
            raise InvalidOption(f"slack={self.slack!r}: use a fraction below 1, or (fraction, maximum in seconds)")
        self._check_outboxes()
        if self.declare not in get_args(Declare):
            raise InvalidOption(f"declare={self.declare!r}: use one of {', '.join(get_args(Declare))}")
        for name in ("schedule", "delivery_time"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidOption(f"{name}={getattr(self, name)!r}: use True or False")
        seconds = self.confirm_timeout
        if seconds is not None and not (_is_number(seconds) and 0 < seconds <= _LONGEST_TIMEOUT):
            raise InvalidOption(f"confirm_timeout={seconds!r}: use seconds, above 0 up to a day, or None for no limit")
        if self.journal is not None and not (_is_number(self.journal) and 0 <= self.journal < float("inf")):
            raise InvalidOption(f"journal={self.journal!r}: use seconds, 0 or more, or None to record nothing")
        if self.journal != Options.journal and not self.schedule:
            raise InvalidOption(f"journal={self.journal!r}: use it with schedule=True, or leave it out")

    def _check_outboxes(self) -> None:
        if not isinstance(self.outboxes, (tuple, list)):
            raise InvalidOption(f"outboxes={self.outboxes!r}: use a list of seconds, such as [60, 3600]")
        if len(self.outboxes) > _MOST_OUTBOXES:
            raise InvalidOption(f"outboxes: {len(self.outboxes)} are too many; use at most {_MOST_OUTBOXES}")
        for outbox in self.outboxes:
            if not _is_number(outbox) or not (0 < outbox <= self.max_delay or outbox in DEFAULT_OUTBOXES):
                raise InvalidOption(f"outboxes={outbox!r}: use seconds above 0, up to max_delay={self.max_delay:.0f}")

    @classmethod
    def parse(cls, value: Options | Mapping[str, Any] | None) -> Options:
        """Return options from what a user wrote into `transport_options["rabbit_delay"]`. Raises `InvalidOption`."""
        if isinstance(value, Options):
            return value
        known = {f.name for f in fields(cls)}
        value = {} if value is None else value
        if not isinstance(value, Mapping):
            use = ", ".join(sorted(known))
            off = "CELERY_RABBIT_DELAY=off in the environment switches the package off"
            raise InvalidOption(f"rabbit_delay={value!r}: use a mapping with any of {use}; {off}")
        unknown = sorted(map(str, set(value) - known))
        if unknown:
            meant = dict.fromkeys(name for other in unknown for name in get_close_matches(other, known, n=1))
            question = f"did you mean {' and '.join(meant)}? " if meant else ""
            raise InvalidOption(f"unknown option {', '.join(unknown)}: {question}use any of {', '.join(sorted(known))}")
        return cls(**value)

    def differences(self, other: Options) -> str:
        """Return which options differ, and how."""
        mine, its = self.to_dict(), other.to_dict()
        return ", ".join(f"{name}={mine[name]!r} instead of {its[name]!r}" for name in mine if mine[name] != its[name])

    @cached_property
    def cascade(self) -> Cascade:
        tick = timedelta(milliseconds=round(self.tick * 1000))
        ticks = -(-timedelta(seconds=self.max_delay) // tick)
        return Cascade(self.prefix, tick, ticks.bit_length())

    @cached_property
    def outbox_ticks(self) -> tuple[int, ...]:
        """The delays of outboxes, in ticks, in the order of the option."""
        wanted = (outbox for outbox in self.outboxes if outbox <= self.max_delay)
        return tuple(dict.fromkeys(-(-timedelta(seconds=outbox) // self.cascade.tick) for outbox in wanted))

    @property
    def summary(self) -> str:
        """What a worker says of the options when it starts."""
        recorded = "none is recorded" if self.journal is None else f"recorded from {self.journal:g} s"
        schedule = f"with the schedule, {recorded}" if self.schedule else "without the schedule"
        return f"prefix {self.prefix}, tick {self.tick:g} s, at most {self.max_delay / 86400:g} days, {schedule}"

    @cached_property
    def by_time_cascade(self) -> Cascade:
        return replace(self.cascade, by_time=True)

    def may_wait_by_time(self, version: tuple[int, ...]) -> bool:
        """Return whether to ask RabbitMQ of a version whether it holds messages, which then need not pass a cascade."""
        return self.delivery_time and self.declare == "auto" and version >= HOLDS_MESSAGES

    @property
    def _slack_pair(self) -> tuple[float, ...]:
        return tuple(self.slack) if isinstance(self.slack, (tuple, list)) else (self.slack, self.max_delay)

    def ticks(self, delay: int) -> int:
        """Return the ticks that a delay in microseconds takes, rounded up, at least one."""
        return max(1, to_ticks(delay, self.cascade.tick // timedelta(microseconds=1)))

    def combined_in(self, cascade: Cascade) -> tuple[int, ...]:
        """Return the outboxes of each destination that delays which are not round may end in, by their ticks."""
        return () if cascade.by_time else self.outbox_ticks[:MOST_COMBINED]

    def route(self, cascade: Cascade, ticks: int, combined: tuple[int, ...] | None = None, exact: bool = True) -> Route:
        """Return the route that keeps a message for at least one tick, of at most the ticks of `max_delay`.

        `combined` are the outboxes that it may end in, in ticks, besides the one without a delay, by default those of
        each destination; `exact` is whether it may enter any of the option with just its delay. In a cascade `by_time`
        it is in the outbox without a delay for all the time.
        """
        if cascade.by_time:
            return cascade.route(0, 0)
        fraction, seconds = self._slack_pair
        slack = int(min((ticks - 1) * fraction, seconds / self.tick))  # the delay is longer than all ticks but the last
        combined = self.combined_in(cascade) if combined is None else combined
        whole = self.outbox_ticks if exact else combined
        outbox, rest = split(ticks, slack, cascade.max_ticks, whole, combined)
        return cascade.route(rest, outbox)


def _is_name(value: object) -> bool:
    try:
        return isinstance(value, str) and 1 <= len(value.encode()) <= _MAX_PREFIX
    except UnicodeEncodeError:  # an argument of a command line that is not UTF-8
        return False


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: float) -> bool:
    return abs(value - round(value)) < 1e-6


def options_with(settings: Mapping[str, Any], given: Mapping[str, Any]) -> Options:
    """Return the options that were given to `install`, and for the others those of an app's configuration.

    Raises `InvalidOption`.
    """
    configured = settings.get(OPTIONS)
    Options.parse(configured)
    return Options.parse({**(configured or {}), **given})
