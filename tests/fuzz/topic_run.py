"""Runs of messages, and updates of filters."""

import random
import tracemalloc
from typing import Any

from callboard.model.data import Data
from callboard.model.errors import MalformedMessage
from callboard.topics.machine.filter_exchange import FilterExchange, FilterUpdate, read_update
from callboard.topics.machine.run import (
    PackedType,
    decode_run,
    encode_pair,
    encode_plain_pair,
    pack_runs,
)
from tests.fuzz.case import READ, Case, Violation, require
from tests.fuzz.datum import datum
from tests.fuzz.mutation import mutate_bytes

_PAYLOADS = 20
_UPDATES = 20
_SAMPLE = 50
#: Bytes that a value in memory may take for each byte that told it: `[[], [], …]` is the worst.
_GROWTH = 200
_TOPICS = ("/a", "/a/b", "/c", "", "<$>/x", "/é/€")
_NODES = tuple(bytes((number,)) * 18 for number in range(1, 5))


class TopicRun:
    """Feeds the decoder of runs."""

    name = "run"

    def make(self, seed: int) -> Case:
        """Return payloads."""
        rng = random.Random(seed)
        valid = [run(rng) for _ in range(5)]
        payloads = [damaged(rng, valid) for _ in range(_PAYLOADS)]
        return {"payloads": payloads, "measure": seed % _SAMPLE == 0}

    def run(self, case: Case) -> int:
        """The decoded value is a run; encoded and decoded again, it is equal."""
        for payload in case["payloads"]:
            found = _measured(payload) if case["measure"] else _decoded(payload)
            if found is None:
                continue
            kind, items = found
            require(kind in PackedType, f"{payload.hex()}: {kind}")
            require(all(type(topic) is str for topic, _ in items), payload.hex())
            if kind is PackedType.DATA:
                _check_again(payload, items)
        return len(case["payloads"])


def _check_again(payload: bytes, items: list[tuple[str, Any]]) -> None:
    pairs = [encode_pair(topic, value) for topic, value in items]
    for again, count in pack_runs(PackedType.DATA, 1, pairs):
        _, second = decode_run(again)
        require(count == len(items), "the run was cut")
        # Text that arrived as a byte string is an equal value, and is forwarded as text.
        require([encode_pair(*item) for item in second] == pairs, payload.hex())


def _decoded(payload: bytes) -> tuple[PackedType, list[tuple[str, Any]]] | None:
    try:
        return decode_run(payload)
    except MalformedMessage:
        return None


def _measured(payload: bytes) -> tuple[PackedType, list[tuple[str, Any]]] | None:
    """Decode, and check what that took of memory."""
    tracemalloc.start()
    try:
        found = _decoded(payload)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    limit = 2 * READ + _GROWTH * len(payload)  # cbor2 itself takes one READ at a time
    require(peak <= limit, f"{peak:,} B of memory for a run of {len(payload):,} B")
    return found


def run(rng: random.Random) -> bytes:
    """Return a valid run of any kind."""
    kind = rng.choice((PackedType.DATA, PackedType.DATA, *PackedType))
    if kind is PackedType.ROUTING_UPDATE:
        pairs = [encode_plain_pair("", tuple(update(rng)))]
    elif kind is PackedType.DATA:
        pairs = [
            encode_pair(rng.choice(_TOPICS), Data.to_py(datum(rng, 2)))
            for _ in range(rng.randrange(5))
        ]
    else:
        content: tuple[Any, ...] = (b"ping", rng.randbytes(9), 5, None, [1, [2]])
        pairs = [
            encode_plain_pair(rng.choice(_TOPICS), rng.choice(content))
            for _ in range(rng.randrange(3))
        ]
    (made,) = (payload for payload, _ in pack_runs(kind, rng.choice((0, 1, 16)), pairs))
    return made


def damaged(rng: random.Random, valid: list[bytes]) -> bytes:
    """Return a run with some damage, or noise."""
    if rng.random() < 0.05:
        return rng.choice((b"", b"\x84\x01\x10", b"\x86\x03\x00")) + rng.randbytes(
            rng.randrange(40)
        )
    return mutate_bytes(rng, rng.choice(valid), valid)


def update(rng: random.Random) -> FilterUpdate:
    """Return an update of a filter, with numbers that may or may not fit each other."""
    added, removed = (tuple(sorted(rng.sample(_TOPICS, rng.randrange(4)))) for _ in range(2))
    return FilterUpdate(
        rng.choice((b"e", b"f")) * 16,
        rng.random() < 0.9,
        rng.choice((0, 1, 2, 3, 4, 2**40, 2**70)),
        rng.choice((0, 0, 0, 1, 2, 3)),
        rng.choice((0, 1, 2, 3, 2**64)),
        added,
        removed,
        rng.random() < 0.8,
        rng.choice((0, 0, 0, 1, 2)),
    )


class TopicFilters:
    """Feeds an exchange of filters with updates of several nodes, some of them damaged."""

    name = "filter"

    def make(self, seed: int) -> Case:
        """Return plain updates, as a CBOR decoder returns them, with their senders."""
        rng = random.Random(seed)
        return {"updates": [_plain_update(rng) for _ in range(_UPDATES)]}

    def run(self, case: Case) -> int:
        """At the end, exactly one whole filter of each node is known."""
        ours = FilterExchange(b"o" * 16)
        ours.change({"/ours"}, set(), 0.0)
        for now, (node, plain) in enumerate(case["updates"], 1):
            try:
                changes, answers = ours.receive(_NODES[node], read_update(plain), float(now))
            except MalformedMessage:
                continue
            require(len(answers) <= 1, "one update made several answers")
            require(len(changes) <= 2, "one update made several changes")
            ours.tick(float(now))
        for remote in ours.remotes.values():
            held = len(remote.topics) + len(remote.parts.topics if remote.parts else ())
            require(held <= 2 * len(_TOPICS), f"{held} topics of one node are held")
        self._check_heals(ours)
        return len(case["updates"])

    def _check_heals(self, ours: FilterExchange) -> None:
        for node in _NODES:
            before = ours.remotes.get(node)
            known = before.version if before is not None else 0
            whole = FilterUpdate(b"h" * 16, True, known + 1, 0, 2, ("/healed",))
            ours.receive(node, whole, 1e6)
            if ours.remotes[node].topics != {"/healed"}:
                raise Violation(f"a whole filter gives {ours.remotes[node].topics}")


def _plain_update(rng: random.Random) -> list[Any]:
    fields = [list(one) if type(one) is tuple else one for one in tuple(update(rng))]
    if rng.random() < 0.3:
        odd = (None, -1, "x", b"", [], [None], ["/a", 5], True, 1.5, {"a": 1}, "a" * 5000)
        fields[rng.randrange(len(fields))] = rng.choice((*odd, ["b" * 5000]))
    if rng.random() < 0.05:
        del fields[rng.randrange(len(fields)) :]
    return [rng.randrange(len(_NODES)), fields]
