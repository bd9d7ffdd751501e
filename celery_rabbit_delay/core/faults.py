"""Known faults of RabbitMQ releases in at-least-once dead lettering, on which the levels rely."""

from __future__ import annotations

import re

#: For each issue of rabbitmq-server: the releases that mend it, one for each series. Later series have the mend from
#: their beginning. In turn: a wrong replica is used, a queue is stuck for good, a replica recovers only a part.
_MENDED = {
    16203: ((4, 2, 7), (4, 3, 1)),
    16652: ((4, 3, 3),),
    17012: ((4, 3, 5),),
}

#: Of earlier releases, 3.10.8 is known to have #16652; nobody knows of the others.
_SINCE = (4, 0, 0)

_RECOMMENDED = "4.3.5"


def advice(release: str) -> str | None:
    """Return what to say of a RabbitMQ release with such faults; None if it has none that is known of."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", release)
    version = tuple(map(int, found.groups())) if found else ()
    if not version or version < _SINCE:
        return None
    faults = [f"#{issue}" for issue, mended in _MENDED.items() if not _has_mend(version, mended)]
    if not faults:
        return None
    return (
        f"RabbitMQ {release} has faults of at-least-once dead lettering ({', '.join(faults)} of rabbitmq-server), with "
        f"which delayed messages may stay in a level: upgrade to {_RECOMMENDED} or later"
    )


def _has_mend(version: tuple[int, ...], mended: tuple[tuple[int, ...], ...]) -> bool:
    same_series = [release for release in mended if release[:2] == version[:2]]
    return version >= (same_series or mended[-1:])[0]
