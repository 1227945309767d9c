"""The states of a slot at a host of its type, which may own the slot.

    state     SERVED    LOST    STOPPED   RELEASED
    ABSENT    OWNED     -       MOVED     ABSENT
    OWNED     OWNED     ABSENT  DRAINING  OWNED
    DRAINING  DRAINING  MOVED   DRAINING  OWNED
    MOVED     DRAINING  -       MOVED     ABSENT

- ABSENT: the slot is not served here. Messages for it are refused, and the sender's router
  finds its owner. A slot that this node is joining is absent, too: `OwnershipMachine.claiming`
  has it until its fence is raised.
- OWNED: its entities handle messages.
- DRAINING: the slot is being given away. Its entities passivate, and messages are held.
- MOVED: another node owns the slot, or will. Messages are held until the ones before them were
  forwarded.

The events come from the effects of the `OwnershipMachine`: `ServeSlots`, `KeepSlots` without
the slot, `StopSlots` and `ReleaseSlots`. A fence that another node has raised is a loss, too.

The rules, each with the failure that it prevents:

- **A slot is served only after its fence was raised** (SERVED follows a claim, and not the
  table). The table gives a slot to this node while the former owner is paused. If messages were
  handled before the fence is raised, the former owner could commit an event after its pause
  that this node has not read, and both would number their next event alike.
- **While a slot drains, its messages are held and not refused.** A sender sends 1 and 2. The
  host refuses 1, the move is given up, and the host handles 2: the order is broken.
- **After the slot has moved, messages are held until the earlier ones were forwarded** (LOST
  leads from DRAINING to MOVED, and not to ABSENT). 1 is held. If 2 were refused now, its router
  could send it to the new owner before this node forwards 1.
- **A slot that stayed is served again before its held messages are handled, under one lock**
  (RELEASED leads to OWNED). A message that arrives in between would overtake them.
- **A slot may be stopped that was lost** (STOPPED in ABSENT). A move waits for its turn while
  another type moves, and another node claims the slot in this time. The machine releases all
  slots of the move together, so they are held together: a message that were refused here could
  overtake one that an earlier call has held.
- **A slot may be released that was not stopped** (RELEASED in ABSENT and OWNED). The machine
  gives a move up, because its lease has ended or the register failed, before the turn came.
"""

from collections.abc import Mapping
from enum import auto
from typing import Final

from callboard.transitions import TableEnum


class HostedSlot(TableEnum):
    """A state of a slot at a host."""

    ABSENT = auto()
    OWNED = auto()
    DRAINING = auto()
    MOVED = auto()


class HostedSlotEvent(TableEnum):
    """An event that may change the state of a slot at a host."""

    SERVED = auto()
    LOST = auto()
    STOPPED = auto()
    RELEASED = auto()


#: The next state for each state and event; an event without one is illegal in that state.
HOSTED_SLOTS: Final[Mapping[HostedSlot, Mapping[HostedSlotEvent, HostedSlot]]] = {
    HostedSlot.ABSENT: {
        HostedSlotEvent.SERVED: HostedSlot.OWNED,
        HostedSlotEvent.STOPPED: HostedSlot.MOVED,
        HostedSlotEvent.RELEASED: HostedSlot.ABSENT,
    },
    HostedSlot.OWNED: {
        HostedSlotEvent.SERVED: HostedSlot.OWNED,
        HostedSlotEvent.LOST: HostedSlot.ABSENT,
        HostedSlotEvent.STOPPED: HostedSlot.DRAINING,
        HostedSlotEvent.RELEASED: HostedSlot.OWNED,
    },
    HostedSlot.DRAINING: {
        HostedSlotEvent.SERVED: HostedSlot.DRAINING,
        HostedSlotEvent.LOST: HostedSlot.MOVED,
        HostedSlotEvent.STOPPED: HostedSlot.DRAINING,
        HostedSlotEvent.RELEASED: HostedSlot.OWNED,
    },
    HostedSlot.MOVED: {
        HostedSlotEvent.SERVED: HostedSlot.DRAINING,
        HostedSlotEvent.STOPPED: HostedSlot.MOVED,
        HostedSlotEvent.RELEASED: HostedSlot.ABSENT,
    },
}

#: The states in which messages for the slot are held.
HELD: Final = frozenset((HostedSlot.DRAINING, HostedSlot.MOVED))
