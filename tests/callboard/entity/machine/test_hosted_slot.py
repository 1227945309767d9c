"""The table of a slot at a host: each pair, on a host and on the table."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from callboard import Entity, handler
from callboard.entity.host import EntityHost
from callboard.entity.machine import hosted_slot
from callboard.entity.machine.hosted_slot import (
    HELD,
    HOSTED_SLOTS,
    HostedSlot,
    HostedSlotEvent,
)
from callboard.entity.machine.table import slot_of
from callboard.simulation import Cluster
from callboard.transitions import IllegalTransition
from tests.callboard.entity.machine.table_walks import drawn, named, pairs, path_to

LEGAL, ILLEGAL = pairs(HOSTED_SLOTS)
SLOT = slot_of("k")


class Silent(Entity):
    name = "hosted-slot-tests.Silent"

    @handler
    def on_text(self, msg: str) -> None:
        pass


@pytest.fixture
def host() -> Iterator[EntityHost]:
    """A host that owns all slots, on a node whose time stands still."""
    with closing(Cluster(3)) as cluster:
        node = cluster.node("a")
        node.host(Silent)
        host = node._entities._hosts[Silent.name]
        assert host.slots[SLOT] is HostedSlot.OWNED
        yield host


def apply(event: HostedSlotEvent, host: EntityHost) -> None:
    match event:
        case HostedSlotEvent.SERVED:
            host.serve({SLOT: 2})
        case HostedSlotEvent.LOST:
            host.keep_only({})
        case HostedSlotEvent.STOPPED:
            host.stop_slots([SLOT], lambda: None)
        case HostedSlotEvent.RELEASED:
            host.slots_moved([SLOT])


def in_state(host: EntityHost, state: HostedSlot) -> None:
    for event in path_to(HOSTED_SLOTS, HostedSlot.OWNED, state):
        apply(event, host)
    assert host.slots[SLOT] is state


@pytest.mark.parametrize(("state", "event"), LEGAL, ids=lambda value: value.name)
def test_a_legal_event_leads_to_the_state_of_the_table(state, event, host):
    in_state(host, state)

    apply(event, host)

    assert host.slots[SLOT] is HOSTED_SLOTS[state][event]


@pytest.mark.parametrize(("state", "event"), ILLEGAL, ids=lambda value: value.name)
def test_an_illegal_event_is_refused_and_changes_nothing(state, event, host):
    in_state(host, state)

    with pytest.raises(IllegalTransition, match=f"is {state.name}.*cannot be {event.name}"):
        host._change([SLOT], event)

    assert host.slots[SLOT] is state


@pytest.mark.parametrize("state", HostedSlot, ids=lambda value: value.name)
def test_a_slot_has_an_epoch_while_it_is_owned_or_drains(state, host):
    in_state(host, state)

    assert (SLOT in host.epochs) is (state in (HostedSlot.OWNED, HostedSlot.DRAINING))


@pytest.mark.parametrize("state", HostedSlot, ids=lambda value: value.name)
def test_a_message_is_refused_handled_or_held(state, host):
    in_state(host, state)

    is_accepted = host.deliver("k", "a message", None)

    assert is_accepted is (state is not HostedSlot.ABSENT)
    assert ("k" in host.cells) is (state is HostedSlot.OWNED)
    assert bool(host._held) is (state in HELD)


def test_the_docstring_draws_this_table():
    assert drawn(hosted_slot.__doc__, HOSTED_SLOTS) == named(HOSTED_SLOTS)
