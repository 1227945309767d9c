"""Masters, clones and idleness as Broker's developer guide says, sections 7.5 and 7.6.1."""

import inspect
from typing import Any

import pytest

from callboard import Node
from callboard.channel import Consumer, Handshake, Producer
from callboard.store import Store, attach_clone, attach_master
from callboard.store.machine.command import Command, CommandRun
from callboard.store.machine.step import SendRun, StoreSignal
from callboard.topics.hub import Hub
from tests.callboard.store.net import Net


@pytest.fixture
def net() -> Net:
    made = Net()
    made.tick()
    return made


def test_7_5_a_master_has_one_producer_and_a_consumer_for_each_writer(net: Net) -> None:
    assert isinstance(net.master.output, Producer)
    assert net.master.inputs == {}

    for clone in net.clones:
        net.put(clone, k=1)

    assert set(net.master.inputs) == {clone.entity for clone in net.clones}
    assert all(isinstance(one, Consumer) for one in net.master.inputs.values())
    assert set(net.master.output.consumers) == {clone.reader for clone in net.clones}


def test_7_5_a_clone_has_a_consumer_and_makes_its_producer_with_the_first_write(
    net: Net,
) -> None:
    clone = net.clones[0]
    assert isinstance(clone.input, Consumer)
    assert clone.output is None

    net.put(clone, k=1)

    assert isinstance(clone.output, Producer)


def test_7_5_attach_writer_is_sent_when_a_clone_adds_a_writer(net: Net) -> None:
    sent: list[CommandRun] = []
    net.loses = lambda run: sent.append(run) and False

    net.put(net.clones[0], a=1)
    net.put(net.clones[0], b=2)

    attached = [run for run in sent if isinstance(run.control, Handshake)]
    assert [run.sender for run in attached] == [net.clones[0].entity]
    assert sent.index(attached[0]) < sent.index(next(run for run in sent if run.actions))


def test_7_5_actions_are_handled_in_sequence_order_whatever_order_they_arrive_in(
    net: Net,
) -> None:
    kept: list[CommandRun] = []
    net.loses = lambda run: bool(run.actions) and kept.append(run) is None
    for value in (1, 2, 3):
        net.put(net.master, k=value)
    clone = net.clones[0]

    seen = []
    for run in (kept[2], kept[1], kept[1], kept[0]):
        clone.receive(run, net.now)
        seen.append(clone.entries.get("k"))

    assert seen == [None, None, None, 3]


def test_7_6_1_a_master_is_idle_when_no_handshake_is_pending() -> None:
    net = Net(1)
    net.loses = lambda run: run.sender == net.clones[0].reader and net.master.output.consumers
    net.tick()
    assert net.master.output.consumers
    assert not net.master.is_idle

    net.loses = lambda _run: False
    net.tick(10)
    assert net.master.is_idle


def test_7_6_1_a_master_is_idle_when_all_clones_acknowledged_the_latest_command(
    net: Net,
) -> None:
    net.loses = lambda run: run.sender == net.clones[1].reader
    net.put(net.master, k=1)
    net.do(net.master.step(StoreSignal.HASTEN, net.now))
    assert not net.master.is_idle

    net.loses = lambda _run: False
    net.tick(5)  # an acknowledgement that was lost comes again with the heartbeats
    assert net.master.is_idle


def test_7_6_1_a_master_is_idle_when_no_command_of_a_writer_is_buffered(net: Net) -> None:
    clone = net.clones[0]
    net.put(clone, first=1)
    assert net.await_idle()
    (late, early) = (
        CommandRun(clone.entity, net.master.entity, seq, [(Command.PUT, "k", seq, None)])
        for seq in (3, 2)
    )

    net.master.receive(late, net.now)
    assert net.master.inputs[clone.entity].buffered == 1
    net.do(_acknowledged(net))
    assert not net.master.is_idle

    net.do(net.master.receive(early, net.now))
    net.do(net.master.step(StoreSignal.HASTEN, net.now))
    assert net.master.is_idle


def _acknowledged(net: Net) -> list[Any]:
    effects = net.master.step(StoreSignal.HASTEN, net.now)
    return [effect for effect in effects if isinstance(effect, SendRun)]


def test_7_6_1_a_clone_is_idle_when_it_is_connected() -> None:
    net = Net(1)
    assert not net.clones[0].is_idle

    net.tick()

    assert net.clones[0].is_idle


def test_7_6_1_a_clone_is_idle_when_its_input_buffer_is_empty(net: Net) -> None:
    kept: list[CommandRun] = []
    net.loses = lambda run: bool(run.actions) and kept.append(run) is None
    net.put(net.master, a=1)
    net.put(net.master, b=2)
    clone = net.clones[0]

    clone.receive(kept[1], net.now)
    assert not clone.is_idle

    clone.receive(kept[0], net.now)
    assert clone.is_idle


def test_7_6_1_a_clone_is_idle_when_its_writes_are_acknowledged(net: Net) -> None:
    clone = net.clones[0]
    net.loses = lambda run: run.sender == net.master.entity
    net.put(clone, k=1)
    assert not clone.is_idle

    net.loses = lambda _run: False
    net.tick()
    assert clone.is_idle


def test_7_6_1_after_await_idle_on_the_writer_and_the_master_all_clones_are_in_sync() -> None:
    with Node() as a, Node() as b, Node() as c:
        a.listen("127.0.0.1", 0)
        master = attach_master(Hub.of(a), "test")
        clones = [attach_clone(Hub.of(node), "test") for node in (b, c)]
        for node in (b, c):
            node.connect(a.address)
        assert all(clone.await_idle() for clone in clones)

        for number in range(100):
            clones[0].put("k", number)
            assert clones[0].await_idle()
            assert master.await_idle()
            assert clones[1].get("k") == clones[0].get("k") == number


def test_7_6_1_await_idle_has_a_default_timeout_of_15_seconds() -> None:
    for wait in (Store.await_idle, Store.aawait_idle):
        assert inspect.signature(wait).parameters["timeout"].default == 15.0
