"""CAF's wire on nodes: two nodes of ours that are linked by it, and a third one over BASP."""

import socket
import time
import tracemalloc
from dataclasses import dataclass

import pytest

from callboard import Actor, Endpoint, ExitReason, Limits, Node, handler, message
from callboard.actors.errors import (
    ActorDown,
    NodeUnreachable,
    NotRegistered,
    NotSpawnable,
    RemoteError,
    UnexpectedMessage,
    WrongValue,
)
from callboard.basp.errors import BaspError
from callboard.caf.errors import CafError
from callboard.caf.wire import connection as caf
from callboard.caf.wire.connection import CafConnection
from callboard.caf.wire.frame import CafFrames, CafOperation, caf_frame
from callboard.caf.wire.message import Atom, ExitMessage, MessageCodec, ValueReader
from callboard.caf.wire.reader import CafActor, CafNode
from callboard.kernel.errors import InvalidAddress, NotSerializable
from callboard.kernel.wire import Transmit
from callboard.proxies.errors import UnknownMessageType
from tests.polling import eventually
from tests.proxies.papers import Papers

WAIT = 10


@message("tests.caf.Sum", caf="'sum'+@i32+@i32")
@dataclass
class Sum:
    left: int
    right: int


@message("tests.caf.Pair", caf="pair")
@dataclass
class Pair:
    left: int
    right: str


class Service(Actor):
    def __init__(self, base: int = 0):
        self.base, self.seen = base, []

    @handler
    def number(self, value: int) -> int:
        return self.base + value

    @handler
    def sum(self, request: Sum) -> int:
        return request.left + request.right

    @handler
    def pair(self, pair: Pair) -> Pair:
        return Pair(pair.left * 2, pair.right + "!")

    @handler
    def text(self, text: str):
        self.seen.append(text)
        if text == "seen":
            return tuple(self.seen)
        if text == "fail":
            return CafError(28, "system", "boom")
        if text == "raise":
            raise ValueError(text)
        if text == "hang":
            self.kept = self.promise()
            return None
        return None

    @handler
    def several(self, values: tuple):
        verb, ref, *rest = values
        verb = verb.name
        if verb == "relay":
            promise = self.promise()
            ref.ask(rest[0]).on_done(lambda done: promise.set_result(done.result()))
            return
        if verb == "link":
            self.link(ref)
        if verb == "monitor":
            self.monitor(ref)
        if verb == "tell":
            ref.tell(rest[0])
        return


@pytest.fixture
def nodes():
    """Return a client, a server of CAF's wire with a service, and its ref at the client."""
    with Node("client") as client, Node("server") as server:
        port = server.listen(wire="caf-0.17", publish=server.spawn(Service))
        ref = client.remote_actor(f"caf://127.0.0.1:{port}", timeout=WAIT)
        yield client, server, port, ref


def test_asks_and_tells_reach_the_published_actor(nodes):
    ref = nodes[3]
    ref.tell("a")
    ref.tell("b", priority="high")

    assert ref.ask(1).result(WAIT) == 1
    assert ref.ask(Sum(1, 2)).result(WAIT) == 3
    assert ref.ask(Pair(1, "x")).result(WAIT) == Pair(2, "x!")
    assert set(ref.ask("seen").result(WAIT)) == {"a", "b", "seen"}


def test_errors_have_the_codes_of_caf(nodes):
    ref = nodes[3]
    with pytest.raises(CafError) as raised:
        ref.ask("fail").result(WAIT)
    assert (raised.value.code, raised.value.category) == (28, "system")
    assert raised.value.context == ("boom",)
    with pytest.raises(UnexpectedMessage):
        ref.ask(1.5).result(WAIT)
    with pytest.raises(RemoteError, match="raise"):
        ref.ask("raise").result(WAIT)
    with pytest.raises(ActorDown):
        ref.ask(1).result(WAIT)  # its exception has ended the actor


def test_what_caf_has_no_type_for_is_refused_at_the_sender(nodes):
    with pytest.raises(NotSerializable):
        nodes[3].tell(object())


def test_monitors_learn_the_end_and_asks_fail_at_once(nodes):
    client, _, _, ref = nodes
    hanging, down = ref.ask("hang"), client.monitor(ref)
    assert ref.ask(1).result(WAIT) == 1
    ref.stop()

    assert down.result(WAIT).reason == ExitReason.SHUTDOWN
    with pytest.raises(ActorDown):
        hanging.result(WAIT)
    with pytest.raises(ActorDown):
        ref.ask(1).result(WAIT)
    before = client.stats().dead_letters
    ref.tell("late")
    assert client.stats().dead_letters == before + 1
    assert client.monitor(ref).result(WAIT).reason == ExitReason.NOT_FOUND


def test_kill_is_not_trapped(nodes):
    client, _, _, ref = nodes
    down = client.monitor(ref)
    ref.kill()
    assert down.result(WAIT).reason == ExitReason.KILLED


def test_a_third_node_reaches_the_actor_over_basp(nodes):
    client, server, _, ref = nodes
    port = client.listen()
    with Node("third") as third:
        third.connect(f"basp://127.0.0.1:{port}")
        far = third.ref(str(ref))
        down = third.monitor(far)
        own = third.spawn(Service, 100)

        assert far.ask(Sum(1, 2)).result(WAIT) == 3
        assert ref.ask((Atom("relay"), own, 7)).result(WAIT) == 107
        with pytest.raises(RemoteError, match="boom"):
            far.ask("fail").result(WAIT)
        with pytest.raises(NotSerializable):
            third.ref(str(ref)).ask({1: 2}).result(WAIT)
        server.close()
        assert down.result(WAIT).reason == ExitReason.SHUTDOWN


def test_addresses_inside_messages_are_refs(nodes):
    client, _, _, ref = nodes
    own = client.spawn(Service, 10)

    assert ref.ask((Atom("relay"), own, 5)).result(WAIT) == 15
    ref.tell((Atom("tell"), own, "hello"))
    eventually(lambda: "hello" in own.ask("seen").result(WAIT))


def test_a_topic_reaches_a_caf_actor_if_caf_has_a_type_for_its_messages(nodes, caplog):
    client, _, _, ref = nodes
    endpoint = Endpoint(node=client)
    endpoint.subscribe(ref, ["/text"], message=lambda _, value: value)
    endpoint.subscribe(ref, ["/plain"])
    endpoint.publish("/plain", "lost")
    endpoint.publish("/text", "hello")

    eventually(lambda: "hello" in ref.ask("seen").result(WAIT))
    assert client.stats().dead_letters == 1
    assert "TopicMessage has no type in CAF" in caplog.text


@pytest.mark.parametrize("ends", ["ours", "theirs"])
def test_links_end_both_actors(nodes, ends):
    client, _, _, ref = nodes
    own = client.spawn(Service)
    own.ask(1).result(WAIT)
    own.tell((Atom("link"), ref))
    own.ask(1).result(WAIT)
    ref.ask(1).result(WAIT)
    downs = client.monitor(own), client.monitor(ref)
    (own if ends == "ours" else ref).kill()

    for down in downs:
        assert down.result(WAIT).reason == ExitReason.KILLED


def test_names_and_spawns(nodes):
    client, server, port, ref = nodes
    server.register("service", server.spawn(Service, 3))
    server.offer("calc", Service)
    address = f"caf://127.0.0.1:{port}"

    assert client.remote_actor(f"{address}/service").ask(1).result(WAIT) == 4
    assert client.remote_spawn(address, "calc", 5).ask(1).result(WAIT) == 6
    with pytest.raises(NotSpawnable, match="unknown_type"):
        client.remote_spawn(address, "other")
    with pytest.raises(NotRegistered):
        client.remote_actor(f"{address}/nothing")
    assert client.remote_actor(address) == ref


def test_a_lost_connection_takes_its_actors_down(nodes):
    client, _, port, ref = nodes
    down, pending = client.monitor(ref), ref.ask("hang")
    client.disconnect(client.connect(f"caf://127.0.0.1:{port}"))

    assert down.result(WAIT).reason == ExitReason.UNREACHABLE
    with pytest.raises(ActorDown):
        pending.result(WAIT)
    again = client.remote_actor(f"caf://127.0.0.1:{port}")
    assert again.ask(1).result(WAIT) == 1


def test_addresses_without_a_caf_node_are_refused(nodes):
    client, server, _, _ = nodes
    empty = server.listen(wire="caf-0.17")
    basp = server.listen()
    with pytest.raises(NotRegistered, match="no_actor_published_at_port"):
        client.remote_actor(f"caf://127.0.0.1:{empty}")
    with pytest.raises(NodeUnreachable):
        client.connect(f"caf://127.0.0.1:{basp}", timeout=WAIT)
    with pytest.raises(NodeUnreachable, match="this node itself"):
        server.connect(f"caf://127.0.0.1:{empty}", timeout=WAIT)
    with pytest.raises(WrongValue, match="secret"):
        server.listen(wire="caf-0.17", secret="s")
    with pytest.raises(WrongValue, match="caf-0.17"):
        server.listen(wire="caf-9")


@pytest.mark.parametrize(
    "address",
    [
        "caf://",
        "caf:/",
        "caf://nowhere",
        "caf-0.17://h:1",
        "caf://h:1/a/b",
        "caf://h:1/LongerThan10",
    ],
)
def test_what_is_not_an_address_of_caf_is_refused_with_its_forms(address):
    forms = "caf://HOST:PORT or caf://HOST:PORT/NAME"
    with Node("client") as client:
        for use in (client.connect, client.remote_actor):
            with pytest.raises(InvalidAddress, match=forms):
                use(address)
        with pytest.raises(InvalidAddress, match=forms):
            client.remote_spawn(address, "calc")
        with pytest.raises(InvalidAddress, match=forms):
            client.spawn(Service, on=address)


def test_the_tls_of_a_node_is_that_of_its_ports(tmp_path):
    tls = Papers(tmp_path / "papers").tls()
    with Node("client", tls=tls) as client, Node("server", tls=tls) as server:
        port = server.listen(wire="caf-0.17", publish=server.spawn(Service))
        address = f"caf://127.0.0.1:{port}"
        assert client.remote_actor(address).ask(1).result(WAIT) == 1
        with Node("stranger") as stranger, pytest.raises(NodeUnreachable):
            stranger.remote_actor(address, timeout=2)


# --- a peer that speaks the wire byte by byte ---


class Peer:
    """A CAF node without actors, on a plain socket."""

    def __init__(self, port, number=1):
        self.node = CafNode(number, b"p" * 20)
        self.machine = CafConnection(self.node, 0.0, is_dialed=True, limit=1 << 20)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT)
        self.messages = []
        self.send(*[effect.data for effect in self.machine.start()])
        self.server = self.next().node
        self.send(*[e.data for e in self.machine.accept() if isinstance(e, Transmit)])
        self.wait_until_known()

    def wait_until_known(self):
        """Wait until the node has handled everything that was sent before."""
        self.send(caf.named(caf.NORMAL | 1 << 40, 3, caf.SPAWN_NAME, caf.INFO_QUERY))
        self.answer(1 << 40)

    def answer(self, request):
        """Return the answer to a request."""
        while True:
            message_ = self.next(caf.MessageFrame)
            if message_.message_id == caf.RESPONSE | caf.NORMAL | request:
                return message_

    def send(self, *frames):
        self.socket.sendall(b"".join(frames))

    def next(self, kind=object):
        """Return the next message of a class."""
        while True:
            for message_ in self.messages:
                if isinstance(message_, kind):
                    self.messages.remove(message_)
                    return message_
            data = self.socket.recv(65536)
            assert data, "the connection was closed"
            self.messages += self.machine.take(data, 0.0)[0]

    def is_closed(self):
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            pass
        return True


@pytest.fixture
def served():
    with Node("server") as server:
        port = server.listen(wire="caf-0.17", publish=server.spawn(Service))
        yield server, port


@pytest.mark.parametrize(
    "frame",
    [
        b"\x09" + bytes(31),
        caf_frame(CafOperation.DIRECT, b"\0\0\0\xff", target=20),
        caf_frame(CafOperation.DIRECT, b"\0\0\0\x08@<>+@str\x05a", target=20),
        caf_frame(CafOperation.ROUTED, bytes(70), target=20),
        b"\x02" + bytes(3) + b"\x7f\xff\xff\xff" + bytes(16) + b"\1" * 8,
    ],
)
def test_nonsense_costs_the_peer_its_connection(served, frame):
    server, port = served
    peer, good = Peer(port), Peer(port, 2)
    peer.send(frame)

    assert peer.is_closed()
    good.send(caf.direct(caf.NORMAL | 1, 0, 99, MessageCodec().encode(1)))
    assert not server._closed
    peer.socket.close()
    good.socket.close()


def test_requests_to_nobody_are_answered_and_unknown_types_refused(served):
    server, port = served
    peer, codec = Peer(port), MessageCodec()
    (number,) = [
        n for n, cell in server.runtime.contexts.items() if type(cell.actor) is Service
    ]
    peer.send(caf.direct(caf.NORMAL | 1, 9, 99, codec.encode(1)))
    answer = peer.next(caf.MessageFrame)
    while not answer.message_id & caf.RESPONSE:
        answer = peer.next(caf.MessageFrame)
    assert codec.decode(answer.payload, answer.offset).content == CafError(3)

    peer.send(caf.direct(caf.NORMAL | 2, 9, number, codec.encode("@")[:6] + b"@xyz" + b"\1@"))
    answer = peer.next(caf.MessageFrame)
    assert codec.decode(answer.payload, answer.offset).content.code == 1
    peer.send(caf.monitor(peer.node, CafActor(99, peer.server)))
    assert peer.next(caf.DownFrame)[1:] == (99, CafError(2, "exit"))
    peer.socket.close()


def test_frames_for_other_nodes_are_forwarded_and_refused_without_a_route(served):
    _, port = served
    left, right, codec = Peer(port, 1), Peer(port, 2), MessageCodec()
    nobody = CafNode(3, b"p" * 20)
    content = codec.encode("hello")
    left.send(caf.routed((left.node, right.node), caf.NORMAL, 9, 8, content))
    left.send(caf.monitor(left.node, CafActor(8, right.node)))
    arrived = right.next(caf.MessageFrame)
    while arrived.node != left.node:
        arrived = right.next(caf.MessageFrame)
    assert arrived[:3] == (left.node, 9, 8)
    right.next(caf.MonitorFrame)

    left.send(caf.routed((left.node, nobody), caf.NORMAL | 5, 9, 8, content))
    left.send(caf.monitor(left.node, CafActor(8, nobody)))
    refusal = left.next(caf.MessageFrame)
    while not refusal.message_id & caf.RESPONSE:
        refusal = left.next(caf.MessageFrame)
    assert refusal.node == nobody
    assert codec.decode(refusal.payload, refusal.offset).content == CafError(13)
    assert left.next(caf.DownFrame)[:2] == (nobody, 8)

    right.socket.close()  # CAF would not report this to the node behind it
    question = left.next(caf.MessageFrame)
    while question.target != caf.SPAWN_NAME or question.payload[0] != 1:
        question = left.next(caf.MessageFrame)
    mentioned = ValueReader(codec, question.payload, 1).actor()
    assert mentioned.node == right.node
    left.send(caf.monitor(left.node, mentioned))  # it has no other path, so it asks here
    assert left.next(caf.DownFrame) == (right.node, 8, CafError(6, "exit"))
    assert left.next(caf.DownFrame) == (right.node, mentioned.number, CafError(6, "exit"))
    left.socket.close()


def test_actors_behind_a_lost_hub_go_down_and_silent_nodes_too(served, monkeypatch):
    server, port = served
    monkeypatch.setattr("callboard.caf.peer.SILENCE_LIMIT", 0.3)
    monkeypatch.setattr("callboard.caf.peer.LEAST_PINGS", 1)
    hub, codec = Peer(port), MessageCodec()
    far, gone = CafNode(7, b"f" * 20), CafNode(8, b"f" * 20)
    service = server.spawn(Service)
    codec_ = MessageCodec()
    content = codec_.encode((Atom("monitor"), CafActor(5, far)))
    hub.send(caf.routed((far, hub.server), caf.NORMAL, 5, service.actor_id, content))
    wire = server._node_wire("caf")
    eventually(lambda: CafActor(5, far) in wire.stand_ins)
    ref = wire.stand_ins[CafActor(5, far)].ref
    hub.send(caf.routed((gone, hub.server), caf.NORMAL, 5, service.actor_id, codec.encode("x")))
    eventually(lambda: CafActor(5, gone) in wire.stand_ins)
    silent = server.monitor(wire.stand_ins[CafActor(5, gone)].ref)
    assert "does not answer" in silent.result(WAIT).detail

    hub.send(caf.routed((far, hub.server), caf.NORMAL, 5, service.actor_id, codec.encode("x")))
    eventually(lambda: CafActor(5, far) in wire.stand_ins)
    down = server.monitor(wire.stand_ins[CafActor(5, far)].ref)
    hanging = wire.stand_ins[CafActor(5, far)].ref.ask(1)
    began = time.monotonic()
    hub.socket.close()
    assert down.result(WAIT).reason == ExitReason.UNREACHABLE
    with pytest.raises(ActorDown):
        hanging.result(WAIT)
    assert time.monotonic() - began < 1
    with pytest.raises(ActorDown):
        ref.ask(1).result(WAIT)


def test_a_peer_that_shows_too_many_actors_is_disconnected():
    with Node("server", limits=Limits(proxies=10)) as server:
        port = server.listen(wire="caf-0.17", publish=server.spawn(Service))
        peer, codec = Peer(port), MessageCodec()
        for number in range(10, 30):
            peer.send(caf.direct(caf.NORMAL, number, 99, codec.encode("x")))
        assert peer.is_closed()
        peer.socket.close()


def test_an_unknown_type_in_an_answer_fails_the_ask(served):
    server, port = served
    peer, codec = Peer(port), MessageCodec()
    peer.send(caf.direct(caf.NORMAL, 40, 99, codec.encode("x")))
    wire = server._node_wire("caf")
    eventually(lambda: CafActor(40, peer.node) in wire.stand_ins)
    future = wire.stand_ins[CafActor(40, peer.node)].ref.ask("question")
    request = peer.next(caf.MessageFrame)
    while request.target != 40:
        request = peer.next(caf.MessageFrame)
    peer.send(
        caf.direct(request.message_id | caf.RESPONSE, 40, request.source, b"\0\0\x08@<>+@xyz\1")
    )
    with pytest.raises((UnknownMessageType, BaspError), match="@xyz"):
        future.result(WAIT)
    peer.socket.close()


@pytest.mark.parametrize("kind", ["local", "public", "tls"])
def test_nodes_get_the_address_of_a_port_that_they_can_dial(kind, tmp_path):
    with Node("server") as server:
        tls = Papers(tmp_path / "papers").tls() if kind == "tls" else None
        address = "0.0.0.0" if kind == "public" else "127.0.0.1"
        first = server.listen(address, 0, wire="caf-0.17", tls=tls, insecure=tls is None)
        port = server.listen(wire="caf-0.17") if kind == "tls" else first
        peer, codec = Peer(port), MessageCodec()
        key = "basp.default-connectivity-tcp"
        question = codec.encode((Atom("get"), key))
        peer.send(caf.named(caf.NORMAL | 1, 9, caf.CONFIG_NAME, question))
        answer = peer.answer(1)
        host = socket.gethostname() if kind == "public" else "127.0.0.1"
        found = codec.decode(answer.payload, answer.offset).values
        assert found == (key, (port, {0: [host]}))
        peer.socket.close()


# --- a peer that lies ---


def wire_of(server):
    """Return the wire of CAF of a node."""
    return server._node_wire("caf")


def test_a_node_does_not_speak_for_one_that_is_linked_itself(served):
    server, port = served
    liar, honest, codec = Peer(port, 1), Peer(port, 2), MessageCodec()
    honest.send(caf.direct(caf.NORMAL, 40, 99, codec.encode("x")))
    wire = wire_of(server)
    eventually(lambda: CafActor(40, honest.node) in wire.stand_ins)
    ref = wire.stand_ins[CafActor(40, honest.node)].ref
    future, down = ref.ask("question"), server.monitor(ref)
    request = honest.next(caf.MessageFrame)
    while request.target != 40:
        request = honest.next(caf.MessageFrame)

    nodes, answer = (honest.node, liar.server), request.message_id | caf.RESPONSE
    before = server.stats().unexpected
    liar.send(
        caf.routed(nodes, answer, 40, request.source, codec.encode("forged")),
        caf.down(
            CafActor(40, honest.node), liar.server, codec.error_bytes(CafError(5, "exit"))
        ),
        caf.monitor(honest.node, CafActor(99, liar.server)),
        caf.routed((honest.node, honest.node), caf.NORMAL | 5, 40, 9, codec.encode("x")),
    )
    liar.wait_until_known()
    assert not future.done()
    assert not down.done()
    assert server.stats().unexpected == before + 3

    honest.send(caf.direct(answer, 40, request.source, codec.encode("true")))
    assert future.result(WAIT) == "true"
    liar.socket.close()
    honest.socket.close()


@pytest.mark.parametrize(
    "frames",
    [
        lambda own, node: [caf.monitor(own, CafActor(20, own))],
        lambda own, node: [caf.down(CafActor(20, own), own)],
        lambda own, node: [caf_frame(CafOperation.CLIENT_HANDSHAKE, own.to_bytes())],
        lambda own, node: [caf_frame(CafOperation.SERVER_HANDSHAKE, own.to_bytes(), data=3)],
    ],
)
def test_a_node_that_calls_itself_by_our_id_loses_its_connection(served, frames):
    server, port = served
    peer = Peer(port)
    peer.send(*frames(peer.server, peer.node))
    assert peer.is_closed()
    assert peer.server not in wire_of(server).peers
    peer.socket.close()


def test_handshakes_may_be_repeated_and_change_nothing(served):
    server, port = served
    peer = Peer(port)
    again = caf_frame(CafOperation.CLIENT_HANDSHAKE, peer.node.to_bytes())
    peer.send(*[again] * 1000)
    peer.wait_until_known()
    assert list(wire_of(server).peers) == [peer.node]

    with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as second:
        second.sendall(again * 2)
        assert len(second.recv(32, socket.MSG_WAITALL)) == 32  # the dialer has to read it
        peer.wait_until_known()
    assert list(wire_of(server).peers) == [peer.node]
    peer.socket.close()


def test_a_node_that_has_lost_its_connection_selects_another_one(served):
    server, port = served
    first, codec = Peer(port), MessageCodec()
    first.send(caf.direct(caf.NORMAL, 40, 99, codec.encode("x")))
    wire = wire_of(server)
    eventually(lambda: CafActor(40, first.node) in wire.stand_ins)
    down = server.monitor(wire.stand_ins[CafActor(40, first.node)].ref)
    second = Peer(port)  # it has the same id
    assert down.result(WAIT).reason == ExitReason.UNREACHABLE
    assert first.is_closed()
    second.wait_until_known()
    assert list(wire.peers) == [second.node]
    first.socket.close()
    second.socket.close()


def limited(**limits):
    """Return a node with limits, and the port of a service."""
    node = Node("limited", limits=Limits(**limits))
    return node, node.listen(wire="caf-0.17", publish=node.spawn(Service))


def test_what_a_node_shows_of_others_counts_for_its_own_connection():
    server, port = limited(proxies=20)
    with server:
        liar, honest, codec = Peer(port, 1), Peer(port, 2), MessageCodec()
        honest.send(caf.direct(caf.NORMAL, 40, 99, codec.encode("x")))
        shown = [CafActor(number, honest.node) for number in range(50, 100)]
        (number,) = [
            n for n, cell in server.runtime.contexts.items() if type(cell.actor) is Service
        ]
        for actor in shown:
            liar.send(caf.direct(caf.NORMAL, 0, number, codec.encode(actor)))
        assert liar.is_closed()
        honest.wait_until_known()
        assert len(wire_of(server).stand_ins) <= 1 + 20
        liar.socket.close()
        honest.socket.close()


def test_a_node_that_shows_too_many_others_is_disconnected(served, monkeypatch):
    monkeypatch.setattr("callboard.caf.quota.NODES_LIMIT", 10)
    server, port = served
    liar, honest, codec = Peer(port, 1), Peer(port, 2), MessageCodec()
    for process in range(100, 130):
        nodes = CafNode(process, b"f" * 20), liar.server
        liar.send(caf.routed(nodes, caf.NORMAL, 5, 99, codec.encode("x")))
    assert liar.is_closed()
    eventually(lambda: set(wire_of(server).peers) == {honest.node})
    liar.socket.close()
    honest.socket.close()


def test_a_node_that_places_too_many_monitors_is_disconnected(served):
    server, port = limited(proxies=10)
    with server:
        liar, honest = Peer(port, 1), Peer(port, 2)
        own = [server.spawn(Service).actor_id for _ in range(20)]
        liar.send(*[caf.monitor(liar.node, CafActor(number, liar.server)) for number in own])
        assert liar.is_closed()
        liar.socket.close()

        forwarding = Peer(port, 3)  # monitors of actors of another node count as well
        for number in range(30):
            forwarding.send(caf.monitor(forwarding.node, CafActor(number + 10, honest.node)))
        assert forwarding.is_closed()
        honest.wait_until_known()
        forwarding.socket.close()
        honest.socket.close()


def test_requests_above_the_limit_are_refused_and_count_until_they_are_answered(
    served, monkeypatch
):
    monkeypatch.setattr("callboard.caf.quota.UNANSWERED_LIMIT", 5)
    server, port = served
    peer, codec = Peer(port), MessageCodec()
    (number,) = [
        n for n, cell in server.runtime.contexts.items() if type(cell.actor) is Service
    ]
    for request in range(1, 7):
        peer.send(caf.direct(caf.NORMAL | request, 9, number, codec.encode("hang")))
    refusal = peer.answer(6)
    assert "not answered" in str(codec.decode(refusal.payload, refusal.offset).content)

    server.runtime.contexts[number].kill()
    for request in range(1, 6):
        answer = peer.answer(request)
        assert codec.decode(answer.payload, answer.offset).content.code == 3
    other = server.spawn(Service).actor_id
    peer.send(caf.direct(caf.NORMAL | 7, 9, other, codec.encode(1)))
    answer = peer.answer(7)
    assert codec.decode(answer.payload, answer.offset).content == 1
    peer.socket.close()


@pytest.mark.slow
def test_a_peer_that_reads_no_answers_is_disconnected(served, monkeypatch):
    monkeypatch.setattr("callboard.proxies.link.stream.WAITING_LIMIT", 256 * 1024)
    server, port = served
    peer = Peer(port)
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    questions = caf.named(caf.NORMAL | 1, 3, caf.SPAWN_NAME, caf.INFO_QUERY) * 1000

    def is_refused():
        try:
            peer.socket.sendall(questions)
        except OSError:
            return True
        return False

    eventually(is_refused)
    eventually(lambda: not wire_of(server).peers)
    peer.socket.close()


def test_frames_that_go_in_a_circle_end_with_the_path(served):
    server, port = served
    left, right, codec = Peer(port, 1), Peer(port, 2), MessageCodec()
    far = CafNode(9, b"f" * 20)
    right.send(caf.routed((far, right.server), caf.NORMAL, 5, 99, codec.encode("x")))
    wire = wire_of(server)
    eventually(lambda: far in wire.peers)
    frame = caf.routed((left.node, far), caf.NORMAL | 7, 9, 5, codec.encode("x"))
    left.send(frame)
    passed = right.next(caf.PassingFrame)
    while passed.frame.operation != CafOperation.ROUTED:
        passed = right.next(caf.PassingFrame)
    left.send(passed.octets)  # right's path leads over left, and left's through us
    again = right.next(caf.PassingFrame)
    while again.octets != passed.octets:
        again = right.next(caf.PassingFrame)
    ping = right.next(caf.PassingFrame)
    while (ping.frame.operation, ping.source) != (CafOperation.MONITOR, right.server):
        ping = right.next(caf.PassingFrame)
    left.send(ping.octets)
    eventually(lambda: far not in wire.peers)
    left.send(frame)
    answer = left.answer(7)
    assert codec.decode(answer.payload, answer.offset).content == CafError(13)
    left.socket.close()
    right.socket.close()


def test_a_circle_is_not_believed_without_the_ping_itself(served):
    server, port = served
    hub, liar, codec = Peer(port, 1), Peer(port, 2), MessageCodec()
    far = CafNode(9, b"f" * 20)
    hub.send(caf.routed((far, hub.server), caf.NORMAL, 5, 99, codec.encode("x")))
    wire = wire_of(server)
    eventually(lambda: far in wire.peers)
    for number in (5, 1 << 62, (1 << 64) - 1):
        liar.send(caf.monitor(hub.server, CafActor(number, far)))
    liar.wait_until_known()
    assert far in wire.peers
    hub.socket.close()
    liar.socket.close()


def test_a_frame_that_comes_byte_by_byte_takes_the_memory_of_its_bytes():
    frames, size = CafFrames(1 << 20), 50_000
    stream = caf_frame(CafOperation.DIRECT, bytes(size), target=1)
    tracemalloc.start()
    try:
        for at in range(len(stream) - 1):
            assert not list(frames.take(stream[at : at + 1]))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 2 * size
    (frame,) = frames.take(stream[-1:])
    assert len(frame.payload) == size


def test_a_silent_handshake_and_a_slow_one_do_not_hold_the_port(served):
    _, port = served
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as slow:
        slow.sendall(b"\x01\0")
        peer = Peer(port)  # others are served meanwhile
        peer.socket.close()


# --- the end of a linked actor of CAF, whose messages arrive in any order ---


def linked_with(server, port):
    """Return a peer whose actor 50 has linked itself with one of the node, and that one."""
    peer, own = Peer(port), server.spawn(Service)
    content = MessageCodec().encode((Atom("link"), CafActor(50, peer.node)))
    number = own.actor_id
    peer.send(caf.routed((peer.server, peer.server), caf.NORMAL, number, number, content))
    while peer.next(caf.MonitorFrame).actor != 50:
        pass
    return peer, own


def ended(peer, code):
    """Return the report that actor 50 has ended."""
    error = MessageCodec().error_bytes(CafError(code, "exit"))
    return caf.down(CafActor(50, peer.node), peer.server, error)


def exit_message(peer, own, code):
    """Return the exit message of actor 50."""
    content = MessageCodec().encode(
        ExitMessage(CafActor(50, peer.node), CafError(code, "exit"))
    )
    return caf.direct(caf.NORMAL, 50, own.actor_id, content)


@pytest.mark.parametrize(("code", "reason"), [(4, "shutdown"), (5, "killed"), (1, "error")])
@pytest.mark.parametrize("order", ["down", "exit", "unknown", "only"])
def test_a_linked_actor_ends_with_the_reason_of_the_other_one(served, order, code, reason):
    server, port = served
    peer, own = linked_with(server, port)
    ref = wire_of(server).stand_ins[CafActor(50, peer.node)].ref
    downs = [server.monitor(own), server.monitor(ref)]
    frames = {
        "down": [ended(peer, code), exit_message(peer, own, code)],
        "exit": [exit_message(peer, own, code), ended(peer, code)],
        # CAF knows no reason when the monitor arrives after the end.
        "unknown": [ended(peer, 2), exit_message(peer, own, code)],
        "only": [ended(peer, code)],
    }[order]
    peer.send(*frames)
    for down in downs:
        assert down.result(WAIT).reason == reason
    peer.socket.close()


def test_a_linked_actor_ends_if_no_reason_arrives(served):
    server, port = served
    peer, own = linked_with(server, port)
    down = server.monitor(own)
    peer.send(ended(peer, 2))
    assert down.result(WAIT).reason == ExitReason.NOT_FOUND
    peer.socket.close()


def test_an_exit_message_of_a_linked_actor_that_lives_is_obeyed(served):
    server, port = served
    peer, own = linked_with(server, port)
    ref = wire_of(server).stand_ins[CafActor(50, peer.node)].ref
    down, alive = server.monitor(own), server.monitor(ref)
    peer.send(exit_message(peer, own, 4))
    assert down.result(WAIT).reason == ExitReason.SHUTDOWN
    peer.wait_until_known()
    assert not alive.done()
    peer.socket.close()
