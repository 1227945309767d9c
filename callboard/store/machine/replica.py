"""What masters and clones have in common: entries, and effects that pile up in a step."""

from collections.abc import Sequence
from typing import Any, Final

from callboard.channel import Consumer, ConsumerBackend, Producer, ProducerBackend, message
from callboard.store.machine.change import Change
from callboard.store.machine.command import NIL, Action, CommandRun, EntityId, StoreControl
from callboard.store.machine.step import ReportChanges, SendRun, StoreEffect
from callboard.store.machine.stored import Stored, Token
from callboard.store.options import StoreOptions

#: What commands go out by, and come in by; what is said on them.
Output = Producer[EntityId, Action]
Input = Consumer[Action]
FromOutput = message.ProducerMessage[Action]
Said = EntityId | FromOutput | message.ConsumerMessage

#: Stands for the value of a key that the store does not have.
MISSING: Final[Any] = object()


def make_output(
    backend: ProducerBackend[EntityId, Action], options: StoreOptions, seq: int = 0
) -> Output:
    """Make a producer, which goes on behind `seq`."""
    return Producer(
        backend,
        heartbeat_interval=options.heartbeat_interval,
        timeout=options.connection_timeout,
        buffer_limit=options.buffer_limit,
        seq=seq,
    )


def make_input(backend: ConsumerBackend[Action], options: StoreOptions) -> Input:
    """Make a consumer."""
    nack_after, timeout = options.nack_timeout, options.connection_timeout
    return Consumer(backend, nack_after=nack_after, timeout=timeout)


class Replica:
    """A copy of a store. Its entries may be read from any thread, and are changed in steps."""

    #: Whether commands go to masters (from clones) or to clones (from masters).
    _to_master: bool
    #: `master` or `clone`.
    role: str

    def __init__(self, entity: EntityId) -> None:
        self.entity = entity
        self.entries: dict[Token, Stored] = {}
        #: Whether somebody wants to hear of changes; set before a step.
        self.wants_changes = False
        self.now = 0.0
        #: Commands that were carried out here.
        self.processed = 0
        self._effects: list[StoreEffect] = []
        self._changes: list[Change] = []

    @property
    def size(self) -> int:
        """How many keys there are."""
        return len(self.entries)

    def expires_in(self, token: Token) -> float | None:
        """Return the seconds until a key is removed; None where it stays, or is not known."""
        return None

    def _take_effects(self) -> list[StoreEffect]:
        """Return the effects of a step, and what changed in it."""
        effects, self._effects = self._effects, []
        if self._changes:
            changes, self._changes = self._changes, []
            effects.append(ReportChanges(changes))
        return effects

    # --- entries ---

    def _put(self, token: Token, value: Stored, expiry: int | None) -> None:
        """Set a key, and note what changed for watchers."""
        if self.wants_changes:
            old = self.entries.get(token, MISSING)
            if old is MISSING:
                self._changes.append(Change("insert", token, value, None, expiry))
            else:
                self._changes.append(Change("update", token, value, old, expiry))
        self.entries[token] = value

    def _erase(self, token: Token, kind: str) -> bool:
        """Remove a key; False when it is not there."""
        if self.entries.pop(token, MISSING) is MISSING:
            return False
        if self.wants_changes:
            self._changes.append(Change(kind, token))
        return True

    def _clear(self) -> None:
        """Remove all keys."""
        if self.wants_changes:
            self._changes += [Change("erase", token) for token in self.entries]
        # Readers on other threads go on in the entries that they have in hand.
        self.entries = {}

    # --- sending ---

    def _send_control(
        self, receiver: EntityId, control: StoreControl, sender: EntityId | None = None
    ) -> None:
        """Send a control, under another name of this replica where one is given."""
        run = CommandRun(sender or self.entity, receiver, control=control)
        self._effects.append(SendRun(run, self._to_master))

    def _send_actions(
        self, first: int, actions: Sequence[Action], receiver: EntityId = NIL
    ) -> None:
        """Send actions, numbered from `first` on."""
        run = CommandRun(self.entity, receiver, first, actions)
        self._effects.append(SendRun(run, self._to_master))
