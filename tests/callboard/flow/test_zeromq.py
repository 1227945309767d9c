"""Flows over ZeroMQ: the same table and the same class, other sockets."""

import asyncio

import pytest

from callboard.flow import Flow, FlowAborted, FlowBroker, FlowError, FlowRefused, FlowTimeout
from callboard.flow.factories import Spawn
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
            return Spawn(node, Collector if bot.direction == "inject" else Numbers)(bot)

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
    flow = Flow.connect(serve(Spawn(node, Crashing)).address, timeout=20)
    flow.put(b"x")
    with pytest.raises(FlowAborted, match="paper"):
        flow.close()


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
    with FlowBroker.bind("tcp://127.0.0.1:0", factory=Spawn(node, Collector)) as broker:
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
