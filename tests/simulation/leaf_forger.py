"""The frames of a hostile leaf: beyond its rights, with sources of others and its own."""

import random
from typing import Any, Final

from callboard import Node
from callboard.actors.future import Future
from callboard.basp.control import pack_announce, pack_release
from callboard.basp.frame import RawFrame, pack_frame, repack_frame
from callboard.basp.header import (
    CORE_ACTOR,
    DIRECTORY,
    INSPECTOR,
    NODE_ACTOR,
    NOT_PERMITTED,
    SPAWN_SERVER,
    Operation,
)
from callboard.cbor.plain import write_plain
from callboard.proxies.inspection import Inspect
from callboard.proxies.messages import (
    DrainNode,
    Failure,
    HoldersChanged,
    LinkActors,
    Lookup,
    Spawn,
    StopActor,
    WatchName,
)
from callboard.simulation import Cluster
from tests.simulation.book import Numbered, Passed
from tests.simulation.forger import Forger

FORBIDDEN: Final = 10
"""The source in all that it says where it may not: such a message must not arrive anywhere."""

FLOOD: Final = 300


class LeafForger(Forger):
    """Writes one frame after the other for a leaf; all choices are drawn from a life's seed.

    A `tidy` one tells no lies about itself: its positions, reports and answers are those of an
    honest node, so its permitted actions always work.
    """

    def __init__(
        self,
        cluster: Cluster,
        chance: random.Random,
        leaf: Node,
        nodes: list[Node],
        *,
        is_tidy: bool,
    ) -> None:
        super().__init__(cluster, chance, leaf, nodes)
        self.is_tidy = is_tidy
        encode = leaf._broker.outgoing.codec.encode
        self.payloads.append(encode(Numbered(FORBIDDEN, 7)))
        #: Actors of members that it has no rights for, and one that it may send to.
        self.forbidden: list[Any] = []
        self.open: list[Any] = []
        #: One of its own actors.
        self.own: Any = None
        #: Things that it asked for and must not get.
        self.asked: list[tuple[str, Future[Any]]] = []
        self._heard: list[RawFrame] = []
        self._said: list[bytes] = []

    def listen(self) -> None:
        """Keep received frames, and frames of the leaf's own node, to repeat them."""
        for wire in self.traitor._broker.routes.wires.values():
            wire.guard(self._hear, self._say)

    def _hear(self, frames: list[RawFrame]) -> list[RawFrame]:
        self._heard = (self._heard + frames)[-40:]
        return frames

    def _say(self, frame: bytes) -> bytes:
        self._said = [*self._said[-40:], frame]
        return frame

    def _pair(self) -> tuple[Node, Node]:
        """Return a node in whose name it speaks, and to whom: members, and the other leaf."""
        source, there = self.chance.sample([*self.known], 2)
        return source, there

    def acts(self) -> list[Any]:
        """Return its actions; one that is not tidy also lies about itself."""
        others = [self._frames, self._frames, self._routes, self._crowd, self._half_open]
        rights = [self._beyond, self._beyond, self._beyond, self._deputy, self._parts]
        acts = [*others, *rights, self._own_words, self._echoes, self._flood]
        return acts if self.is_tidy else [*acts, *self._untidy()]

    def _frames(self, neighbor: bytes, is_off: bool) -> list[bytes]:
        """Return a frame with another source; a tidy leaf sends nothing that ends its link."""
        frames = super()._frames(neighbor, is_off)
        is_empty_release = frames[0][3] == Operation.RELEASE_PROXY_INSTANCE and not any(
            frames[0][8:16]
        )
        return [] if self.is_tidy and is_empty_release else frames

    def _untidy(self) -> list[Any]:
        return [self._gaps, self._answers, self._stutter, self._any_frame, self._repeats]

    def _ask(self, what: str, ref: Any, said: Any) -> None:
        """Ask for something that it must not get, or only tell."""
        if self.chance.random() < 0.5:
            self.asked.append((what, ref.ask(said, timeout=10.0)))
        else:
            ref.tell(said)

    def _part(self, number: int) -> Any:
        there = self.chance.choice(self.nodes[:-1])  # its own node obeys it
        return self.traitor._broker.runtime.ref_of(there.node_id, number)

    # --- more than its rights ---

    def _beyond(self, _: bytes, is_off: bool) -> list[bytes]:
        """Send to, stop, watch or link with an actor without the right to do so."""
        chance, ref = self.chance, self.chance.choice(self.forbidden)
        node_ref = self.traitor._broker.runtime.ref_of(ref.node_id, NODE_ACTOR)
        what = chance.choice(("send", "stop", "kill", "watch", "link", "unlink"))
        if what == "send":
            self._ask(what, ref, Numbered(FORBIDDEN, 1))
        elif what == "stop":
            self._ask(what, node_ref, StopActor(ref.actor_id, chance.random() < 0.5))
        elif what == "kill":
            chance.choice((ref.kill, ref.stop))()
        elif what == "watch":
            self.traitor.monitor(ref)
        else:
            other = chance.choice((ref, chance.choice(self.forbidden), self.own))
            self._ask(what, node_ref, LinkActors(ref.actor_id, other, what == "unlink"))
        return []

    def _deputy(self, _: bytes, is_off: bool) -> list[bytes]:
        """Try to make a permitted actor use its rights for the leaf."""
        victim, to = self.chance.choice(self.forbidden), self.chance.choice(self.open)
        inside = self.chance.choice((victim, [victim], {"to": victim}, (1, {2: [victim]})))
        self._ask("a foreign ref", to, Passed(inside))
        return []

    def _parts(self, _: bytes, is_off: bool) -> list[bytes]:
        """Ask parts of nodes for things that the leaf may not have."""
        chance, victim = self.chance, self.chance.choice(self.forbidden)
        name = chance.choice(("safe", "probe", "callboard.master.61", "*"))
        number, said = chance.choice(
            [
                (DIRECTORY, Lookup(name)),
                (DIRECTORY, WatchName(name, chance.random() < 0.5)),
                (DIRECTORY, HoldersChanged(1, (victim,), is_all=True)),
                (SPAWN_SERVER, Spawn("other")),
                (SPAWN_SERVER, Spawn("Other", by_class=True)),
                (SPAWN_SERVER, Spawn("pawn", (victim,))),
                (INSPECTOR, DrainNode(0.1)),
                (INSPECTOR, Numbered(FORBIDDEN, 2)),
                (INSPECTOR, Inspect()),
                (CORE_ACTOR, Numbered(FORBIDDEN, 3)),
                (NOT_PERMITTED, Numbered(FORBIDDEN, 4)),
                (NODE_ACTOR, Failure("NotPermitted", "none", "basp:///20@aa")),
                (chance.randrange(16), chance.choice((victim, [victim], None, "word"))),
            ]
        )
        part = self._part(number)
        if number in {NODE_ACTOR, CORE_ACTOR}:
            part.tell(said)
        else:
            self._ask(f"{said} of part {number}", part, said)
        return []

    # --- again, and too much ---

    def _echoes(self, _: bytes, is_off: bool) -> list[bytes]:
        """Repeat frames of others, as they were, or redirected to each other."""
        said = []
        for frame in self.chance.sample(self._heard, min(5, len(self._heard))):
            operation, length, data, source, there, actor, number, payload = frame
            if self.chance.random() < 0.5:
                there = self.chance.choice(self.nodes).node_id
            ends_its_link = self.is_tidy and operation == Operation.ROUTING_UPDATE
            if source != self.traitor.node_id and not ends_its_link:
                turned = (operation, length, data, source, there, actor, number, payload)
                said.append(repack_frame(turned))
        return said

    def _repeats(self, _: bytes, is_off: bool) -> list[bytes]:
        """Repeat its own frames."""
        return self.chance.sample(self._said, min(5, len(self._said)))

    def _flood(self, neighbor: bytes, is_off: bool) -> list[bytes]:
        """Ask or tell without end, or name actors without end."""
        chance, there = self.chance, self.chance.choice(self.nodes[:2])
        what = chance.choice(("tell", "look up", "announce"))
        if what == "announce" and not self.is_tidy:
            me, first = self.traitor.node_id, self.known[there]
            return [
                pack_announce(me, there.node_id, first + number, 1 + number % 3)
                for number in range(FLOOD)
            ]
        for _ in range(FLOOD):
            if what == "tell":
                chance.choice(self.forbidden).tell(Numbered(FORBIDDEN, 5))
            else:
                self._part(DIRECTORY).tell(Lookup("safe"))
        return []

    def _any_frame(self, neighbor: bytes, is_off: bool) -> list[bytes]:
        """Return a frame of any kind in its own name, about anything."""
        chance, there = self.chance, self.chance.choice(self.nodes)
        me, number = self.traitor.node_id, chance.choice((0, 1, 2, 3, 20, 1 << 31))
        victim = chance.choice(self.forbidden).actor_id
        data = chance.choice((0, 1, 1 << 40, (1 << 64) - 1, chance.getrandbits(64)))
        payload = chance.choice([*self.payloads, write_plain([[0, data, 0, data]]), b"\x80"])
        frames = [
            self._dispatch(me, there.node_id, victim, self._position()),
            pack_frame(chance.randrange(24), data, me, there.node_id, number, victim, payload),
            pack_frame(chance.randrange(24), data, me, there.node_id, victim, number, payload),
            pack_release(me, there.node_id, victim, data),
            pack_frame(Operation.ROUTING_UPDATE, 0, me, there.node_id, 0, 0, payload),
        ]
        return [chance.choice(frames)]
