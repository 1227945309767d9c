"""What a leaf may say to a master: its own reading, and writes where it may write."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.channel import CumulativeAck, Handshake, Heartbeat, Nack, RetransmitFailed
from callboard.proxies.errors import NotPermitted
from callboard.store.machine.clone import Clone
from callboard.store.machine.command import NIL, Command, CommandRun, EntityId
from callboard.store.machine.leaf import is_write, may_send
from callboard.store.machine.snapshot import SnapshotChunk
from callboard.store.machine.step import Answer, ReportRefused

LEAF, OTHER = EntityId(UUID(int=1), 2), EntityId(UUID(int=9), 2)
MASTER = EntityId(UUID(int=5), 5)
READS = [Nack((0,)), Nack(()), Nack((0, 5, 1)), CumulativeAck(3)]
WRITES = [Handshake(1, 5), Heartbeat(4), RetransmitFailed(2)]
ACTIONS = [
    (Command.PUT, "k", 1, None),
    (Command.ERASE, "k"),
    (Command.ADD, "k", 1, 3, None),
    (Command.SUBTRACT, "k", 1, None),
    (Command.CLEAR,),
    (Command.UNREADABLE, 40, None, "a command of a later release, which the master refuses"),
    (Command.PUT_UNIQUE, "k", 1, None, LEAF.plain, 7),
]
MASTERS = [
    (Command.EXPIRE, "k"),
    (Command.RESULT, True, LEAF.plain, 7),
    (Command.PUT_UNIQUE, "k", 1, None, MASTER.plain, 7),
]


def may(run, *, may_write=True, endpoint=LEAF.endpoint.bytes):
    return may_send(run, endpoint, may_write=may_write)


@pytest.mark.parametrize("control", READS)
def test_who_may_read_says_how_far_it_is(control):
    run = CommandRun(LEAF, MASTER, control=control)

    assert may(run, may_write=False)
    assert not may(run, endpoint=OTHER.endpoint.bytes)
    assert not may(run, endpoint=None)
    assert not is_write(run)


@pytest.mark.parametrize("control", WRITES)
def test_who_may_write_announces_itself_to_one_master(control):
    assert may(CommandRun(LEAF, MASTER, control=control))
    assert not may(CommandRun(LEAF, MASTER, control=control), may_write=False)
    assert not may(CommandRun(LEAF, NIL, control=control))  # a heartbeat for all is a master's


@pytest.mark.parametrize("action", ACTIONS)
def test_commands_of_clones_are_for_who_may_write(action):
    run = CommandRun(LEAF, MASTER, first=1, actions=[ACTIONS[0], action])

    assert may(run)
    assert not may(run, may_write=False)
    assert is_write(run)


@pytest.mark.parametrize("action", MASTERS)
def test_commands_of_masters_and_in_other_names_are_for_no_leaf(action):
    assert not may(CommandRun(LEAF, MASTER, first=1, actions=[ACTIONS[0], action]))


def test_a_snapshot_is_a_masters():
    chunk = SnapshotChunk(0, 1, 0, True, ())

    assert not may(CommandRun(LEAF, MASTER, control=chunk))


@given(
    st.sampled_from([LEAF, OTHER, MASTER, NIL]),
    st.sampled_from([LEAF, OTHER, MASTER, NIL]),
    st.lists(st.sampled_from(ACTIONS + MASTERS), max_size=4),
    st.sampled_from([None, *READS, *WRITES]),
)
def test_who_may_only_read_changes_nothing_and_nobody_speaks_for_others(
    sender, receiver, actions, control
):
    run = CommandRun(sender, receiver, 1, actions, control)

    if may(run, may_write=False):
        assert sender == LEAF
        assert control in READS or not (actions or control)
    if may(run):
        assert sender == LEAF
        assert control not in WRITES or receiver
        assert control is not None or not {*MASTERS} & {*actions}


def test_a_clone_that_is_refused_gives_its_writes_up():
    clone = Clone(LEAF, lambda: EntityId(UUID(int=1), 3), 0.0)
    clone.local([ACTIONS[0], ACTIONS[-1]], 1.0)
    error = NotPermitted("no right")

    effects = clone.refused(error)

    assert effects == [Answer(7, error), ReportRefused(1, "no right")]
    assert not clone.unacknowledged
    assert clone.refused(error) == []
