"""Compares the broker with the expected cascade, and sends test messages through it, for `verify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import kombu

from ..core import streams
from ..core.destination import Destination
from ..core.options import Options
from ..core.parts import Stream
from .cascades import cascades, existing
from .diff import Finding, diff
from .management import Management
from .outboxes import existing_outboxes, outbox_named, outbox_names
from .probe import probe, probe_streams
from .status import message_count


def compare(
    connection: kombu.Connection,
    destinations: Iterable[Destination],
    management: Management | None = None,
    priorities: bool | None = None,
    on_demand: bool = True,
    with_outboxes: bool = False,
) -> list[Finding]:
    """Return the state of each part of the cascades that the options ask for, and of the known outboxes that exist.

    With `on_demand`, parts that publishers create on demand, or do without, are not reported as missing; otherwise
    streams are, and with `with_outboxes` the outboxes of the option.
    """
    destinations = list(destinations)
    passive = connection.transport.delay_options.declare == "passive"
    # Otherwise a publisher creates the bindings to a destination on demand.
    needed = destinations if passive or (not on_demand and with_outboxes) else ()
    beside = _streams(connection, with_missing=passive or not on_demand)
    wanted, known = cascades(connection, priorities), existing(connection, priorities)
    outboxes = existing_outboxes(connection, destinations, management)
    if with_outboxes and not on_demand:
        outboxes += filter(None, (outbox_named(wanted[0], name) for name in outbox_names(connection, destinations)))
    on_demand = on_demand and not passive
    found = list(diff(connection, wanted, needed, management, beside, known, on_demand, outboxes))
    lacking = {one.name for one in found if one.kind == "queue" and one.state == "missing"}
    later = [] if passive else [stream.name for stream in beside if stream.name in lacking]
    return [_marked(finding, later) for finding in found]


def _marked(finding: Finding, later: Iterable[str]) -> Finding:
    """Return a finding, with a note if it is about one of some missing streams that are created on demand."""
    is_of_one = any(finding.name == name or f" -> {name} (" in finding.name for name in later)
    if finding.state != "missing" or not is_of_one:
        return finding
    return finding._replace(detail="it is created when it is needed", on_demand=True)


def can_try_out(findings: Iterable[Finding]) -> bool:
    """Return whether test messages can be sent: only bindings may be wrong, which the messages test."""
    return all(finding.kind == "binding" for finding in findings if finding.state != "present")


def try_out(connection: kombu.Connection, priorities: bool | None = None) -> Iterator[str]:
    """Send test messages through the short levels and read the streams; yield problems. Raises as `probe`."""
    options: Options = connection.transport.delay_options
    for cascade in cascades(connection, priorities):
        yield from probe(connection, cascade)
    yield from probe_streams(connection, _streams(connection, with_missing=options.declare == "passive"))


def _streams(connection: kombu.Connection, with_missing: bool) -> list[Stream]:
    """Return the existing streams, and with `with_missing` those that the options ask for."""
    options: Options = connection.transport.delay_options
    asked_for = options.streams if with_missing else []
    there = (s for s in streams.all_streams(options.cascade) if message_count(connection, s.name) is not None)
    return [*asked_for, *(stream for stream in there if stream not in asked_for)]
