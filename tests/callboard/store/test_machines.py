"""Masters and clones as machines: effects in order, snapshots, writers, waiting."""

import itertools
from uuid import UUID

import pytest

from callboard.channel import CumulativeAck
from callboard.model.data import DataType
from callboard.store.errors import RequestTimeout
from callboard.store.machine.command import Command, CommandRun, EntityId, encode_run
from callboard.store.machine.master import Master
from callboard.store.machine.snapshot import (
    CHUNK_SIZE,
    WINDOW,
    Snapshot,
    SnapshotChunk,
    SnapshotIntake,
)
from callboard.store.machine.step import (
    EndpointLost,
    Persist,
    ReportRefused,
    Resign,
    SendRun,
    StoreSignal,
)
from callboard.store.options import ACK_AFTER, StoreOptions
from tests.callboard.store.net import Net

S = 1_000_000_000


@pytest.fixture
def net() -> Net:
    made = Net()
    made.tick()
    return made


def test_writes_of_everybody_arrive_everywhere(net: Net) -> None:
    net.put(net.master, a=1)
    net.put(net.clones[0], b=2)
    net.put(net.clones[1], c=3)

    assert net.entries() == [{"a": 1, "b": 2, "c": 3}] * 3
    assert net.await_idle()


def test_acknowledgements_of_few_commands_come_when_asked_for_or_with_a_tick(net: Net) -> None:
    sent: list[CommandRun] = []
    net.loses = lambda run: sent.append(run) and False
    net.put(net.master, a=1)
    assert [run.sender for run in sent] == [net.master.entity]

    net.do(net.master.step(StoreSignal.HASTEN, net.now))
    assert net.master.is_idle
    asked = len(sent)
    net.do(net.master.step(StoreSignal.HASTEN, net.now))
    assert len(sent) == asked

    net.put(net.master, b=1)
    assert not net.master.is_idle
    net.tick()
    assert net.master.is_idle


def test_many_commands_are_acknowledged_at_once(net: Net) -> None:
    entries = {f"k{number}": number for number in range(ACK_AFTER)}

    net.put(net.master, **entries)
    assert net.master.is_idle

    net.put(net.clones[0], **entries)
    assert net.clones[0].is_idle


def test_clones_hear_results_and_compute_nothing(net: Net) -> None:
    heard: list[CommandRun] = []
    net.loses = lambda run: heard.append(run)

    net.do(
        net.master.local(
            [
                (Command.ADD, "n", 2, int(DataType.Integer), None),
                (Command.ADD, "n", 2, int(DataType.Integer), None),
                (Command.SUBTRACT, "n", 1, None),
                (Command.ADD, "n", "text", int(DataType.String), None),
                (Command.SUBTRACT, "missing", 1, None),
                (Command.ERASE, "n"),
                (Command.ERASE, "n"),
                (Command.CLEAR,),
            ],
            0.0,
        )
    )

    (run,) = [one for one in heard if one.actions]
    assert run.actions == [
        (Command.PUT, "n", 2, None),
        (Command.PUT, "n", 4, None),
        (Command.PUT, "n", 3, None),
        (Command.ERASE, "n"),
        (Command.CLEAR,),
    ]
    assert [refused.count for refused in net.refused] == [2]


def test_what_is_acknowledged_was_persisted_before() -> None:
    net = Net(1, is_durable=True)
    net.tick()
    (clone,) = net.clones
    sent: list[CommandRun] = []
    net.loses = lambda run: sent.append(run) or run.sender == clone.entity
    entries = {f"k{number}": number for number in range(ACK_AFTER)}
    net.put(clone, **entries)
    (attach, put) = [run for run in sent if run.sender == clone.entity]

    net.master.receive(attach, 1.0)
    effects = net.master.receive(put, 1.0)

    assert isinstance(effects[0], Persist)
    assert effects[0].rows == {key: (value, None) for key, value in entries.items()}
    who = (clone.entity.endpoint.bytes, clone.entity.object)
    assert effects[0].writers == {who: (ACK_AFTER, [])}
    acks = [e for e in effects if isinstance(e, SendRun) and e.run.receiver == clone.entity]
    assert [ack.run.control for ack in acks] == [CumulativeAck(ACK_AFTER)]


def test_lost_commands_are_asked_for_and_sent_again(net: Net) -> None:
    net.loses = lambda run: bool(run.actions)
    net.put(net.master, a=1, b=2)
    net.put(net.clones[0], c=3)
    assert not net.master.is_idle
    assert not net.clones[0].is_idle

    net.loses = lambda _run: False
    net.tick(10)

    assert net.entries() == [{"a": 1, "b": 2, "c": 3}] * 3
    assert net.master.is_idle


def test_of_all_who_put_a_unique_key_one_wins(net: Net) -> None:
    for clone in net.clones:
        who = (clone.entity.endpoint.bytes, clone.entity.object)
        net.do(
            clone.local([(Command.PUT_UNIQUE, "k", str(clone.entity), None, who, 7)], net.now)
        )

    assert [answer.value for answer in net.answers] == [True, False]
    assert net.master.entries == {"k": str(net.clones[0].entity)}


def test_a_question_is_answered_once_more_after_a_resync(net: Net) -> None:
    clone = net.clones[0]
    who = (clone.entity.endpoint.bytes, clone.entity.object)
    net.loses = lambda run: run.sender == net.master.entity
    net.do(clone.local([(Command.PUT_UNIQUE, "k", 1, None, who, 7)], net.now))
    net.loses = lambda _run: False
    net.do(net.master.step(StoreSignal.LEAVE, net.now))
    net.tick(30)

    assert {(answer.request, answer.value) for answer in net.answers} == {(7, True)}


def test_a_master_that_returns_carries_out_nothing_twice() -> None:
    net = Net(1, is_durable=True)
    net.tick()
    (clone,) = net.clones
    net.loses = lambda run: run.receiver == clone.entity
    add = (Command.ADD, "n", 1, int(DataType.Integer), None)
    net.do(clone.local([add] * 3, net.now))
    assert net.master.entries == {"n": 3}
    writers, rows = net.master.writers, {"n": (3, None)}

    net.loses = lambda _run: False
    net.master = Master(EntityId(UUID(int=98), 1), rows=rows, writers=writers, is_durable=True)
    net.do(clone.step(EndpointLost(UUID(int=99).bytes), net.now))
    net.do(clone.local([add], net.now))
    net.tick(20)

    assert net.entries() == [{"n": 4}] * 2
    assert clone.is_idle


def test_a_clone_without_master_keeps_writes_then_drops_them() -> None:
    net = Net(1)
    net.master = None
    (clone,) = net.clones
    who = (clone.entity.endpoint.bytes, clone.entity.object)
    net.put(clone, a=1)
    net.do(clone.local([(Command.PUT_UNIQUE, "u", 1, None, who, 1)], 0.0))
    net.tick(1150)
    assert clone.unacknowledged == 2

    net.tick(100)
    assert clone.unacknowledged == 0
    assert [refused.count for refused in net.refused] == [1]
    assert [type(answer.value) for answer in net.answers] == [RequestTimeout]
    assert not clone.is_stale(net.now)

    net.tick(2000)
    assert clone.is_stale(net.now)


def test_a_clone_that_was_dropped_begins_anew(net: Net) -> None:
    clone = net.clones[1]
    net.loses = lambda run: (
        clone.reader in (run.sender, run.receiver)
        or (run.sender == net.master.entity and not run.receiver)
    )
    net.put(net.master, a=1)
    net.tick(110)
    assert clone.reader not in net.master.output.consumers

    net.loses = lambda _run: False
    net.tick(20)

    assert net.entries() == [{"a": 1}] * 3
    assert clone.is_idle


def test_commands_that_were_given_up_cost_a_snapshot() -> None:
    net = Net(1, options=StoreOptions(buffer_limit=4))
    net.tick()
    first_reader = net.clones[0].reader
    net.loses = lambda run: bool(run.actions)
    net.put(net.master, **{f"k{i}": i for i in range(10)})

    net.loses = lambda _run: False
    net.tick(30)

    assert net.entries()[1] == {f"k{i}": i for i in range(10)}
    assert net.clones[0].reader != first_reader


def test_keys_expire_in_their_order_and_clones_are_told(net: Net) -> None:
    net.clones[0].wants_changes = True
    puts = [
        (Command.PUT, "b", 1, 2 * S),
        (Command.PUT, "a", 1, 1 * S),
        (Command.PUT, "c", 1, 1 * S),
        (Command.PUT, "c", 2, None),
    ]
    net.do(net.master.local(puts, 10.0))

    assert net.master.next_expiry == 11.0
    net.do(net.master.step(StoreSignal.KEY_EXPIRES, 11.0))
    assert net.master.next_expiry == 12.0
    net.do(net.master.step(StoreSignal.KEY_EXPIRES, 12.5))

    assert net.entries() == [{"c": 2}] * 3
    assert net.master.next_expiry is None
    kinds = [(change.kind, change.token) for change in net.changes]
    assert kinds[-2:] == [("expire", "a"), ("expire", "b")]
    assert kinds[:4] == [("insert", "b"), ("insert", "a"), ("insert", "c"), ("update", "c")]


def test_two_masters_hear_of_each_other(net: Net) -> None:
    other = Master(EntityId(UUID(int=5), 1))
    hails = [effect.run for effect in other.step(StoreSignal.ENDPOINT_FOUND, 0.0)]

    effects = [effect for run in hails for effect in net.master.receive(run, 0.0)]

    assert effects == [Resign(other.entity)] * len(effects)
    assert effects


def test_a_snapshot_travels_in_chunks_that_are_asked_for() -> None:
    entries = {f"k{i}": "x" * 1000 for i in range(5000)}
    snapshot, other = Snapshot(entries, 7, 5), Snapshot(entries, 7, 5)
    entries.clear()

    chunks = snapshot.chunks(0, again=True)
    assert len(chunks) == WINDOW
    assert snapshot.chunks(0, again=False) == []
    assert [chunk.index for chunk in snapshot.chunks(4, again=False)] == [8, 9, 10, 11]
    assert snapshot.chunks(3, again=True) == []
    intake, is_last = SnapshotIntake(7), False
    while not is_last:
        chunk = other.chunks(intake.next_index, again=True)[0]
        (encoded,) = encode_run(CommandRun(EntityId(UUID(int=1), 1), control=chunk))
        assert len(encoded) < CHUNK_SIZE + 2000
        assert intake.take(chunk)
        assert not intake.take(chunk)
        is_last = chunk.is_last
    assert len(intake.entries) == 5000


def test_a_large_snapshot_survives_losses() -> None:
    net = Net(1)
    net.put(net.master, **{f"k{i}": "x" * 10_000 for i in range(1000)})
    count = itertools.count()
    net.loses = lambda run: isinstance(run.control, SnapshotChunk) and next(count) % 7 == 1
    net.tick(200)

    assert net.clones[0].is_connected
    assert net.entries()[0] == net.entries()[1]


UNREADABLE = (Command.UNREADABLE, Command.PUT, "b", "the value is of a later release")


def test_a_command_that_cannot_be_read_is_refused_and_others_are_executed(net: Net) -> None:
    writer = net.clones[0]
    net.do(
        writer.local(
            [
                (Command.PUT, "a", 1, None),
                UNREADABLE,
                (Command.ADD, "a", 1, int(DataType.Count), None),
            ],
            net.now,
        )
    )
    net.tick(10)

    assert net.await_idle()
    assert net.master is not None
    assert net.master.entries == writer.entries == {"a": 2}
    assert net.refused == [ReportRefused(1, "the value is of a later release")]
    assert net.master.unreadable == 1


def test_a_clone_removes_a_key_whose_value_it_cannot_read(net: Net) -> None:
    assert net.master is not None
    net.put(net.master, a=1, b=1)
    net.tick(10)
    seq, clone = net.master.output.seq, net.clones[0]
    run = CommandRun(
        net.master.entity, first=seq + 1, actions=[UNREADABLE, (Command.PUT, "c", 3, None)]
    )

    net.do(clone.receive(run, net.now))

    assert clone.entries == {"a": 1, "c": 3}
    assert (clone.unreadable, net.refused[0].count) == (1, 1)


def test_a_clone_loads_a_snapshot_without_the_entries_that_it_cannot_read() -> None:
    net = Net(clones=1)
    clone, master = net.clones[0], net.master
    assert master is not None
    reasons = ("the entry 'b' cannot be read",)
    chunk = SnapshotChunk(0, 5, 0, True, ("a", 1), reasons)

    effects = clone.receive(CommandRun(master.entity, clone.reader, control=chunk), 1.0)

    assert (clone.entries, clone.is_connected, clone.unreadable) == ({"a": 1}, True, 1)
    assert ReportRefused(1, reasons[0]) in effects
