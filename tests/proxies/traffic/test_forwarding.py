"""Frames for other nodes go on in their order, in runs, and none disappears unseen."""

import threading
from types import SimpleNamespace

import pytest

from callboard.basp.frame import FrameReader, pack_frame
from callboard.basp.header import RESPONSE, Operation
from callboard.proxies.events import Undeliverable
from callboard.proxies.traffic.forwarding import PASSAGES, Forwarding

SOURCE, NEAR, FAR = (bytes([number]) * 18 for number in (1, 2, 3))
DISPATCH = Operation.DISPATCH_MESSAGE


class FakeWire:
    def __init__(self):
        self.runs = []

    def write_run(self, frames):
        self.runs.append(frames)


class World:
    """A node that has paths to some nodes, and holds what is for others that it looks for."""

    def __init__(self):
        self.wires = {NEAR: FakeWire(), FAR: FakeWire()}
        self.sought, self.held, self.events, self.undeliverable = set(), [], [], 0
        runtime = SimpleNamespace(report=self.events.append, now=lambda: 2.5)
        self.lock = threading.Lock()
        self.forwarding = Forwarding(runtime, self, self)

    def wire_to(self, node):
        return self.wires.get(node)

    def hold(self, node, send):
        if node in self.sought:
            self.held.append(send)
        return node in self.sought

    def forward(self, *packed):
        self.forwarding.forward(FrameReader().feed(b"".join(packed)))


@pytest.fixture
def world():
    return World()


def frame(destination, data=0, payload=b"", operation=DISPATCH):
    return pack_frame(operation, data, SOURCE, destination, 0, 9, payload)


def test_frames_for_one_node_are_written_at_once_and_unchanged(world):
    sent = [frame(FAR, number, b"x" * number) for number in range(5)]
    sent.append(frame(FAR, operation=Operation.ANNOUNCE_PROXY_INSTANCE))

    world.forward(*sent)

    assert world.wires[FAR].runs == [sent]
    assert world.forwarding.forwarded == 6


def test_frames_for_different_nodes_keep_their_order(world):
    sent = [frame((NEAR, FAR)[number % 2], number) for number in range(6)]

    world.forward(*sent)

    assert sum(world.wires[NEAR].runs, []) == sent[::2]
    assert sum(world.wires[FAR].runs, []) == sent[1::2]


def test_what_has_no_path_is_held_while_one_is_looked_for(world):
    wire = world.wires.pop(FAR)
    world.sought.add(FAR)
    sent = [frame(FAR, number) for number in range(3)]
    world.forward(frame(NEAR), *sent)
    assert world.forwarding.forwarded == 1

    world.wires[FAR] = wire
    for send in world.held:
        send()

    assert wire.runs == [[each] for each in sent]
    assert world.forwarding.forwarded == 4
    assert world.events == []


def test_what_can_go_nowhere_is_counted_and_told(world):
    del world.wires[FAR]

    world.forward(frame(FAR), frame(NEAR), frame(FAR))

    assert world.undeliverable == 2
    assert world.events == [Undeliverable(SOURCE, FAR)] * 2
    assert world.forwarding.forwarded == 1


def test_asks_and_answers_that_pass_are_remembered(world):
    world.forward(frame(FAR), frame(FAR, 7), frame(NEAR, RESPONSE | 8))

    noted = [
        (each.source, each.destination, each.message_id, each.is_response, each.at)
        for each in world.forwarding.passages
    ]
    assert noted == [
        (SOURCE, FAR, 7, False, 2_500_000_000),
        (SOURCE, NEAR, 8, True, 2_500_000_000),
    ]


def test_only_the_latest_passages_are_remembered(world):
    world.forward(*(frame(FAR, number + 1) for number in range(PASSAGES + 5)))

    assert [each.message_id for each in world.forwarding.passages][0] == 6
    assert len(world.forwarding.passages) == PASSAGES
