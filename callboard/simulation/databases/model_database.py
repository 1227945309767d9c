"""A model of a database: concurrent transactions with row locks, in virtual time.

It models the transactions of `entity/state/postgresql.py` and `sqlite.py` statement by
statement, so that claims and commits of several nodes interleave in every order. With
`postgresql:` a commit is one round trip, rows are locked, and the server aborts a transaction
whose client is silent for a second. With `sqlite:` a transaction holds the single write lock,
and a process that is paused inside a transaction keeps the lock.

Row locks are held until the transaction ends; then its writes become visible to others.
"""

import random
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from callboard import locks
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
from callboard.lease.leases import LeaseValue
from callboard.simulation.clock import EPOCH, Clock

P = ParamSpec("P")
T = TypeVar("T")

#: Default virtual seconds of a request, of an answer, and of a statement.
LATENCY: Final = 0.001

#: Virtual seconds that a server waits for a lock, and for a client inside a transaction.
SERVER_WAITS: Final = 1.0

#: Minimum and maximum virtual seconds of a statement that stalls.
STALL: Final = (0.03, 0.7)

#: Virtual seconds for which a client queries the outcome of a commit with a lost answer.
SETTLING: Final = 6.0

#: Name of the method that writes one row of the register.
_WRITE: Final = "write"

#: Methods of a state that write rows in a single statement.
_ROW_WRITERS: Final = frozenset(
    {"open_reader", "move_reader", "set_attempts", "start_reminders"}
)


class RowLock(NamedTuple):
    """A lock that a statement needs."""

    row: object
    is_shared: bool = False
    #: Whether the statement may stall, as statements of commits do while they wait for a disk.
    may_stall: bool = False


#: A transaction: yields the locks that its statements need; returns its writes and its answer.
Script = Generator[RowLock, None, "tuple[Callable[[_Contents], Any], Any]"]


class DatabaseUser(Protocol):
    """The runner of a node that uses the database."""

    is_paused: bool
    closed: bool
    has_crashed: bool
    #: Its machine; if it is cut off, so are restarted nodes on it.
    machine: Any

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback in the node's next turn."""


class _Contents:
    """All committed rows."""

    def __init__(self, identity: str) -> None:
        # The server is another machine. A fault that is aimed at a moment of a client, as while
        # it writes to a link, changes the tables under the locks that this client holds.
        lock = locks.lock("tables of a simulated database", 995, reentrant=True)
        self.tables = MemoryTables(lock)
        self.tables.id = identity
        self.leases: dict[str, tuple[LeaseValue, int]] = {}


class _Transaction:
    """An open transaction with its locks."""

    def __init__(
        self, script: Script, client: "ModelClient", answer: Callable[[Any], None]
    ) -> None:
        self.script, self.client, self.answer = script, client, answer
        self.locks: dict[object, bool] = {}
        self.wanted: RowLock | None = None
        self.is_over = self.is_stalled = False


class ModelDatabase:
    """The database of a URL; tests may change `latency`, `lost_answers`, `stalls` any time."""

    def __init__(self, url: str, clock: Clock, rng: random.Random) -> None:
        """Create an empty database."""
        self.url = url
        self.is_file = url.startswith("sqlite:")
        #: Virtual seconds of a request, of an answer, and of a statement.
        self.latency = LATENCY
        #: Fraction of COMMITs whose answer is lost.
        self.lost_answers = 0.0
        #: Fraction of the statements of commits that stall while holding their locks.
        self.stalls = 0.0
        self.is_down = False
        #: Rises with each failover.
        self.timeline = 1
        self.clock, self.random = clock, rng
        self._contents = _Contents(f"{rng.getrandbits(128):032x}")
        #: Committed writes with their times; a failover replays all but the lost ones.
        self._log: list[tuple[float, Callable[[_Contents], Any]]] = []
        self._open: list[_Transaction] = []
        #: Machines that cannot reach the server.
        self._cut: set[object] = set()
        #: Users by writer name.
        self._users: dict[str, DatabaseUser] = {}

    @property
    def tables(self) -> MemoryTables:
        """The committed rows; tests may read them at any time."""
        return self._contents.tables

    def now_ms(self) -> int:
        """Return the server's clock, in milliseconds since 1970."""
        return int((EPOCH + self.clock.now) * 1000)

    def stalling(self) -> list[DatabaseUser]:
        """Return the users with a stalled commit that is still open."""
        return [
            transaction.client.runner for transaction in self._open if transaction.is_stalled
        ]

    # --- faults ---

    def down(self) -> None:
        """Stop the server: open transactions roll back, calls fail with `StateUnavailable`."""
        self.is_down = True
        for transaction in self._open.copy():
            self._fail(transaction, "the server went down")

    def up(self) -> None:
        """Start the server again, with all committed rows."""
        self.is_down = False

    def cut(self, client: DatabaseUser) -> None:
        """Block traffic between a user's machine and the server."""
        self._cut.add(client.machine)

    def mend(self, client: DatabaseUser) -> None:
        """Undo `cut`."""
        self._cut.discard(client.machine)

    def fail_over(self, lost: float = 0.0) -> None:
        """Fail over to a standby that lacks the commits of the last `lost` seconds."""
        for transaction in self._open.copy():
            self._fail(transaction, "the server failed over")
        self.timeline += 1
        remaining = [entry for entry in self._log if entry[0] <= self.clock.now - lost]
        self._contents = _Contents(self.tables.id)
        self._log = remaining
        for _, apply in remaining:
            apply(self._contents)
        fences = self.tables.fences
        for slot, fence in fences.items():
            fences[slot] = Fence(fence.epoch + 1, "")

    # --- called by clients ---

    def client(self, writer: str, runner: DatabaseUser) -> "ModelClient":
        """Return a connection for a writer; its callbacks run in the runner's turns."""
        self._users[writer] = runner
        return ModelClient(self, writer, runner)

    def is_gone(self, writer: str) -> bool:
        """Return whether a writer has certainly ended.

        Processes that share an SQLite file are on one machine, which knows when one was killed.
        """
        user = self._users.get(writer)
        return self.is_file and user is not None and user.closed and not user.has_crashed

    def reaches(self, client: DatabaseUser) -> bool:
        """Return whether a user can currently reach the server."""
        return not self.is_down and client.machine not in self._cut

    def read(self, look: Callable[[_Contents], T]) -> T:
        """Run a reading statement on the committed rows."""
        return look(self._contents)

    def apply(self, write: Callable[[_Contents], T]) -> T:
        """Commit the writes of a transaction; return their result."""
        answer = write(self._contents)
        self._log.append((self.clock.now, write))
        return answer

    def begin(
        self, script: Script, client: "ModelClient", answer: Callable[[Any], None]
    ) -> None:
        """Start a transaction; `answer` is called with its answer or its error."""
        transaction = _Transaction(script, client, answer)
        self._open.append(transaction)
        self._step(transaction)

    def _step(self, transaction: _Transaction) -> None:
        """Run the next statement of a transaction, once its client is able to send it."""
        if transaction.is_over:
            return
        runner = transaction.client.runner
        # A server has received the whole transaction in one message and completes it.
        if runner.closed and self.is_file:
            self._fail(transaction, "its client is gone")
            return
        if self.is_file and runner.is_paused:
            self.clock.plan(self.latency + 0.01, self._step, transaction)
            return
        try:
            lock = transaction.script.send(None)
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
        transaction.wanted = lock._replace(row="file", is_shared=False)
        if not self.is_file:
            transaction.wanted = lock
        if not self._grant(transaction):
            lost = partial(self._fail, transaction, "", transaction.wanted)
            self.clock.plan(SERVER_WAITS, lost)

    def _grant(self, transaction: _Transaction) -> bool:
        """Grant the lock that a transaction waits for, unless another one holds it."""
        lock = transaction.wanted
        assert lock is not None, "the transaction waits for a lock"
        for other in self._open:
            shared = other.locks.get(lock.row)
            is_held = other is not transaction and shared is not None
            if is_held and not (shared and lock.is_shared):
                return False
        transaction.locks[lock.row] = lock.is_shared
        transaction.wanted = None
        stall = 0.0
        if lock.may_stall and self.stalls and self.random.random() < self.stalls:
            least, most = STALL
            stall = least * (most / least) ** self.random.random()
            transaction.is_stalled = True
        self.clock.plan(self.latency + stall, self._step, transaction)
        return True

    def _end(self, transaction: _Transaction) -> None:
        """Release the locks of a transaction, and grant them to waiting transactions."""
        transaction.is_over = True
        self._open.remove(transaction)
        for other in self._open.copy():
            if other.wanted is not None:
                self._grant(other)

    def _fail(
        self, transaction: _Transaction, reason: str, waited_for: RowLock | None = None
    ) -> None:
        """Roll back a transaction; with `waited_for`, only if it still waits for this lock."""
        if transaction.is_over or (waited_for and transaction.wanted is not waited_for):
            return
        self._end(transaction)
        if waited_for is not None:
            row = waited_for.row
            transaction.answer(
                StateBusy(f"{self.url}: no lock of {row} for {SERVER_WAITS:g} s")
            )
        else:
            transaction.answer(StateUnavailable(f"{self.url}: {reason}"))


class ModelClient:
    """A writer's connection in virtual time: a `StateClient`, and a client of the register."""

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
        arguments: tuple[Any, ...] = args
        callback: Done[Any] = done
        if name == "claim":
            self._request(partial(self._claim, callback, *arguments), done)
        elif name == "read":
            look = partial(_read_lease, arguments[0])
            self._request(lambda: self._answer(callback, self.database.read(look)), done)
        elif name == _WRITE:
            self._request(partial(self._write_lease, callback, *arguments), done)
        elif name in _ROW_WRITERS:  # one statement that writes a row
            if name == "start_reminders":
                arguments = *arguments, self.database.now_ms()
            write = partial(_write_row, name, arguments)
            self._request(lambda: self._answer(callback, self.database.apply(write)), done)
        elif name == "is_gone":
            self._answer(done, self.database.is_gone(arguments[0]))
        else:
            self._request(partial(self._read, done, name, args, kwargs), done)

    def own_fences(self, _: str) -> None:
        """Return None: fences are known only to the server."""
        return

    def commit(self, batch: SlotBatch, done: Done[Committed]) -> None:
        """Commit the batch of a slot in the next transaction."""
        self._commits.add((batch, done))
        if self._committing is None:
            self._next_commit()

    def close(self) -> None:
        """Do nothing: open requests complete on their own."""

    # --- requests and answers ---

    def _request(self, arrive: Callable[[], None], done: Done[Any]) -> None:
        """Send a request; it arrives after the latency, or fails like a lost connection."""
        self.database.clock.plan(self.database.latency, self._arrive, arrive, done)

    def _arrive(self, arrive: Callable[[], None], done: Done[Any]) -> None:
        """Deliver a request, if its node is alive and the server can be reached."""
        if self.runner.closed:
            return
        if self.runner.is_paused:  # the node was paused before it sent the request
            self.database.clock.plan(0.01, self._arrive, arrive, done)
        elif not self.database.reaches(self.runner):
            self._answer(done, StateUnavailable(f"{self.database.url} cannot be reached"))
        elif self._timeline != self.database.timeline:
            self._timeline = self.database.timeline
            message = f"{self.database.url} failed over; claim all slots again"
            self._answer(done, DatabaseReplaced(message))
        else:
            try:
                arrive()
            except Exception as error:  # noqa: BLE001 - returned to the caller
                self._answer(done, error)

    def _answer(
        self, done: Done[Any], answer: Any, lost: Callable[[], None] | None = None
    ) -> None:
        """Send an answer back; `lost` is called if the connection breaks before it arrives."""
        self.database.clock.plan(self.database.latency, self._receive, done, answer, lost)

    def _receive(
        self, done: Done[Any], answer: Any, lost: Callable[[], None] | None = None
    ) -> None:
        """Deliver an answer, or report a lost connection if the client was cut off since."""
        if self.runner.closed:
            return
        if not isinstance(answer, BaseException) and not self.database.reaches(self.runner):
            if lost is not None:
                lost()
                return
            answer = StateUnavailable(f"{self.database.url}: the connection was lost")
        self.runner.post(done, answer)

    def _read(
        self, done: Done[Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Answer a request that only reads."""
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
        """Write a value of the register, in a transaction of one row and one statement."""

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
        """Start the transaction of a claim."""
        self.database.begin(
            self._claim_script(type_name, slots), self, partial(self._answer, done)
        )

    def _claim_script(self, type_name: str, slots: Mapping[int, int]) -> Script:
        """Lock the fences in slot order, then raise those with a lower epoch."""
        for slot in sorted(slots):
            yield RowLock(("fence", type_name, slot))
        claim = partial(_claimed, self.writer, type_name, dict(slots))
        fences = self.database.tables.fences
        refused = {
            slot: fence
            for slot, epoch in slots.items()
            if (fence := fences.get((type_name, slot), NO_FENCE)).epoch >= epoch
            and fence != (epoch, self.writer)
        }
        return claim, refused

    # --- commits ---

    def _next_commit(self) -> None:
        """Send all waiting batches as one transaction."""
        batches, waiters = self._commits.begin()
        self._committing = (batches, waiters) if batches else None
        if batches:
            self._request(partial(self._begin_commit, batches), self._committed)

    def _begin_commit(self, batches: Sequence[SlotBatch]) -> None:
        """Start the transaction of a commit."""
        ordered = sorted(batches, key=attrgetter("slot"))
        script = self._commit_script(ordered)
        self.database.begin(script, self, self._server_committed)

    def _commit_script(self, batches: Sequence[SlotBatch]) -> Script:
        """Check the fences under shared locks, write, and assign positions last."""
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
        """Return the batches to write, the fenced slots, and the failed slots."""
        tables = self.database.tables
        fenced: dict[Slot, Fence] = {}
        failed: dict[Slot, Exception] = {}
        writable: list[SlotBatch] = []
        for batch in batches:
            fence = tables.fences.get(batch.slot, NO_FENCE)
            if fence != (batch.epoch, self.writer):
                fenced[batch.slot] = fence
            elif is_written_twice(tables, batch):
                message = f"{batch.slot}: an event with this number exists already"
                failed[batch.slot] = StateCorrupt(message)
            else:
                writable.append(batch)
        return writable, fenced, failed

    def written(
        self, good: Sequence[SlotBatch]
    ) -> tuple[Callable[[_Contents], Any], dict[str, int]]:
        """Return a function that writes batches, and the positions of the types afterwards."""
        tables = self.database.tables
        positions = {
            name: tables.positions.get(name, 0)
            + sum(len(batch.events) for batch in good if batch.slot[0] == name)
            for name in types_of(good)
        }
        return partial(_written, good, self.database.now_ms()), positions

    def _server_committed(self, answer: Committed | BaseException) -> None:
        """Send the answer of COMMIT; if it is lost, query the outcome until it is known."""
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
        """Query the outcome of a commit; the writer's row shows it when the server is back."""
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
            message = f"{database.url}: no answer for {SETTLING:g} s; the commit may be stored"
            self._answer(self._committed, OutcomeUnknown(message))

    def _committed(self, outcome: Any) -> None:
        """Report the outcome to all waiters of the transaction, and start the next one."""
        assert self._committing is not None, "a commit is in progress"
        waiters = deque(self._committing[1])
        self._next_commit()
        while waiters:
            waiters.popleft()(outcome)


def types_of(batches: Sequence[SlotBatch]) -> list[str]:
    """Return the types with events in these batches."""
    return sorted({batch.slot[0] for batch in batches if batch.events})


def _read_lease(name: str, contents: _Contents) -> tuple[LeaseValue | None, int]:
    """Return a value of the register."""
    return contents.leases.get(name, (None, 0))


def _write_row(name: str, arguments: tuple[Any, ...], contents: _Contents) -> Any:
    """Call a method of the tables that writes rows in a single statement."""
    return getattr(contents.tables, name)(*arguments)


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
    """Return whether an event of the batch has a number that its key already has."""
    for event in batch.events:
        events = tables.events.get((batch.slot[0], event.key))
        if events and events[-1].number >= event.number:
            return True
    return False
