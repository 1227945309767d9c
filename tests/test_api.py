"""What the guide promises holds."""

import asyncio
import inspect

import pytest

from callboard import Actor, ActorRef, Child, Exit, Node, handler
from callboard.actors.errors import (
    ActorDown,
    AskTimeout,
    CallboardError,
    NodeUnreachable,
    NoSuchMethod,
    RemoteError,
    ReservedName,
    ResultTimeout,
    UnexpectedMessage,
    WouldBlock,
    WouldDeadlock,
)
from tests.polling import eventually


class Worker(Actor):
    @handler
    def text(self, msg: str) -> str:
        if msg == "fail":
            raise ValueError("no good")
        return msg

    @handler
    async def slow(self, msg: float) -> float:
        await self.sleep(msg)
        return msg

    @handler
    def sender_of(self, _: bytes) -> ActorRef | None:
        return self.sender

    @handler
    def block(self, msg: list) -> object:
        return self.me.ask("x").result(5)

    def method(self) -> int:
        return 1

    def _private(self) -> None:
        pass


@pytest.fixture
def nodes():
    with Node("here") as here, Node("there") as there:
        there.listen()
        here.connect(there.address)
        yield here, there


@pytest.fixture(params=["local", "remote"])
def worker(nodes, request):
    here, there = nodes
    spawned = here.spawn(Worker) if request.param == "local" else there.spawn(Worker)
    return here.ref(str(spawned))


def test_every_blocking_method_has_one_twin_with_the_same_signature():
    twins = {
        name: member
        for name, member in inspect.getmembers(Node)
        if inspect.iscoroutinefunction(member) and not name.startswith("_")
    }

    assert twins
    for name, twin in twins.items():
        assert name[0] == "a"
        assert inspect.signature(getattr(Node, name[1:])) == inspect.signature(twin)


def test_refs_are_the_same_on_every_node(nodes):
    here, there = nodes
    refs = [node.spawn(Worker) for node in (here, there, here)]

    seen = [there.ref(str(ref)) for ref in refs]

    assert seen == refs
    assert set(seen) == set(refs)
    assert sorted(seen) == sorted(refs)
    assert [ref.is_local for ref in seen] == [False, True, False]
    assert [(ref.node_id, ref.actor_id) for ref in seen] == [
        (ref.node_id, ref.actor_id) for ref in refs
    ]


def test_tell_to_a_dead_actor_does_not_raise(nodes, worker):
    down = nodes[0].monitor(worker)
    worker.stop()
    down.result(5)

    worker.tell("late")

    with pytest.raises(ActorDown):
        worker.ask("late").result(5)


def test_asks_fail_with_the_promised_errors(worker):
    with pytest.raises(UnexpectedMessage):
        worker.ask({}).result(5)
    with pytest.raises(NoSuchMethod):
        worker.proxy().no_such_method().result(5)
    with pytest.raises(NoSuchMethod):
        worker.proxy()._private()
    with pytest.raises(RemoteError) as caught:
        worker.ask("fail").result(5)
    assert (caught.value.type_name, caught.value.text) == ("ValueError", "no good")
    assert "no good" in caught.value.traceback


def test_a_result_that_runs_out_leaves_the_ask_alone(worker):
    future = worker.ask(0.05)

    with pytest.raises(ResultTimeout):
        future.result(0.001)

    assert future.result(5) == 0.05


def test_an_ask_that_runs_out_is_over(worker):
    with pytest.raises(AskTimeout):
        worker.ask(10.0, timeout=0.02).result(5)


@pytest.mark.parametrize("kind", [AskTimeout, ResultTimeout])
def test_both_timeouts_are_timeout_errors(kind):
    assert issubclass(kind, TimeoutError)
    assert issubclass(kind, CallboardError)


def test_an_unreachable_node_is_a_connection_error(nodes):
    nobody = nodes[0].ref(f"basp:///99@{'ab' * 18}")

    with pytest.raises(NodeUnreachable) as caught:
        nobody.ask("x").result(5)

    assert isinstance(caught.value, ConnectionError)


def test_waiting_where_it_would_block_names_what_to_do(nodes, worker):
    async def program() -> None:
        with pytest.raises(WouldBlock, match="await"):
            worker.ask(0.5).result(5)
        with pytest.raises(WouldBlock, match="aconnect"):
            nodes[0].connect(nodes[1].address)
        assert await worker.ask("x") == "x"

    asyncio.run(program())


def test_waiting_for_oneself_would_deadlock(worker):
    with pytest.raises(RemoteError) as caught:
        worker.ask([]).result(5)

    assert caught.value.type_name == WouldDeadlock.__name__


def test_a_reserved_name_is_refused_when_the_class_is_made():
    with pytest.raises(ReservedName, match="sender"):

        class Bad(Actor):
            def sender(self) -> None:
                pass


def test_after_can_be_cancelled_and_self_knows_its_place():
    class Parent(Actor):
        def __init__(self) -> None:
            self.got: list[str] = []
            self.after(0.0, "comes")
            self.after(60.0, "never").cancel()

        @handler
        def text(self, msg: str) -> None:
            self.got.append(msg)

        @handler
        async def facts(self, _: int) -> list[object]:
            child = self.spawn(Child_)
            return [self.got, self.parent, self.me, self.node.name, await child.ask(1)]

    class Child_(Actor):  # noqa: N801
        @handler
        def who(self, _: int) -> object:
            return self.parent

    with Node("n") as node:
        parent = node.spawn(Parent)

        while not parent.ask(1).result(5)[0]:
            pass
        assert parent.ask(1).result(5) == [["comes"], None, parent, "n", parent]


def test_options_can_be_set_for_one_spawn():
    class Linked(Actor):
        @handler
        def link_to(self, msg: list) -> None:
            self.link(msg[0])

        @handler
        def exit(self, msg: Exit) -> None:
            self.reason = msg.reason

        def told(self) -> object:
            return str(self.reason)

    with Node() as node:
        worker, linked = node.spawn(Worker), node.spawn(Linked.with_options(trap_exit=True))
        linked.ask([worker]).result(5)
        down = node.monitor(worker)
        worker.kill()
        down.result(5)

        assert linked.call(Linked.told).result(5) == "killed"


def test_a_supervisor_starts_children_again():
    with Node() as node:
        node.supervise([Child(Worker, restart="permanent", name="worker")])
        first = node.find("worker").result(5)
        events: list[object] = []
        with node.subscribed(events.append):
            down = node.monitor(first)
            first.kill()
            down.result(5)
            second = first
            while second == first:
                second = asyncio.run(_find_again(node, first))

            eventually(lambda: "ActorRestarted" in {type(event).__name__ for event in events})

        assert second.ask("x").result(5) == "x"


async def _find_again(node: Node, first: ActorRef) -> ActorRef:
    try:
        return await node.find("worker")
    except LookupError:
        return first
