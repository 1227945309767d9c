"""The states of a slot at a node that sends messages for its entities.

    state           SENT  FORWARDED  OWNER_CHANGED  MARKER_PASSED  REFUSED         COMPLETE
    IDLE            SENT  SENT       -              -              REFUSED_IDLE    -
    SENT            SENT  SENT       MARKED         IDLE           REFUSED         -
    MARKED          -     MARKED     -              IDLE           REFUSED_MARKED  -
    REFUSED         -     -          -              REFUSED_IDLE   REFUSED         SENT
    REFUSED_MARKED  -     -          -              REFUSED_IDLE   REFUSED_MARKED  MARKED
    REFUSED_IDLE    -     -          -              -              REFUSED_IDLE    IDLE

- IDLE: no message is on its way. The next one goes to the host of this node if that serves the
  slot, or else to the owner by the table.
- SENT: the last message went to a node, and may not have arrived there.
- MARKED: the owner has changed, and a marker is on its way to the former one. Messages of this
  node wait.
- REFUSED, REFUSED_MARKED, REFUSED_IDLE: SENT, MARKED or IDLE, and a node has refused a message;
  a marker is on its way to this node. All messages wait.

The rules, each with the failure that it prevents:

- **In MARKED no message is sent** (no SENT). 1 is on its way to the former owner, which will
  forward it. If 2 were sent to the new owner now, it would arrive there before 1.
- **After a refusal no message is sent until all refusals have arrived** (COMPLETE). 1 and 2 are
  on their way to a node that does not own the slot. It refuses 1, becomes the owner, and would
  accept 2; therefore it refuses 2 as a message of the same attempt. If 1 were sent again before
  the refusal of 2 has arrived, a message 3 could follow it and overtake 2.
- **A marker leaves a refusal in force** (REFUSED leads to REFUSED_IDLE). The refusing node has
  left the table, so that nothing waits for it; messages that another node has refused may still
  be on their way back.
- **Forwarded messages are sent in MARKED** (FORWARDED). A marker of another node waits for the
  messages that this node forwards, and the marker of this node may wait at that other node. If
  they waited for each other, neither would be answered.
- **A forwarded message makes the slot SENT.** It may be one of this node's own actors. Without
  that, their next message would go to the host of this node, as soon as that serves the slot
  again, and overtake it.
- **A refusal may arrive in IDLE.** A marker is sent again after a while, and the answer to the
  second one passes messages of the first link, which was broken.
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
