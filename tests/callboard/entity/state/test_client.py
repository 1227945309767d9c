"""Calls of a state beside a node's thread: order, groups, errors, the end."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from callboard.entity.state.client import ThreadedStateClient
from callboard.entity.state.interface import Committed, EntityState, Fence, SlotBatch
from callboard.entity.state.memory import MemoryState
from callboard.lease.errors import StateUnavailable
from tests.callboard.entity.state.stores import batch
from tests.polling import eventually


class SlowState(MemoryState):
    """A state whose commits wait for the test."""

    def __init__(self) -> None:
        super().__init__("a")
        self.groups: list[Sequence[SlotBatch]] = []
        self.go_on = threading.Semaphore(0)

    def commit(self, batches: Sequence[SlotBatch]) -> Committed:
        self.groups.append(batches)
        assert self.go_on.acquire(timeout=60)
        if len(self.groups) == 3:
            raise StateUnavailable("away")
        return super().commit(batches)


def test_what_comes_while_a_commit_is_under_way_goes_into_the_next_one() -> None:
    state, answers = SlowState(), list[Any]()
    state.claim("Cart", {1: 1, 2: 1})
    client = ThreadedStateClient(state, lambda callback, *args: callback(*args))
    client.commit(batch(1, [1]), answers.append)
    assert eventually(lambda: len(state.groups) == 1)
    for slot, number in ((1, 2), (2, 1), (1, 3)):
        client.commit(batch(slot, [number]), answers.append)
    state.go_on.release(2)
    assert eventually(lambda: len(answers) == 4)
    assert [[(b.slot[1], len(b.events)) for b in group] for group in state.groups] == [
        [(1, 1)],
        [(1, 2), (2, 1)],
    ]
    assert answers[1:] == [Committed({}, {}, {"Cart": 4})] * 3
    client.commit(batch(1, [4]), answers.append)
    state.go_on.release()
    assert eventually(lambda: len(answers) == 5)
    assert isinstance(answers[4], StateUnavailable)
    client.submit(answers.append, EntityState.last_position, "Cart")
    client.close()
    assert answers[5] == 4, "what was handed over is finished"


def test_batches_of_two_epochs_do_not_become_one() -> None:
    state, answers = SlowState(), list[Any]()
    state.claim("Cart", {1: 1})
    client = ThreadedStateClient(state, lambda callback, *args: callback(*args))
    client.commit(batch(2, [1]), answers.append)
    assert eventually(lambda: len(state.groups) == 1)
    client.commit(batch(1, [1]), answers.append)
    client.commit(batch(1, [1], epoch=2), answers.append)
    state.go_on.release(3)
    client.close()
    assert [len(group) for group in state.groups] == [1, 1, 1]
    assert [group[0].epoch for group in state.groups] == [1, 1, 2]


class ContestedState(MemoryState):
    """A state whose claims wait for the test, as for a lock of the database."""

    def __init__(self) -> None:
        super().__init__("a")
        self.go_on = threading.Semaphore(0)

    def claim(self, type_name: str, slots: Mapping[int, int]) -> Mapping[int, Fence]:
        assert self.go_on.acquire(timeout=60)
        return super().claim(type_name, slots)


def test_what_is_read_waits_for_no_claim() -> None:
    state, claimed, read = ContestedState(), list[Any](), list[Any]()
    client = ThreadedStateClient(state, lambda callback, *args: callback(*args))
    client.submit(claimed.append, EntityState.claim, "Cart", {1: 1})
    client.submit(read.append, EntityState.last_position, "Cart")
    assert eventually(lambda: read == [0])
    assert claimed == []
    state.go_on.release()
    client.close()
    assert claimed == [{}]
