"""One node's part in the table of a type: which slots it serves, takes and gives away.

Events come in, effects go out: `step(event) -> effects`. There is no clock and no chance here;
who drives it reads and writes the register, raises fences and watches the other members.

What the node **wants** is kept, and what the table has to become follows from it and from the
table as it is (`_wanted`): be a member or none, without members that are gone, with higher
epochs where fences were beyond, with slots that have come to rest given away. So one write may
hold several changes, and a write whose outcome is not known needs no memory: the table is read
again, and what is not there yet is still wanted.

Rules, each of which a search breaks if it is left out:

- A slot is served with an epoch only after its fence was raised to that epoch, and while the
  newest table that is known gives it to this node.
- A member is removed for what was seen of that membership (`TableMember.joined`), never for
  what was seen of an earlier one.
- A slot is given away only after everything in it has come to rest.

At most one request to the register, one claim, one probe and one move are under way. Each is
answered by exactly one event. All fields hold values that are replaced and never changed, so
`copy` is cheap and `key` names the state.
"""

import copy
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

from callboard.entity.machine.table import (
    DRAINING,
    NOBODY,
    SLOTS,
    SharedState,
    Table,
    TableMember,
)
from callboard.entity.state.interface import Fence
from callboard.support.dataclass import dataclass

#: Slots that are given away at once, at most. Entities of slots that go together may wait for
#: one another, as messages for them are held: after such a move it is one slot at a time.
MOVED_AT_ONCE: Final = 8

#: Looks at the membership until a move is tried again whose slots did not come to rest: while
#: it is tried, messages for them are held. It begins with one, and doubles up to this.
LOOKS_AFTER_BUSY: Final = 50

# --- what happened ---


@dataclass(frozen=True, slots=True)
class JoinAsked:
    """Be a member from here on; again after `close`, never."""

    state: SharedState = SharedState()


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Give all slots away, and take none more."""


@dataclass(frozen=True, slots=True)
class MoveAsked:
    """Let slots be wished to members from here on; with "", to whom they were before."""

    pins: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class CloseAsked:
    """Be no member any more: all has come to rest here."""


@dataclass(frozen=True, slots=True)
class TermBegun:
    """The node's lease is valid, in a term that began with this number."""

    term: int


@dataclass(frozen=True, slots=True)
class TermEnded:
    """The node's lease was killed, or is not valid yet: nothing may be served."""


@dataclass(frozen=True, slots=True)
class LookDue:
    """Time to look after the membership; now and then with a read of the table."""

    reads: bool = False


@dataclass(frozen=True, slots=True)
class TableRead:
    """The answer to `ReadTable`."""

    table: Table


@dataclass(frozen=True, slots=True)
class TableWritten:
    """The answer to `WriteTable`; None where nobody knows whether it took place."""

    is_written: bool | None


@dataclass(frozen=True, slots=True)
class RegisterFailed:
    """The answer to `ReadTable` or `WriteTable`: nothing happened."""


@dataclass(frozen=True, slots=True)
class TableTold:
    """Another node knows a table of this version: the register is read, which alone decides."""

    version: int


@dataclass(frozen=True, slots=True)
class MembersProbed:
    """The answer to `ProbeMembers`: those of them that are gone for certain."""

    gone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MemberGone:
    """A membership has ended: its lease was killed, or it was silent for long."""

    writer: str
    #: `TableMember.joined` of the membership that this is about.
    joined: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to `ClaimFences`: what other claims hold; all others were raised."""

    held: Mapping[int, Fence]


@dataclass(frozen=True, slots=True)
class ClaimFailed:
    """The answer to `ClaimFences`: nobody knows which were raised; none is served."""


@dataclass(frozen=True, slots=True)
class SlotsEmptied:
    """The answer to `StopSlots`: nothing runs in them."""


@dataclass(frozen=True, slots=True)
class SlotsBusy:
    """The answer to `StopSlots`: something runs for too long; they stay for now."""


@dataclass(frozen=True, slots=True)
class SlotLost:
    """The fence of a slot was seen to be another's."""

    slot: int
    #: With which it was served here.
    epoch: int


@dataclass(frozen=True, slots=True)
class KindsSeen:
    """Events of these kinds and versions are in the state."""

    kinds: frozenset[tuple[str, int]]


OwnershipEvent = (
    JoinAsked
    | DrainAsked
    | MoveAsked
    | CloseAsked
    | TermBegun
    | TermEnded
    | LookDue
    | TableRead
    | TableWritten
    | RegisterFailed
    | TableTold
    | MembersProbed
    | MemberGone
    | Claimed
    | ClaimFailed
    | SlotsEmptied
    | SlotsBusy
    | SlotLost
    | KindsSeen
)

# --- what is to be done ---


@dataclass(frozen=True, slots=True)
class ReadTable:
    """Read the register."""


@dataclass(frozen=True, slots=True)
class WriteTable:
    """Write the register if it has the version `expected` of a value still."""

    table: Table
    expected: int


@dataclass(frozen=True, slots=True)
class ProbeMembers:
    """Look which of these have proof of their death."""

    writers: frozenset[str]


@dataclass(frozen=True, slots=True)
class ClaimFences:
    """Raise fences to these epochs, all in one transaction."""

    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ServeSlots:
    """Handle messages for these slots, with these epochs, from here on."""

    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class KeepSlots:
    """End at once what runs in other slots than these, or with other epochs."""

    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class StopSlots:
    """Hold messages for these slots, and let what runs in them come to rest."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseSlots:
    """Send on, or handle, what was held for these slots."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TableChanged:
    """Tell senders and members of the table."""

    table: Table


@dataclass(frozen=True, slots=True)
class Joined:
    """This node is a member and serves what it owns; told once."""


@dataclass(frozen=True, slots=True)
class JoinRefused:
    """The members have another state; this node wants to be no member any more."""

    table: Table


@dataclass(frozen=True, slots=True)
class SlotsDrained:
    """Others have all that this node could give away; told once."""


@dataclass(frozen=True, slots=True)
class Left:
    """This node is no member any more; told once."""


OwnershipEffect = (
    ReadTable
    | WriteTable
    | ProbeMembers
    | ClaimFences
    | ServeSlots
    | KeepSlots
    | StopSlots
    | ReleaseSlots
    | TableChanged
    | Joined
    | JoinRefused
    | SlotsDrained
    | Left
)

Effects = list[OwnershipEffect]


class OwnershipMachine:
    """The part of one node, from its `JoinAsked` to its `Left`."""

    def __init__(
        self,
        writer: str,
        member: TableMember,
        *,
        has_fences: bool = True,
        count: int = SLOTS,
        portion: int = MOVED_AT_ONCE,
        looks_after_busy: int = LOOKS_AFTER_BUSY,
    ) -> None:
        """Make the machine of a node that is no member.

        Args:
            writer: the name of the node's life.
            member: what the table says about it.
            has_fences: False where nothing is kept: there are no fences to be raised.
            count: slots of the type.
            portion: slots that are given away at once, at most; it may change at any time.
            looks_after_busy: looks until a move is tried again that found its slots busy, at
                most.
        """
        self.writer, self.member = writer, member
        self.has_fences, self.portion = has_fences, portion
        self.looks_after_busy = looks_after_busy
        self.has_term = True
        self.state = SharedState()
        self.table = Table(slots=(NOBODY,) * count)
        #: The slots that are served, with their epochs.
        self.served: Mapping[int, int] = {}
        #: What it wants to be.
        self.aim: Literal["", "member", "drained", "none"] = ""
        #: The memberships, by writer and `joined`, that are known to have ended.
        self.gone: frozenset[tuple[str, int]] = frozenset()
        #: Epochs that the table must have, as fences were beyond it.
        self.beyond: Mapping[int, int] = {}
        self.kinds: frozenset[tuple[str, int]] = frozenset()
        #: Moves by hand that are not in the table yet.
        self.pins: Mapping[int, str] = {}
        #: What was asked of the register.
        self.request: ReadTable | WriteTable | None = None
        #: Whether the register has to be read before it is written.
        self.is_stale = True
        #: The newest version that others told since the register was asked for its last one.
        self.told = 0
        #: Whether the register was behind what members know: it has lost its end.
        self.is_behind = False
        #: Memberships that are being looked at; None: no look is under way.
        self.probing: Mapping[str, int] | None = None
        self.is_probed = False
        self.claiming: Mapping[int, int] | None = None
        #: Slots on their way to others, and whether they have come to rest.
        self.giving: tuple[int, ...] = ()
        self.are_at_rest = False
        #: How many may go next, and those that did not come to rest before: they go last.
        self.at_once = portion
        self.busy: tuple[int, ...] = ()
        #: Looks until the next move may begin, and how many it will be after one that fails.
        self.patience, self.pause = 0, 1
        self.has_joined = self.has_drained = self.has_left = False

    def copy(self) -> "OwnershipMachine":
        """Return a machine in the same state, which goes its own way."""
        return copy.copy(self)

    def key(self) -> Hashable:
        """Return what is equal for machines in the same state, and only for those."""
        return tuple(
            tuple(sorted(value.items())) if isinstance(value, dict) else value
            for value in vars(self).values()
        )

    @property
    def is_current(self) -> bool:
        """Whether the newest table that is known has this node, in this term of its lease."""
        own = self.table.members.get(self.writer)
        return own is not None and self.has_term and own.term == self.member.term

    @property
    def is_member(self) -> bool:
        """Whether the newest table that is known has this node."""
        return self.writer in self.table.members

    def step(self, event: OwnershipEvent) -> Effects:
        """Take an event; returns what is to be done, in order."""
        effects: Effects = []
        self._takes[type(event)](self, event, effects)
        # After these nothing new is begun: the next look tries again.
        if not isinstance(event, RegisterFailed | ClaimFailed):
            self._go_on(effects)
        return effects

    # --- what comes in ---

    def _join(self, event: JoinAsked, _: Effects) -> None:
        """Want to be a member."""
        if not self.aim:
            self.aim, self.state = "member", event.state

    def _drain(self, _: DrainAsked, __: Effects) -> None:
        """Want to have no slot."""
        if self.aim == "member":
            self.aim = "drained"

    def _move(self, event: MoveAsked, _: Effects) -> None:
        """Want other owners of slots."""
        self.pins = {**self.pins, **event.pins}

    def _close(self, _: CloseAsked, __: Effects) -> None:
        """Want to be no member."""
        self.aim = "none"

    def _term_begun(self, event: TermBegun, _: Effects) -> None:
        """Be a member in this term."""
        self.member, self.has_term = self.member._replace(term=event.term), True

    def _term_ended(self, _: TermEnded, effects: Effects) -> None:
        """Serve nothing more: others may have what this node had."""
        self.has_term, self.served = False, {}
        effects.append(KeepSlots({}))
        self._release(effects)

    def _look(self, event: LookDue, effects: Effects) -> None:
        """Look at the other members, and now and then at the register."""
        self.is_stale |= event.reads
        self.patience = max(0, self.patience - 1)
        if self.aim and not self.has_left:
            self._probe(effects)

    def _probe(self, effects: Effects) -> None:
        """Look which members are gone, unless that is being looked at."""
        members = self.table.members.items()
        others = {each: member.joined for each, member in members if each != self.writer}
        if self.probing is None and others:
            self.probing = others
            effects.append(ProbeMembers(frozenset(others)))

    def _probed(self, event: MembersProbed, _: Effects) -> None:
        """Take note of deaths that are proved."""
        looked, self.probing = self.probing or {}, None
        self.is_probed = True
        self.gone |= {(writer, looked[writer]) for writer in event.gone if writer in looked}

    def _member_gone(self, event: MemberGone, _: Effects) -> None:
        """Take note of a membership that has ended."""
        self.gone |= {(event.writer, event.joined)}

    def _table_told(self, event: TableTold, _: Effects) -> None:
        """Read the register when others know more."""
        self.is_stale |= event.version > self.table.version
        self.told = max(self.told, event.version)

    def _read(self, event: TableRead, effects: Effects) -> None:
        """Take what the register has."""
        table = event.table
        # What was told meanwhile may have been written behind this read.
        self.request, self.is_stale = None, self.told > table.version
        known = self.table
        if (table.version, table.at) == (known.version, known.at):
            return
        if table.version <= known.version:
            # The register has lost its end: others, too, know tables that are newer than what
            # it has. So that is said again, with a version beyond those.
            self.is_behind = True
            table = replace(table, version=known.version)
        self._take(table, effects)

    def _written(self, event: TableWritten, effects: Effects) -> None:
        """Take the outcome of a write."""
        request, self.request = self.request, None
        if event.is_written and isinstance(request, WriteTable):
            self.is_behind = False
            self._take(request.table, effects)
        else:
            self.is_stale = True  # others were faster; or it tells whether it was written

    def _register_failed(self, _: RegisterFailed, effects: Effects) -> None:
        """Go on with what is served; a move is given up for now."""
        self.request, self.is_stale = None, True
        if self.are_at_rest:
            self._release(effects)

    def _take(self, table: Table, effects: Effects) -> None:
        """Take a table as the one in force."""
        self.table = table
        if self.pins and table.with_pins(self.pins).pins == table.pins:
            self.pins = {}  # it is written, or those members are gone
        self.gone &= table.joined
        owned = table.owned(self.writer) if self.is_current else {}
        beyond = self.beyond.items()
        self.beyond = {s: epoch for s, epoch in beyond if s in owned and owned[s] < epoch}
        kept = {slot: epoch for slot, epoch in self.served.items() if owned.get(slot) == epoch}
        self.served = kept
        effects += (KeepSlots(kept), TableChanged(table))
        if self.giving and not any(slot in kept for slot in self.giving):
            self.busy, self.pause = (), 1
            self.at_once = min(2 * self.at_once, self.portion)
            self._release(effects)

    def _claimed(self, event: Claimed, effects: Effects) -> None:
        """Serve what was raised, and go beyond what was held."""
        held = event.held
        claimed, self.claiming = self.claiming or {}, None
        owned = self.table.owned(self.writer) if self.is_current else {}
        self.beyond = dict(self.beyond) | {
            slot: fence.epoch + 1
            for slot, fence in held.items()
            if owned.get(slot, math.inf) <= fence.epoch
        }
        self._serve(
            {
                slot: epoch
                for slot, epoch in claimed.items()
                if slot not in held and owned.get(slot) == epoch
            },
            effects,
        )

    def _claim_failed(self, _: ClaimFailed, __: Effects) -> None:
        """Serve nothing of a claim that failed."""
        self.claiming = None

    def _emptied(self, _: SlotsEmptied, __: Effects) -> None:
        """Give away what has come to rest."""
        self.are_at_rest = bool(self.giving)

    def _busy(self, _: SlotsBusy, effects: Effects) -> None:
        """Keep slots for now that did not come to rest."""
        self.busy, self.at_once = self.giving, 1
        self.patience = self.pause
        self.pause = min(2 * self.pause, self.looks_after_busy)
        self._release(effects)

    def _slot_lost(self, event: SlotLost, _: Effects) -> None:
        """Serve a slot no more."""
        if self.served.get(event.slot) == event.epoch:
            self.served = {s: e for s, e in self.served.items() if s != event.slot}

    def _kinds_seen(self, event: KindsSeen, _: Effects) -> None:
        """Take note of what was written."""
        self.kinds |= event.kinds

    def _serve(self, epochs: Mapping[int, int], effects: Effects) -> None:
        """Serve slots from here on."""
        if epochs:
            self.served = {**self.served, **epochs}
            effects.append(ServeSlots(epochs))

    def _release(self, effects: Effects) -> None:
        """End a move, whatever became of it."""
        if self.giving:
            effects.append(ReleaseSlots(self.giving))
        self.giving, self.are_at_rest = (), False

    # --- what follows ---

    def _go_on(self, effects: Effects) -> None:
        """Do what is to be done next, and is not under way."""
        if not self.aim or self.has_left:
            return
        self._claim(effects)
        self._give(effects)
        self._tell(effects)
        if self.request is None:
            self._ask_register(effects)

    def _claim(self, effects: Effects) -> None:
        """Raise the fences of slots that fell to this node."""
        if self.claiming is not None or self.aim == "none" or not self.is_current:
            return
        owned = self.table.owned(self.writer)
        if owned == self.served:  # as nearly always
            return
        fresh = {
            slot: epoch
            for slot, epoch in owned.items()
            if self.served.get(slot) != epoch and self.beyond.get(slot, 0) <= epoch
        }
        if not fresh:
            return
        if self.has_fences:
            self.claiming = fresh
            effects.append(ClaimFences(fresh))
        else:
            self._serve(fresh, effects)

    def _give(self, effects: Effects) -> None:
        """Let slots that are wished to others come to rest, a portion at a time."""
        if self.giving or self.aim == "none" or self.patience:
            return
        wished_away = [slot for slot in self.table.unwished(self.writer) if slot in self.served]
        wished_away.sort(key=self.busy.__contains__)
        self.giving = tuple(wished_away[: min(self.at_once, self.portion)])
        if self.giving:
            effects.append(StopSlots(self.giving))

    def _tell(self, effects: Effects) -> None:
        """Tell once when this node is a member that serves what it owns, and when it left."""
        if self.is_current and not self.has_joined:
            self.has_joined = self.table.owned(self.writer) == self.served
            if self.has_joined:
                effects.append(Joined())
        if self.aim == "drained" and not self.has_drained and self._is_drained:
            self.has_drained = True
            effects.append(SlotsDrained())
        is_settled = self.request is None and not self.is_stale
        if self.aim == "none" and is_settled and not self.is_member:
            self.has_left = True
            effects.append(Left())

    @property
    def _is_drained(self) -> bool:
        """Whether nothing is left that could be given away."""
        own = self.table.members.get(self.writer)
        return own is None or not (own.weight or self.table.unwished(self.writer))

    def _ask_register(self, effects: Effects) -> None:
        """Read the table, or write it as it has to be."""
        if self.has_left:
            return
        if self.is_stale:
            self.request, self.told = ReadTable(), 0
            effects.append(self.request)
            return
        if not self.is_member and not self.is_probed and self.aim == "member":
            self._probe(effects)
            if self.probing is not None:
                return  # the members of another state may all be dead
        if (wanted := self._wanted(effects)) is None:
            return
        written = replace(wanted, version=self.table.version + 1, at=self.table.at + 1)
        self.request = WriteTable(written, self.table.at)
        effects.append(self.request)

    def _wanted(self, effects: Effects) -> Table | None:
        """Return what the table has to become; None if it is that already."""
        table, writer = self.table, self.writer
        joined = table.joined
        dead = {each for each, _ in self.gone & joined if each != writer}
        if dead:
            table = table.without(dead)
        if self.aim == "none":
            table = table.without({writer}) if self.is_member else table
        elif not self.has_term:
            return None
        elif not self.is_current and (self.is_member or self.aim == "member"):
            if table.members and not _is_same(table.state, self.state):
                self.aim = ""
                effects.append(JoinRefused(table))
                return None
            table = table.with_member(writer, self.member, self.state)
        elif self.is_current:
            if self.aim == "drained" and table.members[writer].weight:
                table = table.with_weight(writer, DRAINING)
            if self.kinds:
                table = table.with_written(self.kinds)
            table = table.with_pins(self.pins).raised(writer, self.beyond)
            if self.are_at_rest:
                owned = table.owned(writer)
                table = table.moved(slot for slot in self.giving if slot in owned)
        return table if table != self.table or self.is_behind else None

    #: What takes an event, by its class.
    _takes: ClassVar[dict[type, Callable[["OwnershipMachine", Any, Effects], None]]] = {
        JoinAsked: _join,
        DrainAsked: _drain,
        MoveAsked: _move,
        CloseAsked: _close,
        TermBegun: _term_begun,
        TermEnded: _term_ended,
        LookDue: _look,
        TableRead: _read,
        TableWritten: _written,
        RegisterFailed: _register_failed,
        TableTold: _table_told,
        MembersProbed: _probed,
        MemberGone: _member_gone,
        Claimed: _claimed,
        ClaimFailed: _claim_failed,
        SlotsEmptied: _emptied,
        SlotsBusy: _busy,
        SlotLost: _slot_lost,
        KindsSeen: _kinds_seen,
    }


def _is_same(found: SharedState, own: SharedState) -> bool:
    """Return whether two descriptions are of one state, on one machine if it has to be."""
    return (found.id, found.boot_id) == (own.id, own.boot_id)
