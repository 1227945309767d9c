"""Real CAF nodes: everything that `docs/caf.md` says works, in both directions."""

import time
from datetime import timedelta

import pytest

from callboard import Actor, Child, Endpoint, ExitReason, Future, Limits, Node
from callboard.actors.errors import (
    ActorDown,
    AskTimeout,
    NodeUnreachable,
    NotRegistered,
    NotSpawnable,
    RemoteError,
    UnexpectedMessage,
)
from callboard.caf import F32, I64, U16, Atom, CafError, ConfigValue, Duration
from callboard.proxies.errors import MessageTooLarge, UnknownMessageType
from tests.interop.caf.real_node import real_nodes
from tests.interop.caf.service import WAIT, Add, Linked, Point, Service
from tests.polling import eventually

pytestmark = pytest.mark.slow

ADDER = "caf::replies_to<@i32,@i32>::with<@i32>"


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
        assert real.do("hang").startswith("error")  # CAF's own timeout

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
        with pytest.raises(NotRegistered, match="no_actor_published_at_port"):
            node.remote_actor(f"caf://127.0.0.1:{port}")
        empty = node.listen(wire="caf-0.17")
        assert "no_actor_published_at_port" in real.do(f"remote {empty}")


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


def test_a_message_of_high_priority_overtakes_those_that_wait_for_an_actor_of_ours(node):
    with real_nodes() as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        ref.tell((Atom("block"), 300))
        assert real.line() == "blocking"
        for text in ("first", "second"):
            ref.tell(text)
        ref.tell("urgent", priority="high")
        # CAF 0.17 gives messages of other nodes normal priority when it reads them.
        assert [real.line() for _ in range(3)] == ["got first", "got second", "got urgent"]

        own, gate = node.spawn(Service), Future()
        real.do(f"remote {node.listen(wire='caf-0.17', publish=own)}")
        own.tell(gate)
        for command in ("tell first", "tell second", "high urgent"):
            assert real.do(command) == "sent"
        # Behind the others on the same connection, so these have arrived when it is answered.
        other = node.spawn(Service)
        node.register("other", other)
        assert real.do("lookup other") == "remote"
        assert real.do("add 1 2") == "sum 3"
        gate.set_result(None)
        seen = own.ask(None).result(WAIT)
        assert seen == ["urgent", "first", "second"]


def test_messages_of_a_pair_arrive_in_order_in_both_directions(node):
    count = 500
    with real_nodes() as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        for number in range(count):
            ref.tell(str(number))
        assert [real.line() for _ in range(count)] == [f"got {n}" for n in range(count)]

        own = node.spawn(Service)
        real.do(f"remote {node.listen(wire='caf-0.17', publish=own)}")
        assert real.do(f"flood {count}") == "sent"
        assert real.do("add 1 2") == "sum 3"
        assert own.ask(None).result(WAIT) == [str(number) for number in range(count)]


def test_each_of_several_monitors_fires_once(node):
    with real_nodes() as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        own = node.spawn(Service)
        real.do(f"remote {node.listen(wire='caf-0.17', publish=own)}")
        downs = [node.monitor(ref) for _ in range(2)]
        for _ in range(2):
            real.do("monitor")
        own.stop()
        for _ in range(2):
            assert real.do("await").startswith("down ")
        ref.stop()
        assert {down.result(WAIT).reason for down in downs} == {ExitReason.SHUTDOWN}
        assert node.monitor(ref).result(WAIT).reason == ExitReason.NOT_FOUND


def test_asks_time_out_on_both_sides(node):
    with real_nodes() as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        own = node.spawn(Service)
        real.do(f"remote {node.listen(wire='caf-0.17', publish=own)}")

        with pytest.raises(AskTimeout):
            ref.ask(Atom("hang"), timeout=0.3).result(WAIT)
        assert "request_timeout" in real.do("hang")


def test_a_port_closes_and_its_connections_stay_on_both_sides(node):
    with real_nodes(2) as (real, late):
        port = real.serve()
        ref = node.remote_actor(f"caf://127.0.0.1:{port}")
        assert real.do("unpublish") == "unpublished"
        with pytest.raises(NodeUnreachable), Node("late") as other:
            other.remote_actor(f"caf://127.0.0.1:{port}")
        assert ref.ask((1, 2)).result(WAIT) == 3

        published, own = node.spawn(Service), node.spawn(Service)
        node.register("service", own)
        port = node.listen(wire="caf-0.17", publish=published)
        assert real.do(f"remote {port}") == "remote"
        published.stop()
        eventually(lambda: "cannot_connect" in late.do(f"remote {port}"))
        assert real.do("lookup service") == "remote"
        assert real.do("add 1 2") == "sum 3"


def test_a_message_above_the_limit_costs_a_caf_node_its_connection_and_no_other():
    with Node("ours", limits=Limits(payload=100_000)) as node, real_nodes(2) as (rude, good):
        own = node.spawn(Service)
        port = node.listen(wire="caf-0.17", publish=own)
        assert rude.do(f"remote {port}") == good.do(f"remote {port}") == "remote"
        assert good.do("add 1 2") == "sum 3"
        rude.do("monitor")
        rude.do("blob 200000")
        assert "remote_link_unreachable" in rude.do("await")

        assert good.do("add 1 2") == "sum 3"
        good.do("blob 90000")
        assert good.do("add 1 2") == "sum 3"
        assert [len(text) for text in own.ask(None).result(WAIT)] == [90_000]
        ref = node.remote_actor(f"caf://127.0.0.1:{good.serve()}")
        with pytest.raises(MessageTooLarge):
            ref.tell("x" * 200_000)


def test_durations_and_values_of_configurations_arrive(node):
    with real_nodes() as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        settings = {"a": [1, True, 2.5], "b": {"c": Atom("x")}, "d": timedelta(seconds=3)}

        for value in (Duration(seconds=5), ConfigValue(7), ConfigValue(settings)):
            assert ref.ask((Atom("echo"), value)).result(WAIT) == value


def test_the_id_of_a_node_as_a_uri_is_refused_and_the_connection_stays(node):
    with real_nodes() as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        with pytest.raises(UnknownMessageType, match="URI"):
            ref.ask(Atom("uri")).result(WAIT)
        assert ref.ask((1, 2)).result(WAIT) == 3


class calc(Actor):  # noqa: N801  # a type that `node.cpp` offers
    """Stands for the type of actors in C++ with this name."""


def test_a_supervisor_restarts_an_actor_of_caf_and_moves_it_to_another_node(node):
    with real_nodes(2) as nodes:
        places = [f"caf://127.0.0.1:{real.serve()}" for real in nodes]
        node.supervise([Child(calc, 10, name="till", on=places)], intensity=(9, 60))

        def current():
            return next(iter(node.find_all("till").result(WAIT)), None)

        def answers(former):
            ref = current()
            return ref if ref not in (None, former) and ref.ask(5).result(WAIT) == 15 else None

        first = eventually(lambda: answers(None))
        first.tell(Atom("quit"))  # it ends with `unhandled_exception`
        second = eventually(lambda: answers(first))
        nodes[0].process.kill()
        eventually(lambda: answers(second))


def test_a_topic_reaches_a_caf_actor_until_it_ends(node):
    with real_nodes() as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        endpoint = Endpoint(node=node)
        endpoint.subscribe(ref, ["/news"], message=lambda topic, value: value)
        endpoint.publish("/news", "one")
        assert real.line() == "got one"
        endpoint.publish("/other", "lost")
        endpoint.publish("/news", "two")
        assert real.line() == "got two"

        down = node.monitor(ref)
        ref.stop()
        down.result(WAIT)
        endpoint.publish("/news", "three")
        assert real.serve()  # nothing was printed before


def test_a_third_node_asks_tells_monitors_and_links_an_actor_of_caf():
    with Node("ours") as node, Node("third") as third, real_nodes() as (real,):
        ref = node.remote_actor(f"caf://127.0.0.1:{real.serve()}")
        node.register("service", ref)
        third.connect(f"basp://127.0.0.1:{node.listen()}")
        far = third.remote_actor(f"{node.address}/service")

        far.tell("from afar")
        assert real.line() == "got from afar"
        with pytest.raises(RemoteError, match="boom"):
            far.ask(Atom("fail")).result(WAIT)
        own = third.spawn(Linked)
        own.ask((far,)).result(WAIT)
        downs, hanging = [third.monitor(far), third.monitor(own)], far.ask(Atom("hang"))
        assert far.ask((1, 2)).result(WAIT) == 3
        began = time.monotonic()
        real.process.kill()
        assert {down.result(WAIT).reason for down in downs} == {ExitReason.UNREACHABLE}
        with pytest.raises(ActorDown):
            hanging.result(WAIT)
        assert time.monotonic() - began < 1
        before = third.stats().dead_letters + node.stats().dead_letters
        far.tell("late")
        eventually(lambda: third.stats().dead_letters + node.stats().dead_letters > before)
