"""Foreign wires on the stream driver: ports, dials, bounds, with a machine of a few lines."""

import socket
import threading

import pytest

from callboard import Node
from callboard.actors.errors import NodeClosed, NodeUnreachable
from callboard.basp.errors import MalformedFrame
from callboard.basp.foreign import Admitted, Arrived, wire_of
from callboard.basp.handshake import LinkConfig
from callboard.basp.header import HEADER_SIZE
from callboard.basp.link import Closed, Link, LinkPairs, Transmit
from callboard.basp.node_id import NodeId
from callboard.broker import Endpoint
from callboard.figures import exposition
from callboard.proxies.errors import PortUnavailable, PublicAddress
from callboard.proxies.link.limits import Limits
from callboard.tls.certificates import Certificates
from callboard.topics.machine.effect import DoorReceiver
from callboard.topics.machine.status import EC, SC, PeerFlags, PeerStatus
from callboard.topics.monitoring import all_metrics, status_of
from tests.proxies.cast import eventually


class Lines:
    """A wire of lines: the first names the speaker, `bye` ends it, `!` breaks a rule."""

    next_tick_at = float("inf")

    def __init__(self, name, opening):
        self.name, self.opening = name, opening
        self.peer, self.rest, self.is_over = "", b"", False

    def start(self):
        return [Transmit(f"{self.name}\n".encode())]

    def take(self, data, now):
        *lines, self.rest = (self.rest + data).split(b"\n")
        effects = []
        for line in lines:
            if not self.peer:
                self.peer = line.decode()
                effects.append(Admitted(self.peer))
            elif line == b"!":
                self.is_over = True
                effects.append(Closed("that is no line", MalformedFrame("that is no line")))
            elif line == b"bye":
                self.is_over = True
                effects.append(Closed("it said bye"))
            else:
                effects.append(Arrived([line.decode()]))
        only_lines = all(isinstance(each, Arrived) for each in effects)
        if only_lines:
            return [line for each in effects for line in each.messages], []
        return [], effects

    def tick(self, now):
        return []

    def lost(self, reason):
        return [Closed(reason)]

    def close(self, reason):
        return [] if self.is_over else [Transmit(b"bye\n"), Closed(reason)]


class Door:
    """What takes the lines."""

    kind = "lines"

    def __init__(self, name):
        self.name = name
        self.links, self.told, self.lines, self.openings = [], [], [], []

    def make_machine(self, opening):
        self.openings.append(opening)
        return Lines(self.name, opening)

    def link_up(self, link, name):
        self.links.append(link)
        self.told.append(("up", name))

    def link_down(self, link, reason):
        self.links.remove(link)
        self.told.append(("down", link.peer, reason))

    def deliver(self, link, messages):
        self.lines += messages

    def not_linked(self, remote, reason):
        self.told.append(("not", reason))


@pytest.fixture
def two(make_node):
    a, b = make_node("a"), make_node("b")
    return a.overlay.foreign, b.overlay.foreign, Door("a"), Door("b")


def test_two_ends_of_a_foreign_wire_speak_until_the_dial_is_stopped(two):
    ours, theirs, a, b = two
    port = ours.listen(a, "127.0.0.1")
    dial = theirs.dial(b, ("127.0.0.1", port.port))
    link = dial.linked.result(10)
    eventually(lambda: a.links)

    link.write(b"one\ntwo\n")
    a.links[0].write(b"three\n")
    eventually(lambda: a.lines == ["one", "two"] and b.lines == ["three"])
    assert (link.name, dial.is_linked) == ("lines peer a", True)
    assert [b.openings[0].is_dialed, a.openings[0].is_dialed] == [True, False]
    theirs.stop(dial)

    eventually(lambda: a.told == [("up", "b"), ("down", "b", "it said bye")])
    eventually(lambda: not ours.links and not theirs.links and not theirs.dials)


def test_the_former_name_of_pausing_works_and_warns(two):
    ours, theirs, a, b = two
    port = ours.listen(a, "127.0.0.1")
    theirs.dial(b, ("127.0.0.1", port.port)).linked.result(10)
    eventually(lambda: a.links)

    with pytest.warns(DeprecationWarning, match=r"put_off .*; use pause_reading"):
        a.links[0].put_off(-1.0)


def test_a_dial_goes_on_until_somebody_is_there_and_again_when_the_link_is_lost(two):
    ours, theirs, a, b = two
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    dial = theirs.dial(b, ("127.0.0.1", number), retry=0.2)
    eventually(lambda: b.told)
    assert "nothing answers at" in b.told[0][1]
    port = ours.listen(a, "127.0.0.1", number)
    first = dial.linked.result(10)
    eventually(lambda: a.links)

    a.links[0].write(b"bye\n")
    eventually(lambda: dial.is_linked and dial.link is not first)

    ours.close_port(port, "closing")
    eventually(lambda: not dial.is_linked)
    theirs.stop(dial)


def test_peers_on_foreign_wires_are_seen_as_any_peer():
    """In lists, statuses, rows of the dashboard, metrics and filters."""
    with Endpoint() as here, Node("there") as there:
        statuses = here.make_status_subscriber(receive_statuses=True)
        b = Door("b")
        port = there.overlay.foreign.listen(Door("a"), "127.0.0.1")
        foreign = here.node.overlay.foreign
        dial = foreign.dial(b, port.endpoint, retry=0.5)
        dial.linked.result(10)

        (peer,) = here.peers()
        assert (peer.peer.type, peer.status) == ("lines", PeerStatus.Peered)
        assert peer.flags == PeerFlags.Remote | PeerFlags.Outbound
        assert str(peer.peer.network.get()) == f"127.0.0.1:{port.port}"
        status = statuses.get(10.0)
        assert status.code() == SC.PeerAdded
        assert (status.context(), status.context().type) == (peer.peer, "lines")
        hub = here.hub
        (rows_of_peers,) = here.node.overlay.parts["peers"]
        (row,) = rows_of_peers("", None)
        assert (row["peer"], row["wire"], row["status"]) == ("a", "lines", "peered")
        (peering,) = status_of(hub)["peerings"]
        assert (peering["name"], peering["wire"]) == ("a", "lines")
        assert 'type="lines"' in exposition(all_metrics(hub))
        hub.add_receiver(Receiver(), ["/of/a"], sees_own=True).result(10)
        assert [str(topic) for topic in here.peer_subscriptions()] == ["/of/a"]

        foreign.stop(dial)
        assert statuses.get(10.0).code() == SC.PeerRemoved
        assert here.peers() == []
        foreign.dial(b, ("127.0.0.1", 1), retry=0.0)
        assert statuses.get(10.0).code() == EC.PeerUnavailable


class Receiver(DoorReceiver):
    """Takes what the peer wants."""

    def take_from(self, sender, items, size):
        pass


def test_one_attempt_fails_with_the_reason(two):
    _, theirs, _, b = two
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]

    with pytest.raises(NodeUnreachable, match="nothing answers"):
        theirs.dial(b, ("127.0.0.1", number), retry=0.0).linked.result(10)
    assert not theirs.dials


def test_strangers_have_little_time_and_few_places(two):
    ours, _, a, _ = two
    limits = Limits(handshakes=1)
    port = ours.listen(a, "127.0.0.1", limits=limits, patience=0.3)
    with socket.create_connection(port.endpoint) as silent:
        eventually(lambda: len(ours.links) == 1)
        with socket.create_connection(port.endpoint) as second:
            assert second.recv(10) == b""  # there is a place for one only
        assert b"bye" in silent.recv(10) + silent.recv(10)
    eventually(lambda: a.told == [("not", "the peer's handshake took longer than 0.3 s")])
    with socket.create_connection(port.endpoint) as third:  # the place is free again
        third.sendall(b"c\n!\n")
        eventually(lambda: a.told[1:] == [("up", "c"), ("down", "c", "that is no line")])


def test_tls_secures_a_foreign_wire(two, papers):
    ours, theirs, a, b = two
    files = papers.tls()
    port = ours.listen(a, "127.0.0.1", tls=Certificates(files))
    dial = theirs.dial(b, port.endpoint, tls=Certificates(files))
    dial.linked.result(10).write(b"x" * 100_000 + b"\n")
    eventually(lambda: a.lines == ["x" * 100_000])

    with pytest.raises(NodeUnreachable, match="no lines link"):
        theirs.dial(Door("speaks plainly"), port.endpoint, retry=0.0).linked.result(10)


def test_a_port_is_refused_where_everybody_could_come(two):
    ours, _, a, _ = two
    with pytest.raises(PublicAddress):
        ours.listen(a, "0.0.0.0")
    port = ours.listen(a, "127.0.0.1")
    with pytest.raises(PortUnavailable):
        ours.listen(a, "127.0.0.1", port.port)


def test_a_node_that_closes_ends_its_foreign_links_with_a_last_word(make_node):
    node, b = make_node("a"), Door("b")
    a = Door("a")
    port = node.overlay.foreign.listen(a, "127.0.0.1")
    with socket.create_connection(port.endpoint) as peer:
        peer.sendall(b"c\n")
        eventually(lambda: a.links)
        closing = threading.Thread(target=node.close)
        closing.start()
        heard = b""
        while data := peer.recv(100):
            heard += data
    closing.join(10)
    assert heard == b"a\nbye\n"
    with pytest.raises(NodeClosed):
        raise dial_of(node, b)


def dial_of(node, door):
    """Return why a closed node makes no dial; its runner may have stopped before."""
    foreign = node.overlay.foreign
    dial = foreign.dial(door, ("127.0.0.1", 1))
    if not dial.linked.done():
        foreign._first(dial)
    return dial.linked.exception()


def test_the_first_bytes_tell_the_wire():
    node = NodeId(b"a" * 18)
    link = Link(LinkConfig(node), dialer=False, nonce=bytes(16), now=0.0, pairs=LinkPairs())
    ours = link.start()[0].data
    assert len(ours) >= HEADER_SIZE
    assert wire_of(ours) == "BASP"
    assert wire_of(bytes.fromhex("00000005075a45454b")) == "Zeek Broker 2.x"
    broker = bytes.fromhex("00000000 00000040 0000000000000003 0000000000000006")
    assert wire_of(broker) == "CAF or Zeek Broker 1.4"
    assert wire_of(b"GET / HTTP/1.1") == "HTTP or WebSocket"
    assert wire_of(b"\x16\x03\x01\x02") == "TLS"
    assert (wire_of(b""), wire_of(b"\0"), wire_of(bytes(16))) == ("", "", "")
