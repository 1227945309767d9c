"""Sealed links between two nodes, and an attacker between them who lacks only the keys.

Batches are cut, reordered, replayed, reflected, truncated, changed, left out, or taken from
another link of the same two nodes with the same secret. None of them is acted on.
"""

import copy
import random
from typing import Any

from callboard.basp.frame import pack_frame, repack_frame
from callboard.basp.handshake import LinkConfig
from callboard.basp.link import Closed, Deliver
from callboard.basp.seal import BATCH_LIMIT, SHORT, Opener, Sealer
from tests.basp.wire import A, B, End, Wire, receive
from tests.fuzz.case import Case, require
from tests.fuzz.mutation import cut

SECRET = b"long random secret"
HOSTILE = 60
"""Attacks of one case."""

_SIZES = (1, 2, 60, 61, 200, SHORT - 60, SHORT - 59, SHORT, 3000)


class Seal:
    """Plays the one in the middle of two links that are sealed with one secret."""

    name = "seal"

    def make(self, seed: int) -> Case:
        """Return payloads for both directions, and the attacks on their batches."""
        rng = random.Random(seed)
        sizes = [rng.choice(_SIZES) for _ in range(8)]
        if rng.random() < 0.02:
            sizes[rng.randrange(8)] = BATCH_LIMIT + rng.randrange(-40, 40)
        return {
            "sizes": sizes,
            "at": rng.randrange(6),
            "attacks": [
                [rng.choice(list(_KINDS)), rng.getrandbits(32)] for _ in range(HOSTILE)
            ],
        }

    def run(self, case: Case) -> int:
        """Try each attack on a copy of the receiver, and the last one on the link itself."""
        here, other = _linked(1), _linked(2)
        frames = [pack_frame(2, 1, A, B, 16, 17, bytes(size)) for size in case["sizes"]]
        back = [pack_frame(2, 1, B, A, 17, 16, bytes(size)) for size in case["sizes"]]
        sent = _batches(here[0], frames)
        heard = _Heard(sent, _batches(here[1], back), _batches(other[0], frames), case["at"])
        link = here[1].link
        read = receive(link, b"".join(sent[: heard.at]), 1.0)
        opener = link._opener
        assert opener is not None
        hostile = b""
        for kind, seed in case["attacks"]:
            rng = random.Random(seed)
            hostile = _KINDS[kind](heard, rng)
            _try(opener, hostile, rng, kind)
        _try_honest(opener, sent[heard.at :], random.Random(case["attacks"][0][1]))
        read += receive(link, hostile, 1.1)
        read += link.lost("end of stream")
        got = [
            frame for effect in read if isinstance(effect, Deliver) for frame in effect.frames
        ]
        honest = b"".join(frames)
        require(
            honest.startswith(b"".join(map(repack_frame, got))), "a frame that was never sent"
        )
        closed = [effect for effect in read if isinstance(effect, Closed)]
        require(closed and closed[0].error is not None, "a loss that passes for a wanted end")
        return len(case["attacks"])


def _linked(serial: int) -> tuple[End, End]:
    """Return the two ends of an established link; each serial number has other nonces."""
    configs = {node: LinkConfig(node, secret=SECRET) for node in (A, B)}
    wire = Wire(configs, [])
    wire.ends += [None] * serial  # type: ignore[list-item]
    first, second = wire.dial(A, B)
    wire.ends = [first, second]
    wire.settle()
    require(first.link.is_established and second.link.is_established, "no link")
    return first, second


def _batches(end: End, frames: list[bytes]) -> list[bytes]:
    """Return frames as an end sends them, batch by batch."""
    assert end.sealer is not None
    return [
        end.sealer.seal(frame[start : start + 65_000])
        for frame in frames
        for start in range(0, len(frame), 65_000)
    ]


class _Heard:
    """The attacker's material: the batches of both directions, and of another link."""

    def __init__(
        self, sent: list[bytes], back: list[bytes], other: list[bytes], at: int
    ) -> None:
        self.sent, self.back, self.other, self.at = sent, back, other, at

    @property
    def due(self) -> bytes:
        """The next honest batch."""
        return self.sent[self.at]

    @property
    def rest(self) -> bytes:
        """The bytes that follow it."""
        return b"".join(self.sent[self.at + 1 :])


def _reordered(heard: _Heard, rng: random.Random) -> bytes:
    later = heard.sent[heard.at + 1 :]
    chosen = rng.randrange(len(later))
    return later.pop(chosen) + heard.due + b"".join(later)


def _replayed(heard: _Heard, rng: random.Random) -> bytes:
    if heard.at == 0:
        return heard.due[:5] + heard.due + heard.rest
    return heard.sent[rng.randrange(heard.at)] + heard.due + heard.rest


def _reflected(heard: _Heard, rng: random.Random) -> bytes:
    return heard.back[rng.randrange(len(heard.back))] + heard.due + heard.rest


def _truncated(heard: _Heard, rng: random.Random) -> bytes:
    return heard.due[: rng.randrange(len(heard.due))] + heard.rest


def _of_another_link(heard: _Heard, rng: random.Random) -> bytes:
    same_place = heard.other[heard.at]
    return rng.choice((same_place, rng.choice(heard.other))) + heard.rest


def _left_out(heard: _Heard, _: random.Random) -> bytes:
    return heard.rest


def _changed(heard: _Heard, rng: random.Random) -> bytes:
    batch = bytearray(heard.due)
    batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)
    return bytes(batch) + heard.rest


def _counted_anew(heard: _Heard, rng: random.Random) -> bytes:
    """Give another batch the next number."""
    batch = heard.sent[rng.choice([n for n in range(len(heard.sent)) if n != heard.at])]
    return batch[:4] + heard.due[4:12] + batch[12:] + heard.rest


def _spliced(heard: _Heard, rng: random.Random) -> bytes:
    at = rng.randrange(1, len(heard.due))
    return heard.due[:at] + heard.other[heard.at][at:] + heard.rest


def _resized(heard: _Heard, rng: random.Random) -> bytes:
    length = rng.choice((0, 1, len(heard.due), BATCH_LIMIT, 2**31, 2**32 - 1))
    wrong = length + (length == len(heard.due) - 28)
    return wrong.to_bytes(4, "big") + heard.due[4:] + heard.rest


def _forged(heard: _Heard, rng: random.Random) -> bytes:
    """Seal with a key that an attacker without the secret might guess."""
    sealer = Sealer(rng.choice((bytes(32), SECRET.ljust(32, b"\0"), b"a" * 32)))
    sealer._counter = int.from_bytes(heard.due[4:12], "big")
    return sealer.seal(pack_frame(2, 1, A, B, 16, 17, b"open up!")) + heard.rest


def _plain(_: _Heard, rng: random.Random) -> bytes:
    return pack_frame(rng.choice((2, 4, 5, 10)), 1, A, B, 0, 0, b"")


_KINDS: dict[str, Any] = {
    "reordered": _reordered,
    "replayed": _replayed,
    "reflected": _reflected,
    "truncated": _truncated,
    "of another link": _of_another_link,
    "left out": _left_out,
    "changed": _changed,
    "counted anew": _counted_anew,
    "spliced": _spliced,
    "resized": _resized,
    "forged": _forged,
    "plain": _plain,
}


def _try(opener: Opener, hostile: bytes, rng: random.Random, kind: str) -> None:
    """Feed a copy of the receiver, whole or in pieces."""
    copied = copy.copy(opener)
    copied._pending = bytearray(opener._pending)
    reads = [hostile] if rng.random() < 0.5 else cut(rng, hostile)[:200]
    for data in reads:
        require(not copied.open(data), f"a batch that was {kind} is opened")
        require(copied.held <= BATCH_LIMIT, f"{copied.held:,} B are held")
    if len(reads) == 1 and len(hostile) > BATCH_LIMIT + 28:
        require(copied.error is not None, f"{kind}: nothing is noticed")


def _try_honest(opener: Opener, batches: list[bytes], rng: random.Random) -> None:
    """Feed the original bytes, cut anywhere: all batches must open."""
    copied = copy.copy(opener)
    copied._pending = bytearray(opener._pending)
    opened = [copied.open(data) for data in cut(rng, b"".join(batches))]
    expected = b"".join(batch[12:-16] for batch in batches)
    require(b"".join(opened) == expected, "what was sent is not what is opened")
    require(copied.error is None, repr(copied.error))
