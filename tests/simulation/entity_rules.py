"""Rules for a life of entities, besides those for the answers of each client.

A follower of the journal has every event, once, in order of positions. A voter has a lease the
database tells which ones were raised, and when.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from callboard import CallboardError, Node
from callboard.actors.future import Future
from callboard.entity.entity import Entity
from callboard.entity.machine.ballot_machine import BallotMachine, BallotSubject
from callboard.entity.state.interface import StoredEvent
from callboard.entity.state.memory import MemoryTables
from callboard.lease.leases import LeaseValue
from callboard.lease.machine.lease_machine import HELD, LeaseMachine, lease_name
from callboard.simulation import Cluster
from callboard.simulation.databases.model_database import ModelClient
from tests.simulation.rules import Violation

#: Virtual seconds in which a counter has to be seen to rise: TTL, by the slowest clock.
RISES: Final = 2.0 / 0.95 + 0.001

#: Seconds until a journal that could not be read is followed again.
AGAIN: Final = 0.05


def check_accounts(cluster: Cluster, nodes: list[Node], patience: float) -> None:
    """At rest each message to a node was taken there, as both ends count, or is lost."""
    pairs = [(node, other) for node in nodes for other in nodes if node is not other]

    def in_flight() -> int:
        accounts = [node.accounts().get(other.node_id) for node, other in pairs]
        return sum(account.in_flight for account in accounts if account is not None)

    cluster.run_until(lambda: not in_flight(), patience)
    if in_flight():
        raise Violation(f"{in_flight()} messages are in flight {patience} s after all is over")
    for node, other in pairs:
        account = node.accounts().get(other.node_id)
        arrivals = other._broker.routes.accounts.arrivals.get(node.node_id, {})
        taken = sum(one.delivered + one.dead_letters for one in arrivals.values())
        if account is not None and not account.confirmed <= taken <= account.sent:
            raise Violation(f"{other.name} took {taken} messages of {node.name}: {account}")


class Seen(NamedTuple):
    """The entries that a follower of a journal received."""

    position: int
    key: str
    number: int


class Follower:
    """Follows a journal on any running node, after the last entry that it received."""

    def __init__(self, cls: type[Entity], url: str) -> None:
        self.cls, self.url = cls, url
        self.seen: list[Seen] = []
        #: Counts where it was begun: what a former node still gets does not count.
        self._turn = 0

    @property
    def position(self) -> int:
        """The position of the last entry."""
        return self.seen[-1].position if self.seen else 0

    def begin(self, node: Node) -> None:
        """Follow on a node from now on."""
        self._turn += 1
        node._start(self._follow(node, self._turn))

    async def _follow(self, node: Node, turn: int) -> None:
        while turn == self._turn and not node.runtime.is_closed:
            journal = node.journal(self.cls, after=self.position, follow=True, state=self.url)
            try:
                async for entry in journal:
                    if turn != self._turn:
                        break
                    self.seen.append(Seen(entry.position, entry.key, entry.number))
            except CallboardError:
                passed: Future[None] = Future()
                node.runtime.call_later(AGAIN, passed.set_result, None)
                await passed
            finally:
                journal.close()


def check_journal(tables: MemoryTables, name: str, seen: list[Seen], *, is_whole: bool) -> None:
    """Compare the entries of a follower with the stored ones of a type.

    Args:
        tables: of the database.
        name: of the type.
        seen: by a follower, up to the last position.
        is_whole: whether no event was ever forgotten.

    Raises:
        Violation: an event is missing or there twice, out of order, or of an earlier epoch.
    """
    positions = [each.position for each in seen]
    if positions != sorted(set(positions)):
        raise Violation(f"a follower was given positions {positions}")
    last = tables.positions.get(name, 0)
    if is_whole and positions != list(range(1, last + 1)):
        missing = sorted(set(range(1, last + 1)) - set(positions))
        raise Violation(f"a follower that is at {last} has not got {missing}")
    stored = {Seen(e.position, e.key, e.number) for e in tables.journals.get(name, [])}
    if lost := stored - set(seen):
        raise Violation(f"a follower that is at {last} has not got {sorted(lost)}")
    for (_, key), events in tables.events.items():
        _check_key(key, events)


def _check_key(key: str, events: list[StoredEvent]) -> None:
    """Check the stored events of a key."""
    epochs = [each.epoch for each in events]
    if epochs != sorted(epochs):
        raise Violation(f"{key} has events of epochs {epochs}")
    numbers = [each.number for each in events]
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise Violation(f"{key} has events {numbers}")


class _Read(NamedTuple):
    """A read of a lease that succeeded, in virtual time."""

    sent: float
    done: float


@dataclass
class Ballots:
    """Checks the chosen voters, while `watched`."""

    cluster: Cluster
    #: When each lease was raised.
    raised: dict[str, list[float]] = field(default_factory=dict)
    #: By reader and lease, its reads.
    reads: dict[tuple[str, str], list[_Read]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    count: int = 0

    def check(self) -> None:
        """Raise the recorded errors."""
        if self.wrong:
            raise Violation(self.wrong[0])

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Check in a block."""
        changes: list[tuple[type, str, Callable[..., Any]]] = [
            (ModelClient, "_write_lease", self._write),
            (LeaseMachine, "read_done", self._read),
            (BallotMachine, "lost", self._lost),
        ]
        before = [vars(owner)[name] for owner, name, _ in changes]
        for (owner, name, look), right in zip(changes, before, strict=True):
            setattr(owner, name, _beside(right, look))
        try:
            yield
        finally:
            for (owner, name, _), right in zip(changes, before, strict=True):
                setattr(owner, name, right)

    def _write(
        self, client: ModelClient, _: object, name: str, value: LeaseValue, expected: int
    ) -> None:
        """Record a renewal that will succeed."""
        version = client.database.read(lambda rows: rows.leases.get(name, (None, 0))[1])
        if version == expected and value.text == HELD:
            self.raised.setdefault(name, []).append(self.cluster.now)

    def _read(
        self, machine: LeaseMachine, name: str, sent_at: float, now: float, answer: object
    ) -> None:
        """Record a read."""
        if answer is not None:
            done = self.cluster.now
            read = _Read(done - 1.1 * (now - sent_at), done)
            self.reads.setdefault((machine.writer, name), []).append(read)

    def _lost(
        self, machine: BallotMachine, subject: BallotSubject, voters: set[str], _: float
    ) -> None:
        """Judge who votes."""
        self.count += 1
        stale = sorted(v for v in voters if v != machine.writer and not self._rose(machine, v))
        if stale:
            self.wrong.append(
                f"at {self.cluster.now:.3f} {machine.writer} lets {stale} vote on "
                f"{subject.writer}, whose leases it has not seen to rise"
            )

    def _rose(self, machine: BallotMachine, voter: str) -> bool:
        """Return whether a lease was raised between two reads, at least one of them recent."""
        name = lease_name(voter)
        reads = self.reads.get((machine.writer, name), [])
        raised = self.raised.get(name, [])
        return any(
            read.done >= self.cluster.now - RISES
            and any(before.sent <= time <= read.done for time in raised)
            for before, read in zip(reads, reads[1:], strict=False)
        )


def _beside(right: Callable[..., Any], look: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that has another look at its call first."""

    def called(self: Any, *args: Any, **options: Any) -> Any:
        look(self, *args)
        return right(self, *args, **options)

    return called
