"""The table of a slot at its senders: each pair, on a router and on the table."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from callboard.entity.machine import sent_slot
from callboard.entity.machine.sent_slot import SENT_SLOTS, SentSlot, SentSlotEvent
from callboard.entity.machine.table import SLOTS, SlotOwner, Table, TableMember
from callboard.entity.router import TypeRouter
from callboard.transitions import IllegalTransition
from tests.callboard.entity.machine.table_walks import drawn, named, pairs, path_to

LEGAL, ILLEGAL = pairs(SENT_SLOTS)
SLOT, HERE, A, B = 7, bytes(18), bytes([1]) * 18, bytes([2]) * 18


class Sending:
    """A router whose node knows two owners, and what it has sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, bytes]] = []
        self.markers: list[bytes] = []
        runtime: Any = SimpleNamespace(
            now=lambda: 1.0,
            node_id=HERE,
            name="here",
            is_reachable=lambda _: True,
            post=lambda *_: None,
            call_later=lambda *_: None,
            counters=SimpleNamespace(),
            shutdown=SimpleNamespace(on=lambda *_: None, phase=None),
            ref_of=lambda *_: None,
            set_deadline=lambda *_: None,
        )
        router = self.router = TypeRouter(
            runtime, "sent-slot-tests", lambda _: False, tuple, lambda: False
        )
        vars(router)["_open_batch"] = lambda node: SimpleNamespace(
            size=0, ref=None, take=partial(self.take, node)
        )
        vars(router)["_ask_marker"] = lambda _, node, *__, **___: self.markers.append(node)
        self.owner, self.version, self.refusing = A, 0, A
        self.adopt(A)

    def take(self, node: bytes, pending: Any, *_: object) -> bool:
        """Stand for the batch of a node: record a message for it."""
        self.sent.append((pending.message, node))
        return True

    def adopt(self, owner: bytes) -> None:
        """Adopt a table with an owner of all slots."""
        self.owner, self.version = owner, self.version + 1
        members = {owner.hex(): TableMember(owner.hex())}
        slots = (SlotOwner(owner.hex(), self.version),) * SLOTS
        self.router.adopt(Table(self.version, members=members, slots=slots))

    @property
    def state(self) -> SentSlot:
        return self.router._states.get(SLOT, SentSlot.IDLE)

    def send(self, message: Any) -> None:
        self.router.send("k", SLOT, message, None, is_urgent=False)

    def apply(self, event: SentSlotEvent) -> None:
        """Let the event happen to the router."""
        router = self.router
        match event:
            case SentSlotEvent.SENT:
                self.send("a message")
            case SentSlotEvent.FORWARDED:
                router.forward("k", SLOT, "forwarded", None, is_urgent=False)
            case SentSlotEvent.OWNER_CHANGED:
                self.adopt(B if self.owner == A else A)
                self.send("to the next owner")
            case SentSlotEvent.MARKER_PASSED:
                router._marker_passed(SLOT, router._last_nodes[SLOT])
            case SentSlotEvent.REFUSED:
                router._refused(router._new_message("k", SLOT, "refused"), A)
            case SentSlotEvent.COMPLETE:
                router._refusals_complete(SLOT, A)


@pytest.fixture
def sending() -> Sending:
    return Sending()


def in_state(sending: Sending, state: SentSlot) -> None:
    for event in path_to(SENT_SLOTS, SentSlot.IDLE, state):
        sending.apply(event)
    assert sending.state is state


@pytest.mark.parametrize(("state", "event"), LEGAL, ids=lambda value: value.name)
def test_a_legal_event_leads_to_the_state_of_the_table(state, event, sending):
    in_state(sending, state)
    sending.router._queues.clear()  # what waits is sent in the order of its queue

    sending.apply(event)

    assert sending.state is SENT_SLOTS[state][event]


@pytest.mark.parametrize(("state", "event"), ILLEGAL, ids=lambda value: value.name)
def test_an_illegal_event_is_refused_and_changes_nothing(state, event, sending):
    in_state(sending, state)

    with pytest.raises(IllegalTransition, match=f"is {state.name}.*cannot be {event.name}"):
        sending.router._enter(SLOT, event)

    assert sending.state is state


@pytest.mark.parametrize("state", SentSlot, ids=lambda value: value.name)
def test_a_node_is_remembered_while_a_message_may_be_on_its_way_to_it(state, sending):
    in_state(sending, state)

    is_idle = state in (SentSlot.IDLE, SentSlot.REFUSED_IDLE)
    assert (SLOT in sending.router._last_nodes) is not is_idle
    assert (SLOT in sending.router._refusing) is state.name.startswith("REFUSED")


@pytest.mark.parametrize("state", SentSlot, ids=lambda value: value.name)
def test_a_message_waits_in_each_state_in_which_it_could_overtake_another(state, sending):
    in_state(sending, state)
    sending.router._queues.clear()
    before = len(sending.sent)

    sending.send("one")
    sending.send("two")

    waiting = [pending.message for pending in sending.router._queues.get(SLOT, ())]
    if state in (SentSlot.IDLE, SentSlot.SENT):
        assert sending.sent[before:] == [("one", A), ("two", A)]
    else:
        assert (waiting, sending.sent[before:]) == (["one", "two"], [])


def test_messages_wait_for_the_marker_to_the_former_owner(sending):
    sending.send(1)
    sending.adopt(B)
    sending.send(2)
    assert (sending.sent, sending.markers) == ([(1, A)], [A])

    sending.router._marker_passed(SLOT, A)
    sending.router.flush()

    assert sending.sent == [(1, A), (2, B)]


def test_the_docstring_draws_this_table():
    assert drawn(sent_slot.__doc__, SENT_SLOTS) == named(SENT_SLOTS)
