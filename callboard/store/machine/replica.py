"""Common base of masters and clones: the entries, and the effects that a step collects."""

from collections.abc import Sequence
from typing import Any, Final

from callboard.channel import Consumer, ConsumerBackend, Producer, ProducerBackend, message
from callboard.store.machine.change import Change
from callboard.store.machine.command import NIL, Action, CommandRun, EntityId, StoreControl
from callboard.store.machine.step import ReportChanges, ReportRefused, SendRun, StoreEffect
from callboard.store.machine.stored import Stored, Token
from callboard.store.options import StoreOptions

#: The channels of a replica, and the messages on them.
Output = Producer[EntityId, Action]
Input = Consumer[Action]
FromOutput = message.ProducerMessage[Action]
ChannelMessage = EntityId | FromOutput | message.ConsumerMessage

#: Marks the value of a key that the store does not have.
MISSING: Final[Any] = object()


def make_output(
    backend: ProducerBackend[EntityId, Action], options: StoreOptions, seq: int = 0
) -> Output:
    """Make a producer whose next command has the number `seq` + 1."""
    return Producer(
        backend,
        heartbeat_interval=options.heartbeat_interval,
        timeout=options.connection_timeout,
        buffer_limit=options.buffer_limit,
        seq=seq,
    )


def make_input(backend: ConsumerBackend[Action], options: StoreOptions) -> Input:
    """Make a consumer with the times of a store."""
    nack_after, timeout = options.nack_timeout, options.connection_timeout
    return Consumer(backend, nack_after=nack_after, timeout=timeout)


class Replica:
    """A copy of a store. Any thread may read its entries; only steps change them."""

    #: Whether commands go to masters (from clones) or to clones (from masters).
    _to_master: bool
    #: `master` or `clone`.
    role: str

    def __init__(self, entity: EntityId) -> None:
        self.entity = entity
        self.entries: dict[Token, Stored] = {}
        #: Whether changes have a watcher or a subscriber; set before each step.
        self.wants_changes = False
        self.now = 0.0
        #: Commands executed by this replica.
        self.processed = 0
        #: Commands and entries that were received or loaded, and could not be read.
        self.unreadable = 0
        self._effects: list[StoreEffect] = []
        self._changes: list[Change] = []
        #: The reasons of commands that had no effect in this step.
        self._failures: list[str] = []

    @property
    def size(self) -> int:
        """The number of keys."""
        return len(self.entries)

    def expires_in(self, token: Token) -> float | None:
        """Return the seconds until a key expires; None if it does not, or on a clone."""
        return None

    def _take_effects(self) -> list[StoreEffect]:
        """Return the effects of a step, and reports of its failures and its changes."""
        effects, self._effects = self._effects, []
        if self._failures:
            failures, self._failures = self._failures, []
            effects.append(ReportRefused(len(failures), failures[0]))
        if self._changes:
            changes, self._changes = self._changes, []
            effects.append(ReportChanges(changes))
        return effects

    # --- entries ---

    def _put(self, token: Token, value: Stored, expiry: int | None) -> None:
        """Set a key, and record the change for watchers."""
        if self.wants_changes:
            old = self.entries.get(token, MISSING)
            if old is MISSING:
                self._changes.append(Change("insert", token, value, None, expiry))
            else:
                self._changes.append(Change("update", token, value, old, expiry))
        self.entries[token] = value

    def _erase(self, token: Token, kind: str) -> bool:
        """Remove a key; return False if the store does not have it."""
        if self.entries.pop(token, MISSING) is MISSING:
            return False
        if self.wants_changes:
            self._changes.append(Change(kind, token))
        return True

    def _clear(self) -> None:
        """Remove all keys."""
        if self.wants_changes:
            self._changes += [Change("erase", token) for token in self.entries]
        # A new dictionary: a reader on another thread may be iterating over the old one, and
        # would raise "dictionary changed size during iteration".
        self.entries = {}

    # --- sending ---

    def _send_control(
        self, receiver: EntityId, control: StoreControl, sender: EntityId | None = None
    ) -> None:
        """Send a control; `sender` replaces the name of this replica."""
        run = CommandRun(sender or self.entity, receiver, control=control)
        self._effects.append(SendRun(run, self._to_master))

    def _send_actions(
        self, first: int, actions: Sequence[Action], receiver: EntityId = NIL
    ) -> None:
        """Send actions with consecutive numbers, starting at `first`."""
        run = CommandRun(self.entity, receiver, first, actions)
        self._effects.append(SendRun(run, self._to_master))
