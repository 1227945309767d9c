"""A stranger between nodes with a secret: he hears all, and each word that arrives is his.

Each connection of a node ends at him. It forwards, reflects, replays and mixes the frames that
it has received on all of them, and invents frames. He knows everything but the secret.
"""

import copy
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from callboard.basp.frame import Frame, FrameReader, pack_frame, repack_frame
from callboard.basp.handshake import VERSION, LinkConfig, LinkGuard
from callboard.basp.header import Operation
from callboard.basp.link import (
    Deliver,
    Effect,
    Established,
    Link,
    LinkPairs,
    LinkState,
    Seal,
    Transmit,
    Wake,
)
from callboard.basp.node_id import NO_NODE, NodeId
from callboard.basp.seal import BATCH_HEADER_SIZE, Sealer
from callboard.cbor.plain import write_plain
from tests.basp.wire import A, B, receive
from tests.search.explorer import Model

SECRET = b"long random secret"

_HANDSHAKES = (Operation.SERVER_HANDSHAKE, Operation.CLIENT_HANDSHAKE, Operation.HELLO)
#: The offsets of the proof in a client_handshake and in a hello.
_PROOFS = {Operation.CLIENT_HANDSHAKE: 17, Operation.HELLO: 16}
_NO_PROOF = bytes(32)
_FLAGS_AT = 16
X = NodeId(b"x" * 18)
_NAMES = [(A, B), (B, A), (X, A), (X, B)]


@dataclass
class Door:
    """One end of a connection at a node; the stranger has the other one."""

    link: Link
    is_dialer: bool
    sealer: Sealer | None = None
    #: All that went over the connection.
    sent: list[bytes] = field(default_factory=list)
    #: Dispatches that the node sent, and received ones.
    said: list[bytes] = field(default_factory=list)
    heard: list[bytes] = field(default_factory=list)
    was_linked: bool = False

    @property
    def is_open(self) -> bool:
        return self.link.state is not LinkState.CLOSED


@dataclass
class Honest:
    """A node with some connections; what happened to it tells it from all others."""

    node: NodeId
    doors: list[Door]
    history: tuple[tuple[int, bytes], ...] = ()

    def deliver(self, index: int, data: bytes) -> "Honest":
        """Return the node after it has read something at one of its doors."""
        after = copy.deepcopy(self)
        door = after.doors[index]
        after.carry_out(door, receive(door.link, data, 0.0))
        after.history = (*self.history, (index, data if door.is_open else b"closed"))
        return after

    def carry_out(self, door: Door, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Transmit):
                self._send(door, effect.data)
            elif isinstance(effect, Seal):
                door.sealer = effect.sealer
            elif isinstance(effect, Deliver):
                door.heard += [repack_frame(Frame._make(raw)) for raw in effect.frames]
            elif isinstance(effect, Established):
                door.was_linked = True
        if any(isinstance(effect, Established) for effect in effects):
            words = b"words of %d" % self.doors.index(door)
            ends = self.node, door.link._peer_id
            door.said.append(pack_frame(2, 1, *ends, 16, 17, words))
            self._send(door, door.said[-1])
        for effect in effects:
            if isinstance(effect, Wake):
                woken = next(each for each in self.doors if each.link is effect.link)
                self.carry_out(woken, woken.link.resume(0.0))

    def _send(self, door: Door, data: bytes) -> None:
        door.sent.append(data if door.sealer is None else door.sealer.seal_all(data))


Nodes = tuple[Honest, ...]


class Relay(Model[Nodes]):
    """Nodes dial the stranger, and it dials them; it does everything that it can."""

    def __init__(
        self,
        dials: str,
        accepts: str,
        *,
        is_tls: bool = False,
        allow_unsealed: str = "",
        deliveries: int = 12,
    ) -> None:
        """Make a model.

        Args:
            dials: the nodes that dial him, a letter each.
            accepts: the nodes that he dials.
            is_tls: whether each connection is TLS, and he is a verified end of it himself.
            allow_unsealed: the nodes that accept links of release 0.1.
            deliveries: what each node reads at most.
        """
        self._doors = [(letter, True) for letter in dials]
        self._doors += [(letter, False) for letter in accepts]
        self._is_tls = is_tls
        self._allow_unsealed = allow_unsealed
        self._deliveries = deliveries
        self._after: dict[Hashable, Honest] = {}
        #: States in which both nodes are linked, through him but not with him.
        self.links = 0

    def start(self) -> Nodes:
        nodes = []
        for node, letter in ((A, "a"), (B, "b")):
            pairs, made = LinkPairs(), []
            allows = letter in self._allow_unsealed
            config = LinkConfig(node, secret=SECRET, allow_unsealed=allows)
            for number, (where, is_dialer) in enumerate(self._doors):
                if where == letter:
                    channel = self.channel(number) if self._is_tls else b""
                    nonce = bytes([number]) * 16
                    link = Link(
                        config,
                        dialer=is_dialer,
                        nonce=nonce,
                        now=0.0,
                        pairs=pairs,
                        channel=channel,
                    )
                    made.append(Door(link, is_dialer))
            honest = Honest(node, made)
            for door in made:
                honest.carry_out(door, door.link.start())
            nodes.append(honest)
        return tuple(nodes)

    def channel(self, number: int) -> bytes:
        """Return what tells a TLS connection from all others."""
        return b"connection %d" % number

    def key(self, state: Nodes) -> Hashable:
        return tuple(node.history for node in state)

    def steps(self, state: Nodes) -> Iterator[tuple[Any, Nodes]]:
        known = {data for node in state for door in node.doors for data in door.sent}
        frames = [frame for data in sorted(known) for frame in _handshakes(data)] + _OWN
        for place, node in enumerate(state):
            if len(node.history) >= self._deliveries:
                continue
            for index, door in enumerate(node.doors):
                if not door.is_open:
                    continue
                words = known if door.sealer is not None else known | _made_up(frames, door)
                for data in sorted(words):
                    after = self._deliver(node, index, data)
                    name = f"{'ab'[place]}{index} reads {data[:8].hex()}… of {len(data)} B"
                    yield name, (*state[:place], after, *state[place + 1 :])

    def _deliver(self, node: Honest, index: int, data: bytes) -> Honest:
        key = node.node, node.history, index, data
        if key not in self._after:
            self._after[key] = node.deliver(index, data)
        return self._after[key]

    def check(self, state: Nodes) -> bool:
        doors = [(node, door) for node in state for door in node.doors]
        for node, door in doors:
            if not door.was_linked and not door.heard:
                continue
            others = [
                other for owner, other in doors if _is_other_end(node, door, owner, other)
            ]
            assert len(others) == 1, f"{node.node!r} is linked with the stranger"
            said = others[0].said
            assert door.heard == said[: len(door.heard)], "words that nobody said so"
        self.links += sum(door.was_linked for _, door in doors) > 1
        return all(not door.is_open or door.link.is_established for _, door in doors)


def _is_other_end(node: Honest, door: Door, owner: Honest, other: Door) -> bool:
    """Return whether two nodes share a link on which no third party can speak."""
    here, there = door.link._introduction, other.link._introduction
    if owner is node or door.is_dialer is other.is_dialer or here.peer_id != owner.node:
        return False
    ours, theirs = here._transcript, there._transcript
    if ours is None or theirs is None or ours.digest != theirs.digest:
        return False
    guard = door.link.peer.guard if door.link.peer else LinkGuard.NONE
    if guard is LinkGuard.SEAL:
        keys = here.seal_keys, there.seal_keys
        return keys[0] is not None and keys[1] == keys[0][::-1] and keys[0][0] != keys[0][1]
    return guard is LinkGuard.TLS and bool(here._channel) and here._channel == there._channel


def _own_words() -> list[Frame]:
    """Return the frames of a stranger that has received nothing."""
    nonce, tail = b"x" * 16, write_plain([["callboard"], None])
    payloads = (
        (Operation.SERVER_HANDSHAKE, VERSION, nonce + b"\7" + tail),
        (Operation.CLIENT_HANDSHAKE, VERSION, nonce + b"\7" + _NO_PROOF + tail),
        (Operation.HELLO, 0, nonce + _NO_PROOF),
    )
    packed = [pack_frame(kind, data, X, A, 0, 0, payload) for kind, data, payload in payloads]
    return [frame for data in packed for frame in _handshakes(data)]


def _handshakes(data: bytes) -> list[Frame]:
    """Return the frame of a handshake that bytes are, if any."""
    if len(data) <= BATCH_HEADER_SIZE or data[0] not in _HANDSHAKES:
        return []
    return [Frame._make(raw) for raw in FrameReader(1 << 16).feed(data)]


def _made_up(frames: list[Frame], door: Door) -> set[bytes]:
    """Return frames that the stranger makes from received ones, for a node without a seal."""
    link, made = door.link, set()
    if link.state is not LinkState.INTRODUCING:  # a link without a seal
        operations = (Operation.ORIGINATOR_SYN, Operation.RESPONDER_SYN_ACK)
        for operation in (*operations, Operation.ORIGINATOR_ACK, Operation.HEARTBEAT):
            made |= {pack_frame(operation, 0, *ends, 0, 0, b"") for ends in _NAMES}
        return made | {pack_frame(2, 1, *ends, 16, 17, b"open up!") for ends in _NAMES}
    wanted = link._introduction._awaited
    proofs = {_NO_PROOF}
    nonces = {frame.payload[:16] for frame in frames}
    for frame in frames:
        if at := _PROOFS.get(Operation(frame.operation)):
            proofs.add(frame.payload[at : at + 32])
    for frame in frames:
        payload, at = frame.payload, _PROOFS.get(wanted)
        if frame.operation != wanted:
            continue
        payloads = {payload}
        if wanted is Operation.HELLO:
            payloads = {nonce + payload[16:] for nonce in nonces}
        else:
            flags = {payload[_FLAGS_AT], payload[_FLAGS_AT] & 1, 0, 3}
            payloads = {payload[:_FLAGS_AT] + bytes([each]) + payload[17:] for each in flags}
        if at is not None:
            payloads = {
                each[:at] + proof + each[at + 32 :] for each, proof in product(payloads, proofs)
            }
        is_first = wanted is Operation.SERVER_HANDSHAKE  # it is for whoever dialed
        names = [(each, NO_NODE) for each in (A, B, X)] if is_first else _NAMES
        for (source, destination), each in product(names, payloads):
            changed = frame._replace(source=source, destination=destination, payload=each)
            made.add(repack_frame(changed))
    return made


_OWN = _own_words()
