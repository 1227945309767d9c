"""The core: what goes where, decoded once and only where somebody wants it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.model.errors import MalformedMessage
from callboard.topics.machine.core import Core
from callboard.topics.machine.effect import (
    DeliverItems,
    DoorReceiver,
    PeerEvent,
    RunReceiver,
    TransmitRun,
)
from callboard.topics.machine.run import (
    RUN_LENGTH,
    RUN_SIZE,
    PackedType,
    decode_run,
    encode_pair,
    pack_runs,
    ttl_of,
)
from callboard.topics.machine.status import SC

DATA, COMMAND = PackedType.DATA, PackedType.COMMAND


class Net:
    """Cores in a line, and what they transmit carried out at once."""

    def __init__(self, names: bytes, **options: Any) -> None:
        self.names = [bytes((name,)) for name in names]
        self.cores = {
            name: Core(name * 16, lambda to, own=name: self.path(own, to), **options)
            for name in self.names
        }
        self.got: dict[object, list[Any]] = {}
        self.events: list[PeerEvent] = []
        self.transmitted: list[TransmitRun] = []

    def path(self, own: bytes, to: bytes) -> list[bytes]:
        here, there = self.names.index(own), self.names.index(to)
        step = 1 if there > here else -1
        return (
            self.names[here + step : there + step : step]
            if there + step >= 0
            else [*reversed(self.names[:here])]
        )

    def link(self) -> None:
        for one in self.names:
            for other in self.names:
                if one != other:
                    self.carry_out(one, self.cores[one].endpoint_found(other, 1.0))

    def carry_out(self, own: bytes, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case TransmitRun():
                    self.transmitted.append(effect)
                    target = self.cores[effect.node]
                    self.carry_out(effect.node, target.receive(own, effect.payload, 1.0))
                case DeliverItems():
                    self.got.setdefault(effect.receiver, []).extend(effect.items)
                case PeerEvent():
                    self.events.append(effect)

    def subscribe(self, own: bytes, receiver: str, *topics: str, **how: Any) -> None:
        self.carry_out(own, self.cores[own].subscribe(receiver, topics, 1.0, **how))

    def publish(self, own: bytes, *messages: tuple[str, Any]) -> None:
        run = [(topic, encode_pair(topic, value)) for topic, value in messages]
        self.carry_out(own, self.cores[own].data_inputs(run))


@pytest.fixture
def line() -> Net:
    net = Net(b"abc")
    net.link()
    return net


def test_a_message_reaches_whoever_takes_its_topic_and_nobody_else(line: Net) -> None:
    line.subscribe(b"b", "b1", "/x")
    line.subscribe(b"c", "c1", "/x/y", "/z")
    line.subscribe(b"c", "c2", "/q")

    line.publish(b"a", ("/x/y/z", 1), ("/x", 2), ("/nobody", 3), ("/z", 4))

    assert line.got == {"b1": [("/x/y/z", 1), ("/x", 2)], "c1": [("/x/y/z", 1), ("/z", 4)]}


def test_it_is_serialized_once_and_decoded_once_where_it_is_wanted(line: Net) -> None:
    line.subscribe(b"c", "c1", "/x")
    line.subscribe(b"c", "c2", "/x")

    line.publish(b"a", ("/x", [1, 2]))

    counts = {name: core.counters for name, core in line.cores.items()}
    assert (counts[b"a"].serialized, counts[b"a"].deserialized) == (1, 0)
    assert (counts[b"b"].serialized, counts[b"b"].received) == (0, 0)
    assert (counts[b"c"].deserialized, counts[b"c"].delivered) == (1, 2)


def test_outputs_are_made_with_the_first_subscriber(line: Net) -> None:
    line.carry_out(b"a", line.cores[b"a"].send_to(b"b", DATA, [("/x", encode_pair("/x", 1))]))

    assert line.cores[b"b"].counters.unwanted == 1
    assert line.cores[b"b"].counters.deserialized == 0


def test_many_messages_for_one_node_go_as_one_dispatch(line: Net) -> None:
    line.subscribe(b"c", "c1", "/x")
    line.transmitted.clear()

    line.publish(b"a", *[("/x", i) for i in range(RUN_LENGTH)])

    assert [run.messages for run in line.transmitted] == [RUN_LENGTH]
    assert line.got["c1"] == [("/x", i) for i in range(RUN_LENGTH)]


def test_own_messages_are_only_for_who_wants_to_see_them(line: Net) -> None:
    line.subscribe(b"a", "subscriber", "/x")
    line.subscribe(b"a", "hub", "/x", sees_own=True)

    line.publish(b"a", ("/x", {1: 2}))
    line.publish(b"b", ("/x", 2))

    assert line.got == {"hub": [("/x", {1: 2}), ("/x", 2)], "subscriber": [("/x", 2)]}


def test_nothing_comes_after_unsubscribing(line: Net) -> None:
    line.subscribe(b"b", "b1", "/x", "/y")
    core = line.cores[b"b"]
    line.carry_out(b"b", core.unsubscribe("b1", ["/x"], 1.0))

    line.publish(b"a", ("/x", 1), ("/y", 2))

    assert line.got == {"b1": [("/y", 2)]}
    assert core.filters.topics == {"/y"}
    assert line.cores[b"a"].counters.transmitted == 1


def test_a_topic_that_two_receivers_want_stays_until_both_are_gone(line: Net) -> None:
    line.subscribe(b"b", "b1", "/x")
    line.subscribe(b"b", "b2", "/x")
    line.carry_out(b"b", line.cores[b"b"].unsubscribe("b1", ["/x"], 1.0))

    line.publish(b"a", ("/x", 1))

    assert line.got == {"b2": [("/x", 1)]}


def test_commands_and_data_do_not_mix(line: Net) -> None:
    line.subscribe(b"b", "store", "s/", kind=COMMAND)
    line.subscribe(b"b", "user", "s/")
    run = [("s/x", encode_pair("s/x", "command"))]

    line.carry_out(b"a", line.cores[b"a"].command_inputs(run))

    assert line.got == {"store": [("s/x", "command")]}


def test_ttl_limits_the_links_that_a_message_crosses() -> None:
    net = Net(b"abcd", ttl=2)
    net.link()
    for name in (b"b", b"c", b"d"):
        net.subscribe(name, name, "/x")

    net.publish(b"a", ("/x", 1))

    assert set(net.got) == {b"b", b"c"}


def test_nothing_passes_a_node_that_does_not_forward() -> None:
    net = Net(b"abc")
    net.cores[b"b"].filters.forwards = False
    net.link()
    net.subscribe(b"b", "b1", "/x")
    net.subscribe(b"c", "c1", "/x")

    net.publish(b"a", ("/x", 1))

    assert set(net.got) == {"b1"}


def test_local_topics_never_leave(line: Net) -> None:
    line.subscribe(b"b", "b1", "")

    line.publish(b"a", ("<$>/local/data/errors", 1), ("/x", 2))

    assert line.got == {"b1": [("/x", 2)]}


def test_an_endpoint_is_discovered_before_it_is_a_peer() -> None:
    net = Net(b"ab")
    for own, other in ((b"a", b"b"), (b"b", b"a")):
        net.carry_out(own, net.cores[own].link_established(other, ("host", 1)))
    net.link()

    kinds = [event.kind for event in net.events if event.endpoint == b"b" * 16]
    assert kinds == [SC.EndpointDiscovered, SC.PeerAdded]
    assert net.cores[b"a"].node_of(b"b" * 16) == b"b"


@pytest.mark.parametrize(
    ("by_user", "kind"),
    [(True, SC.PeerRemoved), (False, SC.PeerLost)],
)
def test_the_end_of_a_link_and_of_the_last_path(by_user: bool, kind: SC) -> None:
    net = Net(b"ab")
    net.link()
    core = net.cores[b"a"]
    core.link_established(b"b")

    gone = core.link_lost(b"b", "cut", by_user=by_user)
    lost = core.endpoint_lost(b"b", "no path")

    assert [event.kind for event in gone] == [kind]
    assert [e.kind for e in lost if isinstance(e, PeerEvent)] == [SC.EndpointUnreachable]
    assert core.node_of(b"b" * 16) is None
    net.transmitted.clear()
    net.publish(b"a", ("/x", 1))
    assert net.transmitted == []


def test_nodes_without_an_endpoint_that_come_and_go_leave_nothing() -> None:
    core = Net(b"ab").cores[b"a"]
    before = dict(core._places)
    for number in range(100):
        core.link_established(b"%d" % number, ("host", number))
        assert core.link_lost(b"%d" % number, "cut") == []
    assert core._places == before


def test_garbage_is_an_error_and_changes_nothing(line: Net) -> None:
    line.subscribe(b"b", "b1", "")
    core = line.cores[b"b"]

    for garbage in (
        b"",
        b"\x00",
        b"\x82\x01\x10",
        b"\x83\x01\x10\x61a",
        b"\x84\x01\x10\x05\x05",
    ):
        try:
            assert core.receive(b"a", garbage, 1.0) == []
        except MalformedMessage:
            continue
    line.publish(b"a", ("/x", 1))

    assert line.got == {"b1": [("/x", 1)]}


@given(st.lists(st.integers(1, RUN_SIZE // 3), max_size=40))
def test_runs_are_cut_by_size_and_lose_nothing(sizes: list[int]) -> None:
    pairs = [encode_pair("/t", "x" * size) for size in sizes]

    runs = list(pack_runs(DATA, 3, pairs)) if pairs else []

    values = [item for payload, _ in runs for item in decode_run(payload)[1]]
    assert values == [("/t", "x" * size) for size in sizes]
    assert sum(count for _, count in runs) == len(sizes)
    assert all(len(payload) <= RUN_SIZE + 16 or count == 1 for payload, count in runs)


class Door(DoorReceiver):
    """A door that keeps what it is told, and the links that this may still cross."""

    def __init__(self, key: str, *, takes_pairs: bool = True) -> None:
        self.peer_key, self.takes_pairs = key, takes_pairs
        self.taken: list[Any] = []

    def take_own(self, run: Any) -> None:
        self.taken += [("own", topic) for topic, _ in run]

    def take_from(self, _sender: bytes, items: list[Any], _size: int) -> None:
        self.taken += [("plain", topic) for topic, _ in items]

    def take_within(self, ttl: int, _sender: bytes, items: list[Any], _size: int) -> None:
        self.taken += [(ttl, topic) for topic, _ in items]


class DoorNet(Net):
    """A line of cores whose doors are handed what they get."""

    def carry_out(self, own: bytes, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, DeliverItems) and isinstance(effect.receiver, RunReceiver):
                effect.receiver.take_from(effect.sender, effect.items, effect.size)
            else:
                super().carry_out(own, [effect])

    def ingest(self, own: bytes, door: Door, topic: str, ttl: int | None) -> None:
        pairs = [(topic, encode_pair(topic, 1))]
        self.carry_out(own, self.cores[own].ingest(pairs, door, ttl))


@pytest.mark.parametrize(
    ("ttl", "near", "next_node", "last_node"),
    [
        (None, 4, 3, 2),
        (16, 4, 3, 2),
        (4, 4, 3, 2),
        (2, 2, 1, 0),
        (1, 1, 0, None),
        (0, 0, None, None),
    ],
)
def test_a_door_is_told_how_many_links_a_message_may_still_cross(
    ttl: int | None, near: int, next_node: int | None, last_node: int | None
) -> None:
    net = DoorNet(b"abc", ttl=4)
    net.link()
    doors = {name: Door(name) for name in ("in", "a", "b", "c")}
    for name in ("a", "b", "c"):
        net.subscribe(name.encode(), doors[name], "/x", sees_own=True)  # type: ignore[arg-type]
    net.subscribe(b"a", doors["in"], "/x", sees_own=True)  # type: ignore[arg-type]

    net.ingest(b"a", doors["in"], "/x/1", ttl)

    assert doors["in"].taken == []
    for name, left in (("a", near), ("b", next_node), ("c", last_node)):
        assert doors[name].taken == ([] if left is None else [(left, "/x/1")])


def test_a_door_gets_what_its_endpoint_publishes_as_it_was_encoded_if_it_takes_that() -> None:
    net = DoorNet(b"ab", ttl=4)
    net.link()
    encoded, plain = Door("1"), Door("2", takes_pairs=False)
    for door in (encoded, plain):
        net.subscribe(b"a", door, "/x", sees_own=True)  # type: ignore[arg-type]

    net.publish(b"a", ("/x/1", 1), ("/y", 2), ("/x/2", 3))
    net.publish(b"b", ("/x/3", 1))
    net.carry_out(b"a", net.cores[b"a"].unsubscribe(encoded, None, 1.0))
    net.publish(b"a", ("/x/4", 1))

    assert encoded.taken == [("own", "/x/1"), ("own", "/x/2"), (3, "/x/3")]
    assert plain.taken == [("plain", "/x/1"), ("plain", "/x/2"), (3, "/x/3"), ("plain", "/x/4")]


@given(st.integers(0, 2**40), st.integers(1, 2_000))
def test_the_ttl_of_a_run_is_read_from_its_bytes(ttl: int, count: int) -> None:
    ((payload, _), *_) = pack_runs(DATA, ttl, [encode_pair("/t", 1)] * min(count, RUN_LENGTH))

    assert ttl_of(payload) == (ttl if ttl < 2**32 else 0)
