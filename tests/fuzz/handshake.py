"""The link machine in each of its states, fed with damaged frames.

Without a secret, with the right one, and against a peer with a wrong one.
"""

import random
from itertools import count
from typing import Any

from callboard.basp.errors import RemoteProtocolError
from callboard.basp.frame import FrameReader, pack_frame
from callboard.basp.handshake import HANDSHAKE_LIMIT, LinkConfig
from callboard.basp.link import (
    _FOR_NODE,
    Closed,
    Deliver,
    Effect,
    Established,
    Link,
    LinkPairs,
    LinkState,
    Seal,
    Transmit,
)
from callboard.basp.node_id import NodeId
from callboard.basp.seal import Sealer
from tests.basp.wire import held_bytes, receive
from tests.fuzz.case import READ, Case, Violation, require
from tests.fuzz.mutation import cut, mutate_frame

LIMIT = 256 * 1024
ROUNDS = 3
A, B = NodeId(b"a" * 18), NodeId(b"b" * 18)
_SECRETS: dict[str, tuple[bytes | None, bytes | None]] = {
    "none": (None, None),
    "right": (b"s", b"s"),
    "wrong": (b"s", b"t"),
}


def _ends(secret: str, dialer: bool, smaller: bool) -> tuple[Link, Link]:
    ours, theirs = _SECRETS[secret]
    me, peer = (A, B) if smaller else (B, A)
    made = [
        Link(
            LinkConfig(node, secret=key, payload_limit=LIMIT),
            dialer=dials,
            nonce=bytes([dials]) * 16,
            now=0.0,
            pairs=LinkPairs(),
        )
        for node, key, dials in ((me, ours, dialer), (peer, theirs, not dialer))
    ]
    return made[0], made[1]


def _honest(secret: str, dialer: bool, smaller: bool) -> tuple[list[bytes], list[bytes]]:
    """Return what each side of an undisturbed handshake receives."""
    ends = _ends(secret, dialer, smaller)
    received: tuple[list[bytes], list[bytes]] = ([], [])
    sealers: dict[int, Sealer] = {}
    waiting = [(1 - index, effect) for index in (0, 1) for effect in ends[index].start()]
    for _ in count():
        if not waiting:
            return received
        index, effect = waiting.pop(0)
        if isinstance(effect, Seal):
            sealers[1 - index] = effect.sealer
        if isinstance(effect, Transmit):
            sealer = sealers.get(1 - index)
            data = effect.data if sealer is None else sealer.seal(effect.data)
            received[index].append(data)
            waiting += [(1 - index, one) for one in receive(ends[index], data, 0.0)]
    raise AssertionError


def _later(smaller: bool) -> list[bytes]:
    """Frames of a link that is established, from the peer."""
    me, peer = (A, B) if smaller else (B, A)
    return [
        pack_frame(2, 1, peer, me, 16, 17, b"\x81\x62hi"),
        pack_frame(2, 1 << 63 | 5, peer, me, 0, 17, b"\x81\xf6"),
        pack_frame(3, 0, peer, me, 0, 17, b""),
        pack_frame(4, 2, peer, me, 17, 0, b"\x61x"),
        pack_frame(5, 0, peer, me, 0, 0, b""),
        pack_frame(10, 1, peer, me, 0, 0, b""),
        pack_frame(11, 0, peer, me, 0, 0, b"\x82\x80\x80"),
        pack_frame(12, 1, peer, me, 0, 17, b""),
        pack_frame(13, 0, peer, me, 0, 0, b"\x80"),
        pack_frame(2, 1, peer, b"o" * 18, 16, 17, bytes(500)),
    ]


_KINDS = [
    (secret, dialer, smaller)
    for secret in _SECRETS
    for dialer in (False, True)
    for smaller in (False, True)
]
_HONEST = {kind: _honest(*kind) for kind in _KINDS}


class Handshake:
    """Feeds one end of a connection; what the other end would say is known beforehand."""

    name = "handshake"

    def make(self, seed: int) -> Case:
        """Return several connections: the frames of the peer up to a state, then damage."""
        rng = random.Random(seed)
        return {"rounds": [self._round(rng) for _ in range(ROUNDS)]}

    def _round(self, rng: random.Random) -> Case:
        kind = rng.choice(_KINDS)
        mine, reflected = _HONEST[kind]
        later = _later(kind[2])
        steps = rng.randrange(len(mine) + 1)
        corpus = [*mine, *later, *reflected]
        following = iter([*mine[steps:], *rng.choices(later, k=12)])
        frames = []
        for _ in range(rng.randrange(1, 12)):
            frame = next(following)
            choice = rng.random()
            if choice < 0.25:
                frame = rng.choice(corpus)
            if choice < 0.5:
                frame = mutate_frame(rng, frame, corpus, HANDSHAKE_LIMIT)
            frames.append(frame)
        return {
            "kind": list(kind),
            "steps": steps,
            "frames": frames if rng.random() < 0.8 else cut(rng, b"".join(frames))[:200],
            "ticks": rng.random() < 0.2,
        }

    def run(self, case: Case) -> int:
        """Feed each connection until it closes."""
        return sum(self._run(one) for one in case["rounds"])

    def _run(self, case: Case) -> int:
        secret, dialer, smaller = case["kind"]
        link, _ = _ends(secret, dialer, smaller)
        watch = _Watch(link, is_impostor=secret == "wrong")
        watch.take(link.start())
        fed, now = b"", 0.0
        for frame in (*_HONEST[secret, dialer, smaller][0][: case["steps"]], *case["frames"]):
            fed += frame
            watch.take(receive(link, frame, now))
            if case["ticks"]:
                now += 0.7
                watch.take(link.tick(now))
            if watch.is_closed:
                require(not receive(link, frame, now), "a closed link goes on")
                break
        watch.take(link.lost("end of stream"))
        require(watch.is_closed, "a lost link is not closed")
        require(not link._pairs._pairs, "a closed link holds its pair")
        return max(1, len(FrameReader(LIMIT).feed(fed)))


class _Watch:
    """Rules for the effects of one link."""

    def __init__(self, link: Link, *, is_impostor: bool) -> None:
        self._link = link
        self._is_impostor = is_impostor
        self._is_established = False
        self.is_closed = False

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._take(effect)
        link = self._link
        limit = HANDSHAKE_LIMIT if link.peer is None else LIMIT
        require(
            held_bytes(link._reader) <= limit + READ, f"{held_bytes(link._reader):,} B held"
        )
        require(not (self._is_impostor and link.peer), "a peer without the secret got in")
        require((link.state is LinkState.CLOSED) == self.is_closed, "closed without a word")

    def _take(self, effect: Any) -> None:
        require(not self.is_closed, f"{effect!r:.200} after the end")
        if isinstance(effect, Established):
            require(not self._is_established, "established twice")
            self._is_established = True
        elif isinstance(effect, Deliver):
            require(self._is_established, "frames of a link that is not established")
            require({frame[0] for frame in effect.frames} <= _FOR_NODE, "frames of the link")
        elif isinstance(effect, Closed):
            self.is_closed = True
            if not isinstance(effect.error, RemoteProtocolError | None):
                raise Violation(repr(effect.error))
