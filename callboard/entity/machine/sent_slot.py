"""The states of a slot at a node that sends messages for its entities.

    state           SENT  FORWARDED  OWNER_CHANGED  MARKER_PASSED  REFUSED         COMPLETE
    IDLE            SENT  SENT       -              -              REFUSED_IDLE    -
    SENT            SENT  SENT       MARKED         IDLE           REFUSED         -
    MARKED          -     MARKED     -              IDLE           REFUSED_MARKED  -
    REFUSED         -     -          -              REFUSED_IDLE   REFUSED         SENT
    REFUSED_MARKED  -     -          -              REFUSED_IDLE   REFUSED_MARKED  MARKED
    REFUSED_IDLE    -     -          -              -              REFUSED_IDLE    IDLE

- IDLE: no message is in flight. The next message goes to the host of this node if it serves the
  slot, or else to the owner in the table.
- SENT: the last message was sent to a node, and may not have arrived yet.
- MARKED: the owner has changed, and a marker is in flight to the former owner. Messages of this
  node wait.
- REFUSED, REFUSED_MARKED, REFUSED_IDLE: the slot was SENT, MARKED or IDLE, and a node has
  refused a message. A marker is in flight to the refusing node. All messages wait.

The rules, each with the failure that it prevents:

- **In MARKED no message is sent** (no SENT). Suppose that message 1 is in flight to the former
  owner, which will forward it. If message 2 were sent to the new owner now, it would arrive
  there before 1.
- **After a refusal no message is sent until all refusals have arrived** (COMPLETE). Suppose
  that messages 1 and 2 are in flight to a node that does not own the slot. The node refuses 1
  and then becomes the owner. It refuses 2, too, because 2 belongs to the same attempt. If 1
  were sent again before the refusal of 2 has arrived, message 3 could be sent after it and
  overtake 2.
- **A marker does not end a refusal** (REFUSED leads to REFUSED_IDLE). The former owner may have
  left the table, so that this node stops waiting for its marker. But messages that another node
  has refused may still be in flight.
- **Forwarded messages are sent in MARKED** (FORWARDED). A marker of another node waits for the
  messages that this node forwards, and the marker of this node may wait on that other node. If
  forwarded messages waited for the marker, both nodes would wait for each other for ever.
- **A forwarded message makes the slot SENT.** The forwarded message may have been sent by an
  actor of this node. If the slot stayed IDLE, the actor's next message would go to this node's
  host as soon as it serves the slot again, and would overtake the forwarded one.
- **A refusal may arrive in IDLE.** A marker that is not answered is sent again. The answer to
  the second marker may arrive on a new link before messages that were sent on the broken one.
"""

from collections.abc import Mapping
from enum import auto
from typing import Final

from callboard.transitions import TableEnum


class SentSlot(TableEnum):
    """A state of a slot at a node that sends messages for it."""

    IDLE = auto()
    SENT = auto()
    MARKED = auto()
    REFUSED = auto()
    REFUSED_MARKED = auto()
    REFUSED_IDLE = auto()


class SentSlotEvent(TableEnum):
    """An event that may change the state of a slot at a sender."""

    SENT = auto()
    FORWARDED = auto()
    OWNER_CHANGED = auto()
    #: The former owner has answered the marker, or has left the table for good.
    MARKER_PASSED = auto()
    REFUSED = auto()
    #: All refusals of the attempt have arrived.
    COMPLETE = auto()


#: The next state for each state and event; an event without one is illegal in that state.
SENT_SLOTS: Final[Mapping[SentSlot, Mapping[SentSlotEvent, SentSlot]]] = {
    SentSlot.IDLE: {
        SentSlotEvent.SENT: SentSlot.SENT,
        SentSlotEvent.FORWARDED: SentSlot.SENT,
        SentSlotEvent.REFUSED: SentSlot.REFUSED_IDLE,
    },
    SentSlot.SENT: {
        SentSlotEvent.SENT: SentSlot.SENT,
        SentSlotEvent.FORWARDED: SentSlot.SENT,
        SentSlotEvent.OWNER_CHANGED: SentSlot.MARKED,
        SentSlotEvent.MARKER_PASSED: SentSlot.IDLE,
        SentSlotEvent.REFUSED: SentSlot.REFUSED,
    },
    SentSlot.MARKED: {
        SentSlotEvent.FORWARDED: SentSlot.MARKED,
        SentSlotEvent.MARKER_PASSED: SentSlot.IDLE,
        SentSlotEvent.REFUSED: SentSlot.REFUSED_MARKED,
    },
    SentSlot.REFUSED: {
        SentSlotEvent.MARKER_PASSED: SentSlot.REFUSED_IDLE,
        SentSlotEvent.REFUSED: SentSlot.REFUSED,
        SentSlotEvent.COMPLETE: SentSlot.SENT,
    },
    SentSlot.REFUSED_MARKED: {
        SentSlotEvent.MARKER_PASSED: SentSlot.REFUSED_IDLE,
        SentSlotEvent.REFUSED: SentSlot.REFUSED_MARKED,
        SentSlotEvent.COMPLETE: SentSlot.MARKED,
    },
    SentSlot.REFUSED_IDLE: {
        SentSlotEvent.REFUSED: SentSlot.REFUSED_IDLE,
        SentSlotEvent.COMPLETE: SentSlot.IDLE,
    },
}
