"""How a node comes to own slots, gives them away, and takes those of the dead.

It drives `machine/ownership_machine.py` and `machine/ballot_machine.py`: carries out their
effects, and tells them what came of them. The table lies in a register and changes by
compare-and-set alone.

That a member is gone is known from proof of its death, from its lease, which was killed, and,
where fences make a wrong guess harmless, from votes.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from callboard.entity.host import EntityHost
from callboard.entity.machine.ballot_machine import (
    BallotEffect,
    BallotMachine,
    BallotSubject,
    Suspected,
)
from callboard.entity.machine.ownership_machine import (
    Claimed,
    ClaimFailed,
    ClaimFences,
    CloseAsked,
    DrainAsked,
    JoinAsked,
    Joined,
    JoinRefused,
    KeepSlots,
    KindsSeen,
    Left,
    LookDue,
    MemberGone,
    MembersProbed,
    MoveAsked,
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
    TermBegun,
    TermEnded,
    WriteTable,
)
from callboard.entity.machine.table import SharedState, Table, TableMember
from callboard.entity.state.interface import EntityState, Fence
from callboard.kernel.context import NodeContext
from callboard.kernel.errors import WrongValue
from callboard.kernel.reply import Future
from callboard.lease.driver import LeaseDriver
from callboard.lease.errors import OutcomeUnknown, StorageError, WrongState
from callboard.lease.leases import Leases, LeaseValue, Versioned
from callboard.support.dataclass import dataclass

T = TypeVar("T")

#: Seconds between looks whether members are gone.
LOOK: Final = 0.1

#: Looks between reads of the table: who changes it tells, and may be lost before it does.
LOOKS_A_READ: Final = 10

#: Seconds after a node was lost until its death is looked for again: the system may close the
#: connections of a process that ends before it lets go of its locks.
_SOON: Final = 0.02

#: Seconds that slots may take to come to rest before they move, at first and at most; else they
#: stay for now. They may wait for one another, as what comes for them is held.
FIRST_STOP: Final = 0.25
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


@dataclass(frozen=True, slots=True)
class OwnershipHooks:
    """What an ownership has others do."""

    #: Told of each newer table; tells other nodes.
    adopted: Callable[[Table], object]
    #: Told when more slots are served.
    served: Callable[[], object]
    #: Asks a node whether a writer's node is out of its reach.
    ask_vote: Callable[[bytes, str], Future[Any]]
    #: Calls back when all that other members passed on for some slots has come here.
    settle: Callable[[Iterable[int], Callable[[], object]], object]
    #: Lets one type of the node move slots at a time.
    turns: "MoveTurns"


class MoveTurns:
    """Lets the types of a node move slots one after the other.

    Entities of one type wait for those of another one, which may be held by a move as well.
    """

    def __init__(self) -> None:
        """Begin with nothing that moves."""
        self._moving = ""
        self._waiting: dict[str, Callable[[], object]] = {}

    def take(self, type_name: str, begin: Callable[[], object]) -> None:
        """Call back when a type may move slots, until its `give_back`."""
        if self._moving:
            self._waiting[type_name] = begin
        else:
            self._moving = type_name
            begin()

    def give_back(self, type_name: str) -> None:
        """Take note that a move of a type has ended, or is not wanted any more."""
        self._waiting.pop(type_name, None)
        if self._moving == type_name:
            self._moving = next(iter(self._waiting), "")
            if self._moving:
                self._waiting.pop(self._moving)()


class Ownership:
    """One node's part in the table of a type; everything runs on the node's thread."""

    def __init__(
        self,
        host: EntityHost,
        leases: Any,
        lease: LeaseDriver,
        runtime: NodeContext,
        hooks: OwnershipHooks,
    ) -> None:
        """Make one that is no member yet.

        Args:
            host: what serves the slots.
            leases: calls of the register.
            lease: of the node, in that register.
            runtime: of the node.
            hooks: what others do.
        """
        self._host, self._leases, self._runtime = host, leases, runtime
        self._lease, self._hooks = lease, hooks
        self._name = host.type.name
        self._register = f"entities/{self._name}"
        self._machine = OwnershipMachine(
            host.writer,
            TableMember(runtime.node_id.hex(), version=host.type.cls.version, reads=host.reads),
            has_fences=host.state is not None,
        )
        self._machine.step(TermEnded())
        self._ballots = BallotMachine(host.writer)
        is_fast = host.state is not None and host.type.cls.takeover == "fast"
        #: Whether a wrong guess that a member is gone does no harm: fences keep it silent.
        self._may_vote = is_fast
        if not is_fast:
            host.is_leased = lease.is_valid
        host.on_lost = self._lost
        host.on_kind = self._wrote
        #: Kinds and versions of events that were written here.
        self._kinds: set[tuple[str, int]] = set()
        self._writes = 0
        self._looks = 0
        #: Counts moves: a late answer is told from one to the move under way.
        self._moves = 0
        self._stop_seconds = FIRST_STOP
        self._joining: Future[None] | None = None
        self._leaving: Future[None] | None = None
        self._draining: Future[None] | None = None

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
        self._joining = Future()
        self._step(JoinAsked(state))
        try:
            await self._joining
        finally:
            self._joining = None
        if self._host.state is not None:
            self._host.state.submit(self._kinds_done, EntityState.kinds, self._name)

    def start_leaving(self) -> Future[None]:
        """Be no member any more: what this node had goes to the others.

        The future fails with `StorageError` if the register cannot be used; the others find out
        by themselves then.
        """
        leaving: Future[None] = Future()
        self._leaving = leaving
        self._step(CloseAsked())
        return leaving

    def start_drain(self) -> Future[None]:
        """Give all slots that others can have away, a portion after the other.

        The future is done when they have them.
        """
        self._draining = Future()
        if self._machine.has_joined:
            self._step(DrainAsked())
        else:
            self._draining.set_result(None)
        return self._draining

    def abandon(self) -> None:
        """Be no member any more, as far as that can be: joining failed."""
        self._step(CloseAsked())

    def tend(self) -> None:
        """Look after the membership; to be called every `LOOK` seconds."""
        self._looks += 1
        self._step(LookDue(reads=self._looks % LOOKS_A_READ == 0))

    def told(self, version: int) -> None:
        """Take note that another member, or a sender, knows a table of a version."""
        self._step(TableTold(version))

    def begin_term(self, term: int) -> None:
        """Take note that the node's lease is valid, in a term."""
        self._step(TermBegun(term))

    def end_term(self) -> None:
        """Take note that the node's lease was killed: nothing may be served."""
        self._step(TermEnded())

    def holder_gone(self, writer: str, number: int) -> None:
        """Take note that the terms of a lease up to a number have ended."""
        member = self.table.members.get(writer)
        if member is not None and member.term <= number:
            self._step(MemberGone(writer, member.joined))

    def node_down(self, node: bytes) -> None:
        """Look for the death of members on a node that is out of reach, and vote on them."""
        now, members = self._runtime.now(), self.table.members.items()
        lost = [each for each in members if each[1].node == node.hex()]
        for writer, member in lost:
            if self._may_vote and self._machine.is_current:
                voters = self._lease.risen() & self.table.members.keys()
                subject = BallotSubject(writer, member.joined)
                own = {self._host.writer}
                self._vote(self._ballots.lost(subject, voters | own, now))
        if lost:
            self.tend()
            self._runtime.call_later(_SOON, self.tend)

    def node_up(self, node: bytes) -> None:
        """Take note that a node is in reach."""
        for writer, member in self.table.members.items():
            if member.node == node.hex():
                self._ballots.found(writer)

    def vote(self, writer: str) -> bool:
        """Return whether a member's node is out of reach of this one."""
        member = self.table.members.get(writer)
        node = b"" if member is None else bytes.fromhex(member.node)
        return bool(node) and not (
            node == self._runtime.node_id or self._runtime.is_reachable(node)
        )

    def _vote(self, effects: list[BallotEffect]) -> None:
        """Ask for votes, or take note of their outcome."""
        for effect in effects:
            if isinstance(effect, Suspected):
                self._step(MemberGone(*effect.subject))
                continue
            for voter in effect.voters:
                node = bytes.fromhex(self.table.members[voter].node)
                asked = self._hooks.ask_vote(node, effect.subject.writer)
                asked.on_done(partial(self._voted, effect.ballot, voter))

    def _voted(self, ballot: int, voter: str, answer: Future[Any]) -> None:
        """Take a vote."""
        is_aye = answer.exception() is None and answer.result() is True
        now = self._runtime.now()
        self._vote(self._ballots.voted(ballot, voter, now, is_out_of_reach=is_aye))

    def move(self, slots: Iterable[int], node: str) -> None:
        """Let slots move to a node, from whatever member; to whom they were with "".

        Raises:
            WrongValue: that node is no member.
        """
        members = self.table.members.items()
        writers = sorted(each for each, member in members if member.node == node)
        if node and not writers:
            shown = ", ".join(sorted(member.node[:12] for _, member in members))
            msg = f"node {node[:12]} does not host {self._name}; there are {shown}"
            raise WrongValue(msg)
        self._step(MoveAsked(dict.fromkeys(slots, writers[-1] if node else "")))

    def _wrote(self, kind: tuple[str, int]) -> None:
        """Take note of a kind of events that is written here; from any thread."""
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._runtime.post(self._step, KindsSeen(frozenset({kind})))

    def _kinds_done(self, outcome: Any) -> None:
        """Take the kinds of events that are in the state."""
        if isinstance(outcome, BaseException):
            self._warn(outcome)
        elif outcome:
            self._step(KindsSeen(frozenset(outcome)))

    def _lost(self, slot: int, epoch: int) -> None:
        """Take note that a fence was seen to be another's."""
        self._step(SlotLost(slot, epoch))

    # --- the machine ---

    def _step(self, event: OwnershipEvent) -> None:
        """Let the machine take an event, and carry out what follows."""
        self._machine.portion = self._host.portion
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
                self._hooks.served()
            case KeepSlots(epochs):
                host.keep_only(epochs)
            case StopSlots(slots):
                self._stop(slots)
            case ReleaseSlots(slots):
                self._moves += 1
                host.slots_moved(slots)
                self._hooks.turns.give_back(self._name)
            case TableChanged(table):
                self._hooks.adopted(table)
            case Joined() | Left() | SlotsDrained():
                waits = {Joined: self._joining, Left: self._leaving}
                self._settle(waits.get(type(effect), self._draining))
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
        error = wrong_state(self._name, self._machine.state, table)
        if not self._settle(self._joining, error):
            self._warn(error)

    def _warn(self, error: BaseException) -> None:
        """Log that the leases or the state cannot be used."""
        text = f"the leases of {self._name} are away: {error}"
        self._runtime.warn_once(("entities", self._name, type(error)), text)

    def _stop(self, slots: tuple[int, ...]) -> None:
        """Let slots come to rest, in time, when it is this type's turn."""
        self._moves += 1
        turn = partial(self._stop_now, slots, self._moves)
        self._hooks.turns.take(self._name, turn)

    def _stop_now(self, slots: tuple[int, ...], move: int) -> None:
        """Let slots come to rest, in time."""
        answer = partial(self._stopped, move)
        late = self._runtime.call_later(self._stop_seconds, answer, SlotsBusy())

        def emptied() -> None:
            late.cancel()
            answer(SlotsEmptied())

        def settled() -> None:
            if move == self._moves:
                self._host.stop_slots(slots, partial(self._runtime.post, emptied))

        self._host.shorten_replay(slots)
        self._hooks.settle(slots, settled)

    def _stopped(self, move: int, event: OwnershipEvent) -> None:
        """Tell what became of slots that were to come to rest."""
        if move != self._moves:
            return
        if isinstance(event, SlotsBusy):
            self._stop_seconds = min(2 * self._stop_seconds, STOP_TIMEOUT)
        else:
            self._stop_seconds = FIRST_STOP
        self._step(event)


def wrong_state(type_name: str, own: SharedState, table: Table) -> WrongState:
    """Return the error of a node whose state is another than that of the members."""
    others, found = ", ".join(sorted(node[:12] for node in table.nodes)), table.state
    what = "another state"
    if own.id == found.id:
        what = "this state on another machine, which SQLite cannot share"
    return WrongState(
        f"{type_name} is hosted by {others} with {what}: {found.place or 'none'}"
        f" ({found.id[:8]}), not {own.place or 'none'} ({own.id[:8]}); use one for all"
    )


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
