"""Limits that docs/security.md states for memory, and the promise about bytes of a peer."""

from pathlib import Path

import pytest

from callboard.actors import system_actor
from callboard.basp import handshake, payload
from callboard.basp.cbor import collisions, plain
from callboard.basp.frame import FrameReader
from callboard.basp.routing import path_order, router
from callboard.endpoint.machine import filter_exchange, leaf
from callboard.model import encoding
from callboard.proxies.link import stream, tls_socket
from callboard.proxies.traffic import doubts
from callboard.support.seconds import LONGEST
from tests.fuzz.__main__ import run
from tests.fuzz.targets import TARGETS

PAGE = (Path(__file__).parents[1] / "docs" / "security.md").read_text(encoding="utf-8")
MIB = 1024 * 1024
LINK = handshake.LinkConfig(b"n" * 18)

#: By the begin of a row of the table: what it states, from the constants that are in force.
STATED = {
    "containers, elements of sets": lambda: f"{encoding.MAX_ITEMS:,}",
    "topics in the filter": lambda: (
        f"{filter_exchange.FILTER_LIMIT:,}; {leaf.LEAF_FILTER_LIMIT:,}"
    ),
    "a frame of a peer that is not proven": lambda: f"{handshake.HANDSHAKE_LIMIT // 1024} KiB",
    "a handshake": lambda: (
        f"{LINK.handshake_timeout:g} s, with TLS {tls_socket.HANDSHAKE_LIMIT:g} s more; "
        f"{tls_socket.FIRST_WORD_LIMIT:g} s until the first byte of a TLS client"
    ),
    "silence of a linked peer": lambda: f"{LINK.missed * LINK.heartbeat:g} s",
    "nodes that a node knows": lambda: f"{router.NODES_LIMIT:,}",
    "containers in a control frame": lambda: f"{plain._AT_ONCE // plain.CONTAINER:,}",
    "frames of one link whose source": lambda: f"{doubts.DOUBTED_LIMIT // MIB} MiB, 5 s",
    "messages of one node that are held": lambda: (
        f"{path_order.HELD_LIMIT:,}; {path_order.HELD_BYTES // MIB} MiB"
    ),
    "running constructors": lambda: f"{system_actor.ERRAND_LIMIT}",
    "a time in seconds": lambda: "0 to 10⁹ s, which means forever" if LONGEST == 1e9 else "",
    "depth of nested lists": lambda: f"{payload.DEFAULT_DEPTH_LIMIT}",
    "keys of one map": lambda: f"{collisions.SAME_HASH_LIMIT}",
    "bytes that wait for a peer": lambda: (
        "{} MiB; {} MiB for handlers; {} MiB for control".format(
            *(times * stream.WAITING_LIMIT // MIB for times in (1, 2, 3))
        )
    ),
}


def rows():
    table = (
        PAGE.partition("## Limits")[2].partition("| limit | default |")[2].partition("\n\n")[0]
    )
    lines = [
        line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")
    ]
    return [(name, value) for name, value, *_ in lines if not name.startswith("`Limits.")]


def test_each_limit_on_memory_is_the_one_in_force():
    found = set()
    for name, value in rows():
        (key,) = [key for key in STATED if name.startswith(key)]
        found.add(key)
        assert value == STATED[key](), name
    assert found == set(STATED)


@pytest.mark.parametrize("target", ["node", "reader"])
def test_a_bug_that_lets_bytes_of_a_peer_raise_is_noticed(target, monkeypatch, tmp_path):
    """Damaged frames hold the promise that bytes end no node: that test has to fail then."""
    monkeypatch.setattr("tests.fuzz.targets.REGRESSIONS", tmp_path)
    feed = FrameReader.feed

    def raising(self, data):
        if b"\xff\xff\xff" in bytes(data):
            raise IndexError("planted")
        return feed(self, data)

    monkeypatch.setattr(FrameReader, "feed", raising)
    done = run(TARGETS[target], 1_000_000_000, 500, 60.0)
    assert done["findings"] > 0
