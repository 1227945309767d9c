"""Messages of one turn that go together: a member lies in them, and in the answers to them."""

import random
from typing import Any

from callboard.actors.dispatch import handler
from callboard.actors.reference import ActorRef
from callboard.basp.errors import RemoteProtocolError
from callboard.basp.frame import FrameReader, pack_frame
from callboard.basp.handshake import HANDSHAKE_LIMIT
from callboard.basp.header import (
    CARRIED,
    ENTITIES,
    HIGH_PRIORITY,
    MESSAGE_ID_MASK,
    RESPONSE,
    Operation,
    count_of,
)
from callboard.basp.node_id import NodeId
from callboard.entity.entity import Entity
from callboard.entity.machine.table import Table, TableMember
from callboard.entity.messages import (
    AskEntityTable,
    EntityMarker,
    EntityMessage,
    EntityMessages,
    EntityTable,
    NotOwner,
)
from callboard.proxies.messages import ANSWER_HEAD, CarriedAnswers, Failure
from callboard.proxies.traffic.batches import CARRIED_HEAD, NO_DEADLINE
from callboard.proxies.traffic.paths import describe_node
from callboard.simulation.cluster import Cluster
from tests.basp.wire import empty_lists, held_bytes
from tests.fuzz.case import READ, Case, require
from tests.fuzz.mutation import mutate_bytes, mutate_frame
from tests.fuzz.node import (
    CODEC,
    ESTABLISHED,
    PEERS,
    VICTIM,
    MadPeer,
    Toy,
    errors_are_violations,
)

#: Connections of a case, their bytes, and the asks of the victim and of its friend.
CONNECTIONS = 4
FRAMES = 16
ASKS = 12
_SEED = 1
_MOMENT = 0.002
_FAR = "fuzz.Far"
_STATE = describe_node("mad", is_tool=False)
_NUMBERS = (0, 1, 2, 7, 16, 20, 255, 65_535, 2**31, 2**32 - 2, 2**32 - 1)
_DISPATCH = int(Operation.DISPATCH_MESSAGE)
#: It is read in pieces.
_LARGE = b"\x81" + empty_lists(70_000)

#: Messages and answers as they would be outside a batch: for entities, of unknown classes, and
#: invalid CBOR; with a deadline, with other options.
BODIES = [
    *map(CODEC.encode, ("x", "fail", 5, [1], None, NotOwner(), Failure("ActorDown", "x"))),
    *map(CODEC.encode, (Failure("NotPermitted", "x"), Failure([], 5), NotOwner([5]))),  # type: ignore[arg-type]
    CODEC.encode(NotOwner(EntityTable(_FAR, 2**61, "{}"))),
    CODEC.encode("x", {1: 0}), CODEC.encode("x", {1: 1_000}), CODEC.encode("x", {1: 2**62}),
    CODEC.encode("x", {2: f"00-{'a' * 32}-{'b' * 16}-01", 4: b"key", 5: [["a", "b"]]}),
    CODEC.encode(EntityMessages("fuzz.Shelf", b"", b"", b"")),
    CODEC.encode(CarriedAnswers(b"", b"")),
    b"", b"\x81", b"\xff", b"\x81\xff", b"\x81\xd9\xbf\x07\x82cx.Y\xa0", b"\x81" * 900,
]  # fmt: skip
_KEYS = [b"k-1", b"k-2", b"k-3", b"\xff\xfe", b"", b"nul\x00", b"x" * 2_000, "ä/ö".encode()]


class Shelf(Entity):
    """Accepts every message."""

    name = "fuzz.Shelf"

    @handler
    def on_text(self, text: str) -> str:
        if text == "fail":
            raise ValueError(text)
        return text

    @handler
    def on_number(self, number: int) -> int:
        return number


def _columns(rng: random.Random, share: float, *columns: list[bytes]) -> list[Any]:
    """Return columns as they are, or a little damaged."""
    made: list[Any] = [*map(b"".join, columns)]
    if rng.random() < share:
        at = rng.randrange(len(made))
        others = (bytes(70_000), 5, "text", None, [made[at]])
        made[at] = mutate_bytes(rng, made[at]) if rng.random() < 0.8 else rng.choice(others)
    return made


def messages(rng: random.Random, share: float) -> tuple[bytes, int]:
    """Return the payload of a carrier of messages, and how many it has."""
    repeats = rng.choice((1,) * 9 + (0, 400))
    heads: list[bytes] = []
    keys: list[bytes] = []
    bodies: list[bytes] = []
    for _ in range(rng.choice((1, 1, 2, 3, 5, 12, 12))):
        key, body = rng.choice(_KEYS), rng.choice(BODIES)
        if rng.random() < 0.7:
            key, body = _KEYS[0], BODIES[0]
        number = rng.choice((1, 2, 3, 3, rng.getrandbits(32)))
        number *= rng.random() >= share / 4
        left = rng.choice((NO_DEADLINE, NO_DEADLINE, *_NUMBERS))
        flags = rng.choice((1, 1, 1, 0, 2, 3, 4, 255))
        attempt, teller = rng.choice((0, 0, *_NUMBERS)), rng.choice((0, *_NUMBERS))
        fields = (number, flags, attempt, teller, left, len(key), len(body))
        heads.append(CARRIED_HEAD.pack(*fields))
        keys.append(key)
        bodies.append(body)
    name: Any = Shelf.name
    if rng.random() < share:
        name = rng.choice((_FAR, "fuzz.Unknown", "", "a/b", 5, None))
    columns = (each * repeats for each in (heads, keys, bodies))
    carrier = EntityMessages(name, *_columns(rng, share, *columns))
    return CODEC.encode(carrier), len(heads) * repeats


def answers(rng: random.Random, share: float, ids: list[int]) -> tuple[bytes, int]:
    """Return the payload of a carrier of answers to asks, and how many it has."""
    items = [(number, rng.choice((BODIES[0], rng.choice(BODIES)))) for number in ids]
    if rng.random() < 0.3:
        items += rng.choices([*items, (0, b""), (rng.getrandbits(32), BODIES[0])], k=3)
    rng.shuffle(items)
    items = items[rng.choice((0, 0, 0, 1, 5)) :]
    heads = [ANSWER_HEAD.pack(number, len(body)) for number, body in items]
    columns = _columns(rng, share, heads, [body for _, body in items])
    return CODEC.encode(CarriedAnswers(*columns)), len(items)


def _frame(rng: random.Random, peer: bytes, share: float) -> bytes:
    """Return a frame with a batch, which may contain false statements."""
    if rng.random() < 0.8:
        payload, count = messages(rng, share)
        data = rng.choice((7, 7, 9, HIGH_PRIORITY | 8))
    else:
        payload, count = answers(rng, share, [1, 2, 3, 7])
        data = RESPONSE
    actor = CARRIED
    if rng.random() < share:
        data = rng.choice((0, 7, RESPONSE, RESPONSE | 2))
    if rng.random() < share:
        payload = rng.choice((*BODIES, _LARGE, _LARGE[:-1]))
    if rng.random() < share:
        actor = rng.choice((0, 2, ENTITIES, 9, 16, 20, 999))
    if rng.random() < share:
        count = rng.choice((count + 1, max(0, count - 1), *_NUMBERS))
    frame = pack_frame(_DISPATCH, data, peer, VICTIM, count, actor, payload)
    if rng.random() < share:
        return mutate_frame(rng, frame, [frame], HANDSHAKE_LIMIT)
    return frame


class Carriers:
    """A victim that hosts entities, a friend that asks them, and a member that lies.

    The victim asks entities that the lying member claims to host.
    """

    name = "carriers"

    def make(self, seed: int) -> Case:
        """Return the bytes of the lying member's links, and the seeds of its answers."""
        rng = random.Random(seed)
        connections = []
        for _ in range(CONNECTIONS):
            peer = rng.choice(PEERS)
            share = rng.choice((0.0, 0.02, 0.1, 0.3))
            chunks = [_frame(rng, peer, share) for _ in range(FRAMES)]
            made = {"peer": peer, "share": share, "answers": rng.getrandbits(32)}
            connections.append({**made, "chunks": chunks})
        return {"connections": connections}

    def run(self, case: Case) -> int:
        """Check that the friend is served, and that all asks end and all accounts balance."""
        with errors_are_violations():
            cluster = Cluster(_SEED)
            try:
                return _Hall(cluster).play(case["connections"])
            finally:
                cluster.close()


class _Hall:
    """One cluster of victim and friend, and the mad member."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.victim, self.friend = cluster(2)
        require(self.victim.node_id == VICTIM, "the victim has another id")
        self.victim.host(Shelf)
        self.echo: ActorRef[Toy] = self.friend.ref(str(self.victim.spawn(Toy)))
        self.asked: list[Any] = []
        self._version = 0

    def play(self, connections: list[Case]) -> int:
        self._serve("first")
        frames = 0
        for connection in connections:
            frames += self._connection(connection)
            self._serve(f"{frames}")
        self.cluster.advance(14.0)
        require(all(one.done() for one in self.asked), "an ask to a mad member hangs")
        require(len(self.victim.links()) == 1, "links are left")
        outgoing, incoming = self.victim._broker.outgoing, self.victim._broker.incoming
        outgoing.asks.forget_done()
        require(not (outgoing.asks.by_id or outgoing.asks.batches), "asks are left")
        require(not outgoing.batches.open, "batches are left")
        require(
            not incoming._large._by_source and not incoming._large._octets, "bytes are left"
        )
        for one, other in ((self.victim, self.friend), (self.friend, self.victim)):
            account = one.accounts()[other.node_id]
            require(account.sent == account.confirmed, "an account of the friend is open")
            require(account.lost == 0, "messages of the friend are lost")
        letters = self.friend.accounts()[VICTIM].dead_letters
        require(not letters, "messages of the friend are dead letters")
        for account in self.victim.accounts().values():
            require(account.in_flight == 0, "messages are in flight for ever")
            require(
                account.dead_letters <= account.confirmed <= account.sent, "accounts differ"
            )
        return frames

    def _ask(self, node: Any, name: Any, timeout: float) -> list[Any]:
        """Ask entities in one turn of a node."""
        refs = [node.entity(name, f"k-{number % 3}") for number in range(ASKS)]
        asked: list[Any] = []

        def ask() -> None:
            for number, ref in enumerate(refs):
                asked.append(ref.ask(str(number), timeout=timeout))
                ref.tell("told")

        node.runtime.post(ask)
        return asked

    def _serve(self, what: str) -> None:
        """Check that the friend gets its answers in spite of the lying member."""
        asked = self._ask(self.friend, Shelf, 2.0)
        require(self.echo.ask(what).result(1) == what, "an echo is wrong")
        self.cluster.run_until(
            lambda: len(asked) == ASKS and all(one.done() for one in asked), 3
        )
        found = [one.result(0) for one in asked]
        require(found == [str(number) for number in range(ASKS)], "an entity is wrong")

    def _connection(self, case: Case) -> int:
        peer = MadPeer(self.cluster, self.victim, NodeId(case["peer"]), _STATE)
        peer.behave(ESTABLISHED)
        rng = random.Random(case["answers"])
        mad = _Answering(peer, case["peer"], rng, case["share"], self._next_table)
        mad.say_table()
        self.cluster.advance(_MOMENT)
        self.asked += self._ask(self.victim, _FAR, 3.0)
        fed = 0
        for chunk in case["chunks"]:
            self.cluster.advance(_MOMENT)
            mad.answer()
            if not peer.send(chunk):
                break
            fed += 1
            self.cluster.advance(_MOMENT)
            for wire in self.victim._broker.connector._wires.values():
                held = held_bytes(wire.link._reader)
                require(held <= wire.link._reader.payload_limit + READ, f"{held:,} B held")
        peer.leave()
        return max(fed, 1)

    def _next_table(self, peer: bytes) -> EntityTable:
        """Return a newer table, in which a node owns all."""
        self._version += 1
        member = TableMember(peer.hex())
        table = Table(self._version, members={"mad": member}).filled()
        return EntityTable(_FAR, self._version, table.text())


class _Answering:
    """Reads the victim's asks to a lying member, and answers truly or falsely."""

    def __init__(
        self, peer: MadPeer, node: bytes, rng: random.Random, share: float, table: Any
    ) -> None:
        self._peer, self._node, self._rng, self._table = peer, node, rng, table
        self._share = share
        self._reader = FrameReader()

    def say_table(self) -> None:
        self._send(0, ENTITIES, CODEC.encode(self._table(self._node)))

    def answer(self) -> None:
        """Answer the asks since the last call."""
        for frame in self._reader.feed(self._peer.read()):
            operation, _, data, source, _, actor, number, payload = frame
            message_id = data & MESSAGE_ID_MASK
            if source != VICTIM or operation != _DISPATCH:  # its own frames may come back
                continue
            if data & RESPONSE and not message_id:
                carrier: Any = CODEC.decode_message(payload)
                require(isinstance(carrier, CarriedAnswers), "an answer is one to no ask")
                count = count_of(data, actor, number)
                require(len(carrier.each()) == count, "answers are others than is said")
            if data & RESPONSE or not message_id:
                continue
            try:
                message = CODEC.decode_message(payload)
            except RemoteProtocolError:
                continue
            self._answer(message_id, message)

    def _answer(self, message_id: int, message: object) -> None:
        rng = self._rng
        if isinstance(message, EntityMessages):
            if rng.random() < 0.1:  # refused as a whole, or accepted
                self._send(RESPONSE | message_id, 0, rng.choice(BODIES))
            ids = [each[0] for each in message.each()]
            ids = rng.choice((ids, ids, [*ids, message_id], ids[:2]))
            payload, count = answers(rng, self._share, ids)
            if rng.random() < self._share:
                count = rng.choice((count + 1, 0, *_NUMBERS))
            for _ in range(rng.choice((1, 1, 2))):
                self._send(RESPONSE, 0, payload, count)
        elif isinstance(message, AskEntityTable):
            table = CODEC.encode(self._table(self._node))
            self._send(RESPONSE | message_id, 0, rng.choice((table, rng.choice(BODIES))))
        elif isinstance(message, EntityMessage | EntityMarker):
            self._send(RESPONSE | message_id, 0, rng.choice(BODIES))

    def _send(self, data: int, number: int, payload: bytes, count: int = 0) -> None:
        self._peer.send(pack_frame(_DISPATCH, data, self._node, VICTIM, count, number, payload))
