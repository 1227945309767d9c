"""Messages between members about entities: tables, votes, markers, moves, journals.

Two members share a type; a third node sends one of them messages that no member would, and
answers its asks. Everything that the members acknowledge must be stored at the end.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from callboard.actors.dispatch import handler
from callboard.basp.frame import FrameReader, pack_frame
from callboard.basp.header import ENTITIES, MESSAGE_ID_MASK, NODE_ACTOR, RESPONSE, Operation
from callboard.basp.node_id import NodeId
from callboard.entity.entity import Entity, event
from callboard.entity.machine.table import Table, TableMember
from callboard.entity.messages import (
    AskEntityTable,
    AskVote,
    EntityMarker,
    EntityMessage,
    EntityTable,
    FollowJournal,
    JournalGrew,
    MoveSlots,
    NotOwner,
    StopEntity,
)
from callboard.proxies.messages import CancelAsk, message
from callboard.simulation.cluster import Cluster
from tests.fuzz.case import Case, require
from tests.fuzz.mutation import mutate_bytes
from tests.fuzz.node import CODEC, ESTABLISHED, PEERS, VICTIM, MadPeer, errors_are_violations

CONNECTIONS = 3
MESSAGES = 20
KEYS = 6
_SEED = 1
_MOMENT = 0.002
_SERVER = "postgresql://simulated/fuzz"
_DISPATCH = int(Operation.DISPATCH_MESSAGE)


@message("fuzz.Added")
@dataclass(frozen=True)
class Added:
    """A number was added."""

    number: int


class Tally(Entity):
    """Counts, and persists the count."""

    name = "fuzz.Tally"

    def __init__(self) -> None:
        self.total = 0

    @handler
    def on_number(self, number: int) -> int:
        self.persist(Added(number))
        return self.total

    @event
    def on_added(self, added: Added) -> None:
        self.total += added.number


def _tables(peer: bytes) -> list[str]:
    """Return texts of tables: of the peer alone, of many, of none, and of a later format."""
    nodes = (peer.hex(), VICTIM.hex(), "00" * 18, "zz", "")
    made = [Table(7, members={"mad": TableMember(node)}).filled().text() for node in nodes]
    many = {f"m{number}": TableMember(f"{number:036x}") for number in range(300)}
    made += [Table(7, members=many).filled().text(), Table().text(), "", "[" * 100_000, "{}"]
    return [
        *made,
        made[0].replace('"format": 2', '"format": 99'),
        made[0].replace("1.0", "NaN"),
    ]


_TABLES = {peer: _tables(peer) for peer in PEERS}
_NAMES: list[Any] = [Tally.name] * 12 + ["fuzz.Other", "a/b", "", "x" * 10_000, 5, None, ["x"]]
_KEYS: list[Any] = ["m-1"] * 4 + ["", "nul\x00", "x" * 3_000, "\ud7ff", 5, b"k", None, ["k"]]
_NUMBERS: list[Any] = [
    0,
    1,
    7,
    255,
    256,
    -1,
    2**31,
    2**61,
    2**62,
    2**70,
    1.5,
    "1",
    None,
    True,
    [],
]
_ODD: list[Any] = [None, 5, "x", b"x", [], {}, [[1]], float("nan"), {"x": [1]}]


def _made(rng: random.Random, peer: bytes) -> object:
    """Return a message about entities, most often one that says something."""
    name, key, number = rng.choice(_NAMES), rng.choice(_KEYS), rng.choice(_NUMBERS)
    slots: Any = rng.choice(
        ([1, 2, 3], list(range(256)), [], [300], [-1], ["1"], [True], 5, None)
    )
    node = rng.choice((VICTIM.hex(), peer.hex(), "", "zz", 5, None, "00" * 18))
    text: Any = rng.choice(_TABLES[peer])
    if rng.random() < 0.3:
        text = mutate_bytes(rng, text.encode()).decode(errors="replace")
    table = EntityTable(name, rng.choice((8, number)), rng.choice((text, text, 5, None)))
    odd: Callable[..., Any] = lambda value: rng.choice((value,) * 9 + tuple(_ODD))  # noqa: E731
    return rng.choice(
        (
            EntityMessage(name, key, odd(1), odd(True), odd(None), odd(False), number),
            EntityMessage(Tally.name, "m-1", odd(1), attempt=number),
            table, table, NotOwner(odd(table)),
            AskEntityTable(name), FollowJournal(name), JournalGrew(name, number),
            AskVote(name, odd("mad")), EntityMarker(name, number, odd(False)),
            EntityMarker(Tally.name, 7, odd(True)),
            MoveSlots(name, slots, node), MoveSlots(Tally.name, slots, node),
            StopEntity(name, key), CancelAsk(odd(ENTITIES), number),
        )
    )  # fmt: skip


def _options(rng: random.Random) -> dict[int, object] | None:
    """Return what travels with a message, most often nothing."""
    if rng.random() < 0.8:
        return None
    trace, key = [f"00-{'a' * 32}-{'b' * 16}-01", "x=1"], rng.choice((b"k" * 16, b"", "k", 5))
    chain = rng.choice((["fuzz.Tally/m-1"], ["x"] * 200, [5], "x", ["fuzz.Tally/k-0"] * 3))
    known = [(1, 0), (1, 500), (2, trace), (4, key), (5, chain), (3, key)]
    return {number: rng.choice((value, 5, None)) for number, value in rng.sample(known, 3)}


class EntityWire:
    """Two members that share a type, and a mad one."""

    name = "entities"

    def make(self, seed: int) -> Case:
        """Return the bytes of the lying member's links, and its answers."""
        rng = random.Random(seed)
        connections = []
        for _ in range(CONNECTIONS):
            peer, share = rng.choice(PEERS), rng.choice((0.0, 0.0, 0.1))
            payloads = []
            for _ in range(2 * MESSAGES):
                payload = CODEC.encode(_made(rng, peer), _options(rng))
                payloads.append(mutate_bytes(rng, payload) if rng.random() < share else payload)
            sent = [
                pack_frame(
                    _DISPATCH, rng.choice((0, 7, 9, 11)), peer, VICTIM, rng.choice((0, 16)),
                    rng.choice((ENTITIES,) * 15 + (NODE_ACTOR,)), payload,
                )
                for payload in payloads[:MESSAGES]
            ]  # fmt: skip
            connections.append({"peer": peer, "sent": sent, "answers": payloads[MESSAGES:]})
        return {"connections": connections}

    def run(self, case: Case) -> int:
        """Check that acknowledged values are stored, and that all slots are served."""
        with errors_are_violations():
            cluster = Cluster(_SEED)
            try:
                return _House(cluster).play(case["connections"])
            finally:
                cluster.close()


class _House:
    """One cluster of two members, one of them the victim, and a node that only asks."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.victim, self.friend, self.client = cluster(3, "mesh")
        require(self.victim.node_id == VICTIM, "the victim has another id")
        for node in (self.victim, self.friend):
            node.host(Tally, state=_SERVER)
        self.asked: list[tuple[int, Any]] = []

    def play(self, connections: list[Case]) -> int:
        self._check(0.0)
        frames = sum(self._connection(connection) for connection in connections)
        self.cluster.advance(12.0)
        require(all(future.done() for _, future in self.asked), "an ask hangs")
        self._check(10.0)
        require(len(self.victim.links()) == 2, "links are left")
        for node in (self.victim, self.friend, self.client):
            waiting = [router.waiting for router in node._entities._routers.values()]
            require(not any(waiting), "messages wait for ever")
        self.cluster.advance(3.0)
        accounts = self.friend.accounts()
        for node in (VICTIM, self.client.node_id):
            account = accounts[node]
            require(account.in_flight == 0 == account.lost, "messages of the friend are lost")
        return frames

    def _check(self, timeout: float) -> None:
        """Check that each key is served, with all acknowledged values and no invented ones."""
        for node in (self.friend, self.client, self.victim):
            for key in range(KEYS):
                ref = node.entity(Tally, f"k-{key}")
                total = ref.ask(0, timeout=timeout or 5.0).result(timeout or 5.0)
                outcomes = [future.exception(0) for each, future in self.asked if each == key]
                require(
                    outcomes.count(None) <= total <= len(outcomes), "a total is another one"
                )

    def _ask(self) -> None:
        """Add to each key from each node in one turn."""
        for node in (self.friend, self.client, self.victim):
            refs = [node.entity(Tally, f"k-{key}") for key in range(KEYS)]

            def ask(refs: Any = refs) -> None:
                for key, ref in enumerate(refs):
                    self.asked.append((key, ref.ask(1, timeout=8.0)))

            node.runtime.post(ask)

    def _connection(self, case: Case) -> int:
        peer = MadPeer(self.cluster, self.victim, NodeId(case["peer"]))
        peer.behave(ESTABLISHED)
        reader, answers = FrameReader(), list(case["answers"])
        fed = 0
        for number, frame in enumerate(case["sent"]):
            if number % 7 == 3:
                self._ask()
            self.cluster.advance(5 * _MOMENT)
            for heard in reader.feed(peer.read()):
                message_id = heard[2] & MESSAGE_ID_MASK
                is_ask = heard[0] == _DISPATCH and not heard[2] & RESPONSE
                if heard[3] == VICTIM and is_ask and message_id and answers:
                    head = RESPONSE | message_id, case["peer"], VICTIM, 0, 0
                    peer.send(pack_frame(_DISPATCH, *head, answers.pop()))
            if not peer.send(frame):
                break
            fed += 1
        self.cluster.advance(0.1)
        peer.leave()
        return max(fed, 1)
