"""One node's membership in the table of a type: slots to serve, claim and give away.

A pure machine: `step(event) -> effects`. It has no clock and no randomness; its driver reads
and writes the register, raises fences, and watches the other members.

The machine stores the **aim** of the node. From the aim and the current table it computes the
table to write (`_wanted`): with or without this node as a member, without members that are
lost, with higher epochs where fences were higher, and with drained slots given away. So one
write may contain several changes. If the outcome of a write is unknown, the table is read
again, and changes that are missing in it are written again.

If one of these rules is left out, the search of all orders of events (`make search`) finds a
failure:

- A slot is served with an epoch only after its fence was raised to that epoch, and while the
  newest known table gives it to this node.
- A member is removed for evidence about that membership (`TableMember.joined`), never for
  evidence about an earlier one.
- A slot is given away only after everything in it has ended.

At most one request to the register, one claim, one probe and one move are in progress. Each is
answered by exactly one event. All fields hold values that are replaced and never changed, so
`copy` is cheap and `key` identifies the state.
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

#: Most slots given away together. Entities of such slots may wait for one another, as messages
#: to them are held; after a move that fails for this reason, slots move one at a time.
MOVED_AT_ONCE: Final = 8

#: Most polls until a failed move is repeated. Messages are held during each attempt, so the
#: pause starts with one poll and doubles.
POLLS_AFTER_BUSY: Final = 50

# --- events ---

# --- events ---


@dataclass(frozen=True, slots=True)
class JoinAsked:
    """Become a member; not allowed after `CloseAsked`."""

    state: SharedState = SharedState()


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Move all slots away, and accept none."""


@dataclass(frozen=True, slots=True)
class MoveAsked:
    """Assign slots to members as a user requests; with "", end such assignments."""

    pins: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class CloseAsked:
    """Leave the table; no entity runs here."""


@dataclass(frozen=True, slots=True)
class TermBegun:
    """The node's lease is valid, in a term with this number."""

    term: int


@dataclass(frozen=True, slots=True)
class TermEnded:
    """The node's lease was killed, or is not valid yet; no slot may be served."""


@dataclass(frozen=True, slots=True)
class PollDue:
    """Time to probe the other members, and sometimes to read the table."""

    reads: bool = False


@dataclass(frozen=True, slots=True)
class TableRead:
    """Answer to `ReadTable`."""

    table: Table


@dataclass(frozen=True, slots=True)
class TableWritten:
    """Answer to `WriteTable`; None if the outcome is unknown."""

    is_written: bool | None


@dataclass(frozen=True, slots=True)
class RegisterFailed:
    """Answer to `ReadTable` or `WriteTable`: nothing happened."""


@dataclass(frozen=True, slots=True)
class TableAnnounced:
    """Another node knows a table of this version. The register is read to get the table."""

    version: int


@dataclass(frozen=True, slots=True)
class MembersProbed:
    """Answer to `ProbeMembers`: the members that are certainly gone."""

    gone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MemberGone:
    """A membership has ended: its lease was killed, or a vote has removed it."""

    writer: str
    #: `TableMember.joined` of that membership.
    joined: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """Answer to `ClaimFences`: fences that other claims hold; all other fences were raised."""

    fences: Mapping[int, Fence]


@dataclass(frozen=True, slots=True)
class ClaimFailed:
    """Answer to `ClaimFences`: it is unknown which fences were raised, so none is served."""


@dataclass(frozen=True, slots=True)
class SlotsEmptied:
    """Answer to `StopSlots`: nothing runs in the slots."""


@dataclass(frozen=True, slots=True)
class SlotsBusy:
    """Answer to `StopSlots`: a handler runs too long, so the slots stay for now."""


@dataclass(frozen=True, slots=True)
class SlotLost:
    """Another claim holds the fence of a slot."""

    slot: int
    #: The epoch in which this node served the slot.
    epoch: int


@dataclass(frozen=True, slots=True)
class KindsSeen:
    """Kinds and versions of events that the state holds."""

    kinds: frozenset[tuple[str, int]]


OwnershipEvent = (
    JoinAsked
    | DrainAsked
    | MoveAsked
    | CloseAsked
    | TermBegun
    | TermEnded
    | PollDue
    | TableRead
    | TableWritten
    | RegisterFailed
    | TableAnnounced
    | MembersProbed
    | MemberGone
    | Claimed
    | ClaimFailed
    | SlotsEmptied
    | SlotsBusy
    | SlotLost
    | KindsSeen
)

# --- effects ---


@dataclass(frozen=True, slots=True)
class ReadTable:
    """Read the register."""


@dataclass(frozen=True, slots=True)
class WriteTable:
    """Write the register if its value still has the version `expected`."""

    table: Table
    expected: int


@dataclass(frozen=True, slots=True)
class ProbeMembers:
    """Check these members for proof of their death."""

    writers: frozenset[str]


@dataclass(frozen=True, slots=True)
class ClaimFences:
    """Raise fences to these epochs, in one transaction."""

    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ServeSlots:
    """Handle messages for these slots, with these epochs."""

    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class KeepSlots:
    """End everything that runs in other slots, or with other epochs."""

    epochs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class StopSlots:
    """Hold messages for these slots, and let their running handlers end."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseSlots:
    """Forward or handle the messages held for these slots."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TableChanged:
    """Send the table to routers and members."""

    table: Table


@dataclass(frozen=True, slots=True)
class Joined:
    """This node is a member and serves its slots; reported once."""


@dataclass(frozen=True, slots=True)
class JoinRefused:
    """The members use another state; this node does not join."""

    table: Table


@dataclass(frozen=True, slots=True)
class SlotsDrained:
    """Other members have all slots that this node could give away; reported once."""


@dataclass(frozen=True, slots=True)
class Left:
    """This node has left the table; reported once."""


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
    """The membership of one node, from `JoinAsked` to `Left`."""

    def __init__(
        self,
        writer: str,
        member: TableMember,
        *,
        has_fences: bool = True,
        count: int = SLOTS,
        portion: int = MOVED_AT_ONCE,
        polls_after_busy: int = POLLS_AFTER_BUSY,
    ) -> None:
        """Create the machine of a node that is not a member.

        Args:
            writer: the name of the node's life.
            member: its entry for the table.
            has_fences: False for a type without state, which has no fences to raise.
            count: slots of the type.
            portion: most slots to give away together; it may change at any time.
            polls_after_busy: most polls until a move that found its slots busy is repeated.
        """
        self.writer, self.member = writer, member
        self.has_fences, self.portion = has_fences, portion
        self.polls_after_busy = polls_after_busy
        self.has_term = True
        self.state = SharedState()
        self.table = Table(slots=(NOBODY,) * count)
        #: The served slots, with their epochs.
        self.served: Mapping[int, int] = {}
        #: The aim of the node: none yet, to be a member, to own no slot, or to leave.
        self.aim: Literal["", "member", "drained", "none"] = ""
        #: Memberships that have ended, by writer and `joined`.
        self.gone: frozenset[tuple[str, int]] = frozenset()
        #: By slot: an epoch that the table must have, because the fence was higher than the
        #: table's.
        self.beyond: Mapping[int, int] = {}
        self.kinds: frozenset[tuple[str, int]] = frozenset()
        #: Assignments requested by users that the table does not have yet.
        self.pins: Mapping[int, str] = {}
        #: The request to the register that is in progress.
        self.request: ReadTable | WriteTable | None = None
        #: Whether the register must be read before it is written.
        self.is_stale = True
        #: The newest version announced by other nodes since the last request to the register.
        self.announced = 0
        #: Whether the register has an older table than members know, because it was restored.
        self.is_behind = False
        #: Memberships that are being probed; None if no probe is under way.
        self.probing: Mapping[str, int] | None = None
        self.is_probed = False
        self.claiming: Mapping[int, int] | None = None
        #: Slots being drained to be given away, and whether everything in them has ended.
        self.giving: tuple[int, ...] = ()
        self.are_drained = False
        #: Most slots of the next move, and slots that were busy before: they go last.
        self.at_once = portion
        self.busy: tuple[int, ...] = ()
        #: Polls until the next move may start, and the pause after the next failed move.
        self.patience, self.pause = 0, 1
        self.has_joined = self.has_drained = self.has_left = False

    def copy(self) -> "OwnershipMachine":
        """Return an independent machine in the same state."""
        return copy.copy(self)

    def key(self) -> Hashable:
        """Return a value that is equal for machines in the same state, and only for those."""
        return tuple(
            tuple(sorted(value.items())) if isinstance(value, dict) else value
            for value in vars(self).values()
        )

    @property
    def is_current(self) -> bool:
        """Whether the newest known table has this node, in the current term of its lease."""
        own = self.table.members.get(self.writer)
        return own is not None and self.has_term and own.term == self.member.term

    @property
    def is_member(self) -> bool:
        """Whether the newest known table has this node."""
        return self.writer in self.table.members

    def step(self, event: OwnershipEvent) -> Effects:
        """Handle an event; return the effects to carry out, in order."""
        effects: Effects = []
        self._handlers[type(event)](self, event, effects)
        # After a failure, nothing is started until the next poll.
        if not isinstance(event, RegisterFailed | ClaimFailed):
            self._proceed(effects)
        return effects

    # --- handlers of events ---

    def _join(self, event: JoinAsked, _: Effects) -> None:
        """Want to be a member."""
        if not self.aim:
            self.aim, self.state = "member", event.state

    def _drain(self, _: DrainAsked, __: Effects) -> None:
        """Want to own no slot."""
        if self.aim == "member":
            self.aim = "drained"

    def _move(self, event: MoveAsked, _: Effects) -> None:
        """Want other owners for some slots."""
        self.pins = {**self.pins, **event.pins}

    def _close(self, _: CloseAsked, __: Effects) -> None:
        """Want to leave."""
        self.aim = "none"

    def _term_begun(self, event: TermBegun, _: Effects) -> None:
        """Use a term for the membership."""
        self.member, self.has_term = self.member._replace(term=event.term), True

    def _term_ended(self, _: TermEnded, effects: Effects) -> None:
        """Stop serving: other members may take the slots of this node."""
        self.has_term, self.served = False, {}
        effects.append(KeepSlots({}))
        self._release(effects)

    def _poll(self, event: PollDue, effects: Effects) -> None:
        """Probe the other members, and mark the table as stale if it is time to read it."""
        self.is_stale |= event.reads
        self.patience = max(0, self.patience - 1)
        if self.aim and not self.has_left:
            self._probe(effects)

    def _probe(self, effects: Effects) -> None:
        """Probe the other members, unless a probe is in progress."""
        members = self.table.members.items()
        probed = {name: member.joined for name, member in members if name != self.writer}
        if self.probing is None and probed:
            self.probing = probed
            effects.append(ProbeMembers(frozenset(probed)))

    def _probed(self, event: MembersProbed, _: Effects) -> None:
        """Record proven deaths."""
        probed, self.probing = self.probing or {}, None
        self.is_probed = True
        self.gone |= {(writer, probed[writer]) for writer in event.gone if writer in probed}

    def _member_gone(self, event: MemberGone, _: Effects) -> None:
        """Record a membership that has ended."""
        self.gone |= {(event.writer, event.joined)}

    def _table_announced(self, event: TableAnnounced, _: Effects) -> None:
        """Mark the table as stale if another node knows a newer one."""
        self.is_stale |= event.version > self.table.version
        self.announced = max(self.announced, event.version)

    def _read(self, event: TableRead, effects: Effects) -> None:
        """Handle the content of the register."""
        table = event.table
        # An announced table may have been written after this read.
        self.request, self.is_stale = None, self.announced > table.version
        known = self.table
        if (table.version, table.register_version) == (known.version, known.register_version):
            return
        if table.version <= known.version:
            # The register was restored from an older copy, while members know newer tables. Its
            # content is written again with a version above theirs, so that all members use it.
            self.is_behind = True
            table = replace(table, version=known.version)
        self._adopt(table, effects)

    def _written(self, event: TableWritten, effects: Effects) -> None:
        """Handle the outcome of a write."""
        request, self.request = self.request, None
        if event.is_written and isinstance(request, WriteTable):
            self.is_behind = False
            self._adopt(request.table, effects)
        else:
            # Another member has written first, or the outcome is unknown and a read will show
            # it.
            self.is_stale = True

    def _register_failed(self, _: RegisterFailed, effects: Effects) -> None:
        """Continue to serve; a move in progress is cancelled."""
        self.request, self.is_stale = None, True
        if self.are_drained:
            self._release(effects)

    def _adopt(self, table: Table, effects: Effects) -> None:
        """Make a table the current one."""
        self.table = table
        if self.pins and table.with_pins(self.pins).pins == table.pins:
            self.pins = {}  # they are written, or their members are gone
        self.gone &= table.joined
        owned = table.owned(self.writer) if self.is_current else {}
        beyond = self.beyond.items()
        self.beyond = {s: epoch for s, epoch in beyond if s in owned and owned[s] < epoch}
        served = {s: epoch for s, epoch in self.served.items() if owned.get(s) == epoch}
        self.served = served
        effects += (KeepSlots(served), TableChanged(table))
        if self.giving and not any(slot in served for slot in self.giving):
            self.busy, self.pause = (), 1
            self.at_once = min(2 * self.at_once, self.portion)
            self._release(effects)

    def _claimed(self, event: Claimed, effects: Effects) -> None:
        """Serve slots whose fences were raised; the other slots need higher epochs."""
        fences = event.fences
        claimed, self.claiming = self.claiming or {}, None
        owned = self.table.owned(self.writer) if self.is_current else {}
        self.beyond = dict(self.beyond) | {
            slot: fence.epoch + 1
            for slot, fence in fences.items()
            if owned.get(slot, math.inf) <= fence.epoch
        }
        self._serve(
            {
                slot: epoch
                for slot, epoch in claimed.items()
                if slot not in fences and owned.get(slot) == epoch
            },
            effects,
        )

    def _claim_failed(self, _: ClaimFailed, __: Effects) -> None:
        """Serve no slot of a failed claim."""
        self.claiming = None

    def _emptied(self, _: SlotsEmptied, __: Effects) -> None:
        """Plan to move the drained slots away with the next write of the table."""
        self.are_drained = bool(self.giving)

    def _busy(self, _: SlotsBusy, effects: Effects) -> None:
        """Keep busy slots for now."""
        self.busy, self.at_once = self.giving, 1
        self.patience = self.pause
        self.pause = min(2 * self.pause, self.polls_after_busy)
        self._release(effects)

    def _slot_lost(self, event: SlotLost, _: Effects) -> None:
        """Stop serving a slot."""
        if self.served.get(event.slot) == event.epoch:
            self.served = {s: e for s, e in self.served.items() if s != event.slot}

    def _kinds_seen(self, event: KindsSeen, _: Effects) -> None:
        """Record kinds of written events."""
        self.kinds |= event.kinds

    def _serve(self, epochs: Mapping[int, int], effects: Effects) -> None:
        """Start serving slots."""
        if epochs:
            self.served = {**self.served, **epochs}
            effects.append(ServeSlots(epochs))

    def _release(self, effects: Effects) -> None:
        """End a move, with any outcome."""
        if self.giving:
            effects.append(ReleaseSlots(self.giving))
        self.giving, self.are_drained = (), False

    # --- next steps ---

    def _proceed(self, effects: Effects) -> None:
        """Start every step that is due and not yet in progress."""
        if not self.aim or self.has_left:
            return
        self._claim(effects)
        self._give(effects)
        self._report(effects)
        if self.request is None:
            self._ask_register(effects)

    def _claim(self, effects: Effects) -> None:
        """Raise the fences of slots that this node has gained."""
        if self.claiming is not None or self.aim == "none" or not self.is_current:
            return
        owned = self.table.owned(self.writer)
        if owned == self.served:  # the usual case, which avoids comparing 256 slots below
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
        """Drain a portion of the slots that other members should own."""
        if self.giving or self.aim == "none" or self.patience:
            return
        leaving = [slot for slot in self.table.unwished(self.writer) if slot in self.served]
        leaving.sort(key=self.busy.__contains__)
        self.giving = tuple(leaving[: min(self.at_once, self.portion)])
        if self.giving:
            effects.append(StopSlots(self.giving))

    def _report(self, effects: Effects) -> None:
        """Report once that this node has joined, drained or left."""
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
        """Whether no slot is left that another member could own."""
        own = self.table.members.get(self.writer)
        return own is None or not (own.weight or self.table.unwished(self.writer))

    def _ask_register(self, effects: Effects) -> None:
        """Read the table, or write the wanted one."""
        if self.has_left:
            return
        if self.is_stale:
            self.request, self.announced = ReadTable(), 0
            effects.append(self.request)
            return
        if not self.is_member and not self.is_probed and self.aim == "member":
            self._probe(effects)
            if self.probing is not None:
                return  # wait for the probe: the members with another state may all be dead
        if (wanted := self._wanted(effects)) is None:
            return
        register_version = self.table.register_version
        written = replace(
            wanted, version=self.table.version + 1, register_version=register_version + 1
        )
        self.request = WriteTable(written, register_version)
        effects.append(self.request)

    def _wanted(self, effects: Effects) -> Table | None:
        """Return the table to write; None if the current one is as wanted."""
        table, writer = self.table, self.writer
        joined = table.joined
        dead = {member for member, _ in self.gone & joined if member != writer}
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
            if self.are_drained:
                owned = table.owned(writer)
                table = table.moved(slot for slot in self.giving if slot in owned)
        return table if table != self.table or self.is_behind else None

    #: The handler of each class of events.
    _handlers: ClassVar[dict[type, Callable[["OwnershipMachine", Any, Effects], None]]] = {
        JoinAsked: _join,
        DrainAsked: _drain,
        MoveAsked: _move,
        CloseAsked: _close,
        TermBegun: _term_begun,
        TermEnded: _term_ended,
        PollDue: _poll,
        TableRead: _read,
        TableWritten: _written,
        RegisterFailed: _register_failed,
        TableAnnounced: _table_announced,
        MembersProbed: _probed,
        MemberGone: _member_gone,
        Claimed: _claimed,
        ClaimFailed: _claim_failed,
        SlotsEmptied: _emptied,
        SlotsBusy: _busy,
        SlotLost: _slot_lost,
        KindsSeen: _kinds_seen,
    }


def _is_same(state: SharedState, own: SharedState) -> bool:
    """Return whether two descriptions are of one state; also of one machine if it matters."""
    return (state.id, state.boot_id) == (own.id, own.boot_id)
