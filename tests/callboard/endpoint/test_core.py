"""The core: what goes where, decoded once and only where somebody wants it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.endpoint.machine.core import Core
from callboard.endpoint.machine.effect import (
    DeliverItems,
    PeerEvent,
    TransmitRun,
)
from callboard.endpoint.machine.run import (
    RUN_LENGTH,
    RUN_SIZE,
    PackedType,
    decode_run,
    encode_pair,
    pack_runs,
)
from callboard.endpoint.machine.status import SC
from callboard.model.errors import MalformedMessage

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
