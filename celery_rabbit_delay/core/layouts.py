"""Earlier layouts of the cascade on the broker: their names, which are enough to empty and delete them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .levels import Level
from .topology import Cascade


@dataclass(frozen=True)
class Layout1:
    """What 0.1.0 and its predecessors declared: names without a version of the layout."""

    cascade: Cascade

    layout = 1

    @property
    def base_name(self) -> str:
        return f"{self.cascade.prefix}.high" if self.cascade.high else self.cascade.prefix

    @property
    def ingest(self) -> str:
        return f"{self.base_name}.ingest"

    @property
    def orphans(self) -> str:
        return f"{self.cascade.prefix}.orphans"

    def markers(self) -> Iterator[str]:
        """Yield the exchange that was declared last, for each number of levels that there may have been."""
        cascade = self.cascade
        for levels in range(1, cascade.powers + 1):
            yield f"{self.ingest}.{cascade.levels[0].ttl}ms.{levels}.{cascade.queue_type}"

    @property
    def levels(self) -> tuple[Level, ...]:
        """All levels, the shortest first."""
        powers = self.cascade.levels[: self.cascade.powers]
        queues = [f"{self.base_name}.delay.{level.ttl}" for level in powers]
        return tuple(
            level._replace(queue=queue, done=f"{queue}.done") for level, queue in zip(powers, queues, strict=True)
        )

    def exchange_names(self) -> Iterator[str]:
        yield self.ingest
        yield from (level.done for level in self.levels)
        yield from (f"{self.cascade.prefix}.{name}" for name in ("orphans", "guard", "done"))
        yield from self.markers()

    def queue_names(self) -> Iterator[str]:
        yield from (level.queue for level in self.levels)
        yield self.orphans
        yield f"{self.cascade.prefix}.void"
