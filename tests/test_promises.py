"""Limits that docs/security.md states for memory, and the promise about bytes of a peer."""

import re
from pathlib import Path

import cbor2
import pytest

from callboard.actors import system_actor
from callboard.basp import handshake, payload
from callboard.basp.errors import MalformedPayload, NotSerializable, RemoteProtocolError
from callboard.basp.frame import FrameReader
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.basp.routing import path_order, router
from callboard.cbor import collisions, plain
from callboard.model import encoding
from callboard.proxies.link import stream, tls_socket
from callboard.proxies.traffic import unverified
from callboard.support.seconds import MAX_SECONDS
from callboard.topics.machine import filter_exchange, leaf
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
    "containers in a control frame": lambda: f"{plain._ONE_CALL_WEIGHT // plain.CONTAINER:,}",
    "frames of one link whose source": lambda: f"{unverified.DOUBTED_LIMIT // MIB} MiB, 5 s",
    "messages of one node that are held": lambda: (
        f"{path_order.HELD_LIMIT:,}; {path_order.HELD_BYTES // MIB} MiB"
    ),
    "running constructors": lambda: f"{system_actor.ERRAND_LIMIT}",
    "a time in seconds": lambda: (
        "0 to 10⁹ s, which means forever" if MAX_SECONDS == 1e9 else ""
    ),
    "depth of nested lists": lambda: f"{payload.DEFAULT_DEPTH_LIMIT}",
    "keys of one map": lambda: f"{collisions.SAME_HASH_LIMIT}",
    "bytes that wait for a peer": lambda: (
        "{} MiB; {} MiB for handlers; {} MiB for control".format(
            *(times * stream.WAITING_LIMIT // MIB for times in (1, 2, 3))
        )
    ),
}

#: By the same begin: the test that exceeds the limit, and fails where nothing enforces it.
ENFORCED = {
    "containers, elements of sets": (
        "callboard/topics/test_run.py::test_what_is_hashed_counts_as_much_as_a_container"
    ),
    "topics in the filter": (
        "callboard/topics/test_filter_exchange.py"
        "::test_parts_without_end_are_refused_at_the_limit"
    ),
    "a frame of a peer that is not proven": (
        "basp/test_link.py::test_handshakes_have_a_size_limit_and_links_another"
    ),
    "a handshake": (
        "proxies/link/test_tls.py"
        "::test_a_tls_handshake_counts_as_one_under_way_until_it_is_given_up"
    ),
    "silence of a linked peer": (
        "basp/test_link.py::test_heartbeats_go_out_each_interval_and_silence_kills_after_three"
    ),
    "nodes that a node knows": (
        "basp/routing/test_portions.py::test_the_number_of_known_and_pending_nodes_is_limited"
    ),
    "containers in a control frame": (
        "test_promises.py::test_a_control_frame_with_more_containers_is_refused_unread"
    ),
    "frames of one link whose source": (
        "proxies/traffic/test_incoming.py"
        "::test_frames_of_sources_that_no_path_leads_to_are_refused"
    ),
    "messages of one node that are held": (
        "basp/routing/test_path_order.py::test_the_number_of_held_dispatches_is_limited"
    ),
    "running constructors": (
        "proxies/test_user_code.py::test_constructors_that_block_are_bounded"
    ),
    "a time in seconds": (
        "callboard/support/test_seconds.py::test_a_time_is_a_number_from_0_to_the_longest_or_refused"
    ),
    "depth of nested lists": "test_promises.py::test_a_message_one_level_deeper_is_refused",
    "keys of one map": (
        "callboard/cbor/test_collisions.py"
        "::test_a_message_that_the_receiver_would_refuse_is_refused_at_the_sender"
    ),
    "bytes that wait for a peer": (
        "proxies/link/test_stream.py::test_what_cannot_be_refused_is_bounded_by_cutting_the_link"
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
    assert found == set(STATED) == set(ENFORCED)


@pytest.mark.parametrize("place", ENFORCED.values())
def test_each_limit_on_memory_has_a_test_that_exceeds_it(place):
    path, _, name = place.partition("::")
    assert f"def {name}(" in (Path(__file__).parent / path).read_text(encoding="utf-8")


def test_a_message_one_level_deeper_is_refused():
    codec = payload.PayloadCodec(DEFAULT_REGISTRY)
    deepest: object = 0
    for _ in range(64):
        deepest = [deepest]
    assert codec.decode_message(codec.encode(deepest)) == deepest
    with pytest.raises(NotSerializable, match="nested deeper than 64"):
        codec.encode([deepest])
    for _ in range(4 * 64):  # a record is several levels, and readers do not know which is one
        deepest = [deepest]
    with pytest.raises(MalformedPayload):
        codec.decode_message(b"\x81" + cbor2.dumps(deepest))


def test_a_control_frame_with_more_containers_is_refused_unread():
    filler = b"x" * 65_536  # smaller frames are read at once
    most = [[] for _ in range(16_384 - 2)]
    assert len(plain.read_plain(cbor2.dumps([*most, filler]))) == 16_383
    with pytest.raises(RemoteProtocolError):
        plain.read_plain(cbor2.dumps([*most, [], [], filler]))


def test_the_promises_name_tests_that_are_there():
    root = Path(__file__).parents[1]
    page = (root / "docs" / "guarantees.md").read_text(encoding="utf-8")
    for section in page.split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        if title == "What is not promised":
            continue
        named = re.findall(r"`((?:tests/[^`]*/)?test_[a-z0-9_]+\.py)`", text)
        assert "*Tested:*" in text, title
        assert named, title
        folder = Path()
        for each in named:  # a name without a folder is beside the one before
            folder = Path(each).parent if "/" in each else folder
            file = root / folder / Path(each).name
            code = file.read_text(encoding="utf-8")
            assert re.search(r"def test_|^Test\w+ = ", code, re.MULTILINE), f"{title}: {each}"


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
