"""Real CAF nodes: everything that `docs/caf.md` says works, in both directions."""

import signal
import time
from dataclasses import dataclass

import pytest

from callboard import Actor, ActorRef, ExitReason, Node, handler, message
from callboard.actors.errors import ActorDown, NodeUnreachable, NotSpawnable, UnexpectedMessage
from callboard.caf import CafError
from callboard.caf.wire.message import F32, I64, U16, Atom
from tests.interop.caf.real_node import real_nodes
from tests.polling import eventually

pytestmark = pytest.mark.slow

WAIT = 10
ADDER = "caf::replies_to<@i32,@i32>::with<@i32>"


@message("tests.real.Add", caf="'add'+@i32+@i32")
@dataclass
class Add:
    left: int
    right: int


@message("tests.real.Point", caf="point")
@dataclass
class Point:
    x: int
    name: str


class Service(Actor):
    """The service of `node.cpp`, in Python."""

    def __init__(self, base=0):
        self.base, self.seen = base, []

    @handler
    def number(self, value: int) -> int:
        return self.base + value

    @handler
    def add(self, request: Add) -> int:
        return request.left + request.right

    @handler
    def pair(self, pair: tuple) -> int:
        return sum(pair)

    @handler
    def point(self, point: Point) -> Point:
        return Point(point.x * 2, point.name + "!")

    @handler
    def texts(self, _: None) -> list:
        return self.seen

    @handler
    def text(self, text: str):
        self.seen.append(text)
        if text == "fail":
            return CafError(28, "system", "boom")
        return text.upper()


class Linked(Actor):
    trap_exit = False

    @handler
    def start(self, values: tuple):
        self.link(values[0])


@pytest.fixture
def node():
    with Node("ours") as node:
        yield node


@pytest.mark.quick
def test_a_caf_actor_answers_and_calls_back(node):
    with real_nodes() as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        own = node.spawn(Service)

        assert ref.ask((1, 2)).result(WAIT) == 3
        assert ref.ask(Add(3, 4)).result(WAIT) == 7
        assert ref.ask(Point(4, "p")).result(WAIT) == Point(8, "p!")
        assert ref.ask(Atom("self")).result(WAIT) == ref
        assert ref.ask((Atom("relay"), own, 5, 6)).result(WAIT) == 11
        ref.tell("hello")
        assert real.line() == "got hello"
        ref.tell((Atom("tell"), own, "called"))
        eventually(lambda: "called" in own.ask(None).result(WAIT))


def test_values_of_all_types_arrive(node):
    with real_nodes() as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        values = F32(1.5), -2.25, True, U16(513), I64(-1), ["a", "bc"], {"k": "v"}

        assert ref.ask((Atom("types"), *values)).result(WAIT) == values


def test_errors_of_caf_actors_have_their_codes(node):
    with real_nodes() as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        with pytest.raises(CafError, match="boom") as raised:
            ref.ask(Atom("fail")).result(WAIT)
        assert (raised.value.code, raised.value.context) == (28, ("boom",))
        with pytest.raises(UnexpectedMessage):
            ref.ask(1.5).result(WAIT)


def test_caf_asks_and_tells_an_actor_of_ours(node):
    with real_nodes() as (real,):
        own = node.spawn(Service)
        port = node.listen(wire="caf-0.17", publish=own)

        assert real.do(f"remote {port}") == "remote"
        assert real.do("add 20 22") == "sum 42"
        assert real.do("addatom 1 2") == "sum 3"
        assert real.do("point") == "point 8p!"
        assert real.do("ask abc") == "answer ABC"
        assert "runtime_error" in real.do("ask fail")
        assert "unexpected_message" in real.do("double")
        real.do("tell plain")
        real.do("high urgent")
        eventually(lambda: {"plain", "urgent"} <= {*own.ask(None).result(WAIT)})
        assert real.do("add 1 1") == "sum 2"


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_monitors_work_in_both_directions(node, end):
    with real_nodes() as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        own, down = node.spawn(Service), node.monitor(ref)
        real.do(f"remote {node.listen(wire='caf-0.17', publish=own)}")
        real.do("monitor")
        getattr(own, end)()
        assert real.do("await").startswith("down ")
        assert real.do("add 1 2").startswith("error")

        getattr(ref, end)()
        reason = ExitReason.SHUTDOWN if end == "stop" else ExitReason.KILLED
        assert down.result(WAIT).reason == reason
        began = time.monotonic()
        with pytest.raises(ActorDown):
            ref.ask((1, 2)).result(WAIT)
        assert time.monotonic() - began < 1


def test_links_end_actors_of_both_sides(node):
    with real_nodes() as (real,):
        own = node.spawn(Service)
        real.do(f"remote {node.listen(wire='caf-0.17', publish=own)}")
        real.do("link")
        assert real.do("add 1 2") == "sum 3"
        own.stop()
        assert real.line().startswith("exit ")

    with real_nodes() as (real,):
        own = node.spawn(Service)
        down = node.monitor(own)
        real.do(f"remote {node.listen(wire='caf-0.17', publish=own)}")
        real.do("link")
        assert real.do("add 1 2") == "sum 3"
        real.do("quitown")
        assert down.result(WAIT).reason == ExitReason.KILLED


def test_a_linked_actor_of_ours_ends_with_a_caf_actor(node):
    with real_nodes() as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        own = node.spawn(Linked)
        own.ask((ref,)).result(WAIT)
        down = node.monitor(own)
        assert ref.ask((1, 2)).result(WAIT) == 3
        ref.tell(Atom("quit"))
        assert down.result(WAIT).reason == ExitReason.SHUTDOWN

        ref = node.remote_spawn(f"caf://127.0.0.1:{real.serve()}", "calc", 1)
        own = node.spawn(Linked)
        own.ask((ref,)).result(WAIT)
        assert ref.ask(1).result(WAIT) == 2
        down = node.monitor(ref)
        own.kill()
        assert down.result(WAIT).reason == ExitReason.KILLED


def test_an_exit_message_ends_an_actor_of_ours(node):
    with real_nodes() as (real,):
        own = node.spawn(Service)
        down = node.monitor(own)
        real.do(f"remote {node.listen(wire='caf-0.17', publish=own)}")
        real.do("exit")
        assert down.result(WAIT).reason == ExitReason.SHUTDOWN


def test_spawns_and_names_work_in_both_directions(node):
    with real_nodes() as (real,):
        address = f"caf://127.0.0.1:{real.serve()}"
        assert node.remote_spawn(address, "calc", 10).ask(5).result(WAIT) == 15
        with pytest.raises(NotSpawnable, match="unknown_type"):
            node.remote_spawn(address, "nosuch")
        named = node.remote_actor(f"{address}/service")
        assert named == node.remote_actor(address)

        own = node.spawn(Service)
        node.offer("calc", Service)
        node.register("service", own)
        real.do(f"remote {node.listen(wire='caf-0.17', publish=own)}")
        assert real.do("spawn calc 10") == "sum 15"
        assert "unknown_type" in real.do("spawn nosuch 1")
        assert real.do("lookup service") == "remote"
        assert real.do("add 2 3") == "sum 5"
        assert real.do("lookup nothing") == "none"


def test_interfaces_of_typed_actors_are_compared_at_the_handshake(node):
    with real_nodes() as (real,):
        typed = node.remote_actor(f"caf://127.0.0.1:{real.serve('typed')}")
        assert typed.ask((20, 22)).result(WAIT) == 42

        own = node.spawn(Service)
        plain = node.listen(wire="caf-0.17", publish=own)
        typed_port = node.listen(wire="caf-0.17", publish=own, interface=[ADDER])
        assert "unexpected_actor_messaging_interface" in real.do(f"typedremote {plain}")
        assert real.do(f"typedremote {typed_port}") == "sum 42"
        assert "unexpected_actor_messaging_interface" in real.do(f"remote {typed_port}")


def test_nodes_without_a_published_actor_link(node):
    with real_nodes() as (real,):
        port = int(real.do("open").removeprefix("port "))
        assert len(node.connect(f"caf://127.0.0.1:{port}")) == 24


def test_two_caf_nodes_talk_through_ours(node):
    with real_nodes(2) as (left, right):
        hub = node.spawn(Service)
        port = node.listen(wire="caf-0.17", publish=hub)
        node.register("service", node.remote_actor(f"caf://127.0.0.1:{right.serve()}"))
        left.do(f"remote {port}")
        assert left.do("lookup service") == "remote"
        assert left.do("add 1 2") == "sum 3"
        left.do("monitor")
        right.process.send_signal(signal.SIGKILL)
        assert left.do("await").startswith("down ")


class Keeper(Actor):
    def __init__(self):
        self.kept = None

    @handler
    def keep(self, ref: ActorRef):
        self.kept = ref

    @handler
    def given(self, _: str):
        return self.kept


def test_an_actor_behind_a_caf_hub_goes_down_with_the_hub(node):
    with real_nodes(2) as (hub, far):
        keeper = node.spawn(Keeper)
        port = node.listen(wire="caf-0.17", publish=keeper)
        assert hub.do(f"remote {far.serve()}") == "remote"
        assert hub.do(f"pass {port}") == "sent"
        eventually(lambda: keeper.ask("given").result(WAIT) is not None)
        ref = keeper.ask("given").result(WAIT)

        assert ref.ask((1, 2)).result(WAIT) == 3
        down, hanging = node.monitor(ref), ref.ask(Atom("hang"))
        assert ref.ask((1, 2)).result(WAIT) == 3
        began = time.monotonic()
        hub.process.kill()
        assert down.result(WAIT).reason == ExitReason.UNREACHABLE
        assert time.monotonic() - began < 1
        with pytest.raises(ActorDown):
            hanging.result(WAIT)


def test_an_actor_that_is_killed_behind_a_living_caf_hub_goes_down(node):
    with real_nodes(2) as (hub, far):
        keeper = node.spawn(Keeper)
        port = node.listen(wire="caf-0.17", publish=keeper)
        hub.do(f"remote {far.serve()}")
        hub.do(f"pass {port}")
        eventually(lambda: keeper.ask("given").result(WAIT) is not None)
        ref = keeper.ask("given").result(WAIT)
        down, hanging = node.monitor(ref), ref.ask(Atom("hang"))
        assert ref.ask((1, 2)).result(WAIT) == 3
        began = time.monotonic()
        far.process.kill()
        assert down.result(WAIT).reason == ExitReason.UNREACHABLE
        print("TOOK", time.monotonic() - began, down.result(0).detail)
        assert time.monotonic() - began < 1
        with pytest.raises(ActorDown):
            hanging.result(WAIT)


def milliseconds_to_down(node, kill):
    """Return how long a monitor takes to learn that a node was killed."""
    with real_nodes() as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        down, hanging = node.monitor(ref), ref.ask(Atom("hang"))
        assert ref.ask((1, 2)).result(WAIT) == 3
        began = time.monotonic()
        kill(real)
        assert down.result(WAIT).reason == ExitReason.UNREACHABLE
        took = (time.monotonic() - began) * 1000
        with pytest.raises(ActorDown):
            hanging.result(WAIT)
        return took


def test_the_end_of_a_killed_node_is_known_at_once(node):
    took = milliseconds_to_down(node, lambda real: real.process.kill())
    assert took < 1000


def test_heartbeats_keep_a_connection_with_a_timeout(node):
    options = "--middleman.heartbeat-interval=200ms", "--middleman.connection-timeout=2s"
    with real_nodes(1, *options) as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        down, until = node.monitor(ref), time.monotonic() + 3
        eventually(lambda: time.monotonic() > until)
        assert not down.done()
        assert ref.ask((1, 2)).result(WAIT) == 3


def test_disconnect_and_connect_again(node):
    with real_nodes() as (real,):
        address = f"caf://127.0.0.1:{real.serve()}"
        ref = node.remote_actor(address)
        down = node.monitor(ref)
        node.disconnect(node.connect(address))
        assert down.result(WAIT).reason == ExitReason.UNREACHABLE
        assert node.remote_actor(address).ask((1, 2)).result(WAIT) == 3


def test_other_application_ids_are_refused(node):
    with real_nodes(1, '--middleman.app-identifiers=["other"]') as (real,):
        port = real.serve()
        with pytest.raises(NodeUnreachable, match="incompatible_application_ids"):
            node.connect(f"caf://127.0.0.1:{port}")


def test_a_third_node_and_topics_reach_a_caf_actor(node):
    with real_nodes() as (real,), Node("third") as third:
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        third.connect(f"basp://127.0.0.1:{node.listen()}")
        far = third.ref(str(ref))

        assert far.ask((1, 2)).result(WAIT) == 3
        down = third.monitor(far)
        own = third.spawn(Service)
        assert far.ask((Atom("relay"), own, 2, 3)).result(WAIT) == 5
        ref.tell(Atom("quit"))
        assert down.result(WAIT).reason == ExitReason.SHUTDOWN
