"""One random life of doors to Zeeks, by seed: nodes of a cluster, and Zeeks beside it.

A Zeek is simulated by a separate node with our port, which sends messages to clients as Zeek
Nodes connect to it, publish, and want more or less; connections are cut, ways between nodes and
to Zeeks break in one direction or both, nodes and Zeeks freeze, die and start again, doors are
closed. Then the faults end, and after a while everything has to arrive once and nowhere else.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

from callboard import Node
from callboard.simulation import (
    Cluster,
    Fault,
    cluster_test,
    crash,
    cut,
    delay,
    isolate,
    kill,
    one_way,
    partition,
    pause,
    sometimes,
    swarm,
)
from callboard.topics.hub import Hub, HubOptions
from callboard.topics.machine.topic import shortest
from callboard.zeek.doors.web_socket_peer import WebSocketPeer
from callboard.zeek.doors.web_socket_server import WebSocketServer
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

SPAN: Final = 20.0
"""Virtual seconds in which nodes and Zeeks publish and faults begin."""

FAULTS = swarm(
    *(kind.lasting(0.3, 12.0) for kind in (partition, one_way, isolate, pause, kill, crash)),
    *(cut, delay.between(0.0001, 0.2)),
    span=SPAN,
    most=16,
)

_Key = tuple[str, int, int]


@dataclass(eq=False)
class Taker:
    """A receiver, and what it got."""

    topics: tuple[str, ...]
    is_zeek: bool = False
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
    number: int = 0


class DoorLife:
    """Lives in a cluster; `run` raises `Violation` for what must not be."""

    def __init__(self, cluster: Cluster, most: int = 4) -> None:
        self.random = cluster.random
        self.cluster = cluster
        self.places: list[Place] = []
        self.zeeks: list[Place] = []
        self.errors: list[str] = []
        self._most = most
        #: All there were, also of nodes that are dead.
        self._takers: list[Taker] = []
        self._published: dict[_Key, float] = {}
        #: When something between nodes broke or came back, and when wishes or ways changed.
        self._turmoil: list[float] = []
        self._changes: list[float] = []
        self._actions: dict[Callable[[random.Random], object], int] = {
            self._publish: 8,
            self._tell: 8,
            self._subscribe: 3,
            self._unsubscribe: 2,
            self._close_or_open: 2,
        }

    def run(self) -> None:
        """Live the life of this seed."""
        with logged_errors(self.errors):
            self.begin(self.random.randint(1, self._most), self.random.randint(1, 2))
            self.cluster.advance(self.random.choice((0.0, 1.0, 4.0)))
            for _, chance in self.cluster.steps(self.random.randint(8, 24), SPAN):
                for _ in range(chance.choice((1, 1, 2, 3))):
                    self._act(chance)
                    self.cluster.advance(chance.choice((0.0, 0.0, 0.001, 0.02, 0.3)))
            self._rest()
            self._check_doubles()
            if self.errors:
                raise Violation(f"an error was logged: {self.errors[0]}")

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
                self.cluster.link(place.node, other.node)
            self.places.append(place)
        self._turmoil.append(self.cluster.now)  # they do not know each other yet
        for place in self.places:
            self._enter(place, self.random)
        self.cluster.on_fault, self.cluster.restarted = self._disturbed, self._started

    def _place(self, index: int, node: Node) -> Place:
        hub = Hub.of(node, HubOptions(endpoint_id=self.random.randbytes(16)))
        return Place(index, node, hub)

    def _enter(self, place: Place, chance: random.Random) -> None:
        """Subscribe a node, and open its doors."""
        self._take(place, chance)
        for zeek in self.zeeks:
            self._open(place, zeek)

    def _open_zeek(self, index: int, node: Node) -> Place:
        """Make a node simulate a Zeek, which receives everything that clients publish."""
        zeek = self._place(index, node)
        self._add(zeek, Taker(("",), is_zeek=True))
        WebSocketServer(zeek.hub, self._host(node), ZEEK_PORT, insecure=True)
        return zeek

    def _host(self, node: Node) -> str:
        return node.address.removeprefix("basp://").rpartition(":")[0]

    def _open(self, place: Place, zeek: Place) -> None:
        url = f"ws://{self._host(zeek.node)}:{ZEEK_PORT}"
        place.peers[zeek.index] = WebSocketPeer(place.hub, url)

    # --- faults ---

    def _disturbed(self, fault: Fault, nodes: list[Node], begins: bool) -> None:
        """Write down when a way changed, and when something between nodes did."""
        self._changes.append(self.cluster.now)
        zeeks = sum(zeek.node is node for zeek in self.zeeks for node in nodes)
        if not zeeks or (len(nodes) == 1 and fault.kind == isolate):
            self._turmoil.append(self.cluster.now)
        is_deadly = fault.kind in (kill, crash)
        sometimes(begins and is_deadly and zeeks, "a Zeek dies")
        sometimes(begins and is_deadly and not zeeks, "a node with a door dies")
        sometimes(begins and len(nodes) == 2 and zeeks == 1, "a way to a Zeek breaks")

    def _started(self, node: Node) -> None:
        """Put a node in the place of the one that was there before."""
        chance = random.Random(f"started {self.cluster.seed} {len(self.cluster.nodes)}")
        self._changes.append(self.cluster.now)
        for places in (self.zeeks, self.places):
            for before in places:
                if before.node.address == node.address:
                    places[before.index] = self._again(before, node, chance)
                    places[before.index].number = before.number
                    return

    def _again(self, before: Place, node: Node, chance: random.Random) -> Place:
        if before in self.zeeks:
            return self._open_zeek(before.index, node)
        self._turmoil.append(self.cluster.now)
        place = self._place(before.index, node)
        for other in self.places:
            if other is not before:
                self.cluster.link(node, other.node)
        self._enter(place, chance)
        return place

    # --- what happens ---

    def _alive(self) -> list[Place]:
        return [each for each in self.places if self.cluster.is_running(each.node)]

    def _can_act(self, places: list[Place]) -> list[Place]:
        return [
            each
            for each in places
            if self.cluster.is_running(each.node) and not self.cluster.is_paused(each.node)
        ]

    def _act(self, chance: random.Random) -> None:
        if self._can_act(self.places) and self._can_act(self.zeeks):
            chance.choices(list(self._actions), list(self._actions.values()))[0](chance)

    def _publish(self, chance: random.Random) -> None:
        """Publish from a node."""
        self._say("node", chance.choice(self._can_act(self.places)), chance.choice(TOPICS))

    def _tell(self, chance: random.Random) -> None:
        """Publish from a Zeek."""
        self._say("zeek", chance.choice(self._can_act(self.zeeks)), chance.choice(TOPICS))

    def _say(self, kind: str, place: Place, topic: str) -> _Key:
        place.number += 1
        key = kind, place.index, place.number
        self._note("publish", *key, topic)
        self._published[key] = self.cluster.now
        place.hub.publish(topic, list(key))
        return key

    def _subscribe(self, chance: random.Random) -> None:
        self._take(chance.choice(self._can_act(self.places)), chance)

    def _take(self, place: Place, chance: random.Random) -> None:
        """Subscribe a node to one or two more topics."""
        taker = Taker(tuple(chance.sample(FILTERS, chance.randint(1, 2))))
        self._note("subscribe", place.index, *taker.topics)
        self._add(place, taker)

    def _add(self, place: Place, taker: Taker) -> None:
        place.takers.append(taker)
        self._takers.append(taker)
        place.hub.add_receiver(taker, taker.topics)
        self._changes.append(self.cluster.now)

    def _unsubscribe(self, chance: random.Random) -> None:
        place = chance.choice(self._can_act(self.places))
        if place.takers:
            taker = chance.choice(place.takers)
            self._note("unsubscribe", place.index, *taker.topics)
            place.hub.remove_receiver(taker)
            place.takers.remove(taker)
            self._changes.append(self.cluster.now)

    def _close_or_open(self, chance: random.Random) -> None:
        """Close a door, or open one."""
        place, zeek = chance.choice(self._can_act(self.places)), chance.choice(self.zeeks)
        peer = place.peers.pop(zeek.index, None)
        self._note("open" if peer is None else "close", place.index, zeek.index)
        if peer is None:
            self._open(place, zeek)
        else:
            peer.close()
        self._turmoil.append(self.cluster.now)

    # --- rules ---

    def _rest(self) -> None:
        """End the faults; from some time on all arrives everywhere, once."""
        self._note("rest")
        self.cluster.calm()
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
        key = self._say("node", place, topic)
        return [
            *(
                (taker, key, topic.startswith(taker.topics) and other is not place)
                for other in self._alive()
                for taker in other.takers
            ),
            *((zeek.takers[0], key, zeek.index in place.peers) for zeek in self.zeeks),
        ]

    def _from_zeek(self, zeek: Place, topic: str) -> list[tuple[Taker, _Key, bool]]:
        """Publish from a Zeek; return the nodes that receive it once, if it has a door."""
        key = self._say("zeek", zeek, topic)
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
        """Return the first violated rule; "" if all hold."""
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
        """Return why a Zeek does not have exactly one door."""
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
        for taker in self._takers:
            self._check_taker(taker)

    def _check_taker(self, taker: Taker) -> None:
        """Fail on duplicates, and on messages of one Zeek that another one received."""
        for key, count in taker.got.items():
            at = self._published[key]
            if taker.is_zeek and key[0] == "zeek":
                raise Violation(f"{key} came to a Zeek: it circles")
            if count > 1 and not any(abs(when - at) < TURMOIL for when in self._turmoil):
                changed = any(abs(when - at) < TOLD for when in self._changes)
                if key[0] == "zeek" or taker.is_zeek or not changed:
                    raise Violation(f"{key} came {count} times to {taker.topics}")


def _own(place: Place) -> list[str]:
    """Return the topics that takers of a node want."""
    return [topic for taker in place.takers for topic in taker.topics]


@contextmanager
def same_bytes(seed: int) -> Iterator[None]:
    """Make WebSocket draw from a seed instead of the system."""
    with (
        patch("callboard.zeek.text_frames.token_bytes", random.Random(seed).randbytes),
        patch("websockets.client.generate_key", lambda: "dGhlIHNhbXBsZSBub25jZQ=="),
        patch("websockets.server.email.utils.formatdate", lambda **_: "now"),
    ):
        yield


@cluster_test(faults=FAULTS)
def live_doors(cluster: Cluster, most: int = 4) -> None:
    """Live a life of doors to Zeeks."""
    with same_bytes(cluster.seed):
        DoorLife(cluster, most).run()
