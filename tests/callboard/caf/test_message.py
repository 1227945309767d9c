"""CAF's serialization: recorded streams, values of every type, and what is refused."""

import dataclasses
import enum
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.basp.registry import MessageRegistry
from callboard.caf.errors import CafError
from callboard.caf.wire import message as messages
from callboard.caf.wire.frame import CafFrames, CafOperation, caf_frame
from callboard.caf.wire.message import (
    F32,
    I64,
    U16,
    Atom,
    CafGroup,
    ConfigValue,
    DownMessage,
    Duration,
    ExitMessage,
    GroupDown,
    MessageCodec,
    ValueReader,
)
from callboard.caf.wire.reader import CafActor, CafNode, atom, atom_text, texts_bytes, varbyte
from callboard.kernel.errors import NotSerializable
from callboard.protocol_errors import (
    BaspError,
    MalformedPayload,
    MessageRefused,
    PayloadTooHeavy,
    UnknownMessageType,
)

SETTING = {"a": [1, True, 2.5, "x"], "b": {"c": Atom("x")}, "d": timedelta(seconds=3)}
RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.bin"))
NODE = CafNode(7, bytes(range(20)))
ACTOR = CafActor(9, NODE)
NAMES = st.text(" 0123456789AZ_az", max_size=10)


def frames(path):
    return list(CafFrames(1 << 20).take(path.read_bytes()))


def encoded_again(codec, frame):
    """Decode the payload of a frame, and return it encoded from its parts."""
    reader = ValueReader(codec, frame.payload)
    if frame.operation == CafOperation.SERVER_HANDSHAKE:
        parts = reader.node(), reader.texts(), reader.number(8), reader.texts()
        node, apps, actor, signatures = parts
        return b"".join(
            [node.to_bytes(), texts_bytes(apps), actor.to_bytes(8), texts_bytes(signatures)]
        )
    if frame.operation == CafOperation.HEARTBEAT:
        return b""
    nodes = {
        CafOperation.CLIENT_HANDSHAKE: 1,
        CafOperation.DIRECT: 0,
        CafOperation.ROUTED: 2,
        CafOperation.MONITOR: 2,
        CafOperation.DOWN: 2,
    }[frame.operation]
    head = b"".join([reader.node().to_bytes() for _ in range(nodes)])
    if frame.operation == CafOperation.DOWN:
        kind = messages._TYPES["@error"]
        head += kind.write(codec, kind.read(reader))
    elif frame.operation in (CafOperation.DIRECT, CafOperation.ROUTED):
        stack = [reader.actor() for _ in reader.items()]
        message = codec.decode(frame.payload, reader.at)
        reader.at = len(frame.payload)
        head += varbyte(len(stack)) + b"".join(actor.to_bytes() for actor in stack)
        head += codec.encode_as(message.types, message.values)
    reader.finish()
    return head


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_streams_decode_and_encode_to_the_same_bytes(path):
    codec, again = MessageCodec(MessageRegistry()), b""
    for frame in frames(path):
        assert encoded_again(codec, frame) == frame.payload
        operation, flags, data, source, target, payload = frame
        again += caf_frame(
            CafOperation(operation),
            payload,
            flags=flags,
            data=data,
            source=source,
            target=target,
        )
    assert again == path.read_bytes()


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_streams_arrive_in_any_pieces(path):
    reader, arrived = CafFrames(1 << 20), []
    for byte in path.read_bytes():
        arrived += reader.take(bytes([byte]))
    assert arrived == frames(path)


FIRST = datetime(1700, 1, 1, tzinfo=UTC).replace(tzinfo=None)
PLAIN = st.one_of(
    st.booleans(),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    NAMES.map(Atom),
    st.none(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.lists(st.text(), min_size=1),
    st.sets(st.text()),
    st.dictionaries(st.text(), st.text()),
    st.datetimes(FIRST, FIRST + timedelta(days=182_000), timezones=st.just(UTC)),
    st.timedeltas(timedelta(days=-9_000), timedelta(days=9_000)),
    st.sampled_from([ACTOR, NODE, [ACTOR], CafGroup("local", "g", ACTOR)]),
    st.builds(CafError, st.integers(1, 255), NAMES, st.text()),
    st.just(ExitMessage(ACTOR, None)),
    st.just(DownMessage(None, CafError(4, "exit"))),
)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=9)


@given(st.lists(VALUES, min_size=2, max_size=6).map(tuple))
def test_every_value_arrives_as_it_was_sent(message):
    codec = MessageCodec(MessageRegistry())
    assert codec.decode(codec.encode(message)).content == message


@pytest.mark.parametrize("message", [None, 1, "a", True, ((1, 2),), (1, 2), ACTOR, 1 << 40])
def test_a_single_value_is_the_message_itself(message):
    codec = MessageCodec(MessageRegistry())
    assert codec.decode(codec.encode(message)).content == message


def test_wrappers_choose_the_type_of_a_number():
    codec = MessageCodec(MessageRegistry())
    message = codec.decode(codec.encode((U16(7), I64(7), F32(0.5), 7, 0.5)))
    assert message.types == ("@u16", "@i64", "float", "@i32", "double")
    assert message.values == (7, 7, 0.5, 7, 0.5)


@given(NAMES)
def test_atoms_have_one_number_each(name):
    assert atom_text(atom(name)) == name


class Color(enum.IntEnum):
    RED = 0
    BLUE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: I64
    color: Color
    marks: list[bool]
    names: dict[str, tuple[int, float]]


@dataclasses.dataclass
class Add:
    left: int
    right: int


@pytest.fixture
def codec():
    registry = MessageRegistry()
    registry.register_foreign("caf", "color", Color)
    registry.register_foreign("caf", "point", Point)
    registry.register_foreign("caf", "'add'+@i32+@i32", Add)
    return MessageCodec(registry)


def test_classes_are_sent_by_their_names_in_c_plus_plus(codec):
    point = Point(-1, 1 << 40, Color.BLUE, [True] * 9 + [False], {"a": (1, 0.5)})
    encoded = codec.encode(point)

    assert b"@<>+point" in encoded
    assert codec.decode(encoded).content == point
    assert codec.decode(codec.encode((point, "x"))).content == (point, "x")


def test_a_signature_makes_a_class_stand_for_a_whole_message(codec):
    encoded = codec.encode(Add(1, 2))

    assert codec.decode(encoded).types == ("@atom", "@i32", "@i32")
    assert codec.decode(encoded).content == Add(1, 2)
    assert codec.decode(codec.encode((Atom("sub"), 1, 2))).content == (Atom("sub"), 1, 2)


@pytest.mark.parametrize(
    "value",
    [object(), 1 << 64, [1], {1: "a"}, Atom("not-an-atom"), Point(1 << 40, 1, 0, [], {})],
)
def test_what_caf_cannot_hold_is_refused(codec, value):
    with pytest.raises(NotSerializable):
        codec.encode((value, 1))


def test_an_unknown_type_is_named(codec):
    data = codec.encode(Point(1, 1, Color.RED, [], {})).replace(b"point", b"paint")
    with pytest.raises(UnknownMessageType, match="paint"):
        codec.decode(data)


def test_a_refusal_of_a_class_is_reported(codec):
    data = codec.encode_as(("color",), (Color.RED,))[:-1] + b"\1"
    with pytest.raises(MessageRefused, match="not a member of Color"):
        codec.decode(data)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\1\3@<>",
        b"\0\0\3@<>x",
        b"\0\0\2@<",
        b"\0\0\10@<>+@str\xff\xff\xff\xff\xff\xff",
        b"\0\0\10@<>+@str\5abc",
        b"\0\0\10@<>+bool\2",
        b"\0\0\11@<>+@atom" + bytes(8),
    ],
)
def test_nonsense_is_malformed(codec, content):
    with pytest.raises(MalformedPayload):
        codec.decode(content)


def test_nested_messages_and_items_have_limits():
    message = ()
    for _ in range(messages.DEPTH_LIMIT + 1):
        message = (message, 1)
    codec = MessageCodec(MessageRegistry(), items=1000)
    with pytest.raises(PayloadTooHeavy):
        codec.decode(codec.encode((message, 1)))
    with pytest.raises(PayloadTooHeavy):
        codec.decode(codec.encode(([""] * 1001,)))


@given(st.binary(max_size=80), st.integers(0, 200))
def test_damaged_messages_raise_typed_errors(noise, place):
    codec = MessageCodec(MessageRegistry())
    good = codec.encode((1, "text", ["a", "b"], (ACTOR, Decimal(1)), CafError(1), Atom("x")))
    try:
        codec.decode(good[:place] + noise + good[place + len(noise) :])
    except BaspError:
        pass


def duration(unit, count):
    return b"\0\0" + bytes([13]) + b"@<>+@duration" + unit.to_bytes(4) + count.to_bytes(8)


@pytest.mark.parametrize(
    ("unit", "count", "found"),
    [
        (0, 0, None),
        (1, 2, Duration(minutes=2)),
        (2, 3, Duration(seconds=3)),
        (3, 4, Duration(milliseconds=4)),
        (4, 5, Duration(microseconds=5)),
        (5, 6999, Duration(microseconds=6)),
    ],
)
def test_durations_of_all_units_are_read(unit, count, found):
    assert MessageCodec().decode(duration(unit, count)).content == found


def test_durations_that_no_timedelta_holds_are_refused():
    with pytest.raises(MessageRefused):
        MessageCodec().decode(duration(1, (1 << 64) - 1))
    with pytest.raises(MalformedPayload, match="unit"):
        MessageCodec().decode(duration(6, 1))
    with pytest.raises(NotSerializable, match="negative"):
        MessageCodec().encode(Duration(seconds=-1))


@pytest.mark.parametrize(
    "value",
    [Duration(days=9, microseconds=1), ConfigValue(SETTING), ConfigValue(""), GroupDown(None)],
)
def test_values_with_types_of_their_own_arrive(value):
    codec = MessageCodec()
    found = codec.decode(codec.encode(value)).content
    assert found == value
    assert type(found) is type(value)


def test_infinity_is_a_duration_in_a_message_with_a_signature():
    codec = MessageCodec()
    assert codec.decode(codec.encode_as(("@duration",), (None,))).content is None


@pytest.mark.parametrize("value", [None, {1: 2}, object(), [b"x"], 1 << 70])
def test_values_that_no_configuration_holds_are_refused(value):
    with pytest.raises(NotSerializable):
        MessageCodec().encode(ConfigValue(value))


def test_configurations_are_not_nested_without_end():
    value = 1
    for _ in range(40):
        value = [value]
    codec = MessageCodec()
    with pytest.raises(PayloadTooHeavy):
        codec.decode(codec.encode(ConfigValue(value)))
    head = codec.encode(ConfigValue(1))[:-9]
    with pytest.raises(MalformedPayload):
        codec.decode(head + b"\x09")
    with pytest.raises(UnknownMessageType, match="URI"):
        codec.decode(head + b"\x05")


def test_a_node_with_a_uri_is_refused_and_not_malformed():
    content = MessageCodec().encode(NODE)[: -len(NODE.to_bytes())]
    with pytest.raises(UnknownMessageType, match="URI"):
        MessageCodec().decode(content + atom("uri").to_bytes(8) + b"\x04test")
