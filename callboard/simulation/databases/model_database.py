"""A model of a database: transactions that overlap and lock rows, in virtual time.

It does what `entity/state/postgresql.py` and `sqlite.py` have real ones do, statement by
statement, so that claims and commits of several nodes meet in every order. For `postgresql:` a
commit is one round trip, rows are locked, and the server ends a transaction whose client says
nothing for a second. For `sqlite:` a transaction holds the one lock for writing, and a process
that is paused inside keeps it.

A row's lock is held until its transaction ends; its writes are seen by others from then on.
"""

import random
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from callboard.entity.state.client import Done, GroupedCommits
from callboard.entity.state.interface import NO_FENCE, Committed, Fence, Slot, SlotBatch
from callboard.entity.state.memory import MemoryState, MemoryTables
from callboard.lease.errors import (
    DatabaseReplaced,
    OutcomeUnknown,
    StateBusy,
    StateCorrupt,
    StateUnavailable,
)
from callboard.lease.register import LeaseValue
from callboard.simulation.clock import EPOCH, Clock

P = ParamSpec("P")
T = TypeVar("T")

#: Virtual seconds that a request, an answer and a statement take, each, unless told otherwise.
LATENCY: Final = 0.001

#: Virtual seconds that a server waits: for a lock, and for a client inside a transaction.
SERVER_WAITS: Final = 1.0

#: Virtual seconds that a statement takes which stalls, at least and at most.
STALL: Final = (0.03, 0.7)

#: Virtual seconds for which a commit whose answer was lost is asked for.
SETTLING: Final = 6.0

#: The answer of a method that only looks at committed rows, or writes one row by itself.
_WRITE: Final = "write"

#: Methods of a state that are one statement which writes rows.
_ROW_WRITERS: Final = frozenset(
    {"open_reader", "move_reader", "set_attempts", "start_reminders"}
)


class RowLock(NamedTuple):
    """What a statement waits for: the lock of a row."""

    row: object
    is_shared: bool = False
    #: Whether the statement behind it may stall: one of a commit, which waits for a disk.
    may_stall: bool = False


#: A transaction: yields the locks that its statements need, and returns what it writes and
#: answers.
Script = Generator[RowLock, None, "tuple[Callable[[_Contents], Any], Any]"]


class DatabaseUser(Protocol):
    """The node that calls: its runner."""

    is_paused: bool
    closed: bool
    has_crashed: bool
    #: Its machine: a node that starts again on it is cut off as the former one was.
    machine: Any

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Call back in the node's turn."""


class _Contents:
    """Everything that is committed."""

    def __init__(self, identity: str) -> None:
        self.tables = MemoryTables()
        self.tables.id = identity
        self.leases: dict[str, tuple[LeaseValue, int]] = {}


class _Transaction:
    """One that is under way: its locks, and what it does next."""

    def __init__(
        self, script: Script, client: "ModelClient", answer: Callable[[Any], None]
    ) -> None:
        self.script, self.client, self.answer = script, client, answer
        self.locks: dict[object, bool] = {}
        self.wanted: RowLock | None = None
        self.is_over = self.is_stalled = False


class ModelDatabase:
    """The database of a URL. Change `latency`, `lost_answers` and `stalls` at any time."""

    def __init__(self, url: str, clock: Clock, rng: random.Random) -> None:
        """Make an empty database."""
        self.url = url
        self.is_file = url.startswith("sqlite:")
        #: Virtual seconds that a request, an answer and a statement take, each.
        self.latency = LATENCY
        #: The part of COMMITs whose answer is lost.
        self.lost_answers = 0.0
        #: The part of the statements of commits that stall, with the locks they have.
        self.stalls = 0.0
        self.is_down = False
        #: How often it failed over.
        self.timeline = 1
        self.clock, self.random = clock, rng
        self._contents = _Contents(f"{rng.getrandbits(128):032x}")
        #: What was committed and when: a failover does it again without its end.
        self._log: list[tuple[float, Callable[[_Contents], Any]]] = []
        self._open: list[_Transaction] = []
        #: Machines that do not reach the server.
        self._cut: set[object] = set()
        #: Who called, by writer.
        self._users: dict[str, DatabaseUser] = {}

    @property
    def tables(self) -> MemoryTables:
        """The rows that are committed; look at them at any time."""
        return self._contents.tables

    def now_ms(self) -> int:
        """Return the server's clock, in milliseconds since 1970."""
        return int((EPOCH + self.clock.now) * 1000)

    def stalling(self) -> list[DatabaseUser]:
        """Return whose commits have stalled and are not over."""
        return [each.client.runner for each in self._open if each.is_stalled]

    # --- faults ---

    def down(self) -> None:
        """Stop the server: transactions are undone, calls fail with `StateUnavailable`."""
        self.is_down = True
        for transaction in self._open.copy():
            self._fail(transaction, "the server went down")

    def up(self) -> None:
        """Start the server again; what was committed is there."""
        self.is_down = False

    def cut(self, client: DatabaseUser) -> None:
        """Let nothing through between the machine of a node's runner and the server."""
        self._cut.add(client.machine)

    def mend(self, client: DatabaseUser) -> None:
        """Let everything through again."""
        self._cut.discard(client.machine)

    def fail_over(self, lost: float = 0.0) -> None:
        """Go on as a standby that lacks what was committed in the last `lost` seconds."""
        for transaction in self._open.copy():
            self._fail(transaction, "the server failed over")
        self.timeline += 1
        kept = [entry for entry in self._log if entry[0] <= self.clock.now - lost]
        self._contents = _Contents(self.tables.id)
        self._log = kept
        for _, apply in kept:
            apply(self._contents)
        fences = self.tables.fences
        for slot, fence in fences.items():
            fences[slot] = Fence(fence.epoch + 1, "")

    # --- what clients ask ---

    def client(self, writer: str, runner: DatabaseUser) -> "ModelClient":
        """Return the connection of a writer; its calls are answered in the runner's turns."""
        self._users[writer] = runner
        return ModelClient(self, writer, runner)

    def is_gone(self, writer: str) -> bool:
        """Return whether a writer has ended for certain: the file's machine knows of kills."""
        user = self._users.get(writer)
        return self.is_file and user is not None and user.closed and not user.has_crashed

    def reaches(self, client: DatabaseUser) -> bool:
        """Return whether a request or an answer passes now."""
        return not self.is_down and client.machine not in self._cut

    def read(self, look: Callable[[_Contents], T]) -> T:
        """Return what a statement sees: what is committed."""
        return look(self._contents)

    def apply(self, write: Callable[[_Contents], T]) -> T:
        """Commit what a transaction writes."""
        answer = write(self._contents)
        self._log.append((self.clock.now, write))
        return answer

    def begin(
        self, script: Script, client: "ModelClient", answer: Callable[[Any], None]
    ) -> None:
        """Begin a transaction; `answer` gets what it answers, or its error."""
        transaction = _Transaction(script, client, answer)
        self._open.append(transaction)
        self._step(transaction)

    def _step(self, transaction: _Transaction) -> None:
        """Carry out the next statement, or wait until its client has sent it."""
        if transaction.is_over:
            return
        runner = transaction.client.runner
        if runner.closed and self.is_file:  # a server got the whole transaction at once
            self._fail(transaction, "its client is gone")
            return
        if self.is_file and runner.is_paused:
            self.clock.plan(self.latency + 0.01, self._step, transaction)
            return
        try:
            wanted = transaction.script.send(None)
        except StopIteration as end:
            write, answer = end.value
            self._end(transaction)
            self.apply(write)
            transaction.answer(answer)
            return
        except (StateCorrupt, DatabaseReplaced) as error:
            self._end(transaction)
            transaction.answer(error)
            return
        transaction.wanted = wanted._replace(row="file", is_shared=False)
        if not self.is_file:
            transaction.wanted = wanted
        if not self._grant(transaction):
            lost = partial(self._fail, transaction, "", transaction.wanted)
            self.clock.plan(SERVER_WAITS, lost)

    def _grant(self, transaction: _Transaction) -> bool:
        """Give a transaction the lock that it waits for, if nobody else holds it."""
        wanted = transaction.wanted
        assert wanted is not None, "it waits for a lock"
        for other in self._open:
            held = other.locks.get(wanted.row)
            is_held = other is not transaction and held is not None
            if is_held and not (held and wanted.is_shared):
                return False
        transaction.locks[wanted.row] = wanted.is_shared
        transaction.wanted = None
        stalled = 0.0
        if wanted.may_stall and self.stalls and self.random.random() < self.stalls:
            least, most = STALL
            stalled = least * (most / least) ** self.random.random()
            transaction.is_stalled = True
        self.clock.plan(self.latency + stalled, self._step, transaction)
        return True

    def _end(self, transaction: _Transaction) -> None:
        """Release the locks of a transaction, and let those go on that wait for them."""
        transaction.is_over = True
        self._open.remove(transaction)
        for other in self._open.copy():
            if other.wanted is not None:
                self._grant(other)

    def _fail(
        self, transaction: _Transaction, why: str, waited_for: RowLock | None = None
    ) -> None:
        """Undo a transaction; one that waited for a lock fails only if it still does."""
        if transaction.is_over or (waited_for and transaction.wanted is not waited_for):
            return
        self._end(transaction)
        if waited_for is not None:
            row = waited_for.row
            transaction.answer(
                StateBusy(f"{self.url}: no lock of {row} for {SERVER_WAITS:g} s")
            )
        else:
            transaction.answer(StateUnavailable(f"{self.url}: {why}"))


class ModelClient:
    """One writer's connection: a `StateClient`, and a register's, in virtual time."""

    def __init__(self, database: ModelDatabase, writer: str, runner: DatabaseUser) -> None:
        """Connect a node's runner."""
        self.database, self.writer, self.runner = database, writer, runner
        self._timeline = database.timeline
        self._commits = GroupedCommits()
        self._committing: tuple[list[SlotBatch], list[Done[Committed]]] | None = None

    def submit(
        self,
        done: Done[T],
        method: Callable[Concatenate[Any, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call a method of `EntityState` or `Leases`."""
        name = method.__name__
        given: tuple[Any, ...] = args
        told: Done[Any] = done
        if name == "claim":
            self._request(partial(self._claim, told, *given), done)
        elif name == "read":
            look = partial(_read_lease, given[0])
            self._request(lambda: self._answer(told, self.database.read(look)), done)
        elif name == _WRITE:
            self._request(partial(self._write_lease, told, *given), done)
        elif name in _ROW_WRITERS:  # one statement that writes a row
            if name == "start_reminders":
                given = *given, self.database.now_ms()
            write = partial(_write_row, name, given)
            self._request(lambda: self._answer(told, self.database.apply(write)), done)
        elif name == "is_gone":
            self._answer(done, self.database.is_gone(given[0]))
        else:
            self._request(partial(self._look, done, name, args, kwargs), done)

    def own_fences(self, _: str) -> None:
        """Return nothing: a server has to be asked."""
        return

    def commit(self, batch: SlotBatch, done: Done[Committed]) -> None:
        """Commit the batch of a slot in the next transaction."""
        self._commits.add((batch, done))
        if self._committing is None:
            self._next_commit()

    def close(self) -> None:
        """Do nothing: what is under way ends by itself."""

    # --- on the way ---

    def _request(self, arrive: Callable[[], None], done: Done[Any]) -> None:
        """Send a request: it arrives after the latency, or fails as a lost connection does."""
        self.database.clock.plan(self.database.latency, self._arrive, arrive, done)

    def _arrive(self, arrive: Callable[[], None], done: Done[Any]) -> None:
        """Let a request arrive, unless its node or the server is not there."""
        if self.runner.closed:
            return
        if self.runner.is_paused:  # it was still to be sent
            self.database.clock.plan(0.01, self._arrive, arrive, done)
        elif not self.database.reaches(self.runner):
            self._answer(done, StateUnavailable(f"{self.database.url} cannot be reached"))
        elif self._timeline != self.database.timeline:
            self._timeline = self.database.timeline
            message = f"{self.database.url} failed over: all slots have to be claimed again"
            self._answer(done, DatabaseReplaced(message))
        else:
            try:
                arrive()
            except Exception as error:  # noqa: BLE001 - who called decides
                self._answer(done, error)

    def _answer(
        self, done: Done[Any], answer: Any, lost: Callable[[], None] | None = None
    ) -> None:
        """Send an answer back; `lost` is called where it breaks off on its way."""
        self.database.clock.plan(self.database.latency, self._receive, done, answer, lost)

    def _receive(
        self, done: Done[Any], answer: Any, lost: Callable[[], None] | None = None
    ) -> None:
        """Let an answer arrive; what is cut off meanwhile hears that the connection broke."""
        if self.runner.closed:
            return
        if not isinstance(answer, BaseException) and not self.database.reaches(self.runner):
            if lost is not None:
                lost()
                return
            answer = StateUnavailable(f"{self.database.url}: the connection was lost")
        self.runner.post(done, answer)

    def _look(
        self, done: Done[Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Answer what only reads."""
        state = MemoryState(self.writer, self.database.tables, self.database.now_ms)
        self._answer(done, getattr(state, name)(*args, **kwargs))

    def _is_lost(self) -> bool:
        """Return whether the answer of a COMMIT is lost."""
        database = self.database
        return not database.reaches(self.runner) or (
            database.random.random() < database.lost_answers
        )

    def _write_lease(
        self, done: Done[bool], name: str, value: LeaseValue, expected_version: int
    ) -> None:
        """Write a value of the register: a transaction of one row and one statement."""

        def write(contents: _Contents) -> bool:
            if contents.leases.get(name, (None, 0))[1] != expected_version:
                return False
            contents.leases[name] = (value, expected_version + 1)
            return True

        written = self.database.apply(write)
        unknown = OutcomeUnknown(f"{self.database.url}: the answer was lost")
        if self._is_lost():
            self._answer(done, unknown)
        else:
            self._answer(done, written, partial(self.runner.post, done, unknown))

    # --- claims ---

    def _claim(self, done: Done[Any], type_name: str, slots: Mapping[int, int]) -> None:
        """Begin the transaction of a claim."""
        self.database.begin(
            self._claim_script(type_name, slots), self, partial(self._answer, done)
        )

    def _claim_script(self, type_name: str, slots: Mapping[int, int]) -> Script:
        """RowLock the fences in slot order, then raise those that are lower."""
        for slot in sorted(slots):
            yield RowLock(("fence", type_name, slot))
        claim = partial(_claimed, self.writer, type_name, dict(slots))
        fences = self.database.tables.fences
        held = {
            slot: fence
            for slot, epoch in slots.items()
            if (fence := fences.get((type_name, slot), NO_FENCE)).epoch >= epoch
            and fence != (epoch, self.writer)
        }
        return claim, held

    # --- commits ---

    def _next_commit(self) -> None:
        """Send what waits as one transaction."""
        batches, waiters = self._commits.begin()
        self._committing = (batches, waiters) if batches else None
        if batches:
            self._request(partial(self._begin_commit, batches), self._committed)

    def _begin_commit(self, batches: Sequence[SlotBatch]) -> None:
        """Begin the transaction of a commit."""
        ordered = sorted(batches, key=attrgetter("slot"))
        script = self._commit_script(ordered)
        self.database.begin(script, self, self._server_committed)

    def _commit_script(self, batches: Sequence[SlotBatch]) -> Script:
        """Check the fences under shared locks, write, and take positions last."""
        for batch in batches:
            yield RowLock(("fence", *batch.slot), is_shared=True, may_stall=True)
        good, fenced, failed = self.sorted_out(batches)
        for type_name in types_of(good):
            yield RowLock(("type", type_name), may_stall=True)
        write, positions = self.written(good)
        return write, Committed(fenced, failed, positions)

    def sorted_out(
        self, batches: Sequence[SlotBatch]
    ) -> tuple[list[SlotBatch], dict[Slot, Fence], dict[Slot, Exception]]:
        """Return the batches that may be written, and the slots that are fenced or fail."""
        tables = self.database.tables
        fenced: dict[Slot, Fence] = {}
        failed: dict[Slot, Exception] = {}
        good: list[SlotBatch] = []
        for batch in batches:
            fence = tables.fences.get(batch.slot, NO_FENCE)
            if fence != (batch.epoch, self.writer):
                fenced[batch.slot] = fence
            elif is_written_twice(tables, batch):
                message = f"{batch.slot}: an event of that number is there"
                failed[batch.slot] = StateCorrupt(message)
            else:
                good.append(batch)
        return good, fenced, failed

    def written(
        self, good: Sequence[SlotBatch]
    ) -> tuple[Callable[[_Contents], Any], dict[str, int]]:
        """Return what writes batches behind the last positions, and the positions then."""
        tables = self.database.tables
        positions = {
            name: tables.positions.get(name, 0)
            + sum(len(batch.events) for batch in good if batch.slot[0] == name)
            for name in types_of(good)
        }
        return partial(_written, good, self.database.now_ms()), positions

    def _server_committed(self, answer: Committed | BaseException) -> None:
        """Send the answer of COMMIT, which may be lost: then it is asked for until known."""
        if not isinstance(answer, Committed):
            self._answer(self._committed, answer)
            return
        clock = self.database.clock
        deadline = clock.now + SETTLING
        settle = partial(clock.plan, 0.05, self._settle, answer, deadline, self._timeline)
        if self._is_lost():
            settle()
        else:
            self._answer(self._committed, answer, settle)

    def _settle(self, answer: Committed, deadline: float, timeline: int) -> None:
        """Ask what became of a commit: its writer's row tells, once the server is reached."""
        database = self.database
        if self.runner.closed:
            return
        if timeline != database.timeline:
            self._timeline = database.timeline
            self._answer(self._committed, DatabaseReplaced(f"{database.url} failed over"))
        elif database.reaches(self.runner) and not self.runner.is_paused:
            self._answer(self._committed, answer)
        elif database.clock.now < deadline:
            database.clock.plan(0.05, self._settle, answer, deadline, timeline)
        else:
            message = f"{database.url}: no answer for {SETTLING:g} s: perhaps it is committed"
            self._answer(self._committed, OutcomeUnknown(message))

    def _committed(self, outcome: Any) -> None:
        """Tell all that wait for the transaction, and begin the next one."""
        assert self._committing is not None, "one is under way"
        waiters = deque(self._committing[1])
        self._next_commit()
        while waiters:
            waiters.popleft()(outcome)


def types_of(batches: Sequence[SlotBatch]) -> list[str]:
    """Return the types of which batches have events."""
    return sorted({batch.slot[0] for batch in batches if batch.events})


def _read_lease(name: str, contents: _Contents) -> tuple[LeaseValue | None, int]:
    """Return a value of the register."""
    return contents.leases.get(name, (None, 0))


def _write_row(name: str, given: tuple[Any, ...], contents: _Contents) -> Any:
    """Call a method of the tables that writes rows without a transaction of a slot."""
    return getattr(contents.tables, name)(*given)


def _claimed(
    writer: str, type_name: str, slots: Mapping[int, int], contents: _Contents
) -> object:
    """Raise fences."""
    return MemoryState(writer, contents.tables).claim(type_name, slots)


def _written(batches: Sequence[SlotBatch], now_ms: int, contents: _Contents) -> None:
    """Write the rows of batches."""
    for batch in batches:
        contents.tables.write(batch, now_ms)


def is_written_twice(tables: MemoryTables, batch: SlotBatch) -> bool:
    """Return whether a key has an event of a number that the batch writes."""
    for event in batch.events:
        events = tables.events.get((batch.slot[0], event.key))
        if events and events[-1].number >= event.number:
            return True
    return False
