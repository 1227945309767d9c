"""The states of a slot at a host of its type, which may own the slot.

    state     SERVED    LOST    STOPPED   RELEASED
    ABSENT    OWNED     -       MOVED     ABSENT
    OWNED     OWNED     ABSENT  DRAINING  OWNED
    DRAINING  DRAINING  MOVED   DRAINING  OWNED
    MOVED     DRAINING  -       MOVED     ABSENT

- ABSENT: the slot is not served here. Messages for it are refused, and the sender's router
  finds its owner. A slot that this node is about to own is absent, too: it is in
  `OwnershipMachine.claiming` until its fence is raised.
- OWNED: its entities handle messages.
- DRAINING: the slot is being given away. Its entities passivate, and messages are held.
- MOVED: another node owns the slot, or will own it. Messages are held until earlier held
  messages were forwarded.

The events come from the effects of the `OwnershipMachine`: `ServeSlots`, `KeepSlots` without
the slot, `StopSlots` and `ReleaseSlots`. If another node has raised the fence, the event is
LOST, too.

The rules, each with the failure that it prevents:

- **A slot is served only after its fence was raised** (SERVED follows a claim, and not the
  table). Suppose that the table gives a slot to this node while the former owner is paused. If
  this node handled messages before it has raised the fence, the former owner could commit an
  event after its pause that this node has not read, and both nodes would give the same number
  to their next event.
- **While a slot drains, its messages are held and not refused.** Suppose that a sender sends
  messages 1 and 2, the host refuses 1, and then the move is cancelled. The host would handle 2
  before 1 is sent again.
- **After the slot has moved, messages are held until the earlier ones were forwarded** (LOST
  leads from DRAINING to MOVED, and not to ABSENT). Suppose that message 1 is held. If message 2
  were refused, the sender's router could send it to the new owner before this node forwards 1.
- **When a move is cancelled, the slot is served again and its held messages are delivered under
  one lock** (RELEASED leads to OWNED). Otherwise a message that arrives in between could
  overtake the held ones.
- **A lost slot may be stopped** (STOPPED in ABSENT). While a move waits for its turn because
  another type moves, another node may claim one of its slots. The machine releases all slots of
  a move together, so messages for all of them are held. If a message were refused instead, it
  could overtake a message that was held before.
- **A slot that was not stopped may be released** (RELEASED in ABSENT and OWNED). The machine
  cancels a move that still waits for its turn if the lease has ended or the register has
  failed.
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
