"""A state beside a node's thread: calls are handed over, answers come back as callbacks.

Commits that are handed over while one is under way go into the next one together: no timer
decides how many, only how long the database takes. The same class stands in front of real
databases (each call on a thread) and of the model database of simulations.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from callboard import locks
from callboard.entity.state.interface import (
    Committed,
    EntitySnapshot,
    EntityState,
    NewEvent,
    RowChanges,
    Slot,
    SlotBatch,
)
from callboard.support import after_fork

P = ParamSpec("P")
T = TypeVar("T")

#: Called with the answer of a call, or with what it raised.
Done = Callable[[T | BaseException], object]

#: Seconds without a commit behind which a state does what it has put off.
IDLE_AFTER: Final = 0.5

#: The slots of a batch that wait at most: more than a node can have.
_MOST_BATCHES = 4096


class StateClient(Protocol):
    """A state as a node uses it: nothing here blocks."""

    def submit(
        self,
        done: Done[T],
        method: Callable[Concatenate[EntityState, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call a method of the state, for instance `EntityState.claim`.

        `done` is called on the node's thread, in any order among calls.
        """

    def commit(self, batch: SlotBatch, done: Done[Committed]) -> None:
        """Commit the batch of a slot in the next transaction.

        `done` gets the outcome of the whole transaction: look up the slot in it. Commits of
        one slot take place in the order of the calls.
        """

    def own_fences(self, type_name: str) -> Mapping[int, int] | None:
        """Return the slots that the writer has, with their epochs, as of now.

        None where that cannot be told without waiting: `EntityState.fences` tells.
        """

    def close(self) -> None:
        """Finish what was handed over, and close the state; may block."""


class GroupedCommits:
    """What waits for the next transaction, and who waits for the one under way."""

    def __init__(self) -> None:
        """Make one of nothing."""
        self._waiting: deque[tuple[SlotBatch, Done[Committed]]] = deque()
        #: Lets a batch wait, with who waits for it: each commit of an entity comes here.
        self.add = self._waiting.append

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    def begin(self) -> tuple[list[SlotBatch], list[Done[Committed]]]:
        """Take what the next transaction holds: the batches of a slot become one."""
        batches: dict[Slot, SlotBatch] = {}
        several: dict[Slot, list[SlotBatch]] = {}
        waiters: list[Done[Committed]] = []
        later: deque[tuple[SlotBatch, Done[Committed]]] = deque()
        waiting = self._waiting
        while waiting and len(batches) < _MOST_BATCHES:
            batch, done = waiting.popleft()
            slot = batch[0]  # as its name tells, in a third of the time
            before = batches.setdefault(slot, batch)
            if before is not batch:
                if before.epoch != batch.epoch:
                    later.append((batch, done))
                    continue
                if slot in several:
                    several[slot].append(batch)
                else:
                    several[slot] = [before, batch]
            waiters.append(done)
        waiting.extendleft(reversed(later))
        for slot, of_slot in several.items():
            batches[slot] = _joined(of_slot)
        return list(batches.values()), waiters


def _joined(batches: Sequence[SlotBatch]) -> SlotBatch:
    """Return batches of one slot and epoch as one."""
    events: list[NewEvent] = []
    rows: RowChanges | None = None
    snapshots: dict[str, EntitySnapshot] = {}
    forget: dict[str, int] = {}
    for batch in batches:
        events += batch.events
        if batch.snapshots:
            snapshots.update({each.key: each for each in batch.snapshots})
        if batch.forget:
            forget.update(batch.forget)
        if batch.rows is not None:
            if rows is None:
                rows = RowChanges()
            rows.include(batch.rows)
    slot, epoch = batches[0][:2]
    return SlotBatch(slot, epoch, events, list(snapshots.values()), forget, rows)


class _Calls:
    """Calls that wait for a thread, which makes them one after the other."""

    def __init__(self) -> None:
        """Make one with nothing to do."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._come = locks.condition("jobs of a state", 590)
        self._is_closing = False
        after_fork.register(self)

    def add(self, call: Callable[[], None]) -> None:
        """Let a call wait."""
        with self._come:
            self._waiting.append(call)
            self._come.notify()

    def close(self) -> None:
        """Let the thread end behind what waits."""
        with self._come:
            self._is_closing = True
            self._come.notify()

    def run(self) -> None:
        """Make calls until there will be no more."""
        while True:
            with self._come:
                while not self._waiting and not self._is_closing:
                    self._come.wait()
                if not self._waiting:
                    return
                call = self._waiting.popleft()
            call()


class ThreadedStateClient:
    """Calls a state on threads: one for commits, one for claims, one for everything else.

    A claim waits for the writer's lock of the database, and nothing that is read waits for it.
    """

    def __init__(self, state: EntityState, post: Callable[..., object]) -> None:
        """Start the threads; `post(callback, *args)` calls back on the node's thread."""
        self._state = state
        self._post = post
        self._reads, self._claims = _Calls(), _Calls()
        self._commits = GroupedCommits()
        #: Wakes the thread of commits, which waits here while it is not committing. A thread
        #: that is woken for nothing takes the interpreter from the node's thread.
        self._commits_come: SimpleQueue[None] = SimpleQueue()
        self._is_committing = True
        self._is_closing = False
        #: Commits what it takes once it can; a state may wait for others before that.
        self._commit: Callable[[Callable[[], Sequence[SlotBatch]]], Committed]
        self._commit = getattr(state, "commit_waiting", lambda take: state.commit(take()))
        #: Does what a state puts off while there is much to commit; tells whether that is all.
        self._settle: Callable[..., bool] = getattr(state, "settle", _settled)
        self._is_settled = False
        #: Tells at once which slots the writer has, if the state can.
        self._look: Callable[[str], Mapping[int, int] | None]
        self._look = getattr(state, "own_fences", lambda _: None)
        self._threads = [
            threading.Thread(target=run, name=f"callboard-state-{name}", daemon=True)
            for name, run in (
                ("commits", self._run_commits),
                ("claims", self._claims.run),
                ("reads", self._reads.run),
            )
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        done: Done[T],
        method: Callable[Concatenate[EntityState, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call a method of the state on the thread for claims, or on that for reads."""
        bound: Callable[..., T] = getattr(self._state, method.__name__)
        calls = self._claims if method is EntityState.claim else self._reads
        calls.add(partial(self._answer, done, partial(bound, *args, **kwargs)))

    def commit(self, batch: SlotBatch, done: Done[Committed]) -> None:
        """Commit the batch of a slot in the next transaction."""
        self._commits.add((batch, done))
        if not self._is_committing:  # else its thread looks before it waits
            self._is_committing = True
            self._commits_come.put(None)

    def own_fences(self, type_name: str) -> Mapping[int, int] | None:
        """Return the slots that the writer has, if the state tells without waiting."""
        return self._look(type_name)

    def close(self) -> None:
        """Finish what was handed over, and close the state."""
        self._is_closing = True
        self._commits_come.put(None)
        self._claims.close()
        self._reads.close()
        for thread in self._threads:
            thread.join()
        self._state.close()

    def _answer(self, done: Done[T], call: Callable[[], T]) -> None:
        """Make a call, and hand its outcome to the node's thread."""
        self._post(done, _outcome(call))

    def _run_commits(self) -> None:
        """Commit what waits until the state is closed: the thread of commits."""
        while True:
            if self._commits.is_empty:
                self._wait_for_commits()
            if self._commits.is_empty:
                return
            waiters: list[Done[Committed]] = []
            outcome = _outcome(partial(self._commit, partial(self._take_group, waiters)))
            if not waiters:  # it could not even begin
                self._take_group(waiters)
            self._post(_tell_all, waiters, outcome)
            self._is_settled = self._settle()

    def _take_group(self, waiters: list[Done[Committed]]) -> list[SlotBatch]:
        """Return what the next transaction holds, and note who waits for it."""
        batches, waiting = self._commits.begin()
        waiters += waiting
        return batches

    def _wait_for_commits(self) -> None:
        """Wait until there is something to commit, or the state is closed.

        Who commits appends without a lock, then looks whether this thread waits; this thread
        says that it does before it looks. So one of them sees the other, and maybe both do:
        then it wakes once for nothing.
        """
        while self._is_idle():
            self._is_committing = False
            if self._is_idle():
                try:
                    self._commits_come.get(timeout=None if self._is_settled else IDLE_AFTER)
                except Empty:
                    self._is_settled = self._settle(is_idle=True)
        self._is_committing = True

    def _is_idle(self) -> bool:
        """Return whether there is nothing to commit, and more may come."""
        return self._commits.is_empty and not self._is_closing


def _settled(*, is_idle: bool = False) -> bool:
    """Answer for a state that puts nothing off."""
    return True


def _outcome(call: Callable[[], T]) -> T | BaseException:
    """Return what a call returns or raises."""
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 - who called decides
        return error


def _tell_all(waiters: Sequence[Done[Any]], outcome: Any) -> None:
    """Hand the outcome of a transaction to all that wait for it."""
    for done in waiters:
        done(outcome)
