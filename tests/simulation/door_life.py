"""One random life of doors to Zeeks, by seed: nodes of a cluster, and Zeeks beside it.

A Zeek is played by a node of its own with our port, which gives messages to clients as Zeek
does. Nodes connect to it, publish, and want more or less; connections are cut, ways between
nodes and to Zeeks break in one direction or both, nodes die, Zeeks die and start again, doors
are closed. Then the faults end, and after a while everything has to arrive once and nowhere
else; that is done some times in each life.
"""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

from callboard import Node
from callboard.doors.web_socket_peer import WebSocketPeer
from callboard.doors.web_socket_server import WebSocketServer
from callboard.endpoint.hub import Hub, HubOptions
from callboard.endpoint.machine.topic import shortest
from callboard.simulation import Cluster
from callboard.simulation.cluster import PORT
from tests.simulation.logged import logged_errors
from tests.simulation.rules import Violation

TOPICS: Final = ("/a", "/a/b", "/b", "/b/x/y", "/c")
FILTERS: Final = ("/a", "/a/b", "/b", "/b/x", "/c", "")

ZEEK_PORT: Final = 27759

SETTLED_WITHIN: Final = 60.0
"""Virtual seconds after the last fault within which each Zeek has one door."""

TOLD: Final = 3.0
"""Seconds within which a message is everywhere, and after which a change has its effects."""

TURMOIL: Final = 8.0
"""Seconds around a fault between nodes in which both sides may have a door."""

_Key = tuple[str, int, int]


@dataclass(eq=False)
class Taker:
    """A receiver, and what it got."""

    topics: tuple[str, ...]
    got: Counter[_Key] = field(default_factory=Counter)

    def take(self, items: list[tuple[str, Any]]) -> None:
        """Take a run."""
        for _, (kind, index, number) in items:
            self.got[kind, index, number] += 1


@dataclass(eq=False)
class Place:
    """A node of the cluster, or a Zeek (then it has a port, and one taker of everything)."""

    index: int
    node: Node
    hub: Hub
    takers: list[Taker] = field(default_factory=list)
    peers: dict[int, WebSocketPeer] = field(default_factory=dict)
    is_alive: bool = True
    number: int = 0


class DoorLife:
    """Lives one seed; `run` raises `Violation` for what must not be."""

    def __init__(self, seed: int, most: int = 4) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.cluster = Cluster(seed)
        self.places: list[Place] = []
        self.zeeks: list[Place] = []
        self.errors: list[str] = []
        self._most = most
        self._published: dict[_Key, float] = {}
        #: When something between nodes broke or came back, and when wishes or ways changed.
        self._turmoil: list[float] = []
        self._changes: list[float] = []
        self._actions: dict[Callable[[], None], int] = {
            self._publish: 8,
            self._tell: 8,
            self._subscribe: 3,
            self._unsubscribe: 2,
            self._cut: 3,
            self._part: 2,
            self._split: 1,
            self._kill: 1,
            self._restart_zeek: 1,
            self._close_or_open: 2,
            self.cluster.heal: 2,
        }

    def run(self) -> "DoorLife":
        """Live the life of this seed."""
        chance = random.Random(self.seed)
        with (
            logged_errors(self.errors),
            # The same seed has the same bytes.
            patch("callboard.zeek.text_frames.token_bytes", chance.randbytes),
            patch("websockets.client.generate_key", lambda: "dGhlIHNhbXBsZSBub25jZQ=="),
            patch("websockets.server.email.utils.formatdate", lambda **_: "now"),
            closing(self.cluster),
        ):
            self.begin(self.random.randint(1, self._most), self.random.randint(1, 2))
            self.cluster.advance(self.random.choice((0.0, 1.0, 4.0)))
            for _ in range(self.random.randint(1, 3)):
                for _ in range(self.random.randint(5, 15)):
                    self.random.choices(list(self._actions), list(self._actions.values()))[0]()
                    self.cluster.advance(self.random.choice((0.0, 0.001, 0.02, 0.3, 2.0, 6.0)))
                self._rest()
            self._check_doubles()
            if self.errors:
                raise Violation(f"an error was logged: {self.errors[0]}")
        return self

    def _note(self, *what: object) -> None:
        self.cluster.trace.note(self.cluster.now, "life", *what)

    # --- begin ---

    def begin(self, nodes: int, zeeks: int) -> None:
        """Make nodes and Zeeks; they do not know each other yet."""
        self._note(nodes, "nodes", zeeks, "Zeeks")
        for index in range(zeeks):
            self.zeeks.append(self._open_zeek(index, self.cluster.node(f"zeek-{index}")))
        for index in range(nodes):
            place = self._place(index, self.cluster.node(f"n{index}"))
            for other in self.places:
                self._dial(place, other)
            self.places.append(place)
        self._turmoil.append(self.cluster.now)  # they do not know each other yet
        for place in self.places:
            self._subscribe(place)
            for zeek in self.zeeks:
                self._open(place, zeek)

    def _place(self, index: int, node: Node) -> Place:
        hub = Hub.of(node, HubOptions(endpoint_id=self.random.randbytes(16)))
        return Place(index, node, hub)

    def _open_zeek(self, index: int, node: Node) -> Place:
        """Let a node play a Zeek, which hears all that is published by clients."""
        zeek = self._place(index, node)
        zeek.takers.append(Taker(("",)))
        zeek.hub.add_receiver(zeek.takers[0], ("",)).result(5)
        WebSocketServer(zeek.hub, self._host(node), ZEEK_PORT, insecure=True)
        return zeek

    def _host(self, node: Node) -> str:
        return node.address.removeprefix("basp://").rpartition(":")[0]

    def _dial(self, one: Place, other: Place) -> None:
        one.node._reach.dial((self._host(other.node), PORT), keep=True)

    def _open(self, place: Place, zeek: Place) -> None:
        url = f"ws://{self._host(zeek.node)}:{ZEEK_PORT}"
        place.peers[zeek.index] = WebSocketPeer(place.hub, url)

    # --- what happens ---

    def _alive(self) -> list[Place]:
        return [place for place in self.places if place.is_alive]

    def _publish(self, publisher: Place | None = None, topic: str = "") -> _Key:
        """Let a node publish."""
        place = publisher or self.random.choice(self._alive())
        return self._say("node", place, topic)

    def _tell(self, publisher: Place | None = None, topic: str = "") -> _Key:
        """Let a Zeek publish."""
        return self._say("zeek", publisher or self.random.choice(self.zeeks), topic)

    def _say(self, kind: str, place: Place, topic: str) -> _Key:
        place.number += 1
        key = kind, place.index, place.number
        chosen = topic or self.random.choice(TOPICS)
        self._note("publish", *key, chosen)
        self._published[key] = self.cluster.now
        place.hub.publish(chosen, list(key))
        return key

    def _subscribe(self, subscriber: Place | None = None) -> None:
        place = subscriber or self.random.choice(self._alive())
        taker = Taker(tuple(self.random.sample(FILTERS, self.random.randint(1, 2))))
        self._note("subscribe", place.index, *taker.topics)
        place.takers.append(taker)
        place.hub.add_receiver(taker, taker.topics).result(5)
        self._changes.append(self.cluster.now)

    def _unsubscribe(self) -> None:
        place = self.random.choice(self._alive())
        if place.takers:
            taker = self.random.choice(place.takers)
            self._note("unsubscribe", place.index, *taker.topics)
            place.hub.remove_receiver(taker).result(5)
            place.takers.remove(taker)
            self._check_taker(taker)
            self._changes.append(self.cluster.now)

    def _cut(self) -> None:
        """Break the connections of a node with a Zeek."""
        place, zeek = self.random.choice(self._alive()), self.random.choice(self.zeeks)
        self.cluster.cut(place.node, zeek.node)
        self._changes.append(self.cluster.now)

    def _part(self) -> None:
        """Let nothing through between a node and a Zeek, or only nothing one way."""
        place, zeek = self.random.choice(self._alive()), self.random.choice(self.zeeks)
        pair = self.random.choice(((place.node, zeek.node), (zeek.node, place.node)))
        self.cluster.partition(*pair, both=self.random.random() < 0.5)
        self._changes.append(self.cluster.now)

    def _split(self) -> None:
        """Let nothing through between two nodes."""
        if len(self._alive()) > 1:
            one, other = self.random.sample(self._alive(), 2)
            self.cluster.partition(one.node, other.node)
            self._turmoil.append(self.cluster.now)

    def _kill(self) -> None:
        """End a node; one remains."""
        if len(self._alive()) > 1:
            place = self.random.choice(self._alive())
            place.is_alive = False
            end = self.random.choice((self.cluster.kill, self.cluster.crash))
            end(place.node)
            self._turmoil.append(self.cluster.now)

    def _restart_zeek(self) -> None:
        """Kill a Zeek, and start it again after a while."""
        zeek = self.random.choice(self.zeeks)
        self.cluster.kill(zeek.node)
        self.cluster.advance(self.random.choice((0.0, 0.3, 4.0)))
        self._check_taker(zeek.takers[0])
        again = self._open_zeek(zeek.index, self.cluster.restart(zeek.node))
        again.number = zeek.number
        self.zeeks[zeek.index] = again
        self._changes.append(self.cluster.now)

    def _close_or_open(self) -> None:
        """Close a door, or open one."""
        place, zeek = self.random.choice(self._alive()), self.random.choice(self.zeeks)
        peer = place.peers.pop(zeek.index, None)
        self._note("open" if peer is None else "close", place.index, zeek.index)
        if peer is None:
            self._open(place, zeek)
        else:
            peer.close()
        self._turmoil.append(self.cluster.now)

    # --- what holds ---

    def _rest(self) -> None:
        """End the faults; from some time on all arrives everywhere, once."""
        self._note("rest")
        self.cluster.heal()
        self._turmoil.append(self.cluster.now)
        if not self.cluster.run_until(self.is_settled, SETTLED_WITHIN):
            raise Violation(f"{self._unsettled()} {SETTLED_WITHIN:g} s after the last fault")
        self._turmoil.append(self.cluster.now)
        self.cluster.advance(TOLD)
        if not self.is_settled():
            raise Violation(f"{self._unsettled()}, though it was otherwise before")
        wanted: list[tuple[Taker, _Key, bool]] = []
        for topic in TOPICS:
            for place in self._alive():
                wanted += self._from_node(place, topic)
            for zeek in self.zeeks:
                wanted += self._from_zeek(zeek, topic)
            self.cluster.advance(self.random.choice((0.0, 0.001)))
        self.cluster.advance(TOLD)
        for taker, key, takes in wanted:
            if taker.got[key] != takes:
                text = f"{key} came {taker.got[key]} times to {taker.topics}, not {takes:d}"
                raise Violation(text)

    def _from_node(self, place: Place, topic: str) -> list[tuple[Taker, _Key, bool]]:
        """Publish on a node; returns who gets it, once: others, and Zeeks it has a door to."""
        key = self._publish(place, topic)
        return [
            *(
                (taker, key, topic.startswith(taker.topics) and other is not place)
                for other in self._alive()
                for taker in other.takers
            ),
            *((zeek.takers[0], key, zeek.index in place.peers) for zeek in self.zeeks),
        ]

    def _from_zeek(self, zeek: Place, topic: str) -> list[tuple[Taker, _Key, bool]]:
        """Let a Zeek publish; returns who gets it, once, if there is any door to it."""
        key = self._tell(zeek, topic)
        has_door = any(zeek.index in place.peers for place in self._alive())
        return [
            (taker, key, has_door and topic.startswith(taker.topics))
            for place in self._alive()
            for taker in place.takers
        ]

    def is_settled(self) -> bool:
        """Return whether all know each other, and each Zeek has one door."""
        return not self._unsettled()

    def _unsettled(self) -> str:
        """Say what is not as it has to be; "" for nothing."""
        alive = self._alive()
        if any(len(place.node.nodes()) != len(alive) - 1 for place in alive):
            return "not all know each other"
        for place in alive:
            topics = {each for other in alive if other is not place for each in _own(other)}
            if {*place.hub.core.peer_topics()} != topics:
                return f"the filters of the others have not come to node {place.index}"
        told = (self._without_door(zeek) for zeek in self.zeeks)
        return next((each for each in told if each), "")

    def _without_door(self, zeek: Place) -> str:
        """Say why a Zeek has not the one door that it should have."""
        alive = self._alive()
        peers = {place.index: place.peers.get(zeek.index) for place in alive}
        doors = {index: peer for index, peer in peers.items() if peer is not None}
        holders = [index for index, peer in doors.items() if peer.is_door]
        if len(holders) != bool(doors):
            return f"Zeek {zeek.index} has the doors {holders}"
        wanted = shortest(topic for place in alive for topic in _own(place))
        for index, peer in doors.items():
            if not peer.is_connected:
                return f"node {index} is not connected with Zeek {zeek.index}: {peer.reason}"
            asked = peer.subscriptions()
            if peer.is_door and not all(each.startswith(asked) for each in wanted):
                return f"node {index} asks Zeek {zeek.index} for {asked}, not for {wanted}"
        return ""

    def _check_doubles(self) -> None:
        for place in (*self.places, *self.zeeks):
            for taker in place.takers:
                self._check_taker(taker)

    def _check_taker(self, taker: Taker) -> None:
        """Refuse what came twice, and what a Zeek said and another one heard."""
        is_zeek = any(taker in zeek.takers for zeek in self.zeeks)
        for key, count in taker.got.items():
            at = self._published[key]
            if is_zeek and key[0] == "zeek":
                raise Violation(f"{key} came to a Zeek: it circles")
            if count > 1 and not any(abs(when - at) < TURMOIL for when in self._turmoil):
                changed = any(abs(when - at) < TOLD for when in self._changes)
                if key[0] == "zeek" or is_zeek or not changed:
                    raise Violation(f"{key} came {count} times to {taker.topics}")


def _own(place: Place) -> list[str]:
    """Return the topics that takers of a node want."""
    return [topic for taker in place.takers for topic in taker.topics]
