"""What a user calls: connecting, finding, spawning elsewhere, seeing, closing."""

import asyncio
import inspect
import socket
import threading
import typing

import psutil
import pytest

import callboard
from callboard import Actor, Node, handler
from callboard.actors.errors import (
    ActorDown,
    InvalidAddress,
    NodeClosed,
    NodeUnreachable,
    NotRegistered,
    NotSpawnable,
    RemoteError,
    WouldBlock,
    WouldDeadlock,
)
from callboard.basp.header import DIRECTORY, NODE_ACTOR, SPAWN_SERVER
from callboard.proxies.messages import LinkActors, Lookup, Spawn, StopActor
from callboard.simulation import Cluster
from tests.proxies.cast import (
    Echo,
    Keyed,
    Later,
    Unlucky,
    connect,
    eventually,
    line,
    recorded,
    settled,
)

OFFER = {"echo": Echo, "unlucky": Unlucky, "keyed": Keyed}


@pytest.fixture
def shop(make_node):
    node = make_node("shop", spawnable=OFFER)
    node.listen()
    return node


# --- remote actors ---


def test_remote_actor_finds_by_name_or_what_is_published_or_by_number(make_node):
    a, b = make_node(), make_node()
    echo = a.spawn(Echo)
    a.listen(publish=echo)
    a.register("echo", echo)

    assert b.remote_actor(a.address + "/echo") == echo
    assert b.remote_actor(a.address) == echo
    assert b.remote_actor(str(echo)) == echo
    assert asyncio.run(b.aremote_actor(a.address)) == echo


def test_remote_actor_says_what_is_wrong(make_node, shop):
    b = make_node()

    with pytest.raises(NotRegistered, match="nobody"):
        b.remote_actor(shop.address + "/nobody")
    with pytest.raises(NotRegistered, match="/NAME"):
        b.remote_actor(shop.address)
    with pytest.raises(InvalidAddress):
        b.remote_actor("shop")
    with pytest.raises(InvalidAddress):
        b.remote_actor("basp:///echo")
    with pytest.raises(InvalidAddress):
        b.ref(shop.address + "/echo")
    with pytest.raises(InvalidAddress):
        b.connect(shop.address + "/echo")


def test_a_node_finds_its_own_actors_by_its_own_address(shop):
    echo = shop.spawn(Echo)
    shop.register("echo", echo)

    assert shop.remote_actor(shop.address + "/echo") == echo
    assert shop.find("echo").result(5) == echo


def test_a_timeout_of_connect_is_kept(make_node):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]

        with pytest.raises(NodeUnreachable, match=r"within 0\.05 s"):
            make_node().connect(f"basp://127.0.0.1:{port}", 0.05)


def test_a_node_without_a_port_has_no_address(make_node):
    with pytest.raises(InvalidAddress, match="listen"):
        _ = make_node().address


# --- spawning elsewhere ---


def test_remote_spawn_makes_an_actor_there(make_node, shop):
    b = make_node()

    echo = b.remote_spawn(shop.address, "echo")
    keyed = b.remote_spawn(shop.node_id, "keyed", 1, second=2)

    assert echo.node_id == keyed.node_id == shop.node_id
    assert echo.ask("hi").result(5) == "hi"
    assert keyed.call(Keyed.total).result(5) == 3
    assert shop.stats().actors == 2


def test_spawn_on_takes_the_class_that_the_target_offers(make_node, shop):
    b = make_node()

    keyed = b.spawn(Keyed, 1, on=shop.address, second=5)

    assert keyed.call(Keyed.total).result(5) == 6
    assert asyncio.run(b.aspawn(Keyed, on=shop.node_id)).call(Keyed.total).result(5) == 0
    with pytest.raises(NotSpawnable, match="Later"):
        b.spawn(Later, on=shop.address)


def test_a_node_spawns_on_its_own_address(shop):
    assert shop.remote_spawn(shop.address, "keyed", 4).call(Keyed.total).result(5) == 4


def test_what_is_not_offered_is_refused_with_what_is(make_node, shop):
    b = make_node()

    with pytest.raises(NotSpawnable, match=r"'nothing'.*shop.*echo, keyed, unlucky"):
        b.remote_spawn(shop.address, "nothing")
    with pytest.raises(NotSpawnable, match="offers nothing"):
        shop.remote_spawn(b.node_id, "echo")


@pytest.mark.parametrize(("how", "kind"), [("today", "RuntimeError"), ("exit", "SystemExit")])
def test_an_init_that_raises_is_told_and_the_spawn_server_lives_on(make_node, shop, how, kind):
    b = make_node()

    with pytest.raises(RemoteError) as caught:
        b.remote_spawn(shop.address, "unlucky", how)

    assert caught.value.type_name == kind
    assert "__init__" in caught.value.traceback
    with pytest.raises(RemoteError, match="TypeError"):
        b.remote_spawn(shop.address, "keyed", no_such_argument=1)
    assert b.remote_spawn(shop.address, "echo").ask("alive").result(5) == "alive"


def test_remote_spawn_where_nobody_listens_fails(make_node):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]

    with pytest.raises(NodeUnreachable):
        make_node().remote_spawn(f"basp://127.0.0.1:{port}", "echo")


def test_odd_requests_to_a_nodes_own_actors_harm_nobody(make_node, shop):
    b = make_node()
    connect(b, shop)
    shop.register("echo", shop.spawn(Echo))
    own = b.spawn(Echo)
    to = lambda number: b.runtime.ref_of(shop.node_id, number)  # noqa: E731

    to(SPAWN_SERVER).tell(Spawn(["a list"]))
    to(SPAWN_SERVER).tell(Spawn("keyed", 5, 6))
    to(DIRECTORY).tell(Lookup({"a": "dict"}))
    to(NODE_ACTOR).tell(StopActor([]))
    to(NODE_ACTOR).tell(StopActor(DIRECTORY, kill=True))
    to(NODE_ACTOR).tell(LinkActors(DIRECTORY, own))
    to(NODE_ACTOR).tell(LinkActors(shop.spawn(Echo).actor_id, "no ref"))
    to(NODE_ACTOR).tell("nonsense")
    own.kill()

    assert b.find("echo").result(5).ask("alive").result(5) == "alive"
    assert b.remote_spawn(shop.address, "echo").ask("alive").result(5) == "alive"
    settled(b)


def test_an_order_to_a_node_that_has_a_deadline_is_carried_out(make_node, shop):
    b = make_node()
    connect(b, shop)
    echo = shop.spawn(Echo)
    down = shop.monitor(echo)

    ref = b.runtime.ref_of(shop.node_id, NODE_ACTOR)
    ref.ask(StopActor(echo.actor_id, kill=True), timeout=5.0).result(5)

    assert down.result(5).reason == "killed"


# --- nodes ---


def test_node_ids_differ_within_a_process_and_hold_the_process_id(make_node):
    nodes = [make_node() for _ in range(5)]

    assert len({node.node_id for node in nodes}) == 5
    assert {len(node.node_id) for node in nodes} == {18}
    assert {node.node_id[15:] for node in nodes} == {(psutil.Process().pid % 2**24).to_bytes(3)}


def test_monitor_node_fires_when_it_is_lost_and_at_once_when_it_is_not_there(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    lost = a.monitor_node(b.node_id)

    b.close()

    assert (lost.result(5).node_id, lost.result().name) == (b.node_id, "b")
    assert a.monitor_node(b.node_id).result(5).reason == "not in reach"


def test_events_tell_of_links_and_nodes(make_node):
    a, b = make_node("a"), make_node("b")
    with recorded(a) as events:
        line(b, a)
        b.close()
        eventually(lambda: events and type(events[-1]).__name__ == "NodeDown")

    assert [(type(event).__name__, event.name) for event in events] == [
        ("LinkUp", "b"),
        ("NodeUp", "b"),
        ("LinkDown", "b"),
        ("NodeDown", "b"),
    ]


def test_events_are_an_async_iterator(make_node):
    a, b = make_node("a"), make_node("b")
    b.listen()

    async def first() -> object:
        events = a.events()
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await a.aconnect(b.address)
        return await waiting

    assert type(asyncio.run(first())).__name__ == "LinkUp"


def test_links_tell_what_went_over_them(make_node):
    a, b = make_node("a"), make_node("b")
    connect(a, b)
    a.ref(str(b.spawn(Echo))).ask("x" * 1000).result(5)

    (there,), (here,) = a.links(), b.links()

    assert (there.peer, there.peer_name, there.address) == (b.node_id, "b", b.address)
    assert (here.peer, here.address) == (a.node_id, "")
    assert there.bytes_sent >= 1000
    assert there.bytes_received >= 1000
    assert there.frames_sent >= 1
    assert there.frames_received >= 1


def test_stats_count(make_node):
    a = make_node("a")
    echo = a.spawn(Echo)
    echo.ask("x").result(5)
    echo.stop()
    a.monitor(echo).result(5)
    echo.tell("late")

    eventually(lambda: a.stats().dead_letters == 1)

    stats = a.stats()
    assert (stats.name, stats.node_id, stats.actors) == ("a", a.node_id, 0)
    assert stats.ends == {"normal": 1}
    assert stats.handled >= 1


# --- secrets and public addresses ---


def test_options_do_not_get_lost_on_the_way_to_another_node(make_node):
    a, b = make_node(spawnable={"echo": Echo}), make_node()
    a.listen()

    with pytest.raises(NotSpawnable, match=r"with_options\(\) do not travel .* of Echo"):
        b.spawn(Echo.with_options(trap_exit=True), on=a.address)

    assert b.spawn(Echo, on=a.address).ask("x").result(5) == "x"


def test_a_port_that_is_taken_is_the_systems_error(make_node):
    a = make_node()
    with pytest.raises(OSError, match="in use"):
        make_node().listen("127.0.0.1", a.listen())


# --- blocking and not ---


def blocking_methods() -> dict[str, tuple[object, object]]:
    """Return all pairs of twins, of every class that callboard exports."""
    return {
        f"{name}.{method}": (found, getattr(exported, "a" + method))
        for name in callboard.__all__
        if inspect.isclass(exported := getattr(callboard, name))
        for method, found in inspect.getmembers(exported)
        if not method.startswith("_") and hasattr(exported, "a" + method)
        if method != "ask"  # it returns a future
    }


@pytest.mark.parametrize("kind", [callboard.ActorRef, callboard.Group])
def test_the_coroutine_of_an_ask_takes_what_the_ask_takes(kind):
    asked = inspect.signature(kind.ask).parameters

    assert inspect.signature(kind.aask).parameters == asked
    assert inspect.iscoroutinefunction(kind.aask)


def test_the_blocking_methods_have_twins():
    of_nodes = {"spawn", "remote_spawn", "connect", "remote_actor", "close", "drain", "workers"}

    assert set(blocking_methods()) >= {f"Node.{method}" for method in of_nodes}
    assert {name for name in blocking_methods() if name.startswith("WorkerPool")} == {
        "WorkerPool.spawn",
        "WorkerPool.spawn_each",
        "WorkerPool.close",
    }


@pytest.mark.parametrize("name", sorted(blocking_methods()))
def test_twins_have_the_same_signature(name):
    method, twin = blocking_methods()[name]
    forms = map(inspect.signature, typing.get_overloads(method) or [method])
    twins = map(inspect.signature, typing.get_overloads(twin) or [twin])

    assert set(map(str, twins)) <= set(map(str, forms))
    assert inspect.iscoroutinefunction(twin)
    assert not inspect.iscoroutinefunction(method)
    assert name.partition(".")[2] in (twin.__doc__ or "")


def calls(node: Node) -> dict[str, object]:
    nowhere = "basp://127.0.0.1:1"
    return {
        "aconnect": lambda: node.connect(nowhere),
        "aremote_actor": lambda: node.remote_actor(nowhere + "/x"),
        "aremote_spawn": lambda: node.remote_spawn(nowhere, "x"),
        "aspawn": lambda: node.spawn(Echo, on=nowhere),
    }


@pytest.mark.parametrize("twin", ["aconnect", "aremote_actor", "aremote_spawn", "aspawn"])
def test_blocking_calls_on_an_event_loop_raise_and_name_the_twin(make_node, twin):
    node = make_node()

    async def program() -> None:
        with pytest.raises(WouldBlock, match=rf"await node\.{twin}\("):
            calls(node)[twin]()

    asyncio.run(program())


@pytest.mark.parametrize("twin", ["aconnect", "aremote_actor", "aremote_spawn", "aspawn"])
def test_blocking_calls_in_a_handler_raise_and_name_the_twin(make_node, twin):
    node = make_node()

    with pytest.raises(RemoteError, match=rf"await node\.{twin}\(") as caught:
        node.spawn(Caller).ask(twin).result(5)

    assert caught.value.type_name == WouldDeadlock.__name__


class Caller(Actor):
    @handler
    def call_it(self, twin: str) -> None:
        calls(self.node)[twin]()

    @handler
    async def connect_to(self, msg: list) -> bytes:
        return await self.node.aconnect(msg[0])

    @handler
    def close_node(self, _: int) -> None:
        self.node.close()


def test_twins_work_in_handlers(make_node, shop):
    assert make_node().spawn(Caller).ask([shop.address]).result(5) == shop.node_id


# --- the end ---


def used() -> tuple[set[str], int]:
    """Threads of callboard, and sockets of this process."""
    threads = {
        thread.name for thread in threading.enumerate() if thread.name.startswith("callboard")
    }
    return threads, len(psutil.Process().net_connections())


@pytest.fixture
def leaves_nothing():
    before = used()
    yield
    eventually(lambda: used()[0] <= before[0] and used()[1] <= before[1])


def test_close_fails_what_is_pending_and_leaves_nothing(leaves_nothing):
    a, b = Node("a"), Node("b")
    line(a, b)
    remote = a.ref(str(b.spawn(Later))).ask("x", timeout=None)
    local = a.spawn(Later).ask("x", timeout=None)

    a.close()
    b.close()

    with pytest.raises((NodeUnreachable, ActorDown)):
        remote.result(5)
    with pytest.raises(ActorDown):
        local.result(5)


def test_what_a_loop_never_began_is_closed_with_its_node():
    cluster = Cluster(1)
    (node,) = cluster(1)
    cluster.pause(node)
    begun = node._start(coroutine := asyncio.sleep(0))

    cluster.close()

    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    with pytest.raises(NodeClosed):
        begun.result(0)


def test_close_while_dials_are_under_way_leaves_nothing(leaves_nothing):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as hole:
        address = f"basp://127.0.0.1:{hole.getsockname()[1]}"
        fillers = [socket.socket() for _ in range(3)]
        for sock in fillers:
            sock.setblocking(False)
            sock.connect_ex(hole.getsockname())
        node = Node(join=[address])
        outcome: list[Exception] = []

        def dial() -> None:
            try:
                node.connect(address, 30)
            except (NodeUnreachable, NodeClosed) as error:
                outcome.append(error)

        thread = threading.Thread(target=dial)
        thread.start()
        other = node.node_id[:-1] + bytes([node.node_id[-1] ^ 1])  # its end is the process id
        told = node.ref(f"{address}/77@{other.hex()}").ask("x", timeout=None)
        eventually(lambda: node._broker.unrouted.dialing)

        node.close()
        thread.join(5)

        assert isinstance(outcome[0], NodeUnreachable | NodeClosed)
        with pytest.raises(NodeUnreachable):
            told.result(5)
        for sock in fillers:
            sock.close()


def test_close_is_idempotent_and_ends_everything(make_node):
    node = make_node("n")
    node.close()
    node.close()

    for call in (
        lambda: node.spawn(Echo),
        lambda: node.listen(),
        lambda: node.connect("basp://127.0.0.1:1"),
        lambda: node.find("x"),
    ):
        with pytest.raises(NodeClosed):
            call()


def test_close_on_an_event_loop_names_the_twin_and_closes_nothing(make_node):
    node = make_node()

    async def program() -> None:
        with pytest.raises(WouldBlock, match="aclose"):
            node.close()
        assert await node.spawn(Echo).ask("open") == "open"
        async with node:
            pass

    asyncio.run(program())
    with pytest.raises(NodeClosed):
        node.spawn(Echo)


def test_a_handler_may_close_its_node(leaves_nothing):
    node = Node()
    port = node.listen()
    down = node.monitor(caller := node.spawn(Caller))

    caller.tell(1)

    assert down.result(5).reason == "shutdown"
    eventually(lambda: _is_free(port))


def _is_free(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except ConnectionRefusedError:
        return True
    except ConnectionError:
        pass  # the listener is just being closed
    return False


def test_a_node_that_was_never_used_closes(leaves_nothing):
    with Node():
        pass
