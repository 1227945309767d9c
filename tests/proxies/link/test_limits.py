"""What strangers and peers may take of a node, with limits small enough to meet."""

import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import Limits
from callboard.actors.errors import NodeUnreachable
from callboard.basp.frame import pack_frame
from callboard.basp.handshake import VERSION, LinkConfig
from callboard.basp.header import Operation
from callboard.proxies.errors import MessageTooLarge
from callboard.proxies.events import ConnectionsRefused
from callboard.proxies.link.limits import AcceptLimiter, source_of
from tests.proxies.cast import Big, Echo, eventually, recorded


def stranger(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), 5)
    made.settimeout(5)
    return made


def is_refused(sock: socket.socket) -> bool:
    """The acceptor speaks first, so a connection that may begin is greeted."""
    try:
        return sock.recv(65536) == b""
    except ConnectionResetError:
        return True


# --- the gate alone ---

HERE = "10.0.0.1"


def test_strangers_are_counted_by_the_second():
    gate = AcceptLimiter(Limits(strangers_per_second=2))

    refusals = [bool(gate.refusal(HERE, 0, 10.0)) for _ in range(4)]
    assert refusals == [False, False, True, True]
    assert "2 unproven connections" in gate.refusal(HERE, 0, 10.1)
    assert gate.refusal(HERE, 0, 10.6) == ""
    assert gate.refused == 3


def test_who_proves_to_be_a_node_gives_its_place_back():
    gate = AcceptLimiter(Limits(strangers_per_second=1, handshakes=1))
    for wire in range(100):
        assert gate.refusal(HERE, 0, 10.0) == ""
        gate.begin(wire, HERE)

        gate.proven(wire)
        gate.proven(wire)

    assert gate.refusal(HERE, 0, 10.0) == ""
    assert gate.refusal(HERE, 0, 10.0) != ""


def test_handshakes_and_links_are_counted():
    gate = AcceptLimiter(Limits(handshakes=1, links=5))
    gate.begin("one", HERE)

    assert "1 handshakes" in gate.refusal(HERE, 0, 1.0)
    assert "5 links" in gate.refusal(HERE, 5, 1.0)

    gate.ended("one")
    assert gate.refusal(HERE, 4, 1.0) == ""


def test_one_address_has_limits_of_its_own():
    gate = AcceptLimiter(Limits(links_per_address=3, handshakes_per_address=2))
    for wire in range(2):
        gate.begin(wire, HERE)
    assert "10.0.0.1 has 2 handshakes" in gate.refusal(HERE, 2, 1.0)
    assert gate.refusal("10.0.0.2", 2, 1.0) == ""

    gate.proven(0)
    assert gate.refusal(HERE, 2, 1.0) == ""
    gate.begin(2, HERE)
    gate.proven(1)
    assert "10.0.0.1 has 3 links" in gate.refusal(HERE, 3, 1.0)

    gate.ended(0)  # proven
    gate.ended(2)  # a stranger
    gate.ended(2)
    assert gate.refusal(HERE, 1, 1.0) == ""


@given(st.lists(st.tuples(st.sampled_from(["begin", "proven", "ended"]), st.integers(0, 5))))
def test_nothing_is_kept_of_connections_that_are_gone(steps):
    gate = AcceptLimiter(Limits())
    alive: set[int] = set()
    for step, wire in steps:
        if step == "begin" and wire not in alive:
            alive.add(wire)
            gate.begin(wire, f"10.0.0.{wire % 2}")
        elif step == "proven":
            gate.proven(wire)
        elif step == "ended":
            alive.discard(wire)
            gate.ended(wire)
        assert gate._links.total() == len(alive)
        assert gate._handshakes.total() == len(gate._strangers) <= len(alive)

    for wire in alive:
        gate.ended(wire)
    kept = [gate._links, gate._handshakes, gate._strangers, gate._sources]
    assert not any(kept)


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a name", "a name"),
    ],
)
def test_what_counts_as_one_address(address, source):
    assert source_of(address) == source


@pytest.mark.parametrize("name", ["links", "handshakes", "strangers_per_second", "payload"])
def test_a_limit_of_nothing_is_refused(name):
    with pytest.raises(ValueError, match=f"limit {name} must be at least 1, not 0"):
        Limits(**{name: 0})


def test_rates_have_no_limit_or_one_that_a_link_can_live_with():
    assert Limits().bytes_per_second == Limits().messages_per_second == 0
    with pytest.raises(ValueError, match="bytes_per_second must be at least 1,024, not 100"):
        Limits(bytes_per_second=100)
    with pytest.raises(ValueError, match="messages_per_second must be at least 1, not -1"):
        Limits(messages_per_second=-1)


# --- nodes ---


def test_handshakes_beyond_the_limit_are_closed_at_once_and_told(make_node):
    a = make_node("a", limits=Limits(handshakes=3))
    port = a.listen()
    held = [stranger(port) for _ in range(3)]
    assert not any(is_refused(one) for one in held)

    with recorded(a) as events:
        refused = [stranger(port) for _ in range(5)]

        assert all(is_refused(one) for one in refused)
        assert a.stats().refused_connections == 5
        eventually(lambda: ConnectionsRefused(5, "3 handshakes are in progress") in events)
    for one in held:
        one.close()
    b = make_node("b")
    eventually(lambda: links_with(b, a.address))
    for one in refused:
        one.close()


def links_with(node, address) -> bool:
    try:
        node.connect(address)
    except NodeUnreachable:
        return False
    return True


def test_established_links_are_no_handshakes(make_node):
    a = make_node("a", limits=Limits(handshakes=1))
    a.listen()

    for number in range(5):
        assert make_node(str(number)).connect(a.address) == a.node_id

    assert a.stats().refused_connections == 0


def test_links_beyond_the_limit_are_refused_and_the_dialer_learns_why(make_node):
    a = make_node("a", limits=Limits(links=2))
    a.listen()
    b, c, d = make_node("b"), make_node("c"), make_node("d")
    b.connect(a.address)
    c.connect(a.address)

    with pytest.raises(NodeUnreachable, match="be full"):
        d.connect(a.address)

    assert a.stats().refused_connections == 1
    b.close()
    eventually(lambda: len(a.links()) == 1)
    assert d.connect(a.address) == a.node_id


def test_a_flood_of_strangers_is_slowed_and_nodes_get_in_after_it(make_node):
    a = make_node("a", limits=Limits(strangers_per_second=20))
    port = a.listen()
    a.register("echo", a.spawn(Echo))
    b = make_node("b")
    echo = b.remote_actor(a.address + "/echo")

    flood = [stranger(port) for _ in range(60)]
    refused = sum(is_refused(one) for one in flood)

    assert 20 <= refused <= 41
    assert a.stats().refused_connections == refused
    assert echo.ask("as ever").result(5) == "as ever"
    c = make_node("c")
    eventually(lambda: links_with(c, a.address))
    for one in flood:
        one.close()


def test_a_payload_beyond_the_limit_of_the_receiver_ends_the_link_only(make_node):
    a = make_node("a", limits=Limits(payload=10_000))
    a.listen()
    a.register("echo", a.spawn(Echo))
    b = make_node("b")
    echo = b.remote_actor(a.address + "/echo")
    assert echo.ask("x" * 9_000).result(5) == "x" * 9_000

    with pytest.raises((NodeUnreachable, ConnectionError)):
        echo.ask("x" * 11_000).result(5)

    eventually(lambda: links_with(b, a.address))
    assert b.remote_actor(a.address + "/echo").ask("x").result(5) == "x"


def test_a_larger_limit_lets_larger_messages_through_reading(make_node):
    limits = Limits(payload=1_000_000)
    a, b = make_node("a", limits=limits), make_node("b", limits=limits)
    a.listen()
    a.register("echo", a.spawn(Echo))

    echo = b.remote_actor(a.address + "/echo")

    assert len(echo.ask(Big(900_000)).result(5)) == 900_000


def test_a_message_beyond_the_limit_of_the_sender_is_refused_at_the_call(make_node):
    a, b = make_node("a"), make_node("b", limits=Limits(payload=10_000))
    a.listen()
    a.register("echo", a.spawn(Echo))
    echo = b.remote_actor(a.address + "/echo")

    with pytest.raises(MessageTooLarge, match="limit of 10,000 B"):
        echo.ask("x" * 11_000)

    assert echo.ask("x").result(5) == "x"


def test_proxies_beyond_the_limit_are_down_at_once(make_node):
    a, b = make_node("a", limits=Limits(proxies=3)), make_node("b")
    a.listen()
    actors = [a.spawn(Echo) for _ in range(5)]
    b.connect(a.address)
    refs = [b.ref(str(actor)) for actor in actors]

    told = {str(b.monitor(ref).result(5).reason) for ref in refs[3:]}
    kept = [b.monitor(ref) for ref in refs[:3]]
    for actor in actors:
        actor.stop()

    assert told <= {"unreachable", "not_found"}  # the latter where the news was there before
    assert [down.result(5).reason for down in kept] == ["normal"] * 3


def test_what_a_stranger_sends_without_end_is_not_kept(make_node):
    """A frame may announce no more than 64 KiB before its sender is proven."""
    a = make_node("a")
    with stranger(a.listen()) as sock:
        assert sock.recv(65536)
        ends = b"x" * 18, a.node_id
        frame = pack_frame(Operation.CLIENT_HANDSHAKE, VERSION, *ends, 0, 0, bytes(1 << 20))

        sock.sendall(frame[:160])

        began = time.monotonic()
        try:
            while sock.recv(65536):
                pass
        except ConnectionResetError:
            pass
        # Sooner than a handshake that is too slow: nothing waits for the rest.
        assert time.monotonic() - began < LinkConfig(b"x" * 18).handshake_timeout / 2
    assert a.links() == []


def test_one_address_cannot_take_every_handshake(make_node):
    a = make_node("a", limits=Limits(handshakes_per_address=3))
    port = a.listen()
    held = [stranger(port) for _ in range(3)]
    assert not any(is_refused(one) for one in held)

    with stranger(port) as fourth:
        assert is_refused(fourth)

    for one in held:
        one.close()
    b = make_node("b")
    eventually(lambda: links_with(b, a.address))


def test_one_address_has_so_many_links(make_node):
    a = make_node("a", limits=Limits(links_per_address=2))
    a.listen()
    nodes = [make_node(name) for name in "bcd"]
    for node in nodes[:2]:
        node.connect(a.address)

    with pytest.raises(NodeUnreachable, match="be full"):
        nodes[2].connect(a.address)

    nodes[0].close()
    eventually(lambda: links_with(nodes[2], a.address))
