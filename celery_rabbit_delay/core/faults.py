"""Known faults of RabbitMQ releases, read in its source by tag. docs/deployment.md has the same table, with sources."""

from __future__ import annotations

import re
from dataclasses import dataclass

Release = tuple[int, int, int]


@dataclass(frozen=True)
class Fault:
    """A fault, and the releases that have it: each range from its first release to its last."""

    issue: int  # of rabbitmq-server
    effect: str
    ranges: tuple[tuple[Release, Release], ...]
    forbids: bool = False  # no least privilege works there; the others are rare and lose nothing


#: At-least-once dead lettering, on which levels and outboxes rely, came with 3.10.0.
FAULTS = (
    Fault(16203, "in a cluster, after a change of leaders", (((3, 10, 0), (4, 2, 6)), ((4, 3, 0), (4, 3, 0)))),
    Fault(
        16652,
        "after two crashes of dead-letter workers within 5 s",
        (((3, 10, 0), (3, 10, 19)), ((3, 11, 0), (3, 11, 11))),
    ),
    Fault(
        16652,
        "after 100 crashes of dead-letter workers within a second",
        (((3, 10, 20), (3, 10, 25)), ((3, 11, 12), (4, 3, 2))),
    ),
    Fault(17012, "after a start from a recovery checkpoint", (((4, 3, 0), (4, 3, 4)),)),
    Fault(
        16085,
        'passive declarations demand the permission "configure"',
        (((4, 2, 6), (4, 2, 6)), ((4, 3, 0), (4, 3, 0))),
        forbids=True,
    ),
)

_RECOMMENDED = "upgrade to 4.3.5 or later"


def warning(release: str) -> str | None:
    """Return why a RabbitMQ release must not be used with least privilege; None if it may be."""
    forbidding = [fault for fault in _of(release) if fault.forbids]
    if not forbidding:
        return None
    return (
        f"Do not use RabbitMQ {release} with users of least privilege: {_listed(forbidding)}, so what has "
        f'declare="passive" is refused: {_RECOMMENDED}'
    )


def advice(release: str) -> str | None:
    """Return what to say of a RabbitMQ release with faults of dead lettering; None if it has none that is known of."""
    faults = [fault for fault in _of(release) if not fault.forbids]
    if not faults:
        return None
    return (
        f"RabbitMQ {release} has faults of at-least-once dead lettering, with which delayed messages may stay in a "
        f"level: {_listed(faults)}: {_RECOMMENDED}"
    )


def _of(release: str) -> list[Fault]:
    """Return the faults of a release. A pre-release counts as its release."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", release)
    version = tuple(map(int, found.groups())) if found else ()
    return [fault for fault in FAULTS if any(first <= version <= last for first, last in fault.ranges)]


def _listed(faults: list[Fault]) -> str:
    return ", ".join(f"{fault.effect} (rabbitmq-server #{fault.issue})" for fault in faults)
