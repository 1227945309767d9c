"""CAF's wire on nodes: two nodes of ours that are linked by it, and a third one over BASP."""

import socket
import time
from dataclasses import dataclass

import pytest

from callboard import Actor, Endpoint, ExitReason, Node, handler, message
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
from callboard.caf.wire.frame import CafOperation, caf_frame
from callboard.caf.wire.message import Atom, MessageCodec, ValueReader
from callboard.caf.wire.reader import CafActor, CafNode
from callboard.kernel.errors import InvalidAddress, NotSerializable
from callboard.kernel.wire import Transmit
from callboard.proxies.errors import UnknownMessageType
from tests.polling import eventually

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
    with pytest.raises(InvalidAddress):
        client.connect("caf://nowhere")
    with pytest.raises(WrongValue, match="secret"):
        server.listen(wire="caf-0.17", secret="s")
    with pytest.raises(WrongValue, match="caf-0.17"):
        server.listen(wire="caf-9")


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
    from callboard import Limits

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
