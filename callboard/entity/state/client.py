"""Runs the calls of a state on threads, and delivers the results as callbacks.

Commits that are submitted while a transaction is running are put together into the next one. So
there is no timer: the longer transactions take, the more commits share one. The protocol
`StateClient` is implemented here for real databases (each call on a thread), and by the model
database of simulations.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from callboard.entity.state.interface import (
    Committed,
    EntitySnapshot,
    EntityState,
    NewEvent,
    RowChanges,
    Slot,
    SlotBatch,
)
from callboard.support.database.group_worker import GroupWorker, call_all

P = ParamSpec("P")
T = TypeVar("T")

#: Called with the result of a call, or with its error.
Done = Callable[[T | BaseException], object]

#: Seconds without a commit after which a state does its deferred work.
IDLE_AFTER: Final = 0.5

#: Most slots in one transaction; more than a node can own.
_MOST_BATCHES = 4096


class StateClient(Protocol):
    """A state as a node uses it; no method blocks, except `close`."""

    def submit(
        self,
        done: Done[T],
        method: Callable[Concatenate[EntityState, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call a method of the state, for instance `EntityState.claim`.

        `done` is called on the node's thread; calls may complete in any order.
        """

    def commit(self, batch: SlotBatch, done: Done[Committed]) -> None:
        """Commit the batch of a slot in the next transaction.

        `done` gets the outcome of the whole transaction, to be looked up by slot. Commits of
        one slot take place in the order of the calls.
        """

    def own_fences(self, type_name: str) -> Mapping[int, int] | None:
        """Return the slots whose fences this writer holds now, with their epochs.

        None if that cannot be read without waiting; `EntityState.fences` waits.
        """

    def close(self) -> None:
        """Finish the submitted calls, and close the state; may block."""


class GroupedCommits:
    """Batches that wait for the next transaction, with their callbacks."""

    def __init__(self) -> None:
        """Start with no batch."""
        self._waiting: deque[tuple[SlotBatch, Done[Committed]]] = deque()
        #: Adds a batch with its callback; a bound method, as each commit of an entity calls it.
        self.add = self._waiting.append

    @property
    def is_empty(self) -> bool:
        """Whether no batch waits."""
        return not self._waiting

    def begin(self) -> tuple[list[SlotBatch], list[Done[Committed]]]:
        """Return the batches of the next transaction, merged by slot, and their callbacks."""
        batches: dict[Slot, SlotBatch] = {}
        several: dict[Slot, list[SlotBatch]] = {}
        waiters: list[Done[Committed]] = []
        later: deque[tuple[SlotBatch, Done[Committed]]] = deque()
        waiting = self._waiting
        while waiting and len(batches) < _MOST_BATCHES:
            batch, done = waiting.popleft()
            slot = batch[0]  # `batch.slot` takes three times as long
            first = batches.setdefault(slot, batch)
            if first is not batch:
                if first.epoch != batch.epoch:
                    later.append((batch, done))
                    continue
                if slot in several:
                    several[slot].append(batch)
                else:
                    several[slot] = [first, batch]
            waiters.append(done)
        waiting.extendleft(reversed(later))
        for slot, of_slot in several.items():
            batches[slot] = _joined(of_slot)
        return list(batches.values()), waiters


def _joined(batches: Sequence[SlotBatch]) -> SlotBatch:
    """Merge batches of one slot and epoch."""
    events: list[NewEvent] = []
    rows: RowChanges | None = None
    snapshots: dict[str, EntitySnapshot] = {}
    forget: dict[str, int] = {}
    for batch in batches:
        events += batch.events
        if batch.snapshots:
            snapshots.update({snapshot.key: snapshot for snapshot in batch.snapshots})
        if batch.forget:
            forget.update(batch.forget)
        if batch.rows is not None:
            if rows is None:
                rows = RowChanges()
            rows.include(batch.rows)
    slot, epoch = batches[0][:2]
    return SlotBatch(slot, epoch, events, list(snapshots.values()), forget, rows)


class ThreadedStateClient:
    """Calls a state on three threads: for commits, for claims, and for everything else.

    A claim may wait for the database's write lock; on a separate thread, it does not delay
    reads.
    """

    def __init__(self, state: EntityState, post: Callable[..., object]) -> None:
        """Start the threads; `post(callback, *args)` calls back on the node's thread."""
        self._state = state
        self._post = post
        self._commits = GroupedCommits()
        #: Wakes the thread of commits while it is idle. A needless wake-up would take the
        #: interpreter's lock from the node's thread.
        self._wake_commits: SimpleQueue[None] = SimpleQueue()
        self._is_committing = True
        self._is_closing = False
        #: Commits; a state may first wait for other writers, then take the batches.
        self._commit: Callable[[Callable[[], Sequence[SlotBatch]]], Committed]
        self._commit = getattr(state, "commit_waiting", lambda take: state.commit(take()))
        #: Does work that a state defers while there are commits; returns whether it is
        #: finished.
        self._settle: Callable[..., bool] = getattr(state, "settle", _settled)
        self._is_settled = False
        #: Returns the writer's slots at once, if the state can.
        self._own_fences: Callable[[str], Mapping[int, int] | None]
        self._own_fences = getattr(state, "own_fences", lambda _: None)
        self._claims: GroupWorker[Callable[[], None]]
        self._reads: GroupWorker[Callable[[], None]]
        self._claims = GroupWorker("callboard-state-claims", call_all)
        self._reads = GroupWorker("callboard-state-reads", call_all)
        self._commit_thread = threading.Thread(
            target=self._run_commits, name="callboard-state-commits", daemon=True
        )
        self._commit_thread.start()

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
        # Otherwise the thread of commits will check for batches before it waits.
        if not self._is_committing:
            self._is_committing = True
            self._wake_commits.put(None)

    def own_fences(self, type_name: str) -> Mapping[int, int] | None:
        """Return the slots of this writer, if the state can tell without waiting."""
        return self._own_fences(type_name)

    def close(self) -> None:
        """Finish the submitted calls, and close the state."""
        self._is_closing = True
        self._wake_commits.put(None)
        self._commit_thread.join()
        self._claims.close()
        self._reads.close()
        self._state.close()

    def _answer(self, done: Done[T], call: Callable[[], T]) -> None:
        """Run a call, and post its outcome to the node's thread."""
        self._post(done, _outcome(call))

    def _run_commits(self) -> None:
        """Commit until the state is closed; runs on the thread of commits."""
        while True:
            if self._commits.is_empty:
                self._wait_for_commits()
            if self._commits.is_empty:
                return
            waiters: list[Done[Committed]] = []
            outcome = _outcome(partial(self._commit, partial(self._take_group, waiters)))
            if not waiters:  # the transaction failed before it had taken its batches
                self._take_group(waiters)
            self._post(_notify_all, waiters, outcome)
            self._is_settled = self._settle()

    def _take_group(self, waiters: list[Done[Committed]]) -> list[SlotBatch]:
        """Return the batches of the next transaction, and add their callbacks to a list."""
        batches, waiting = self._commits.begin()
        waiters += waiting
        return batches

    def _wait_for_commits(self) -> None:
        """Wait for a batch, or for the close of the state.

        The node's thread appends a batch without a lock, and then checks whether this thread is
        idle. This thread sets its flag to idle before it checks for batches. So at least one of
        the two threads notices the other. If both do, this thread wakes once without need. The
        order of flag and batch, and an atomic append, come from the interpreter's global lock.
        """
        while self._is_idle():
            self._is_committing = False
            if self._is_idle():
                try:
                    self._wake_commits.get(timeout=None if self._is_settled else IDLE_AFTER)
                except Empty:
                    self._is_settled = self._settle(is_idle=True)
        self._is_committing = True

    def _is_idle(self) -> bool:
        """Return whether no batch waits and the state is not closing."""
        return self._commits.is_empty and not self._is_closing


def _settled(*, is_idle: bool = False) -> bool:
    """Report that all deferred work is finished."""
    return True


def _outcome(call: Callable[[], T]) -> T | BaseException:
    """Return the result of a call, or its error."""
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 - passed to the caller
        return error


def _notify_all(waiters: Sequence[Done[Any]], outcome: Any) -> None:
    """Call each waiter of a transaction with its outcome."""
    for done in waiters:
        done(outcome)
