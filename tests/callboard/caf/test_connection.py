"""The machine of one connection with a CAF node: recorded peers, both ends, nonsense."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.caf.errors import CafError
from callboard.caf.wire import connection as caf
from callboard.caf.wire.connection import (
    CafConnection,
    DownFrame,
    MessageFrame,
    MonitorFrame,
    NodeIntroduced,
    PassingFrame,
)
from callboard.caf.wire.frame import CafFrames, CafOperation, caf_frame
from callboard.caf.wire.message import MessageCodec
from callboard.caf.wire.reader import CafActor, CafNode
from callboard.kernel.wire import Admitted, Closed, Transmit
from callboard.protocol_errors import AlreadyLinked, IncompatibleApplication, PeerSilent

RECORDED = Path(__file__).parent / "recorded"
HOST = bytes(range(1, 21))
A, B, C = CafNode(1, HOST), CafNode(2, HOST), CafNode(3, HOST)
LIMIT = 1 << 20


def machine(node=A, *, is_dialed=True, **options):
    return CafConnection(node, 0.0, is_dialed=is_dialed, limit=LIMIT, **options)


def sent(effects):
    return b"".join(effect.data for effect in effects if isinstance(effect, Transmit))


def closed(effects):
    return next((effect for effect in effects if isinstance(effect, Closed)), None)


def linked(**options):
    """Return both ends of a connection after their handshakes."""
    dialer, acceptor = machine(A), machine(B, is_dialed=False, **options)
    hello, greeting = sent(dialer.start()), sent(acceptor.start())
    (seen,), _ = dialer.take(greeting, 0.0)
    (client,), _ = acceptor.take(hello, 0.0)
    effects = dialer.accept()
    assert effects[-1] == Admitted(str(B))
    assert acceptor.accept() == [Admitted(str(A))]
    assert acceptor.take(sent(effects), 0.0) == ([NodeIntroduced(A, is_selected=True)], [])
    return dialer, acceptor, seen, client


def test_both_sides_know_each_other_after_the_handshake():
    _, _, seen, client = linked(published=6, interface=("caf::replies_to<@i32>::with<@i32>",))

    assert seen == NodeIntroduced(B, 6, ("caf::replies_to<@i32>::with<@i32>",))
    assert client == NodeIntroduced(A)


def test_the_handshakes_are_those_of_caf():
    stream = (RECORDED / "caf-main-c2s.bin").read_bytes()
    first, second, *_ = CafFrames(LIMIT).take(stream)
    peer = machine(A, is_dialed=False)
    (known,), _ = peer.take(stream[:64], 0.0)
    dialer = machine(known.node)
    greeting = (RECORDED / "caf-main-s2c.bin").read_bytes()[: 32 + 0x3A]
    hello = sent(dialer.start())
    (server,), _ = dialer.take(greeting, 0.0)

    assert hello == caf_frame(CafOperation.CLIENT_HANDSHAKE, first.payload)
    assert sent(dialer.accept()) == caf_frame(
        CafOperation.CLIENT_HANDSHAKE, second.payload, flags=second.flags
    )
    acceptor = machine(server.node, is_dialed=False, published=server.actor)
    assert sent(acceptor.start()) == greeting


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.bin")), ids=lambda path: path.stem)
def test_recorded_peers_are_understood(path):
    end = machine(A, is_dialed=path.stem.endswith("s2c"))
    stream = path.read_bytes()
    messages, effects = end.take(stream, 0.0)

    assert effects == []
    assert isinstance(messages[0], NodeIntroduced)
    assert len(messages) > 3


def test_frames_arrive_as_messages():
    dialer, acceptor, *_ = linked()
    content = MessageCodec().encode((1, "a"))
    actor = CafActor(9, A)
    error = MessageCodec().error_bytes(CafError(4, "exit"))
    frames = [
        caf.direct(caf.NORMAL | 7, 9, 6, content),
        caf.named(0, 0, caf.CONFIG_NAME, content),
        caf.routed((C, B), caf.NORMAL, 9, 6, content),
        caf.monitor(A, CafActor(6, B)),
        caf.down(actor, B, error),
        caf_frame(CafOperation.HEARTBEAT),
        caf.routed((A, C), caf.NORMAL, 9, 6, content),
    ]
    messages, _ = acceptor.take(b"".join(frames), 0.0)
    direct, name, routed, monitor, down, passing = messages

    assert isinstance(direct, MessageFrame)
    assert direct[:5] == (A, 9, 6, False, caf.NORMAL | 7)
    assert MessageCodec().decode(direct.payload, direct.offset).content == (1, "a")
    assert name[:5] == (A, 0, caf.CONFIG_NAME, True, 0)
    assert routed[:3] == (C, 9, 6)
    assert monitor == MonitorFrame(A, 6)
    assert down == DownFrame(A, 9, CafError(4, "exit"))
    assert isinstance(passing, PassingFrame)
    assert passing.octets == frames[-1]
    assert dialer.tick(0.5) == []


NONSENSE = [
    b"\x07" + bytes(31),
    bytes(32),
    caf_frame(CafOperation.CLIENT_HANDSHAKE, B.to_bytes()),
    caf_frame(CafOperation.MONITOR, A.to_bytes(), target=1),
    caf_frame(CafOperation.MONITOR, bytes(64), target=1),
    caf_frame(CafOperation.DIRECT, b"\xff" * 10, target=1),
    caf_frame(CafOperation.DIRECT, b"\x50" + bytes(80 * 16), target=1),
    b"\x02" + bytes(3) + b"\xff\xff\xff\xff" + bytes(16) + b"\1" * 8,
    b"\x16\x03\x01" + bytes(40),
    b"GET / HTTP/1.1\r\n" + bytes(40),
]


@pytest.mark.parametrize("data", NONSENSE)
def test_nonsense_ends_the_connection(data):
    _, acceptor, *_ = linked()
    messages, effects = acceptor.take(data, 1.0)

    assert messages == []
    assert "malformed_basp_message" in closed(effects).reason
    assert acceptor.take(b"more", 1.0) == ([], [])
    assert acceptor.lost("gone") == []


def test_nodes_of_other_applications_are_refused():
    acceptor = machine(B, is_dialed=False, applications=("other",))
    _, effects = machine(A).take(sent(acceptor.start()), 0.0)

    assert isinstance(closed(effects).error, IncompatibleApplication)


def test_a_node_does_not_link_with_itself_or_twice():
    acceptor, again = machine(A, is_dialed=False), machine(A)
    _, effects = again.take(sent(acceptor.start()), 0.0)
    assert "this node itself" in closed(effects).reason

    second = machine(A)
    second.take(sent(machine(B, is_dialed=False).start()), 0.0)
    assert isinstance(closed(second.redundant()).error, AlreadyLinked)


def test_a_silent_peer_is_queried_and_then_given_up():
    dialer, acceptor, *_ = linked()
    effects = dialer.tick(caf.QUERY_SECONDS)
    messages, _ = acceptor.take(sent(effects), 1.0)
    assert [message.target for message in messages] == [caf.SPAWN_NAME]
    assert dialer.tick(caf.QUERY_SECONDS + 0.1) == []

    assert isinstance(closed(dialer.tick(caf.SILENCE_LIMIT)).error, PeerSilent)
    assert dialer.next_tick_at == float("inf")


@given(st.sampled_from(sorted(RECORDED.glob("*.bin"))), st.integers(0, 2000), st.binary())
def test_damaged_streams_end_the_connection_or_are_understood(path, place, noise):
    stream = path.read_bytes()
    stream = stream[:place] + noise + stream[place + len(noise) :]
    end = machine(A, is_dialed=path.stem.endswith("s2c"))
    end.take(stream[:99], 0.0)
    end.accept()
    _, effects = end.take(stream[99:], 0.0)
    assert all(isinstance(effect, Closed) or effect.messages for effect in effects)
