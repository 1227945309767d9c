"""BASP: the frames of every operation, and whole conversations of two links."""

from callboard.basp.accounting import Accounts, read_report, write_credit
from callboard.basp.control import pack_announce, pack_down, pack_release, read_down
from callboard.basp.frame import Frame, FrameReader, pack_frame, repack_frame
from callboard.basp.handshake import LinkConfig
from callboard.basp.header import HIGH_PRIORITY, RESPONSE, Operation, check_header
from callboard.basp.link import Link, LinkPairs, Seal, Transmit
from callboard.basp.node_id import NodeId, make_node_id
from callboard.basp.routing.path_order import pack_path_end
from callboard.basp.routing.update import Cut, PathVector, Statement, read_update
from callboard.basp.seal import BATCH_HEADER, OVERHEAD, Sealer
from callboard.proxies.ledger.credit import NO_BOUND
from tests.basp.wire import receive, write_update
from tests.golden.sample import Sample

A = NodeId(make_node_id(b"machine a", 1_700_000_000_000_000_000, 0, 0x01_0203))
B = NodeId(make_node_id(b"machine b", 1_700_000_000_000_000_001, 1, 77))
C = NodeId(b"c" * 18)


# --- conversations: what each of two links sends, from the first byte to the last


def converse(secret: bytes | None) -> list[tuple[bool, bytes]]:
    """Connect two links, send a heartbeat from each, and disconnect."""
    release = None if secret is None else ("0.2.0", "0123456789ab")
    dialer = Link(
        LinkConfig(B, ("callboard", "golden"), secret, release=release),
        dialer=True,
        nonce=b"n" * 16,
        now=0.0,
        pairs=LinkPairs(),
    )
    known = () if secret is None else (("cluster", secret),)
    shown = (17, ("Reading", "str"))
    acceptor = Link(
        LinkConfig(A, ("golden",), secrets=known, published=shown, release=release),
        dialer=False,
        nonce=b"m" * 16,
        now=0.0,
        pairs=LinkPairs(),
    )
    dialer.upper_state, acceptor.upper_state = b"state of b", b"state of a"
    sides = {True: dialer, False: acceptor}
    said: list[tuple[bool, bytes]] = []
    sealers: dict[bool, Sealer] = {}
    heard = 0

    def say(side: bool, effects: list[object]) -> None:
        for each in effects:
            if isinstance(each, Seal):
                sealers[side] = each.sealer
            elif isinstance(each, Transmit):
                data = sealers[side].seal(each.data) if side in sealers else each.data
                said.append((side, data))

    def settle(now: float) -> None:
        nonlocal heard
        while heard < len(said):
            side, data = said[heard]
            heard += 1
            say(not side, receive(sides[not side], data, now))

    for side, link in sides.items():
        say(side, link.start())
    settle(0.0)
    assert dialer.is_established
    assert acceptor.is_established
    for side, link in sides.items():
        say(side, link.tick(1.1))
    settle(1.1)
    say(True, dialer.close("golden"))
    settle(1.2)
    return said


def write_conversation(secret: bytes | None) -> bytes:
    return b"".join(data for _, data in converse(secret))


def read_frames(data: bytes) -> list[tuple[object, ...]]:
    reader = FrameReader()
    frames = [Frame._make(frame) for frame in reader.feed(data)]
    assert reader.error is None
    assert b"".join(map(repack_frame, frames)) == data
    for frame in frames:
        check_header(frame[:7])
    return frames


def operations(data: bytes) -> list[int]:
    return [frame[0] for frame in read_frames(data)]


def sealed_operations(data: bytes) -> list[int]:
    """Return the operations of a conversation whose frames after the third are batches."""
    reader, found, start = FrameReader(), [], 0
    while len(found) < 3:
        size = reader.wanted
        found += [frame[0] for frame in reader.feed(data[start : start + size])]
        start += size
    while start < len(data):
        length, _ = BATCH_HEADER.unpack_from(data, start)
        found += operations(data[start + BATCH_HEADER.size :][:length])
        start += length + OVERHEAD
    return found


TALK = [0, 1, 6, 7, 8, 9, 5, 5, 5, 10]


# --- single frames: fields as `pack_frame` takes them


def frame(operation, data, source, destination, source_actor, destination_actor, payload):
    fields = (operation, data, source, destination, source_actor, destination_actor, payload)
    found = [(operation, len(payload), *fields[1:])]
    return Sample(fields, lambda f: pack_frame(*f), read_frames, found)


DISPATCH, UPDATE = Operation.DISPATCH_MESSAGE, Operation.ROUTING_UPDATE
PAYLOAD = bytes.fromhex("8163616263")
POSITION = 9 << 56 | 1_234_567 << 32

VECTORS = [PathVector((A, B, C), (1, 2, 300)), PathVector((A, B), (1, 70_000))]
CUTS = [Cut(B, C, 5)]
STATED = Statement(B, 6, frozenset({A, C}), frozenset({C}), frozenset({B}), frozenset({A}))


def report(_: object) -> bytes:
    """Make a delivery report of two epochs."""
    accounts = Accounts()
    accounts.arrivals_of(A, 3).delivered += 1000
    accounts.arrivals_of(A, 3).dead_letters += 2
    accounts.arrivals_of(A, 4).given_up = 1
    ((node, payload),) = accounts.reports()
    assert node == A
    return payload


CREDIT = [(17, 1_000, 0), (18, NO_BOUND, 0), (19, 70_000, 4_096)]


def take_report(payload: bytes) -> tuple[int, ...]:
    """Pass it to the sender of 1005 messages in four epochs."""
    accounts = Accounts()
    account = accounts.account(B)
    for count in (1, 1, 1, 1002):
        account.sent += count
        account.next_epoch()
    account.sent += 5
    lost = accounts.receive_report(B, payload)
    return lost, account.confirmed, account.dead_letters, account.lost


SAMPLES = {
    "plain conversation": Sample(None, write_conversation, operations, TALK),
    "conversation with a secret": Sample(
        b"secret", write_conversation, sealed_operations, TALK
    ),
    "dispatch": frame(DISPATCH, POSITION | 42, A, B, 16, 17, PAYLOAD),
    "response": frame(DISPATCH, RESPONSE | POSITION | 42, B, A, 17, 0, PAYLOAD),
    "high priority": frame(DISPATCH, HIGH_PRIORITY | POSITION, A, B, 0, 2**32 - 1, b""),
    "announce": Sample(
        (A, B, 17, 3),
        lambda v: pack_announce(*v),
        read_frames,
        [(3, 0, 3, A, B, 0, 17, b"")],
    ),
    "release": Sample(
        (A, B, 17, 4),
        lambda v: pack_release(*v),
        read_frames,
        [(12, 0, 4, A, B, 0, 17, b"")],
    ),
    "down": Sample(
        (B, 17, A, 3, "ValueError: ä"),
        lambda v: pack_down(*v),
        lambda data: read_down(*read_frames(data)),
        (17, 3, "ValueError: ä"),
    ),
    "down without detail": Sample(
        (B, 17, A, 0),
        lambda v: pack_down(*v),
        lambda data: read_down(*read_frames(data)),
        (17, 0, ""),
    ),
    "path end": Sample(
        (A, B, 9, 4_000_000_000),
        lambda v: pack_path_end(*v, is_open=True),
        read_frames,
        [(14, 0, 9 << 56 | 1 << 62 | 4_000_000_000, A, B, 0, 0, b"")],
    ),
    "path end, closed": Sample(
        (A, B, 63, 0),
        lambda v: pack_path_end(*v, is_open=False),
        read_frames,
        [(14, 0, 63 << 56, A, B, 0, 0, b"")],
    ),
    "routing update": frame(
        UPDATE, 0, A, B, 0, 0, write_update(VECTORS, [C], CUTS, [STATED], ["c", "bä"])
    ),
    "payload of a routing update": Sample(
        (VECTORS, [C], CUTS, [STATED], ["c", "bä"]),
        lambda v: write_update(*v),
        lambda data: tuple(read_update(A, data)),
    ),
    "payload of an update of paths alone": Sample(
        (VECTORS[:1], [], [], [], [""]),
        lambda v: write_update(*v),
        lambda data: tuple(read_update(A, data)),
    ),
    "delivery report": frame(Operation.DELIVERY_REPORT, 0, B, A, 0, 0, report(None)),
    "payload of a delivery report": Sample(None, report, take_report, (1, 1002, 2, 1)),
    "payload of credit": Sample(CREDIT, write_credit, lambda data: read_report(B, data)[1]),
}


def missing() -> set[str]:
    """Return operations without a frame."""
    found = {
        number
        for name, sample in SAMPLES.items()
        if not name.startswith("payload") and sample.read is not sealed_operations
        for number in operations(sample.write(sample.value))
    }
    return {operation.name for operation in Operation if operation not in found}
