"""Several who move a message at the same moment, in any order: one copy is delivered, whatever a consumer has read."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay.core import changes
from celery_rabbit_delay.core.changes import Changes

MOVERS = 4
DAY = 24 * 3600
LATER = 2_000_000_000_000


class World:
    """A message that was published once or more, its copies, and the stream of changes."""

    def __init__(self, published: int) -> None:
        self.known = Changes(lambda: 0)
        self.copies = list(range(published))  # by their numbers
        self.arrived: dict[int, bool] = {}  # each with whether it ran

    def arrive(self, number: int) -> None:
        if number in self.copies and number not in self.arrived:
            self.arrived[number] = not self.known.voids(number)

    def waiting(self) -> list[int]:
        return [one for one in self.copies if one not in self.arrived and not self.known.voids(one)]

    def move(self, sees: int) -> Iterator[None]:
        """Move the message in steps; of what waits, `sees` are in the journal already."""
        seen = self.waiting()[:sees]
        yield
        if seen:
            copy = len(self.copies)
            self.copies.append(copy)
            for one in seen:
                yield
                self.known.apply(changes.replaced(one, copy, LATER))


steps = st.lists(st.integers(0, MOVERS - 1))
sights = st.lists(st.integers(1, 9), min_size=MOVERS, max_size=MOVERS)


@given(st.integers(1, 3), sights, st.lists(st.tuples(st.integers(0, MOVERS - 1), st.integers(-3, 8))))
def test_some_copy_runs_whenever_each_arrives_and_whoever_is_killed(
    published: int, sees: list[int], happens: list[tuple[int, int]]
) -> None:
    world = World(published)
    movers = [world.move(amount) for amount in sees]
    for mover, number in happens:
        next(movers[mover], None)
        world.arrive(number)
        assert world.waiting() or any(world.arrived.values())
    for number in world.copies:
        world.arrive(number)
    assert any(world.arrived.values())


@given(st.integers(1, 3), steps)
def test_one_copy_is_left_when_all_moves_have_ended(published: int, order: list[int]) -> None:
    world = World(published)
    movers = [world.move(9) for _ in range(MOVERS)]
    for mover in order:
        next(movers[mover], None)
    for one in movers:
        list(one)
    assert len(world.waiting()) == 1


@given(st.permutations(range(1, MOVERS + 1)))
def test_the_move_whose_change_comes_last_counts(order: list[int]) -> None:
    known = Changes(lambda: 0)
    for copy in order:
        known.apply(changes.replaced(0, copy, LATER))
    assert [copy for copy in range(MOVERS + 1) if not known.voids(copy)] == order[-1:]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))))
def test_a_copy_that_is_void_remains_so_whatever_comes(said: list[tuple[int, int]]) -> None:
    """Numbers may be made up."""
    known, told = Changes(lambda: 0), list[int]()
    known.on_void = told.append
    void: set[int] = set()
    for number, by in said:
        known.apply(changes.replaced(number, by, LATER))
        before, void = void, set(filter(known.voids, range(10)))
        assert before <= void == set(told)


def test_a_copy_is_known_to_be_void_until_it_is_due_however_early_the_first_one_was() -> None:
    """Copies 1 and 2 replace 0 at the same moment; their due times are in days."""
    now = 0
    known = Changes(lambda: now * DAY)
    says = [changes.replaced(0, copy, due * DAY * 1000) for copy, due in ((1, 100), (2, 10))]
    for message in says:
        known.apply(message)
    now = 120
    late = Changes(lambda: now * DAY)
    for message in says:
        late.apply(message)
    for number in range(10, 2010):
        known.apply(changes.void(number, now * DAY * 1000))
    assert known.voids(1)
    assert late.voids(1)
