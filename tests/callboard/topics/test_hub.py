"""What threads publish: at once or in the core's next turn, in order in either case."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from callboard import Node
from callboard.actors.errors import ActorDown
from callboard.actors.runner.runner import Runner
from callboard.actors.runtime import Runtime
from callboard.model.data import Data
from callboard.model.encoding import data_to_cbor
from callboard.proxies.link.wire import Wire
from callboard.topics import input_queue, run_transmitter
from callboard.topics.hub import Hub
from callboard.topics.machine import peer_buffer
from callboard.topics.machine.effect import DoorReceiver
from callboard.topics.machine.run import PackedType
from callboard.topics.message_queue import MessageQueue
from tests.proxies.cast import eventually

THREADS = 8
EACH = 400


@pytest.fixture
def hubs() -> Iterator[tuple[Hub, Hub, MessageQueue]]:
    """Two hubs that are peers, and a queue at the second that takes /t."""
    with Node("here") as here, Node("there") as there:
        sender, receiver = Hub.of(here), Hub.of(there)
        queue: MessageQueue = MessageQueue()
        receiver.add_receiver(queue, ["/t"]).result(5)
        port = there.listen()
        assert sender.peerings.peer(("127.0.0.1", port), 1.0).result(5)
        assert sender.waits.until(lambda core: "/t" in core.peer_topics(), 5).result()
        sender.publish("/t", "known")
        assert queue.get(5.0) == ("/t", "known")
        yield sender, receiver, queue


@contextmanager
def standing_still(hub: Hub) -> Iterator[None]:
    """Keep the thread of a hub's node from doing anything."""
    stands, may_go_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        may_go_on.wait(10)

    hub.node.runtime.runner.post(stand)
    assert stands.wait(5)
    try:
        yield
    finally:
        may_go_on.set()


def calm(hub: Hub) -> None:
    assert eventually(
        lambda: not hub.inputs.wake_pending and hub.now() > hub.publishing.idle_since
    )


def test_a_message_goes_at_once_when_the_core_is_idle(hubs):
    sender, _, queue = hubs
    calm(sender)

    with standing_still(sender):
        sender.publish("/t", 1)
        assert queue.get(5.0) == ("/t", 1)


def test_a_batch_goes_at_once_too(hubs):
    sender, _, queue = hubs
    calm(sender)

    with standing_still(sender):
        sender.publish_batch(("/t", 1), ("/other", 2), ("/t", 3))
        assert queue.get(0.2) is None  # who wants /other has to be found out first

    assert [queue.get(5.0), queue.get(5.0)] == [("/t", 1), ("/t", 3)]
    calm(sender)
    with standing_still(sender):
        sender.publish_batch(("/t", 4), ("/other", 5), ("/t", 6))
        assert [queue.get(5.0), queue.get(5.0)] == [("/t", 4), ("/t", 6)]


def test_nothing_overtakes_what_waits_for_a_turn(hubs):
    sender, _, queue = hubs

    with standing_still(sender):
        with sender.core_lock:
            sender.publish("/t", 1)
        sender.publishing.idle_since = 0.0
        sender.inputs.wake_pending = False  # as it is while the core begins to take what waits
        sender.publish("/t", 2)

    assert [queue.get(5.0), queue.get(5.0)] == [("/t", 1), ("/t", 2)]


def test_a_thread_does_not_wait_while_the_core_works(hubs):
    sender, _, queue = hubs
    calm(sender)

    with sender.core_lock:
        sender.publish("/t", 1)
        sender.publish_batch(("/t", 2))
        assert queue.available() == 0

    assert [queue.get(5.0), queue.get(5.0)] == [("/t", 1), ("/t", 2)]


def test_a_signal_handler_may_publish_whatever_it_interrupted(hubs):
    sender, receiver, queue = hubs
    routes = sender.node._broker.routes
    wire = routes.wires[receiver.node.node_id]
    for number, lock in enumerate((routes.lock, wire._lock)):
        calm(sender)
        with lock:  # as its thread has it while it sends something else
            sender.publish("/t", number)

    assert [queue.get(5.0), queue.get(5.0)] == [("/t", 0), ("/t", 1)]


def test_messages_in_a_row_wait_for_one_turn(hubs):
    sender, _, queue = hubs
    sender.publishing.idle_since = float("inf")

    with standing_still(sender):
        sender.publish("/t", 1)
        assert queue.get(0.2) is None
        assert sender.buffered == 1

    assert queue.get(5.0) == ("/t", 1)


def test_what_a_receiver_here_wants_too_waits_for_a_turn(hubs):
    sender, _, queue = hubs
    own: MessageQueue = MessageQueue()
    sender.add_receiver(own, ["/t"], sees_own=True).result(5)
    calm(sender)

    with standing_still(sender):
        sender.publish("/t", 1)
        assert queue.get(0.2) is None

    assert queue.get(5.0) == own.get(5.0) == ("/t", 1)


def test_a_link_that_is_full_gets_its_messages_in_turns(hubs, monkeypatch):
    sender, _, queue = hubs
    calm(sender)
    with monkeypatch.context() as patched:
        for module in (run_transmitter, peer_buffer):
            patched.setattr(module, "LINK_ROOM", 0)
        with standing_still(sender):
            sender.publish("/t", 1)
            assert queue.get(0.2) is None
        assert eventually(lambda: sender.transmitter.waiting == 1)
    sender.publish("/t", 2)

    assert [queue.get(5.0), queue.get(5.0)] == [("/t", 1), ("/t", 2)]


def test_without_a_node_that_answers_nothing_is_sent_and_nothing_breaks(hubs):
    sender, receiver, _ = hubs
    receiver.node.close()
    assert eventually(lambda: not sender.core.peer_topics())
    transmitted = sender.counters.transmitted
    calm(sender)

    sender.publish("/t", 1)

    assert eventually(lambda: sender.buffered == 0)
    assert sender.counters.transmitted == transmitted


def test_threads_that_publish_at_the_same_time_lose_double_and_reorder_nothing(hubs):
    sender, receiver, queue = hubs
    published, received = sender.counters.data_published, receiver.counters.received
    begin = threading.Barrier(THREADS)
    pause = threading.Event()

    def publish(thread: int) -> None:
        begin.wait(10)
        number = 0
        while number < EACH:
            match number % 7:
                case 0:
                    sender.publish_batch(
                        *(("/t", [thread, number + each]) for each in range(3))
                    )
                    number += 3
                case 5:
                    pause.wait(0.0001)  # calm again: the next one goes at once
                    sender.publish("/t", [thread, number])
                    number += 1
                case 6:
                    sender.publishing.send_to(receiver.node.node_id, [("/t", [thread, number])])
                    number += 1
                case _:
                    sender.publish("/t", [thread, number])
                    number += 1

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    got: dict[int, list[int]] = {number: [] for number in range(THREADS)}
    while (
        any(each.is_alive() for each in threads) or sum(map(len, got.values())) < THREADS * EACH
    ):
        item = queue.get(5.0)
        assert item is not None
        thread_number, number = item[1]
        got[thread_number].append(number)
    for thread in threads:
        thread.join()

    assert all(numbers[:EACH] == list(range(len(numbers)))[:EACH] for numbers in got.values())
    total = sum(map(len, got.values()))
    assert eventually(
        lambda: receiver.counters.received - received == total + queue.available()
    )
    assert 0 < sender.counters.data_published - published < total  # some were sent directly


def test_what_a_thread_asked_for_before_is_in_force_when_it_publishes(hubs):
    sender, _, _ = hubs
    calm(sender)
    own: MessageQueue = MessageQueue()

    with standing_still(sender):
        sender.add_receiver(own, ["/t"], sees_own=True)
        sender.publish("/t", 1)
    assert own.get(5.0) == ("/t", 1)
    with standing_still(sender):
        sender.remove_receiver(own)
        sender.publish("/t", 2)
    sender.flushed(5)

    assert own.available() == 0


def test_no_object_has_more_attributes_than_may_share_their_keys(hubs):
    """CPython shares the keys of at most 30 attributes; with more, each method is looked up."""
    found = {
        type(each).__qualname__: len(vars(each))
        for each in gc.get_objects()
        if type(each) in (Hub, Runner, Runtime, Wire)
    }

    assert found.keys() >= {"Hub", "Runner", "Runtime"}
    assert {name: count for name, count in found.items() if count > 30} == {}


class Door(DoorReceiver):
    """A door to a foreign peer: what it is told to bring in, and what goes out by it."""

    def __init__(self, key: str = "zeek:9999") -> None:
        self.peer_key = key
        self.wishes: list[tuple[str, ...]] = []
        self.items: list[tuple[str, object]] = []

    def take_from(self, sender, items, size):
        self.items += items


def test_a_door_is_told_what_others_want_and_when_that_changes(hubs):
    here, _, queue = hubs  # the other node wants /t
    door = Door()
    here.add_receiver(door, ["/peer", "/t"], sees_own=True).result(5)
    stop = here.watch_interest(door, door.wishes.append)
    assert eventually(lambda: door.wishes == [("/t",)])

    mine = MessageQueue()
    here.add_receiver(mine, ["/a/b", "/a", "/t/below", "store/<$>/data/master"]).result(5)
    assert eventually(lambda: door.wishes[-1] == ("/a", "/t"))
    here.add_receiver(door, ["/more of the peer"]).result(5)
    here.remove_receiver(mine, ["/a"]).result(5)
    assert eventually(lambda: door.wishes[-1] == ("/a/b", "/t"))
    assert len(door.wishes) == 3

    stop()
    here.remove_receiver(mine).result(5)
    here.add_receiver(mine, ["/late"]).result(5)
    assert len(door.wishes) == 3


def test_what_a_door_brings_encoded_reaches_all_but_doors_to_the_same_peer(hubs):
    here, _, queue = hubs
    door, same, another = Door(), Door(), Door("zeek:1")
    for each in (door, same, another):
        here.add_receiver(each, [""], sees_own=True).result(5)

    here.publishing.ingest_encoded([("/t", data_to_cbor(Data((1, "two"))))], door)

    assert queue.get(5.0) == ("/t", (1, "two"))
    assert eventually(lambda: another.items == [("/t", (1, "two"))])
    assert door.items == same.items == []


def test_former_names_of_methods_work_and_warn(hubs):
    here, _, queue = hubs
    door = Door()

    with pytest.warns(DeprecationWarning, match=r"Hub\.watch_wishes .*; use watch_interest"):
        here.watch_wishes(door, door.wishes.append)
    with pytest.warns(DeprecationWarning, match=r"; use publishing\.ingest_encoded") as warned:
        here.bring_in_encoded([("/t", data_to_cbor(Data(1)))], door, ttl=1)
    with pytest.warns(DeprecationWarning, match=r"Hub\.bring_in .*; use ingest"):
        here.bring_in([("/t", 2)], door)

    assert warned[0].filename == __file__
    assert eventually(lambda: door.wishes == [("/t",)])
    assert [queue.get(5.0), queue.get(5.0)] == [("/t", 1), ("/t", 2)]


def test_a_ttl_of_a_foreign_wire_travels_on(hubs):
    here, _, queue = hubs
    door = Door()
    for number, ttl in ((0, 0), (1, 1), (2, None)):
        here.publishing.ingest_encoded([("/t", data_to_cbor(Data(number)))], door, ttl)

    assert [queue.get(5.0), queue.get(5.0)] == [("/t", 1), ("/t", 2)]


def test_what_doors_bring_counts_as_waiting_and_is_taken_in_short_turns(hubs, monkeypatch):
    here, _, queue = hubs
    monkeypatch.setattr(input_queue, "INPUT_LIMIT", 8)
    monkeypatch.setattr(input_queue, "INGESTED_PER_TURN", 4)
    content, runs = data_to_cbor(Data(1)), []
    ingest = here.core.ingest

    def counted(pairs, *rest):
        runs.append((len(pairs), len(here.inputs)))
        return ingest(pairs, *rest)

    monkeypatch.setattr(here.core, "ingest", counted)
    with standing_still(here):
        for _ in range(4):
            here.publishing.ingest_encoded([("/t", content)] * 3, Door())
        assert not here.has_room()
        room = here.inputs.room()
        assert not room.done()
    room.result(5)
    for _ in range(12):
        assert queue.get(5.0) == ("/t", 1)

    assert runs == [(3, 2), (3, 2), (3, 0), (3, 0)]  # two reads in a turn
    assert here.has_room()


def test_a_wait_for_a_hub_that_has_ended_fails_at_once(hubs):
    sender, _, _ = hubs
    waiting = sender.waits.until(lambda core: False, 60.0)
    sender.me.kill()
    for wait in (waiting, sender.waits.until(lambda core: True, 60.0)):
        with pytest.raises(ActorDown, match="the topics of here have ended"):
            wait.result(10)
    with pytest.raises(ActorDown):
        sender.flushed(60.0)


def test_a_hub_keeps_no_order_that_is_carried_out(hubs):
    sender, _, _ = hubs
    for _ in range(10):
        sender.flushed(10.0)
    assert not sender.waits._orders


def test_commands_for_one_node_reach_its_receivers_of_commands_and_nobody_else(hubs):
    here, there, data = hubs
    commands: MessageQueue = MessageQueue()
    there.add_receiver(commands, ["/t"], kind=PackedType.COMMAND).result(5)
    contents = [data_to_cbor(Data(value)) for value in ("set", 7)]

    here.publishing.command_node(there.node.node_id, "/t", contents)

    assert [commands.get(5.0), commands.get(5.0)] == [("/t", "set"), ("/t", 7)]
    assert data.available() == 0
