"""Ownership: who serves a slot, whatever is lost, late or wrongly suspected."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.entity.machine.ownership_machine import (
    CloseAsked,
    DrainAsked,
    JoinAsked,
    Joined,
    JoinRefused,
    KindsSeen,
    Left,
    MemberGone,
    MembersProbed,
    MoveAsked,
    OwnershipMachine,
    PollDue,
    ReadTable,
    SlotLost,
    SlotsDrained,
    TableAnnounced,
    TableRead,
    TermBegun,
    TermEnded,
)
from callboard.entity.machine.table import SharedState, Table, TableMember
from callboard.entity.state.interface import Fence
from callboard.lease.errors import StateCorrupt
from tests.callboard.entity.machine.ownership_cluster import STATE, OwnershipCluster

WRITERS = "abc"


def members(count: int, slots: int = 4) -> OwnershipCluster:
    """Nodes that have all joined and share the slots."""
    cluster = OwnershipCluster(count, slots)
    for writer in WRITERS[:count]:
        cluster.join(writer)
        cluster.settle()
    return cluster


def owners(cluster: OwnershipCluster) -> list[str]:
    return [slot.writer for slot in cluster.table.slots]


def test_the_first_member_serves_all_slots_behind_their_fences() -> None:
    cluster = members(1)
    assert cluster.nodes["a"].epochs == dict.fromkeys(range(4), 1)
    assert set(cluster.fences.values()) == {Fence(1, "a")}
    assert cluster.nodes["a"].told == [Joined()]


def test_slots_move_to_whom_they_are_wished_one_portion_after_the_other() -> None:
    cluster = members(3)
    assert owners(cluster) == list(cluster.table.wished())
    served = [set(node.epochs) for node in cluster.nodes.values()]
    assert sorted(slot for each in served for slot in each) == [0, 1, 2, 3]


def test_a_dead_member_is_removed_with_all_its_slots_in_one_write() -> None:
    cluster = members(2)
    before = cluster.table.version
    cluster.nodes["b"].is_dead = True
    cluster.settle()
    assert owners(cluster) == ["a"] * 4
    assert cluster.table.version == before + 1


def test_evidence_against_an_earlier_membership_says_nothing_about_a_later_one() -> None:
    cluster = members(2)
    stale = cluster.nodes["a"].machine.copy()
    cluster.suspect("a", "b")
    cluster.settle()
    assert set(cluster.table.members) == {"a", "b"}
    version = cluster.table.version
    cluster.nodes["a"].machine.gone |= {("b", stale.table.members["b"].joined)}
    cluster.settle()
    assert cluster.table.version == version


def test_a_fence_beyond_the_table_is_gone_beyond() -> None:
    cluster = OwnershipCluster(1, 2)
    cluster.fences[1] = Fence(7, "x")
    cluster.join("a")
    cluster.settle()
    assert cluster.fences == {0: Fence(1, "a"), 1: Fence(8, "a")}
    assert cluster.nodes["a"].epochs == {0: 1, 1: 8}


def test_a_slot_whose_fence_was_lost_is_claimed_again_beyond_it() -> None:
    cluster = members(1)
    cluster.fences[2] = Fence(2, "")
    cluster.nodes["a"].epochs.pop(2)
    cluster.step("a", SlotLost(2, 1))
    cluster.settle()
    assert cluster.fences[2] == Fence(3, "a")


def test_slots_that_were_moved_by_hand_stay_while_their_owner_is_a_member() -> None:
    cluster = members(2)
    for to in "ab":
        cluster.step("b", MoveAsked(dict.fromkeys(range(4), to)))
        cluster.settle()
        assert owners(cluster) == [to] * 4
        assert cluster.nodes["b"].machine.pins == {}
    assert Table.read(cluster.table.text(), 4) == cluster.table
    cluster.step("a", MoveAsked({0: "", 1: "nobody"}))
    cluster.settle()
    assert owners(cluster) == [*cluster.table.wished()]
    assert dict(cluster.table.pins) == {2: "b", 3: "b"}
    cluster.step("b", CloseAsked())
    cluster.settle()
    assert cluster.table.pins == ()
    assert owners(cluster) == ["a"] * 4


def test_slots_are_not_moved_to_one_that_drains() -> None:
    cluster = members(2)
    cluster.step("a", DrainAsked())
    cluster.settle()
    cluster.step("b", MoveAsked({0: "a"}))
    cluster.settle()
    assert owners(cluster) == ["b"] * 4


def test_who_drains_gives_all_away_and_who_closes_is_no_member() -> None:
    cluster = members(2)
    cluster.step("a", DrainAsked())
    cluster.settle()
    assert owners(cluster) == ["b"] * 4
    assert SlotsDrained() in cluster.nodes["a"].told
    cluster.step("a", CloseAsked())
    cluster.settle()
    assert set(cluster.table.members) == {"b"}
    assert cluster.nodes["a"].told[-1] == Left()
    assert cluster.nodes["a"].machine.step(PollDue()) == []


def test_the_last_member_drains_at_once_and_frees_all_slots_in_one_write() -> None:
    cluster = members(1)
    cluster.step("a", DrainAsked())
    cluster.settle()
    assert SlotsDrained() in cluster.nodes["a"].told
    version = cluster.table.version
    cluster.step("a", CloseAsked())
    cluster.settle()
    assert owners(cluster) == [""] * 4
    assert cluster.table.version == version + 1


def test_another_state_is_refused_while_its_members_live() -> None:
    cluster = members(1)
    other = SharedState("t", "another file")
    cluster.nodes["b"] = OwnershipCluster(2, 4).nodes["b"]
    refused = cluster.nodes["b"]
    for effect in refused.machine.step(SlotLost(0, 0)):
        raise AssertionError(effect)
    cluster.step("b", JoinAsked(other))
    cluster.settle()
    assert isinstance(refused.told[-1], JoinRefused)
    assert set(cluster.table.members) == {"a"}


def test_the_state_of_members_that_are_all_gone_is_forgotten() -> None:
    cluster = members(1)
    cluster.nodes["a"].is_dead = True
    cluster.nodes["b"] = OwnershipCluster(2, 4).nodes["b"]
    cluster.step("b", JoinAsked(SharedState("t")))
    cluster.settle()
    assert cluster.table.state.id == "t"
    assert owners(cluster) == ["b"] * 4


def test_what_others_tell_is_looked_up_and_never_believed() -> None:
    cluster = members(1)
    machine = cluster.nodes["a"].machine
    for event in (MembersProbed(), TableRead(cluster.table)):
        machine.step(event)
    assert machine.step(TableAnnounced(10**30)) == [ReadTable()]
    cluster.nodes["a"].requests = [ReadTable()]
    cluster.settle()
    assert cluster.nodes["a"].epochs == dict.fromkeys(range(4), 1)


def told_while_reading() -> tuple[OwnershipMachine, Table]:
    """Return a machine that reads and was told of two newer tables, and the old table."""
    cluster = members(1)
    machine, table = cluster.nodes["a"].machine, cluster.table
    for event in (MembersProbed(), TableRead(table)):
        machine.step(event)
    assert machine.step(TableAnnounced(table.version + 1)) == [ReadTable()]
    machine.step(TableAnnounced(table.version + 2))
    return machine, table


def test_what_is_told_while_the_register_is_read_may_be_newer_and_is_looked_up() -> None:
    machine, table = told_while_reading()
    between = replace(
        table, version=table.version + 1, register_version=table.register_version + 1
    )
    assert ReadTable() in machine.step(TableRead(between))
    last = replace(
        table, version=table.version + 2, register_version=table.register_version + 2
    )
    assert ReadTable() not in machine.step(TableRead(last))


def test_what_a_read_showed_already_is_not_looked_up_again() -> None:
    machine, table = told_while_reading()
    last = replace(
        table, version=table.version + 2, register_version=table.register_version + 2
    )
    assert ReadTable() not in machine.step(TableRead(last))


def test_a_register_that_lost_its_end_is_brought_beyond_what_members_know() -> None:
    cluster = members(1)
    early = cluster.table
    cluster.nodes["b"] = OwnershipCluster(2, 4).nodes["b"]
    cluster.join("b")
    cluster.settle()
    known = cluster.table.version
    cluster.table = early
    cluster.fences = {s: Fence(f.epoch + 1, "") for s, f in cluster.fences.items()}
    for node in cluster.nodes.values():
        for slot, epoch in list(node.epochs.items()):
            node.epochs.pop(slot)
            node.machine.step(SlotLost(slot, epoch))
    cluster.settle()
    assert cluster.table.version > known
    assert set(cluster.table.members) == {"a", "b"}
    assert owners(cluster) == list(cluster.table.wished())


def test_members_that_do_not_read_what_was_written_get_no_slots() -> None:
    cluster = OwnershipCluster(2, 4)
    able, unable = TableMember("00", reads=(("e", 2),)), TableMember("01", reads=(("e", 1),))
    cluster.nodes["a"].machine.member, cluster.nodes["b"].machine.member = able, unable
    for writer in "ab":
        cluster.join(writer)
        cluster.settle()
    assert "b" in owners(cluster)
    cluster.step("a", KindsSeen(frozenset({("e", 2)})))
    cluster.settle()
    assert owners(cluster) == ["a"] * 4
    cluster.nodes["a"].is_dead = True
    cluster.settle()
    assert owners(cluster) == ["b"] * 4


def test_a_copy_goes_its_own_way_and_equal_states_have_equal_keys() -> None:
    cluster = members(2)
    machine = cluster.nodes["a"].machine
    other = machine.copy()
    assert hash(other.key()) == hash(machine.key())
    assert other.key() == machine.key()
    other.step(CloseAsked())
    assert other.key() != machine.key()
    assert machine.aim == "member"


def test_a_table_is_read_as_it_was_written() -> None:
    table = members(3).table
    assert Table.read(table.text(), 4) == table
    assert table.state == STATE


def test_a_table_of_256_slots_is_short() -> None:
    table = Table()
    for writer in WRITERS:
        table = table.with_member(writer * 44, TableMember("00" * 18), STATE)
    assert len(table.text()) < 4_000


def test_a_table_of_the_first_format_is_read() -> None:
    table = members(3).table
    first = json.loads(table.text())
    del first["owners"]
    first |= {"format": 1, "slots": [[*each] for each in table.slots]}
    assert Table.read(json.dumps(first), 4) == table


@pytest.mark.parametrize("slots", [[[9, 1]] * 4, [[-1, 1]] * 4, [["0", 1]] * 4, [[0]] * 4, 7])
def test_a_table_with_wrong_owners_is_refused(slots: object) -> None:
    wrong = json.loads(members(3).table.text()) | {"slots": slots}
    with pytest.raises(StateCorrupt):
        Table.read(json.dumps(wrong), 4)


MOVES = st.one_of(
    st.tuples(st.just("arrive"), st.sampled_from(WRITERS), st.sampled_from(
        ["done", "done", "done", "lost", "unknown"])),
    st.tuples(st.just("answer"), st.sampled_from(WRITERS), st.none()),
    st.tuples(st.just("look"), st.sampled_from(WRITERS), st.booleans()),
    st.tuples(st.just("suspect"), st.sampled_from(WRITERS), st.sampled_from(WRITERS)),
    st.tuples(st.sampled_from(["join", "drain", "kill", "end", "begin"]),
              st.sampled_from(WRITERS), st.none()),
    st.tuples(st.just("move"), st.sampled_from(WRITERS), st.sampled_from(WRITERS)),
)  # fmt: skip


@given(st.lists(MOVES, max_size=120))
def test_nobody_serves_what_another_may_commit_and_all_ends_well(moves: list[tuple]) -> None:
    cluster = OwnershipCluster(3, 2)
    cluster.join("a")
    for move in moves:
        cluster.play(*move)
        cluster.check()
    for writer in WRITERS:
        cluster.join(writer)
        cluster.play("begin", writer, None)
    cluster.settle()
    cluster.settle()
    for slot, (writer, epoch) in enumerate(cluster.table.slots):
        assert not cluster.nodes[writer].is_dead
        assert cluster.nodes[writer].epochs[slot] == epoch
        assert cluster.fences[slot] == (epoch, writer)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 3.0), (0.0, 1.0)])
def test_members_are_wished_slots_by_their_weights(weights: tuple[float, float]) -> None:
    table = Table()
    for writer, weight in zip("ab", weights, strict=True):
        table = table.with_member(writer, TableMember("00", weight=weight), STATE)
    share = table.wished().count("b") / 256
    assert share == pytest.approx(weights[1] / sum(weights), abs=0.08)


def test_who_lost_its_term_serves_nothing_until_it_is_a_member_again() -> None:
    cluster = members(2)
    mine = set(cluster.nodes["a"].epochs)
    joined = cluster.table.members["a"].joined
    cluster.step("a", TermEnded())
    assert cluster.nodes["a"].epochs == {}
    cluster.settle()
    assert cluster.table.members["a"].joined == joined
    assert cluster.nodes["a"].epochs == {}
    cluster.step("a", TermBegun(9))
    cluster.settle()
    assert cluster.table.members["a"].joined > joined
    assert cluster.table.members["a"].term == 9
    assert set(cluster.nodes["a"].epochs) == mine


def test_a_kill_of_an_earlier_term_does_not_remove_who_joined_again() -> None:
    cluster = members(2)
    evidence = cluster.table.members["a"].joined
    cluster.step("a", TermEnded())
    cluster.step("a", TermBegun(9))
    cluster.settle()
    version = cluster.table.version
    cluster.step("b", MemberGone("a", evidence))
    cluster.settle()
    assert cluster.table.version == version
