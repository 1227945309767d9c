"""A node's membership in the table of one entity type: joining, moving slots, takeover.

Drives `machine/ownership_machine.py` and `machine/ballot_machine.py`: carries out their effects
and reports the outcomes back to them. The table is stored in a register and changes only by
compare-and-set.

A member counts as lost if its death is proven, if its lease was killed, or after a vote of the
other members. A vote may be wrong, so votes are used only where fences make a wrong one
harmless.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from callboard.backoff import Backoff
from callboard.entity.host import EntityHost, HostedType, HostMembership, HostNode
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
    MemberGone,
    MembersProbed,
    MoveAsked,
    OwnershipEffect,
    OwnershipEvent,
    OwnershipMachine,
    PollDue,
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
    TableAnnounced,
    TableChanged,
    TableRead,
    TableWritten,
    TermBegun,
    TermEnded,
    WriteTable,
)
from callboard.entity.machine.table import SharedState, Table, TableMember
from callboard.entity.router import TypeRouter
from callboard.entity.state.interface import EntityState, Fence
from callboard.kernel.errors import WrongValue
from callboard.kernel.reply import Future
from callboard.lease.driver import LeaseDriver
from callboard.lease.errors import OutcomeUnknown, StorageError, WrongState
from callboard.lease.leases import Leases, LeaseValue, Versioned
from callboard.support.dataclass import dataclass

T = TypeVar("T")

#: Seconds between polls for members that are gone.
POLL_SECONDS: Final = 0.1

#: Polls between reads of the table. A member that writes the table announces it to the others,
#: but it may die between the write and the announcement.
POLLS_PER_READ: Final = 10

#: Seconds after the loss of a node until its death is probed for again: the system may close
#: the connections of a process that ends before it releases the locks of that process.
_PROBE_AGAIN_SECONDS: Final = 0.02

#: Seconds that slots may take to drain before they move, at first and at most; slots that take
#: longer stay for now. Two entities that drain may wait for each other, as messages to them are
#: held.
FIRST_STOP_SECONDS: Final = 0.25
LONGEST_STOP_SECONDS: Final = 5.0


class Calls(Protocol):
    """Calls blocking methods of an object on another thread."""

    def submit(self, done: Callable[[Any], object], method: Any, /, *args: Any) -> None:
        """Call a method; `done` gets its result or its error, on the node's thread."""

    def close(self) -> None:
        """Finish the submitted calls, and close."""


async def called(calls: Any, method: Callable[..., T], *args: Any) -> T:
    """Return the result of a submitted call, or raise its error."""
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
    """Callbacks of an ownership into the rest of the node."""

    #: Called with each newer table; sends it to other nodes.
    adopted: Callable[[Table], object]
    #: Asks a node whether it cannot reach the node of a writer.
    ask_vote: Callable[[bytes, str], Future[Any]]
    #: Calls back after all messages that other members forwarded for some slots have arrived.
    ask_markers: Callable[[Iterable[int], Callable[[], object]], object]
    #: Lets one type of the node move slots at a time.
    turns: "MoveTurns"


class MoveTurns:
    """A queue, by which only one type of a node moves slots at a time.

    Entities of one type may wait for entities of another type. If both types moved at once,
    each move could hold the messages that the other one waits for.
    """

    def __init__(self) -> None:
        """Start with no move under way."""
        self._moving = ""
        self._waiting: dict[str, Callable[[], object]] = {}

    def take(self, type_name: str, begin: Callable[[], object]) -> None:
        """Call `begin` when it is the turn of a type, which lasts until `give_back`."""
        if self._moving:
            self._waiting[type_name] = begin
        else:
            self._moving = type_name
            begin()

    def give_back(self, type_name: str) -> None:
        """End the turn of a type, or remove it from the queue."""
        self._waiting.pop(type_name, None)
        if self._moving == type_name:
            self._moving = next(iter(self._waiting), "")
            if self._moving:
                self._waiting.pop(self._moving)()


class Ownership:
    """The membership of one node in the table of a type. Runs on the node's thread."""

    def __init__(
        self,
        node: HostNode,
        hosted: HostedType,
        router: TypeRouter,
        leases: Any,
        lease: LeaseDriver,
        hooks: OwnershipHooks,
    ) -> None:
        """Create the host of a type, and its ownership that has not joined yet.

        Args:
            node: the parts of the node that the host uses.
            hosted: the type.
            router: the router of the type.
            leases: calls of the register.
            lease: the node's lease in that register.
            hooks: callbacks into the rest of the node.
        """
        kind, has_fences = hosted.kind, hosted.state is not None
        #: Whether wrongly removing a live member is harmless, because its fences stop its
        #: commits.
        self._may_vote = is_fast = has_fences and kind.cls.takeover == "fast"
        is_leased = None if is_fast else lease.is_valid
        membership = HostMembership(is_leased, self._wrote, self._lost)
        #: Serves the slots.
        self.host = host = EntityHost(node, hosted, router, membership)
        self._leases, self._runtime, self._router = leases, node.runtime, router
        self._lease, self._hooks = lease, hooks
        self._name, self._writer = kind.name, node.writer
        self._register = f"entities/{self._name}"
        self._machine = OwnershipMachine(
            node.writer,
            TableMember(
                node.runtime.node_id.hex(),
                version=kind.cls.version,
                reads=host.reads,
                address=node.address(),
            ),
            has_fences=has_fences,
        )
        self._machine.step(TermEnded())
        self._ballots = BallotMachine(node.writer)
        #: Kinds and versions of events that this node has written.
        self._kinds: set[tuple[str, int]] = set()
        self._writes = 0
        self._polls = 0
        #: Number of the current move; the answer of an earlier move is ignored.
        self._moves = 0
        self._stop_limit = Backoff(FIRST_STOP_SECONDS, LONGEST_STOP_SECONDS)
        self._joining: Future[None] | None = None
        self._leaving: Future[None] | None = None
        self._draining: Future[None] | None = None

    @property
    def table(self) -> Table:
        """The newest known table."""
        return self._machine.table

    @property
    def is_closed(self) -> bool:
        """Whether this node has started to leave."""
        return self._machine.aim == "none"

    async def join(self, state: SharedState) -> None:
        """Join the table, and serve the slots that this node gets.

        Raises:
            WrongState: the members use another state.
            StorageError: the register cannot be used.
        """
        self._joining = Future()
        self._step(JoinAsked(state))
        try:
            await self._joining
        finally:
            self._joining = None
        if self.host.state is not None:
            self.host.state.submit(self._kinds_done, EntityState.kinds, self._name)

    def start_leaving(self) -> Future[None]:
        """Start leaving the table: the other members take over this node's slots.

        The future fails with `StorageError` if the register cannot be used; the other members
        then detect the end of this node's lease.
        """
        leaving: Future[None] = Future()
        self._leaving = leaving
        self._step(CloseAsked())
        return leaving

    def start_drain(self) -> Future[None]:
        """Start giving away all slots that other members can serve, one portion at a time.

        The future completes when the other members own them.
        """
        self._draining = Future()
        if self._machine.has_joined:
            self._step(DrainAsked())
        else:
            self._draining.set_result(None)
        return self._draining

    def abandon(self) -> None:
        """Leave after a failed join."""
        self._step(CloseAsked())

    def poll(self) -> None:
        """Check the members, and sometimes the table; to be called every `POLL_SECONDS`."""
        self._polls += 1
        self._step(PollDue(reads=self._polls % POLLS_PER_READ == 0))

    def table_announced(self, version: int) -> None:
        """Handle an announcement: another node knows a table of this version."""
        self._step(TableAnnounced(version))

    def begin_term(self, term: int) -> None:
        """Start a term: the node's lease is valid."""
        self._step(TermBegun(term))

    def end_term(self) -> None:
        """End the term: the node's lease was killed, so no slot may be served."""
        self._step(TermEnded())

    def holder_gone(self, writer: str, number: int) -> None:
        """Remove a member whose lease terms up to a number have ended."""
        member = self.table.members.get(writer)
        if member is not None and member.term <= number:
            self._step(MemberGone(writer, member.joined))

    def node_down(self, node: bytes) -> None:
        """Check whether the members on an unreachable node are dead, and vote on them."""
        now, members = self._runtime.now(), self.table.members.items()
        lost = [(writer, member) for writer, member in members if member.node == node.hex()]
        for writer, member in lost:
            if self._may_vote and self._machine.is_current:
                voters = self._lease.risen() & self.table.members.keys()
                subject = BallotSubject(writer, member.joined)
                own = {self._writer}
                self._vote(self._ballots.lost(subject, voters | own, now))
        if lost:
            self.poll()
            self._runtime.call_later(_PROBE_AGAIN_SECONDS, self.poll)

    def node_up(self, node: bytes) -> None:
        """Withdraw the ballots on members of a node that is reachable again."""
        for writer, member in self.table.members.items():
            if member.node == node.hex():
                self._ballots.reached(writer)

    def vote(self, writer: str) -> bool:
        """Vote on a member: return whether this node cannot reach its node."""
        member = self.table.members.get(writer)
        node = b"" if member is None else bytes.fromhex(member.node)
        return bool(node) and not (
            node == self._runtime.node_id or self._runtime.is_reachable(node)
        )

    def _vote(self, effects: list[BallotEffect]) -> None:
        """Ask for votes, or apply the outcome of a ballot."""
        for effect in effects:
            if isinstance(effect, Suspected):
                self._step(MemberGone(*effect.subject))
                continue
            for voter in effect.voters:
                node = bytes.fromhex(self.table.members[voter].node)
                reply = self._hooks.ask_vote(node, effect.subject.writer)
                reply.on_done(partial(self._voted, effect.ballot, voter))

    def _voted(self, ballot: int, voter: str, answer: Future[Any]) -> None:
        """Count a vote; a vote that failed counts against the removal."""
        is_aye = answer.exception() is None and answer.result() is True
        now = self._runtime.now()
        self._vote(self._ballots.voted(ballot, voter, now, is_out_of_reach=is_aye))

    def move(self, slots: Iterable[int], node: str) -> None:
        """Move slots from any member to a node; with "", to the owners that hashing assigns.

        Raises:
            WrongValue: the node is not a member.
        """
        members = self.table.members.items()
        writers = sorted(writer for writer, member in members if member.node == node)
        if node and not writers:
            hosts = ", ".join(sorted(member.node[:12] for _, member in members))
            msg = f"node {node[:12]} does not host {self._name}; its hosts are {hosts}"
            raise WrongValue(msg)
        self._step(MoveAsked(dict.fromkeys(slots, writers[-1] if node else "")))

    def _wrote(self, kind: tuple[str, int]) -> None:
        """Record a kind of events before this node writes the first one.

        Can be called from any thread.
        """
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._runtime.post(self._step, KindsSeen(frozenset({kind})))

    def _kinds_done(self, outcome: Any) -> None:
        """Record the kinds of events that the state already holds."""
        if isinstance(outcome, BaseException):
            self._warn(outcome)
        elif outcome:
            self._step(KindsSeen(frozenset(outcome)))

    def _lost(self, slot: int, epoch: int) -> None:
        """Handle a fence that another member has raised."""
        self._step(SlotLost(slot, epoch))

    # --- the machine ---

    def _step(self, event: OwnershipEvent) -> None:
        """Step the machine, and carry out its effects."""
        self._machine.portion = self.host.portion
        for effect in self._machine.step(event):
            self._carry_out(effect)

    def _carry_out(self, effect: OwnershipEffect) -> None:
        """Carry out one effect."""
        host = self.host
        match effect:
            case ReadTable() | WriteTable() | ProbeMembers() | ClaimFences():
                self._request(effect)
            case ServeSlots(epochs):
                host.serve(epochs)
                self._router.flush()
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
                self._complete(waits.get(type(effect), self._draining))
            case JoinRefused(table):
                self._refuse(table)

    def _request(self, effect: ReadTable | WriteTable | ProbeMembers | ClaimFences) -> None:
        """Submit a request to the register or the state."""
        match effect:
            case ReadTable():
                self._leases.submit(self._read_done, Leases.read, self._register)
            case WriteTable():
                self._write(effect)
            case ProbeMembers(writers):
                _Probe(self._leases, sorted(writers), self._step).probe_next()
            case ClaimFences(epochs):
                state = self.host.state
                assert state is not None, "fences are in a state"
                state.submit(self._claim_done, EntityState.claim, self._name, epochs)

    def _write(self, effect: WriteTable) -> None:
        """Write the table to the register."""
        self._writes += 1
        value = LeaseValue(self._writer, self._writes, effect.table.text())
        args = self._register, value, effect.expected
        self._leases.submit(self._write_done, Leases.write, *args)

    def _write_done(self, outcome: Any) -> None:
        """Handle the outcome of a write. If it is unknown, the table is read."""
        if isinstance(outcome, OutcomeUnknown):
            self._step(TableWritten(None))
        elif isinstance(outcome, BaseException):
            self._failed(outcome, RegisterFailed())
        else:
            self._step(TableWritten(outcome))

    def _read_done(self, outcome: Versioned | BaseException) -> None:
        """Handle the outcome of a read."""
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
        """Handle the outcome of a claim."""
        if isinstance(outcome, BaseException):
            self._failed(outcome, ClaimFailed())
        else:
            fences: dict[int, Fence] = dict(outcome)
            self._step(Claimed(fences))

    def _failed(self, error: BaseException, event: OwnershipEvent) -> None:
        """Pass a failure to the machine, which tries again later.

        A waiting join or leave fails; otherwise the error is logged.
        """
        self._step(event)
        waits = (
            self._complete(self._joining, error),
            self._complete(self._leaving, error),
        )
        if not any(waits):
            self._warn(error)

    def _complete(
        self, future: "Future[None] | None", error: BaseException | None = None
    ) -> bool:
        """Complete or fail a future; return whether there was one to complete."""
        if future is None or future.done():
            return False
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        return True

    def _refuse(self, table: Table) -> None:
        """Refuse a join, or log, because the members use another state."""
        error = wrong_state(self._name, self._machine.state, table)
        if not self._complete(self._joining, error):
            self._warn(error)

    def _warn(self, error: BaseException) -> None:
        """Log once that the leases or the state cannot be used."""
        text = f"the leases of {self._name} cannot be used: {error}"
        self._runtime.warn_once(("entities", self._name, type(error)), text)

    def _stop(self, slots: tuple[int, ...]) -> None:
        """Drain slots when it is this type's turn to move."""
        self._moves += 1
        turn = partial(self._stop_now, slots, self._moves)
        self._hooks.turns.take(self._name, turn)

    def _stop_now(self, slots: tuple[int, ...], move: int) -> None:
        """Stop the entities of some slots, within the time `_stop_limit`."""
        answer = partial(self._stopped, move)
        late = self._runtime.call_later(self._stop_limit.pause, answer, SlotsBusy())

        def emptied() -> None:
            late.cancel()
            answer(SlotsEmptied())

        def answered() -> None:
            if move == self._moves:
                self.host.stop_slots(slots, partial(self._runtime.post, emptied))

        self.host.shorten_replay(slots)
        self._hooks.ask_markers(slots, answered)

    def _stopped(self, move: int, event: OwnershipEvent) -> None:
        """Report the end of a drain to the machine, and adapt the time for the next one."""
        if move != self._moves:
            return
        if isinstance(event, SlotsBusy):
            self._stop_limit.next_pause()
        else:
            self._stop_limit.reset()
        self._step(event)


def wrong_state(type_name: str, own: SharedState, table: Table) -> WrongState:
    """Return the error of a node whose state differs from the state of the members."""
    nodes, state = ", ".join(sorted(node[:12] for node in table.nodes)), table.state
    difference = "another state"
    if own.id == state.id:
        difference = "this state on another machine, which SQLite cannot share"
    return WrongState(
        f"{type_name} is hosted by {nodes} with {difference}: {state.place or 'none'}"
        f" ({state.id[:8]}), not {own.place or 'none'} ({own.id[:8]}); use one state for all"
    )


class _Probe:
    """Checks members one after the other for proof of their death."""

    def __init__(
        self, leases: Any, writers: list[str], step: Callable[[MembersProbed], object]
    ) -> None:
        self._leases, self._step = leases, step
        self._writers = writers
        self._gone: set[str] = set()

    def probe_next(self) -> None:
        """Check the next member. A check that fails proves nothing."""
        if not self._writers:
            self._step(MembersProbed(frozenset(self._gone)))
            return
        writer = self._writers.pop()

        def take(is_gone: bool | BaseException) -> None:  # noqa: FBT001
            if is_gone is True:
                self._gone.add(writer)
            self.probe_next()

        self._leases.submit(take, Leases.is_gone, writer)
