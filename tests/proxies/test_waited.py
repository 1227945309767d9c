"""How long the oldest message has waited: what looks can tell, never more than is true."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from callboard.proxies.actor_sampler import ActorSampler


@dataclass(eq=False)
class Line:
    """What of a cell counts here."""

    depth: int
    taken: int
    keeps_order: bool
    running: bool = False
    task: None = None
    rare: None = None


def test_a_message_that_was_there_at_a_look_has_waited_since() -> None:
    cell: Any = Line(depth=3, taken=10, keeps_order=True)
    waited = ActorSampler()

    waited.sample([cell], 100.0)
    cell.taken, cell.depth = 12, 5
    waited.sample([cell], 107.0)

    assert waited.waited(cell, 107.0) == 7.0  # one of the three is still first
    cell.taken, cell.depth = 13, 4
    waited.sample([cell], 109.0)
    assert waited.waited(cell, 110.0) == 3.0  # that one is gone; the next came after 100


def test_nothing_is_told_of_empty_mailboxes_and_of_those_that_drop_the_oldest() -> None:
    empty: Any = Line(depth=0, taken=1, keeps_order=True)
    dropping: Any = Line(depth=5, taken=1, keeps_order=False)
    waited = ActorSampler()
    for now in (1.0, 2.0):
        waited.sample([empty, dropping], now)

    assert waited.waited(empty, 3.0) == waited.waited(dropping, 3.0) == 0.0


STEPS = st.lists(st.tuples(st.sampled_from(("come", "handle", "look")), st.floats(0, 5)))


@given(STEPS)
def test_it_is_never_more_than_the_truth(steps: list[tuple[str, float]]) -> None:
    cell: Any = Line(depth=0, taken=0, keeps_order=True)
    waited, now, line = ActorSampler(), 0.0, []
    for step, seconds in steps:
        now += seconds
        if step == "come":
            line.append(now)
        elif step == "handle" and line:
            line.pop(0)
            cell.taken += 1
        cell.depth = len(line)
        if step == "look":
            waited.sample([cell], now)
            told = waited.waited(cell, now)
            assert told <= (now - line[0] if line else 0.0) + 1e-9
