"""Proofs that this node owns a slot, for answers without a later commit.

Such an answer shows the state of the entity. If another node had claimed the slot earlier, the
answer would not show that node's commits. So the answer waits for a proof: a read that starts
after the answer was given, and finds this node's claim in the slot's fence. If the node has a
valid lease, no read is needed, because no other node can own the slot while the lease is valid.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from callboard import locks
from callboard.entity.state.client import StateClient
from callboard.entity.state.interface import EntityState, Fence, Slot
from callboard.entity.unit_of_work import DeferredReply, Emission, unavailable
from callboard.kernel.context import NodeContext
from callboard.lease.errors import Fenced

#: An answer with its slot, and the epoch in which this node owned the slot; None if it did not.
_Proof = tuple[int, int | None, Emission | DeferredReply]


class ProvenHost(Protocol):
    """The host of the entities, as the proofs of their answers use it."""

    runtime: NodeContext
    lock: locks.Lock
    #: The name of this node's life in fences.
    writer: str
    #: The epochs of the slots that this node owns.
    epochs: dict[int, int]

    def lost(self, slot: int, fence: Fence, /) -> None:
        """Stop serving a slot whose fence another owner has raised or a failover has lost."""


class FenceProofs:
    """Answers of one type that wait for a read of fences."""

    def __init__(self, host: ProvenHost, name: str, state: StateClient | None) -> None:
        """Start without answers.

        Args:
            host: the host of the entities.
            name: the name of the type.
            state: the state of the type; without a state, no answer waits.
        """
        self._host, self._name, self._state = host, name, state
        self._waiting: list[_Proof] = []
        #: Whether a check is running or scheduled.
        self._is_checking = False

    def prove(self, slot: int, emission: Emission | DeferredReply) -> None:
        """Send an answer after a proof. The caller must hold the host's lock."""
        self._waiting.append((slot, self._host.epochs.get(slot), emission))
        if not self._is_checking:
            self._is_checking = True
            self._host.runtime.post(self._check)

    def _check(self) -> None:
        """Send the answers of slots that this node certainly owns.

        Read fences for the others.
        """
        # Take the answers first, because a check proves nothing about later ones.
        with self._host.lock:
            proofs, self._waiting = self._waiting, []
        assert self._state is not None, "only stored states need proofs"
        own = self._state.own_fences(self._name) or {}
        unproven: list[_Proof] = []
        for proof in proofs:
            slot, epoch, emission = proof
            if epoch is not None and own.get(slot) == epoch:
                emission.release()
            else:
                unproven.append(proof)
        with self._host.lock:
            self._is_checking = bool(self._waiting)
            if unproven:
                self._waiting[:0] = unproven
                self._read_fences()
            elif self._waiting:
                self._host.runtime.post(self._check)

    def _read_fences(self) -> None:
        """Read the fences for all waiting answers. The caller must hold the host's lock."""
        proofs, self._waiting = self._waiting, []
        self._is_checking = bool(proofs)
        if proofs:
            assert self._state is not None, "only stored states need proofs"
            slots = {(self._name, slot) for slot, *_ in proofs}
            self._state.submit(
                lambda fences: self._compare(proofs, fences), EntityState.fences, slots
            )

    def _compare(
        self, proofs: list[_Proof], fences: Mapping[Slot, Fence] | BaseException
    ) -> None:
        """Send or fail answers according to the fences. Runs on the node's thread."""
        host = self._host
        with host.lock:
            self._read_fences()
        for slot, epoch, emission in proofs:
            if isinstance(fences, BaseException):
                emission.fail_at_once(unavailable(fences))
                continue
            fence = fences[self._name, slot]
            # The fence had this node's claim when it was read, after the answer was given. So
            # the answer was true at that time, even if the slot was given away later.
            if fence == (epoch, host.writer):
                emission.release()
            else:
                emission.fail_at_once(unavailable(fenced_error(self._name, slot, fence)))
                host.lost(slot, fence)


class LeaseProofs:
    """Sends the answers of one type while the node's lease is valid."""

    def __init__(
        self,
        runtime: NodeContext,
        is_leased: Callable[[], bool],
        error: Callable[[], BaseException],
    ) -> None:
        """Prove ownership by a lease.

        `error` creates the error for an answer without a lease.
        """
        self._runtime, self._is_leased, self._error = runtime, is_leased, error

    def prove(self, _: int, emission: Emission | DeferredReply) -> None:
        """Send an answer if the lease is valid, or fail it."""
        if self._is_leased():
            self._runtime.post(emission.release)
        else:
            self._runtime.post(emission.fail_at_once, self._error())


def fenced_error(type_name: str, slot: int, fence: Fence) -> Fenced:
    """Return the error for a slot that another owner has claimed."""
    owner = fence.writer or "another owner"
    return Fenced(f"slot {slot} of {type_name} was claimed by {owner}")
