"""The frames of a traitor: a full member of a cluster whose frames, or silence, do harm.

Everything is written by a link that stands, or a connection that begins. Where the traitor
forwards frames of others, it can also drop, duplicate, delay, repeat and alter them.
"""

import random
from typing import Any, Final

from callboard import Node
from callboard.basp.control import pack_announce, pack_down, pack_release
from callboard.basp.frame import RawFrame, pack_frame, repack_frame
from callboard.basp.header import (
    DIRECTORY,
    HEADER,
    HIGH_PRIORITY,
    NODE_ACTOR,
    POSITION_SHIFT,
    RESPONSE,
    SEQUENCE_BITS,
    SPAWN_SERVER,
    Operation,
)
from callboard.basp.routing.path_order import pack_path_end
from callboard.basp.routing.update import (
    Cut,
    Statement,
    join_update,
    write_name,
    write_rest,
    write_vector,
)
from callboard.cbor.plain import write_plain
from callboard.proxies.messages import Lookup, Spawn, WatchName
from callboard.simulation import Cluster
from callboard.simulation.cluster import PORT

#: Number of nonexistent nodes in one update.
CROWD: Final = 40

STAMPS: Final = (1, 40, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1)

ENDS: Final = (Operation.DOWN_MESSAGE, Operation.ANNOUNCE_PROXY_INSTANCE)
"""Frames by which an actor may end for others: nobody can be told from its host on the path."""

WAYS: Final = ("drop", "drop some", "double", "keep back", "repeat", "alter")
"""What becomes of the frames of others that a traitor does not just pass on."""


class Forger:
    """Writes one frame after the other for a traitor; a life's seed makes all choices."""

    def __init__(
        self, cluster: Cluster, chance: random.Random, traitor: Node, nodes: list[Node]
    ) -> None:
        self.cluster, self.chance, self.traitor, self.nodes = cluster, chance, traitor, nodes
        #: Actors whose numbers it knows, by their node.
        self.known: dict[Node, int] = {}
        #: Positions that nodes may have come to.
        self.latest = 0
        #: Connections that say nothing, or stop in the middle of a word.
        self.half_open: list[Any] = []
        #: Payloads of its messages.
        self.payloads = [b"\x81\x63abc", b"\x81\xff", b"", b"\x81" * 40]
        self._passed: list[RawFrame] = []
        self._kept: list[RawFrame] = []
        self._way = ""
        self._forwarding: Any = traitor._broker.forwarding
        self._forward = self._forwarding.forward
        self._forwarding.forward = self._pass_on

    # --- what passes ---

    def take_way(self, ways: tuple[str, ...]) -> str:
        """Do something else with the frames of others from now on; returns what."""
        self._way = self.chance.choice(("", *ways))
        if self._kept:
            kept, self._kept = self._kept, []
            self.chance.shuffle(kept)
            self._forward(kept)
        return self._way or "pass on"

    def _pass_on(self, frames: list[RawFrame]) -> None:
        chance, way = self.chance, self._way
        self._passed = (self._passed + frames)[-50:]
        if way == "drop":
            return
        if way == "drop some":
            frames = [frame for frame in frames if chance.random() < 0.5]
        elif way == "double":
            frames = [frame for frame in frames for _ in range(chance.choice((1, 2, 3)))]
        elif way == "keep back":
            kept = [frame for frame in frames if chance.random() < 0.3]
            self._kept += kept
            frames = [frame for frame in frames if frame not in kept]
        elif way == "repeat":
            frames = frames + chance.sample(self._passed, min(3, len(self._passed)))
        elif way == "alter":
            frames = [frame if frame[0] in ENDS else self._alter(frame) for frame in frames]
        self._forward(frames)

    def _alter(self, frame: RawFrame) -> RawFrame:
        """Change one bit after the operation and the length, except in the destination."""
        packed = bytearray(repack_frame(frame))
        at = self.chance.choice([*range(8, 34), *range(52, len(packed))])
        packed[at] ^= 1 << self.chance.randrange(8)
        operation, length, *rest = HEADER.unpack_from(packed)
        return (operation, length, *rest, bytes(packed[HEADER.size :]))  # type: ignore[return-value]

    # --- what it says itself ---

    def act(self, *, is_off: bool) -> str:
        """Do one thing over one link, and return what; off the path also in all names."""
        wires = sorted(self.traitor._broker.routes.wires.items())
        act = self.chance.choice(self.acts())
        if not wires:
            return "nothing: it has no link"
        neighbor, wire = self.chance.choice(wires)
        for frame in act(neighbor, is_off):
            wire.write(frame)
        return act.__name__.strip("_")

    def acts(self) -> list[Any]:
        """Return its actions: functions that take a neighbor, and return frames for it."""
        return [
            self._frames,
            self._frames,
            self._frames,
            self._routes,
            self._gaps,
            self._own_words,
            self._answers,
            self._crowd,
            self._half_open,
            self._stutter,
        ]

    def _pair(self) -> tuple[Node, Node]:
        """Return a node in whose name it speaks, and to whom."""
        return self.chance.choice([self.nodes[:2], self.nodes[1::-1]])

    def _position(self) -> int:
        chance = self.chance
        epoch = chance.choice((0, 0, 1, 5, 20, 40, 63, chance.randrange(64)))
        sequence = chance.choice((0, 3, 40, 9000, (1 << SEQUENCE_BITS) - 1))
        near = self.latest + chance.randint(-5, 9)
        return max(0, chance.choice((epoch << SEQUENCE_BITS | sequence, near)))

    def _dispatch(
        self, source: bytes, there: bytes, actor: int, position: int, data: int = 0
    ) -> bytes:
        data |= position << POSITION_SHIFT
        payload = self.chance.choice(self.payloads)
        asker = self.chance.choice((0, 0, 7))
        return pack_frame(
            Operation.DISPATCH_MESSAGE, data, source, there, asker, actor, payload
        )

    def _frames(self, _: bytes, is_off: bool) -> list[bytes]:
        """Return a frame with another node as source."""
        chance, (source, there) = self.chance, self._pair()
        me, you, actor = source.node_id, there.node_id, self.known[there]
        position = self._position()
        epoch, count = position >> SEQUENCE_BITS & 63, position % (1 << SEQUENCE_BITS)
        urgent = chance.choice((0, 0, HIGH_PRIORITY))
        big = chance.choice((0, 1, 5, 1 << 40, (1 << 64) - 1))
        lines = [[epoch, count, 0, big], [chance.randrange(64), big, 5, 0]][
            : chance.choice((1, 2))
        ]
        report = Operation.DELIVERY_REPORT
        forged = [
            self._dispatch(me, you, chance.choice((actor, actor, 77)), position, urgent),
            pack_path_end(me, you, epoch, count, is_open=chance.random() < 0.5),
            pack_announce(me, you, chance.choice((actor, 77)), big),
            pack_release(me, you, chance.choice((actor, NODE_ACTOR, 77)), big),
            pack_frame(report, 0, me, you, 0, 0, write_plain(lines)),
            pack_frame(report, 0, me, you, 0, 0, b"\xff"),
        ]
        if is_off:  # a node on the path cannot be distinguished from the host of an actor
            forged.append(pack_down(me, self.known[source], you, big % 8, "forged"))
        return [chance.choice(forged)]

    def _gaps(self, _: bytes, is_off: bool) -> list[bytes]:
        """Return dispatches that wait for others, in its own name or another's."""
        source, there = self._pair()
        name = self.chance.choice((source, self.traitor)).node_id
        first, step = self._position() + 2, self.chance.choice((2, 3, 1000))
        actor, to = self.known[there], there.node_id
        return [
            self._dispatch(name, to, actor, first + step * number)
            for number in range(self.chance.choice((5, 60)))
        ]

    def _answers(self, _: bytes, is_off: bool) -> list[bytes]:
        """Return answers to asks that it was not asked, in its own name or another's."""
        source, there = self._pair()
        name = self.chance.choice((source, self.traitor)).node_id
        return [
            self._dispatch(name, there.node_id, 0, self._position(), RESPONSE | number)
            for number in range(1, 20)
        ]

    def _own_words(self, _: bytes, is_off: bool) -> list[bytes]:
        """Return valid but useless frames: to guessed actors, and of unknown names."""
        chance, there = self.chance, self.chance.choice(self.nodes)
        number = chance.choice(
            (DIRECTORY, SPAWN_SERVER, NODE_ACTOR, 1, 77, self.known.get(there, 5))
        )
        ref = self.traitor._broker.runtime.ref_of(there.node_id, number)
        text = chance.choice(("no\x1bname", "n" * 5000, "", "till"))
        said: Any = chance.choice(
            (Lookup(text), WatchName(text, version=-5), Spawn(text), 5, ref)
        )
        if chance.random() < 0.5:
            ref.ask(said, timeout=1.0)
        else:
            ref.tell(said)
        return []

    def _routes(self, neighbor: bytes, is_off: bool) -> list[bytes]:
        """Return a routing update with statements and cuts of others."""
        chance = self.chance
        named, other = chance.sample([node.node_id for node in self.nodes], 2)
        stamp = chance.choice(STAMPS)
        nobody = [frozenset[bytes]()] * 4
        said = [
            Statement(named, stamp, frozenset({other}), frozenset({other})),
            Statement(named, stamp, *nobody),  # type: ignore[arg-type]
            Statement(named, stamp, *(nobody[:2]), frozenset({other})),  # type: ignore[arg-type]
        ]
        withdrawn = [chance.choice((named, b"?" * 18))]
        rest = write_rest(withdrawn, [Cut(named, other, stamp)], [chance.choice(said)])
        vectors = []
        if not is_off:  # who says that it leads to a node is on its path
            path = (self.traitor.node_id, named)
            vectors = [write_vector(path, (stamp, stamp))]
        return [self._update(neighbor, vectors[: chance.choice((0, 1))], rest, [])]

    def _crowd(self, neighbor: bytes, is_off: bool) -> list[bytes]:
        """Return news of nodes that do not exist, and of their names."""
        me, stamp = self.traitor.node_id, self.chance.choice(STAMPS)
        ids = [self.chance.randbytes(18) for _ in range(CROWD)]
        vectors = [write_vector((me, node), (stamp, stamp)) for node in ids]
        names = [write_name(self.chance.choice(("crowd", "\x1b[2J", ""))) for _ in ids]
        return [self._update(neighbor, vectors, write_rest([], [], []), names)]

    def _update(
        self, neighbor: bytes, vectors: list[bytes], rest: bytes, names: list[bytes]
    ) -> bytes:
        operation, me = Operation.ROUTING_UPDATE, self.traitor.node_id
        return pack_frame(operation, 0, me, neighbor, 0, 0, join_update(vectors, rest, names))

    def _half_open(self, _: bytes, is_off: bool) -> list[bytes]:
        """Start conversations with a node, and do not continue them."""
        network, there = self.cluster.network, self.chance.choice(self.nodes)
        if there is self.traitor:
            return []
        host = there.address.split("//")[1].split(":")[0]
        for _ in range(3):
            sock = network.connect("10.9.9.9", (host, PORT))
            self.half_open.append(sock)
            word = self.chance.choice(
                (b"", b"\0", b"GET / HTTP/1.1\r\n", self.chance.randbytes(90))
            )
            self.cluster.clock.plan(0.01, _say, sock, word)
        return []

    def _stutter(self, neighbor: bytes, is_off: bool) -> list[bytes]:
        """Start a large message that does not end, or send an invalid one."""
        chance, me = self.chance, self.traitor.node_id
        if chance.random() < 0.8:  # else hardly any life keeps its traitor for long
            return self._frames(neighbor, is_off)
        length = chance.choice((1 << 16, 16 << 20, (16 << 20) + 1))
        whole = pack_frame(Operation.DISPATCH_MESSAGE, 0, me, neighbor, 0, 5, b"")
        large = whole[:4] + length.to_bytes(4, "big") + whole[8:] + b"\x81\x80"
        word = pack_frame(chance.randrange(16), 0, me, neighbor, 0, 0, b"\x80")
        return [chance.choice((large, word))]


def _say(sock: Any, word: bytes) -> None:
    """Send a few bytes by a connection, if it came about."""
    if word and sock.peer is not None and not sock.is_closed and not sock.error:
        sock.send(word)
