"""Flows through a broker on real nodes: the rules of the seed that need actors."""

import asyncio
import threading

import pytest

from callboard import Child, LinkFull, Node
from callboard.actors.cell import Cell
from callboard.flow import (
    FactoryDeadlock,
    Flow,
    FlowAborted,
    FlowBroker,
    FlowEnded,
    FlowHandler,
    FlowRefused,
    FlowTimeout,
)
from callboard.flow.factories import FlowSpawn, Pool, Route, call_factory
from callboard.flow.protocol.message import Message
from callboard.topics.hub import Hub
from tests.callboard.flow.cast import Collector, Counting, Crashing, Numbers
from tests.polling import eventually


def give(flow, count):
    for _ in range(count):
        flow.put(b"y")


def test_the_blocks_of_the_interface_work_over_tcp():
    with (
        Node("handlers") as node,
        FlowBroker.bind("basp://127.0.0.1:0", factory=FlowSpawn(node, Collector)) as broker,
    ):
        node.connect(broker.node.address)
        with Flow.connect(broker.address, direction="extract", credit=2, timeout=20) as flow:
            for word in ("a", "b", "c"):
                flow.put(word)
            assert flow.eot()["got"] == ["a", "b", "c"]
        assert broker.address.startswith("basp://127.0.0.1:")
        eventually(lambda: len(broker) == 0)


def test_z01_two_clients_through_one_broker_are_not_mixed(start, connect):
    broker = start()
    one, two = (connect(broker, attributes={"who": who}) for who in "ab")
    for number in range(30):
        one.put(f"a{number}")
        two.put(f"b{number}")

    for flow, letter in ((one, "a"), (two, "b")):
        end = flow.eot()
        assert end == {"got": [f"{letter}{n}" for n in range(30)], "who": letter}
        flow.close()
    eventually(lambda: len(broker) == 0)


def test_z02_every_port_has_a_routing_id_of_its_own_while_it_has_a_flow(start, connect):
    seen = []
    broker = start(lambda bot: seen.append(bot.cid) or FlowSpawn(broker.node, Collector)(bot))

    with connect(broker), connect(broker):
        assert len(set(seen)) == 2
        assert all(0 < rid < 2**32 for rid in seen)
        assert len(broker._actor._rids) == 4
    eventually(lambda: not broker._actor._rids)
    assert not broker._actor._ports


def test_z04_a_handler_that_exists_can_take_many_flows(node, start, connect):
    broker = start(Pool([node.spawn(Counting)]))

    flows = [connect(broker) for _ in range(5)]
    eventually(lambda: Counting.alive == 5)
    for flow in flows:
        flow.put(b"x")
        flow.close()

    assert (Counting.alive, Counting.most) == (0, 5)


def test_z04_routes_choose_by_what_the_bot_says(node, start, connect):
    route = (
        Route()
        .add(FlowSpawn(node, Collector), direction="inject", match={"stream": "raw"})
        .add(FlowSpawn(node, Numbers), match='(and (= direction "extract") (> credit 5))')
    )
    broker = start(route)

    with connect(broker, attributes={"stream": "raw"}) as flow:
        flow.put(b"x")
    with connect(broker, "inject", credit=6) as flow:
        assert [bytes(dat) for dat in flow] == [b"0", b"1", b"2"]
    with pytest.raises(FlowRefused, match="no rule"):
        connect(broker, "inject", credit=5)


def test_z05_a_handler_may_lower_the_credit_and_say_more(node, start, connect):
    class Careful(Collector):
        credit = 2

        def opening(self, bot):
            return {"mood": "careful"}

    broker = start(FlowSpawn(node, Careful))

    with connect(broker, credit=50) as flow:
        assert flow.total_credit == 2
        assert flow.peer_attributes == {"mood": "careful"}
        for _ in range(9):
            flow.put(b"x")


def test_z11_a_client_never_sees_the_initiation(start, connect):
    broker = start()

    with connect(broker, attributes={"who": "me"}) as flow:
        assert flow.peer_attributes == {"who": "me"}


@pytest.mark.slow
def test_z12_broker_and_handlers_work_on_a_port_that_the_application_made(processes):
    (there,) = processes(1, spawnable={"Collector": Collector})
    with Node() as node:
        node.listen("127.0.0.1", 0)
        broker = FlowBroker(node, factory=FlowSpawn(node, Collector, on=there.address))

        with Flow.connect(f"{node.address}/flow", node=node, timeout=20) as flow:
            flow.put(b"over there")
            assert flow.eot()["got"] == ["over there"]
        eventually(lambda: len(broker) == 0)


@pytest.mark.slow
def test_a_killed_process_of_handlers_is_noticed_by_the_clients(processes):
    (there,) = processes(1, spawnable={"Collector": Collector})
    with Node() as node:
        node.listen("127.0.0.1", 0)
        broker = FlowBroker(node, factory=FlowSpawn(node, Collector, on=there.address))
        flows = [Flow.connect(broker.ref, node=node, timeout=20) for _ in range(5)]
        there.kill()

        for flow in flows:
            with pytest.raises(FlowAborted, match="lost"):
                flow.close()
        eventually(lambda: len(broker) == 0)


def test_z13_the_same_class_is_client_and_handler(node, start, connect):
    kinds = []

    class Mirror(FlowHandler):
        async def serve(self, flow, bot):
            kinds.append(type(flow))
            await exchange(flow)

    async def exchange(flow):
        """Both sides run this."""
        if flow.is_giver:
            for number in range(4):
                await flow.aput(str(number))
        else:
            seen.append([bytes(dat) async for dat in flow])

    async def client(direction):
        flow = await Flow.aconnect(broker.ref, direction, timeout=20)
        kinds.append(type(flow))
        async with flow:
            await exchange(flow)

    seen = []
    broker = start(FlowSpawn(node, Mirror))
    for direction in ("extract", "inject"):
        asyncio.run(client(direction))

    assert seen == [[b"0", b"1", b"2", b"3"]] * 2
    assert set(kinds) == {Flow}


def test_z14_a_handler_needs_nothing_but_the_interface_of_flows(start, connect):
    assert [name for name in vars(Collector) if not name.startswith("_")] == [
        "flow_timeout",
        "serve",
    ]
    with connect(start()) as flow:
        flow.put(b"x")
        assert flow.eot()["got"] == ["x"]


def test_z15_a_slow_factory_delays_and_loses_nothing(node, start, connect):
    gate = threading.Event()

    def slow(bot):
        gate.wait(20)
        return FlowSpawn(node, Collector)(bot)

    broker = start(slow)
    outcomes = []

    def client(who):
        with connect(broker, attributes={"who": who}) as flow:
            flow.put(who)
            outcomes.append(flow.eot()["got"])

    threads = [threading.Thread(target=client, args=(who,)) for who in "ab"]
    for thread in threads:
        thread.start()
    eventually(lambda: node.runtime.contexts[broker.ref.actor_id].depth == 1)
    gate.set()
    for thread in threads:
        thread.join(20)

    assert sorted(outcomes) == [["a"], ["b"]]


@pytest.mark.parametrize(("seconds", "is_named"), [(0.1, False), (0.11, True)])
def test_a_slow_factory_is_named_in_the_log(caplog, seconds, is_named):
    times = iter([0.0, seconds])

    assert call_factory(lambda bot: "handler", "bot", times.__next__) == ""

    assert ("the factory took 0.1 s for 'bot'" in caplog.text) is is_named


@pytest.mark.parametrize("how", ["connect", "answer"])
def test_z16_a_factory_that_runs_the_initiation_itself_is_told_so(node, start, connect, how):
    raised = []

    def wrong(bot):
        try:
            if how == "connect":
                connect(broker)
            else:
                from callboard.flow.protocol.machine import FlowMachine

                Flow(FlowMachine(bot.direction, bot.credit, bot.object)).open()
        except FactoryDeadlock as error:
            raised.append(error)
            raise

    broker = start(wrong)
    with pytest.raises(FlowRefused, match="hand_to"):
        connect(broker)
    assert len(raised) == 1


def test_z16_a_coroutine_function_is_no_factory(start, connect):
    async def wrong(bot):
        return True

    with pytest.raises(FlowRefused, match="plain function"):
        connect(start(wrong))


def test_z18_many_flows_share_one_broker(start, connect):
    broker = start()
    flows = [connect(broker, credit=3) for _ in range(40)]
    for number in range(10):
        for flow in flows:
            flow.put(str(number))

    assert all(flow.eot()["got"] == [str(n) for n in range(10)] for flow in flows)
    assert broker.counters.opened == 40


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (lambda bot: None, "no handler accepts"),
        (lambda bot: 1 // 0, "ZeroDivisionError"),
        (Pool([]), "no handlers"),
        (Route(), "no rule"),
    ],
)
def test_a_refusal_reaches_the_client_with_its_reason(start, connect, factory, reason):
    broker = start(factory)

    with pytest.raises(FlowRefused, match=reason):
        connect(broker)
    assert len(broker) == 0


def test_a_handler_can_refuse(node, start, connect):
    class Picky(Collector):
        def opening(self, bot):
            msg = "not on Sundays"
            raise FlowRefused(msg)

    broker = start(FlowSpawn(node, Picky))
    with pytest.raises(FlowRefused, match="Sundays"):
        connect(broker)
    assert len(broker) == 0


def test_a_handler_without_serve_says_what_to_define(node, start, connect):
    class Empty(FlowHandler):
        pass

    broker = start(FlowSpawn(node, Empty))

    flow = connect(broker)
    with pytest.raises(FlowAborted, match="Empty cannot serve flows: define async def serve"):
        give(flow, 100)


def test_a_handler_that_cannot_be_spawned_elsewhere_is_a_refusal(node, start, connect):
    node.listen("127.0.0.1", 0)
    broker = start(FlowSpawn(node, Collector, on=node.address))

    with pytest.raises(FlowRefused, match="spawned"):
        connect(broker)


def test_a_crashed_handler_is_noticed_by_its_client(node, start, connect):
    broker = start(FlowSpawn(node, Crashing))
    flow = connect(broker, credit=1)
    flow.put(b"x")

    with pytest.raises(FlowAborted, match="paper"):
        give(flow, 3)
    with pytest.raises(FlowAborted):
        flow.close()
    eventually(lambda: len(broker) == 0)


def test_a_crashed_handler_is_started_again_by_its_supervisor(node, start, connect):
    class Pooled(Crashing):
        def __init__(self):
            self.node.group("workers").join(self.me)

    node.supervise([Child(Pooled)])
    workers = node.group("workers")
    broker = start(Pool(workers))
    for _ in range(2):
        (before,) = workers.ready(1).result(20)
        flow = connect(broker, credit=1)
        flow.put(b"x")
        with pytest.raises(FlowAborted):
            flow.close()
        eventually(lambda gone=before: gone not in workers and len(workers) == 1)


def test_a_client_that_breaks_off_is_noticed_by_its_handler(node, start, connect):
    failed = []

    class Watching(Collector):
        def flow_failed(self, bot, error):
            failed.append(str(error))

    broker = start(FlowSpawn(node, Watching))
    with pytest.raises(KeyError), connect(broker) as flow:
        flow.peer_attributes["sorry"]
    eventually(lambda: failed)
    assert "KeyError: 'sorry'" in failed[0]

    gone = connect(broker)
    gone._link.port.kill()
    eventually(lambda: len(failed) == 2)
    assert "lost" in failed[1]
    eventually(lambda: len(broker) == 0)


def test_a_closed_broker_ends_its_flows(start, connect):
    broker = start()
    flow = connect(broker, "inject", attributes={"count": 1000})
    broker.close()

    with pytest.raises(FlowAborted, match="closed|lost"):
        list(flow)
    assert broker.run(20)


def test_a_taker_may_end_first_and_what_was_under_way_is_absorbed(start, connect):
    broker = start()
    with connect(broker, "inject", credit=4, attributes={"count": 10**6}) as flow:
        assert bytes(flow.get()) == b"0"
    eventually(lambda: len(broker) == 0)


def test_put_and_get_belong_to_their_sides_and_end_with_the_flow(start, connect):
    broker = start()
    with connect(broker) as giver:
        with pytest.raises(TypeError, match="taker|put"):
            giver.get()
        with pytest.raises(TypeError):
            giver.put(3)
    with connect(broker, "inject", attributes={"count": 2}) as taker:
        with pytest.raises(TypeError, match="giver|get"):
            taker.put(b"")
        assert [dat.attributes["number"] for dat in taker] == [0, 1]
        with pytest.raises(FlowEnded):
            taker.get()


def test_waits_end_in_time(node, start):
    broker = start(lambda bot: True)  # somebody will answer, says the factory

    with pytest.raises(FlowTimeout, match="did not answer within"):
        Flow.connect(broker.ref, node=node, timeout=0.05)
    eventually(lambda: len(broker) == 0)


def test_a_peer_that_takes_nothing_more_ends_its_flow_only(node, start, connect, monkeypatch):
    broker = start(FlowSpawn(node, Collector))
    fine, stuck = connect(broker), connect(broker)
    target = stuck._link._sender

    def post(self, message, sender):
        if self is target and isinstance(message, bytes):
            msg = "more waits to be sent than may"
            raise LinkFull(msg)
        before(self, message, sender)

    before = Cell.post
    with monkeypatch.context() as patch:
        patch.setattr(Cell, "post", post)
        for _ in range(30):
            fine.put(b"x")
        stuck._send(stuck._machine.end())  # its echo cannot be sent
        eventually(lambda: len(broker) == 1)

    assert len(fine.eot()["got"]) == 30
    assert broker.counters.aborted + broker.counters.ended == 2


def test_strangers_are_dropped_and_counted(node, start):
    broker = start()
    broker.ref.tell(b"no message")
    broker.ref.tell(Message(label='{"flow":"DAT"}').encode())

    eventually(lambda: broker.counters.unknown == 2)


def test_a_handler_can_publish_to_topics(node, start, connect):
    heard = []

    class Box:
        def take(self, items):
            heard.extend(items)

    class Publishing(FlowHandler):
        async def serve(self, flow, bot):
            async for dat in flow:
                Hub.of(self.node).publish("flows/raw", bytes(dat).decode())

    Hub.of(node).add_receiver(Box(), ["flows"], sees_own=True).result(20)
    broker = start(FlowSpawn(node, Publishing))
    with connect(broker) as flow:
        flow.put("news")

    eventually(lambda: heard)
    assert heard[0][0] == "flows/raw"


def test_async_twins_work_in_asyncio_and_on_a_node_of_their_own(start, node):
    node.listen("127.0.0.1", 0)
    start()

    async def main():
        flow = await Flow.aconnect(
            f"{node.address}/flow", "inject", attributes={"count": 3}, timeout=20
        )
        async with flow:
            return [bytes(dat) async for dat in flow]

    assert asyncio.run(main()) == [b"0", b"1", b"2"]
