"""Flows over ZeroMQ: the same table and the same class, other sockets."""

import asyncio
import queue
import threading
from typing import ClassVar

import pytest

from callboard.flow import (
    Bot,
    Flow,
    FlowAborted,
    FlowBroker,
    FlowError,
    FlowHandler,
    FlowRefused,
    FlowTimeout,
)
from callboard.flow.factories import FlowSpawn
from callboard.flow.protocol.message import Message
from callboard.proxies.errors import PublicAddress
from tests.callboard.flow.cast import Collector, Crashing, Numbers
from tests.polling import eventually

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed (extra zmq)")

KINDS = [
    "tcp://127.0.0.1:0",
    pytest.param(
        "tcp+draft://127.0.0.1:0",
        marks=pytest.mark.skipif(
            not zmq.has("draft"), reason="this pyzmq has no draft sockets"
        ),
    ),
]


@pytest.fixture(params=KINDS)
def serve(request, node):
    made = []

    def start(factory=None):
        def by_direction(bot):
            return FlowSpawn(node, Collector if bot.direction == "inject" else Numbers)(bot)

        broker = FlowBroker.bind(request.param, factory=factory or by_direction)
        made.append(broker)
        return broker

    yield start
    for broker in made:
        broker.close()


def test_clients_give_and_take(serve):
    broker = serve()
    with (
        Flow.connect(broker.address, credit=3, timeout=20) as one,
        Flow.connect(broker.address, "inject", timeout=20, attributes={"count": 50}) as two,
    ):
        for number in range(50):
            one.put([str(number), b""])
        assert one.eot()["got"] == [str(number) for number in range(50)]
        assert [dat.payload for dat in two] == [(b"%d" % number,) for number in range(50)]
    eventually(lambda: len(broker) == 0)
    assert broker.counters.ended == 2


def test_the_twins_work(serve):
    async def main():
        flow = await Flow.aconnect(serve().address, "inject", timeout=20)
        async with flow:
            return [bytes(dat) async for dat in flow]

    assert asyncio.run(main()) == [b"0", b"1", b"2"]


def test_refusals_and_crashes_reach_the_client(serve, node):
    with pytest.raises(FlowRefused, match="no handler"):
        Flow.connect(serve(lambda bot: None).address, timeout=20)
    flow = Flow.connect(serve(FlowSpawn(node, Crashing)).address, timeout=20)
    flow.put(b"x")
    with pytest.raises(FlowAborted, match="paper"):
        flow.close()


class Stumbling(FlowHandler):
    """Takes one DAT, and fails when the test says so."""

    took: ClassVar[threading.Event]
    fails: ClassVar[threading.Event]

    async def serve(self, flow: Flow, bot: Bot) -> None:
        await flow.aget()
        self.took.set()
        self.fails.wait(20)
        msg = "out of paper"
        raise ValueError(msg)


def test_last_words_are_read_before_a_handler_is_lost(serve, node):
    """A send finds that the handler is gone before the broker has read why it ended."""
    broker = serve(FlowSpawn(node, Stumbling))
    ends = queue.Queue()
    broker.post(lambda: ends.put(broker.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)))
    gone = ends.get(timeout=20)

    for _ in range(10):  # chance decides which of two peers the broker hears first
        Stumbling.took, Stumbling.fails, is_held = (threading.Event() for _ in range(3))
        flow = Flow.connect(broker.address, credit=9, timeout=20)
        flow.put(b"x")

        def hold(is_held=is_held):
            is_held.set()
            assert gone.poll(20_000)
            gone.recv_multipart()

        assert Stumbling.took.wait(20)
        broker.post(hold)
        assert is_held.wait(20)
        for _ in range(3):
            flow.put(b"y")
        Stumbling.fails.set()

        with pytest.raises(FlowAborted, match="paper"):
            flow.close()
        eventually(gone.poll)  # the client's socket
        gone.recv_multipart()
    eventually(lambda: len(broker) == 0)
    broker.post(lambda: broker.socket.disable_monitor())


def test_nobody_at_the_address_is_a_timeout():
    with pytest.raises(FlowTimeout):
        Flow.connect("tcp://127.0.0.1:1", timeout=0.1)


def test_an_address_of_no_use_is_an_error():
    with pytest.raises(FlowError):
        Flow.connect("tcp://", timeout=1)
    with pytest.raises(FlowError):
        FlowBroker.bind("tcp://no such host:1", factory=lambda bot: None)


def test_closing_the_broker_ends_its_flows(serve):
    broker = serve()
    flow = Flow.connect(broker.address, "inject", timeout=20, attributes={"count": 10**6})
    broker.close()

    with pytest.raises(FlowAborted, match="closed"):
        list(flow)
    assert broker.run(0)


def test_frames_on_the_wire_are_those_of_the_originals(node):
    """A DEALER sends an empty frame, prefix, coordinates and payload; strangers are dropped."""
    with FlowBroker.bind("tcp://127.0.0.1:0", factory=FlowSpawn(node, Collector)) as broker:
        sock = zmq.Context.instance().socket(zmq.DEALER)
        sock.setsockopt(zmq.RCVTIMEO, 20_000)
        sock.connect(broker.address)
        dat = Message(label='{"flow":"DAT"}').to_parts()
        for frames in ([b""], [b"x"], [b"", b"", b""], [b"", *dat], dat):
            sock.send_multipart(frames)
        bot = Message(label='{"flow":"BOT","direction":"extract","credit":2}')
        sock.send_multipart([b"", *bot.to_parts()])

        empty, *parts = sock.recv_multipart()

        assert empty == b""
        answer = Message.from_parts(parts).label_object
        assert answer == {"flow": "BOT", "direction": "inject", "credit": 2}
        assert broker.counters.malformed == 3
        assert broker.counters.unknown == 2
        sock.close(0)


def test_an_address_that_other_machines_reach_has_to_be_wanted() -> None:
    for address in ("tcp://0.0.0.0:0", "tcp://*:0"):
        with pytest.raises(PublicAddress, match="can be reached from other machines"):
            FlowBroker.bind(address, factory=lambda _: None)
    broker = FlowBroker.bind("tcp://0.0.0.0:0", factory=lambda _: None, insecure=True)
    broker.close()
