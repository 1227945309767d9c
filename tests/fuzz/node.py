"""Whole links: a real node gets damaged streams while another link of it keeps working."""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from callboard.actors.actor import Actor
from callboard.actors.dispatch import handler
from callboard.actors.reference import ActorRef, Call, Down
from callboard.actors.signals import Exit
from callboard.basp.errors import RemoteProtocolError
from callboard.basp.frame import FrameReader, pack_frame, repack_frame
from callboard.basp.handshake import HANDSHAKE_LIMIT, LinkConfig
from callboard.basp.header import POSITION_MASK, RESPONSE, SEQUENCE_COUNT, count_of
from callboard.basp.link import Link, LinkPairs, LinkState, Transmit
from callboard.basp.node_id import NodeId, make_node_id
from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.basp.routing.path_order import PathOrder
from callboard.cbor.plain import write_plain
from callboard.node import Node
from callboard.proxies.messages import (
    AskCredit,
    Describe,
    Failure,
    LinkActors,
    Lookup,
    Spawn,
    StopActor,
    UnverifiedFrame,
)
from callboard.simulation.cluster import PORT, Cluster
from tests.basp.wire import held_bytes, receive
from tests.fuzz.case import READ, Case, Violation, require
from tests.fuzz.mutation import OTHER, mutate_frame

CONNECTIONS = 6
FRAMES = 30
TOYS = 8
ASKS = 3
_SEED = 1
_HOST, _PEER_HOST = "10.0.0.0", "10.9.0.1"
VICTIM = make_node_id(b"simulation", _SEED, 0, 1)
#: Below and above the victim's id: it then is responder or originator.
PEERS = (NodeId(bytes(17) + b"\x01"), NodeId(b"\xff" * 17 + b"\xfe"))
ESTABLISHED = 99
_MOMENT = 0.002
#: Classes of actors and entities whose handlers a peer may make fail.
_TOYS = ("Toy", "Shelf")


class _Name:
    """Replaces a ref where no node exists to make one."""

    def __init__(self, node: bytes, number: int) -> None:
        self.pair = (node, number)


CODEC = PayloadCodec(
    DEFAULT_REGISTRY, ref_types=(_Name,), ref_to_pair=lambda name: name.pair, pair_to_ref=_Name
)


class Toy(Actor):
    """Accepts every message."""

    @handler
    def text(self, msg: str) -> str:
        return msg

    @handler
    def number(self, msg: int) -> int:
        return msg + 1

    def double(self, number: int, *, plus: int = 0) -> int:
        return 2 * number + plus


def _messages(peer: bytes) -> list[bytes]:
    name: Any = _Name(peer, 16)
    values = (
        "hi", 5, [1, "x"], {"k": (1, 2)}, None, name, Lookup("echo"), Describe(),
        Spawn("toy"), Spawn("toy", (1,), {"x": name}), StopActor(17), StopActor(18, kill=True),
        LinkActors(19, name), LinkActors(19, name, undo=True), Call("nothing"),
        AskCredit(16, 5), AskCredit(17, (1 << 62) - 1),
        UnverifiedFrame(pack_frame(2, 0, peer, peer, 0, 17, b"\x81\x01")),
        Call("double", (4,), {"plus": 1}), Failure("ActorDown", "text", "killed", "trace"),
        Failure("LinkFull", "x"),
        Down(name, "normal", "detail"), Exit(name, "killed", "x"),
    )  # fmt: skip
    # Fields of types that no annotation allows: CBOR knows nothing of annotations.
    odd: tuple[Any, ...] = (
        Lookup([1]), Lookup(name), Spawn([], 5), Spawn("toy", 5), Spawn("toy", (), [1]),
        Spawn({}, (), {5: 1}), Spawn("toy", ("x" * 9,), {"a": 1}, "yes"), StopActor([]),
        AskCredit([], 1), AskCredit(16, "5"), AskCredit(16, 2**70),
        UnverifiedFrame(5), UnverifiedFrame(b"x" * 60),
        StopActor("17"), StopActor(-5), StopActor(2**70), LinkActors(19, 5),
        LinkActors([], name), Call([], (), None), Call("double", 5, 6),
        Call("double", (), {5: 6}),
        Call("__init__"), Call("double", ([],), None), Failure([], 5), Failure({}, [], {}, 7),
        Failure("ActorDown", 5, [], {}), Failure("ActorDown", "x", "no such reason"),
        Failure("RemoteError", 5, [], {}), Failure(5), Failure("AskTimeout", [1]),
        Down(5, [], 6), Down(name, "no such reason"), Exit([], 5, {}), Exit(name, None),
    )  # fmt: skip
    return [CODEC.encode(value) for value in (*values, *odd)]


def _corpus(peer: bytes) -> list[bytes]:
    """Frames that a peer may send on a link, to every part of the node."""
    made = [
        pack_frame(2, data, peer, VICTIM, 16, number, payload)
        for payload in _messages(peer)
        for data in (0, 7, 1 << 56 | 9)
        for number in (0, 2, 3, 16, 20)
        if data == 7 or number == 20
    ]
    made += [
        pack_frame(2, RESPONSE | message_id, peer, VICTIM, 0, 0, payload)
        for payload in _messages(peer)
        for message_id in range(1, 9, 3)
    ]
    stranger = NodeId(b"\x07" * 18)
    routes = [
        [[[[peer, stranger], [1, 2]]], []],
        [[[[peer, OTHER], [3, 2]], [[peer, stranger, OTHER], [3, 2, 1]]], [stranger]],
        [[], [OTHER, stranger]],
    ]
    made += [pack_frame(11, 0, peer, VICTIM, 0, 0, write_plain(update)) for update in routes]
    made += [
        pack_frame(operation, data, peer, node, source, number, payload)
        for operation, data, node, source, number, payload in (
            (3, 0, VICTIM, 0, 16, b""),
            (3, 0, VICTIM, 0, 999, b""),
            (4, 2, VICTIM, 16, 0, b"\x61x"),
            (5, 0, VICTIM, 0, 0, b""),
            (10, 0, VICTIM, 0, 0, b""),
            (12, 1, VICTIM, 0, 16, b""),
            (13, 0, VICTIM, 0, 0, write_plain([[0, 2, 1, 1]])),
            (4, 2**40, VICTIM, 20, 0, b""),
            (2, 5, OTHER, 16, 16, b"\x81\x61x"),
            (3, 0, stranger, 0, 16, b""),
        )
        for _ in range(8)
    ]
    return made


_CORPORA = {peer: _corpus(peer) for peer in PEERS}


class WholeNode:
    """A victim with two links: one of a friend, one of a peer that has gone mad."""

    name = "node"

    def make(self, seed: int) -> Case:
        """Return the connections: the peer, the state up to which it behaves, and its later
        bytes."""
        rng = random.Random(seed)
        connections = []
        for _ in range(CONNECTIONS):
            peer = rng.choice(PEERS)
            corpus = _CORPORA[peer]
            share = rng.choice((0.05, 0.2, 0.6))
            frames = [
                mutate_frame(rng, frame, corpus, HANDSHAKE_LIMIT)
                if rng.random() < share
                else frame
                for frame in rng.choices(corpus, k=FRAMES)
            ]
            stage = rng.choice((0, 1, 2, 3, ESTABLISHED, ESTABLISHED, ESTABLISHED))
            size = rng.choice((1, 1, 1, 3))
            chunks = [b"".join(frames[at : at + size]) for at in range(0, FRAMES, size)]
            connections.append({"peer": peer, "stage": stage, "chunks": chunks})
        return {"connections": connections}

    def run(self, case: Case) -> int:
        """Check all the while that the friend is served, and that nothing is left after."""
        with errors_are_violations():
            cluster = Cluster(_SEED)
            try:
                return _Scene(cluster).play(case["connections"])
            finally:
                cluster.close()


class _Scene:
    """One cluster of victim and friend, and the mad peer."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.victim, self.friend = cluster(2, spawnable={"toy": Toy})
        require(self.victim.node_id == VICTIM, "the victim has another id")
        for _ in range(TOYS):
            self.victim.spawn(Toy)
        self.echo: ActorRef[Toy] = self.friend.ref(str(self.victim.spawn(Toy)))
        self.asked: list[Any] = []

    def play(self, connections: list[Case]) -> int:
        frames = 0
        for number, connection in enumerate(connections):
            frames += self._connection(connection)
            require(self.echo.ask(f"{number}").result(1) == f"{number}", "an echo is wrong")
        self.cluster.advance(3.0)
        require(all(one.done() for one in self.asked), "an ask to a lost peer hangs")
        require(len(self.victim.links()) == 1, "links are left")
        require(len(self.victim._broker.connector._wires) == 1, "connections are left")
        self._check_node(self.victim)
        return frames

    def _check_node(self, node: Node) -> None:
        self.victim.register("echo", self.victim.spawn(Toy))
        found = self.friend.find("echo").result(5)
        require(found.ask(1).result(5) == 2, "the directory is wrong")
        toy = self.friend.remote_spawn(node.node_id, "toy")
        require(toy.ask("x").result(5) == "x", "the spawn server is wrong")

    def _connection(self, case: Case) -> int:
        peer = MadPeer(self.cluster, self.victim, NodeId(case["peer"]))
        peer.behave(case["stage"])
        if peer.link.is_established:
            address = f"basp:///20@{case['peer'].hex()}"
            ref = self.victim.ref(address)
            self.asked += [ref.ask("x", 600.0) for _ in range(ASKS)]
        fed = 0
        for chunk in case["chunks"]:
            peer.read()
            if not peer.send(chunk):
                break
            self.cluster.advance(_MOMENT)
            fed += max(1, len(FrameReader().feed(chunk)))
            for wire in self.victim._broker.connector._wires.values():
                held = held_bytes(wire.link._reader)
                require(held <= wire.link._reader.payload_limit + READ, f"{held:,} B held")
        answer = self.echo.ask("meanwhile")
        require(answer.result(1) == "meanwhile", "the other link does not work")
        peer.leave()
        return fed


class MadPeer:
    """A socket with a link machine that behaves up to a certain point."""

    def __init__(
        self, cluster: Cluster, victim: Node, node_id: NodeId, state: bytes = b""
    ) -> None:
        self._cluster = cluster
        self._orders = victim._broker.incoming._orders
        self._sock = cluster.network.connect(_PEER_HOST, (_HOST, PORT))
        self.link = Link(
            LinkConfig(node_id), dialer=True, nonce=b"n" * 16, now=0.0, pairs=LinkPairs()
        )
        self.link.upper_state = state

    def behave(self, stage: int) -> None:
        """Carry out the handshake up to `stage` frames, or to the end."""
        sent = 0
        for _ in range(20):
            self._cluster.advance(_MOMENT)
            for effect in receive(self.link, self.read(), 0.0):
                if isinstance(effect, Transmit) and sent < stage:
                    sent += self.send(effect.data)
            if sent >= stage or self.link.is_established:
                break
        if stage == ESTABLISHED:
            self._cluster.advance(_MOMENT)
            require(self.link.state is LinkState.ESTABLISHED, "the node refuses a good peer")

    def send(self, data: bytes) -> bool:
        """Send; False when the node has closed the connection."""
        data = self._in_order(data)
        peer = self._sock.peer
        if peer is None or peer.is_closed:
            return False
        try:
            return self._sock.send(data) == len(data)
        except OSError:
            return False

    def _in_order(self, data: bytes) -> bytes:
        """Number whole dispatches without a number as the victim expects them."""
        try:
            frames = FrameReader().feed(data)
        except RemoteProtocolError:
            return data
        if b"".join(map(repack_frame, frames)) != data:
            return data
        order = self._orders.get(self.link._config.node_id, PathOrder())
        order._catch_up()
        numbered, position = [], order._position
        for frame in frames:
            operation, length, bits, *rest = frame
            if operation == 2 and rest[1] == VICTIM and not bits >> 32 & (SEQUENCE_COUNT - 1):
                said = bits | SEQUENCE_COUNT - 1 << 32  # or it would be of its epoch's first
                position += count_of(said, *rest[2:4])
                bits = bits & ~(POSITION_MASK << 32) | (position - 1 & POSITION_MASK) << 32
            numbered.append(repack_frame((operation, length, bits, *rest)))
        return b"".join(numbered)

    def leave(self) -> None:
        """Close, and let the node notice."""
        self._sock.close()
        self._cluster.advance(0.05)

    def read(self) -> bytes:
        """Return what the victim sent."""
        read = b""
        try:
            while data := self._sock.recv(READ):
                read += data
        except OSError:
            pass
        return read


class _Errors(logging.Handler):
    """Keeps what a node logs as its own failure; failures of user actors are theirs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        subject = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
        is_toy = "failed: %s" in str(record.msg) and subject.partition(" ")[0] in _TOYS
        if not is_toy:
            cause = record.exc_info[1] if record.exc_info else None
            self.found.append(f"{record.getMessage():.300}: {cause!r}")


@contextmanager
def errors_are_violations() -> Iterator[None]:
    """Raise a violation for what nodes log as their own failure in the block."""
    log, errors = logging.getLogger("callboard"), _Errors()
    propagates, log.propagate = log.propagate, False
    log.addHandler(errors)
    try:
        yield
    finally:
        log.removeHandler(errors)
        log.propagate = propagates
    if errors.found:
        raise Violation(errors.found[0])
