"""How a node comes to own slots, gives them away, and takes those of the dead.

It drives `machine/ownership_machine.py`: carries out its effects, and tells it what came of
them. The table lies in a register and changes by compare-and-set alone.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from callboard.actors.future import Future
from callboard.actors.runtime import Runtime
from callboard.entity.host import EntityHost
from callboard.entity.machine.ownership_machine import (
    Claimed,
    ClaimFailed,
    ClaimFences,
    CloseAsked,
    JoinAsked,
    Joined,
    JoinRefused,
    KeepSlots,
    Left,
    LookDue,
    MemberGone,
    MembersProbed,
    OwnershipEffect,
    OwnershipEvent,
    OwnershipMachine,
    ProbeMembers,
    ReadTable,
    RegisterFailed,
    ReleaseSlots,
    ServeSlots,
    SlotLost,
    SlotsBusy,
    SlotsDrained,
    SlotsEmptied,
    StopSlots,
    TableChanged,
    TableRead,
    TableTold,
    TableWritten,
    WriteTable,
)
from callboard.entity.machine.table import SharedState, Table, TableMember
from callboard.entity.state.interface import EntityState, Fence
from callboard.lease.errors import OutcomeUnknown, StorageError, WrongState
from callboard.lease.register import Leases, LeaseValue, Versioned

T = TypeVar("T")

#: Seconds between looks whether members are gone.
LOOK: Final = 0.1

#: Looks between reads of the table: who changes it tells, and may be lost before it does.
LOOKS_A_READ: Final = 10

#: Looks between signs of life, and seconds without one after which a member is out. Fences
#: keep one that only slept from writing, or answering, anything.
LOOKS_A_SIGN: Final = 5
SILENCE: Final = 2.1
#: Seconds between own reads beyond which the silence of others proves nothing.
_LONGEST_GAP: Final = 1.0

#: Seconds that slots may take to come to rest before they move; else they stay for now.
STOP_TIMEOUT: Final = 5.0


class Calls(Protocol):
    """Calls methods of something that blocks, beside the node's thread."""

    def submit(self, done: Callable[[Any], object], method: Any, /, *args: Any) -> None:
        """Call a method; `done` gets what comes of it, on the node's thread."""

    def close(self) -> None:
        """Finish what was handed over, and close."""


async def called(calls: Any, method: Callable[..., T], *args: Any) -> T:
    """Return what a call returns, or raise what it raises."""
    future: Future[T] = Future()

    def done(outcome: Any) -> None:
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    calls.submit(done, method, *args)
    return await future


class Ownership:
    """One node's part in the table of a type; everything runs on the node's thread."""

    def __init__(
        self,
        host: EntityHost,
        leases: Any,
        runtime: Runtime,
        adopted: Callable[[Table], object],
        served: Callable[[], object],
    ) -> None:
        """Make one that is no member yet.

        Args:
            host: what serves the slots.
            leases: calls of the register.
            runtime: of the node.
            adopted: told of each newer table; it tells other nodes.
            served: told when more slots are served.
        """
        self._host, self._leases, self._runtime = host, leases, runtime
        self._adopted, self._served = adopted, served
        self._name = host.type.name
        self._register = f"entities/{self._name}"
        self._machine = OwnershipMachine(
            host.writer,
            TableMember(runtime.node_id.hex(), version=host.type.cls.version),
            has_fences=host.state is not None,
        )
        host.on_lost = self._lost
        self._writes = 0
        self._looks = 0
        #: Counts moves: a late answer is told from one to the move under way.
        self._moves = 0
        self._is_tending = False
        self._joining: Future[None] | None = None
        self._leaving: Future[None] | None = None
        self._sign_version = 0
        self._last_signs = 0.0
        #: The last sign of life of each member, and when it was new here.
        self._signs: dict[str, tuple[int, float]] = {}

    @property
    def table(self) -> Table:
        """The newest table that is known."""
        return self._machine.table

    @property
    def is_closed(self) -> bool:
        """Whether this node wants to be no member any more."""
        return self._machine.aim == "none"

    async def join(self, state: SharedState) -> None:
        """Become a member, and serve what falls to this node.

        Raises:
            WrongState: the members have another state.
            StorageError: the register cannot be used.
        """
        await self._give_sign()
        self._joining = Future()
        self._step(JoinAsked(state))
        try:
            await self._joining
        finally:
            self._joining = None

    async def leave(self) -> None:
        """Be no member any more: what this node had goes to the others.

        Raises:
            StorageError: the register cannot be used; the others find out by themselves.
        """
        self._leaving = Future()
        self._step(CloseAsked())
        await self._leaving

    async def tend(self) -> None:
        """Look after the membership; to be called every `LOOK` seconds."""
        if self._is_tending or self.is_closed:
            return
        self._is_tending = True
        try:
            self._looks += 1
            if self._looks % LOOKS_A_SIGN == 0:
                await self._look_for_signs()
        except StorageError as error:
            self._warn(error)
        finally:
            self._is_tending = False
        self._step(LookDue(reads=self._looks % LOOKS_A_READ == 0))

    def told(self, version: int) -> None:
        """Take note that another member, or a sender, knows a table of a version."""
        self._step(TableTold(version))

    def _lost(self, slot: int, epoch: int) -> None:
        """Take note that a fence was seen to be another's."""
        self._step(SlotLost(slot, epoch))

    # --- the machine ---

    def _step(self, event: OwnershipEvent) -> None:
        """Let the machine take an event, and carry out what follows."""
        for effect in self._machine.step(event):
            self._carry_out(effect)

    def _carry_out(self, effect: OwnershipEffect) -> None:
        """Carry out one effect."""
        host = self._host
        match effect:
            case ReadTable() | WriteTable() | ProbeMembers() | ClaimFences():
                self._request(effect)
            case ServeSlots(epochs):
                host.serve(epochs)
                self._served()
            case KeepSlots(epochs):
                host.keep_only(epochs)
            case StopSlots(slots):
                self._stop(slots)
            case ReleaseSlots(slots):
                self._moves += 1
                host.slots_moved(slots)
            case TableChanged(table):
                self._adopted(table)
            case Joined() | Left() | SlotsDrained():
                self._settle(self._leaving if isinstance(effect, Left) else self._joining)
            case JoinRefused(table):
                self._refuse(table)

    def _request(self, effect: ReadTable | WriteTable | ProbeMembers | ClaimFences) -> None:
        """Ask the register, or the state, for something."""
        match effect:
            case ReadTable():
                self._leases.submit(self._read_done, Leases.read, self._register)
            case WriteTable():
                self._write(effect)
            case ProbeMembers(writers):
                _Probe(self._leases, sorted(writers), self._step).go_on()
            case ClaimFences(epochs):
                state = self._host.state
                assert state is not None, "fences are in a state"
                state.submit(self._claim_done, EntityState.claim, self._name, epochs)

    def _write(self, effect: WriteTable) -> None:
        """Write the table."""
        self._writes += 1
        value = LeaseValue(self._host.writer, self._writes, effect.table.text())
        args = self._register, value, effect.expected
        self._leases.submit(self._write_done, Leases.write, *args)

    def _write_done(self, outcome: Any) -> None:
        """Take the answer to a write."""
        if isinstance(outcome, OutcomeUnknown):
            self._step(TableWritten(None))
        elif isinstance(outcome, BaseException):
            self._failed(outcome, RegisterFailed())
        else:
            self._step(TableWritten(outcome))

    def _read_done(self, outcome: Versioned | BaseException) -> None:
        """Take the answer to a read."""
        if not isinstance(outcome, BaseException):
            value, _ = outcome
            try:
                table = Table.read("" if value is None else value.text)
            except StorageError as error:
                outcome = error
            else:
                self._step(TableRead(table))
                return
        self._failed(outcome, RegisterFailed())

    def _claim_done(self, outcome: Any) -> None:
        """Take the answer to a claim."""
        if isinstance(outcome, BaseException):
            self._failed(outcome, ClaimFailed())
        else:
            held: dict[int, Fence] = dict(outcome)
            self._step(Claimed(held))

    def _failed(self, error: BaseException, event: OwnershipEvent) -> None:
        """Tell who waits of an error, and let the machine try again later."""
        self._step(event)
        waits = self._settle(self._joining, error), self._settle(self._leaving, error)
        if not any(waits):
            self._warn(error)

    def _settle(
        self, future: "Future[None] | None", error: BaseException | None = None
    ) -> bool:
        """Tell who waits for a change of the membership; returns whether anybody does."""
        if future is None or future.done():
            return False
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        return True

    def _refuse(self, table: Table) -> None:
        """Take note that the members have another state."""
        others = ", ".join(sorted(node[:12] for node in table.nodes))
        own, found = self._machine.state, table.state
        what = "another state"
        if own.id == found.id:
            what = "this state on another machine, which SQLite cannot share"
        error = WrongState(
            f"{self._name} is hosted by {others} with {what}: {found.place or 'none'}"
            f" ({found.id[:8]}), not {own.place or 'none'} ({own.id[:8]}); use one for all"
        )
        if not self._settle(self._joining, error):
            self._warn(error)

    def _warn(self, error: BaseException) -> None:
        """Log that the leases or the state cannot be used."""
        text = f"the leases of {self._name} are away: {error}"
        self._runtime.warn_once(("entities", self._name, type(error)), text)

    def _stop(self, slots: tuple[int, ...]) -> None:
        """Let slots come to rest, in time."""
        self._moves += 1
        answer = partial(self._stopped, self._moves)
        late = self._runtime.call_later(STOP_TIMEOUT, answer, SlotsBusy())

        def emptied() -> None:
            late.cancel()
            answer(SlotsEmptied())

        self._host.stop_slots(slots, partial(self._runtime.post, emptied))

    def _stopped(self, move: int, event: OwnershipEvent) -> None:
        """Tell what became of slots that were to come to rest."""
        if move == self._moves:
            self._step(event)

    # --- signs of life ---

    async def _give_sign(self) -> None:
        """Show the other members that this one lives."""
        self._writes += 1
        name = f"lives/{self._name}/{self._host.writer}"
        value = LeaseValue(self._host.writer, self._writes)
        write = called(self._leases, Leases.write, name, value, self._sign_version)
        if await write:
            self._sign_version += 1
        else:
            _, self._sign_version = await called(self._leases, Leases.read, name)

    async def _look_for_signs(self) -> None:
        """Give a sign of life, and look who gave none for long."""
        await self._give_sign()
        now = self._runtime.now()
        gap, self._last_signs = now - self._last_signs, now
        if gap > _LONGEST_GAP:  # who slept, or had no database, has seen nobody's silence
            self._signs.clear()
        for writer, member in sorted(self.table.members.items()):
            if writer != self._host.writer:
                name = f"lives/{self._name}/{writer}"
                sign, _ = await called(self._leases, Leases.read, name)
                number = 0 if sign is None else sign.number
                seen, since = self._signs.get(writer, (-1, now))
                if number != seen:
                    self._signs[writer] = (number, now)
                elif now - since > SILENCE:
                    self._step(MemberGone(writer, member.joined))


class _Probe:
    """Looks, one after the other, which members have proof of their death."""

    def __init__(
        self, leases: Any, writers: list[str], step: Callable[[MembersProbed], object]
    ) -> None:
        self._leases, self._step = leases, step
        self._writers = writers
        self._gone: set[str] = set()

    def go_on(self) -> None:
        """Look at the next one; an answer that fails proves nothing."""
        if not self._writers:
            self._step(MembersProbed(frozenset(self._gone)))
            return
        writer = self._writers.pop()

        def take(is_gone: bool | BaseException) -> None:  # noqa: FBT001
            if is_gone is True:
                self._gone.add(writer)
            self.go_on()

        self._leases.submit(take, Leases.is_gone, writer)
