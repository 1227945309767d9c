"""Commands on Broker's wire 2.x: golden bytes by its layout, round trips, damaged bytes."""

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.model.data import Data, DataType, Table
from callboard.model.errors import InvalidData
from callboard.model.timespan import Timespan
from callboard.store.machine.command import NIL, Command, EntityId
from tests.callboard.store.strategies import COMMANDS_SENT
from tests.callboard.zeek.broker_command import (
    InternalCommand,
    command_from_bytes,
    command_to_bytes,
)

WHO = EntityId(UUID(int=1), 2)
WHO_BYTES = "00" * 15 + "01" + "00" * 7 + "02"
KEY, ONE = "05016b", "030000000000000001"
STATE = Table([(Data("k"), Data(1))])

LAID_OUT = [
    ((Command.PUT, Data("k"), Data(1), None), "00" + KEY + ONE + "00"),
    (
        (Command.PUT, Data("k"), Data(1), Timespan(5)),
        "00" + KEY + ONE + "01" + "0000000000000005",
    ),
    ((Command.RESULT, True, WHO, 3), "02" + "01" + WHO_BYTES + "0000000000000003"),
    ((Command.ADD, Data("k"), Data(1), DataType.Set, None), "05" + KEY + ONE + "0c" + "00"),
    ((Command.CLEAR,), "07"),
    ((Command.ATTACH_WRITER, 4, 5), "08" + "0000000000000004" + "0005"),
    ((Command.NACK, (4, 6)), "0b" + "02" + "0000000000000004" + "0000000000000006"),
    ((Command.ACK_CLONE, 4, 5, STATE), "0c" + "0000000000000004" + "0005" + "01" + KEY + ONE),
]


@pytest.mark.parametrize(("content", "laid_out"), LAID_OUT)
def test_commands_have_the_bytes_of_their_layout(content, laid_out):
    changes = content[0] < Command.ATTACH_WRITER
    command = InternalCommand(9, WHO, content, publisher=WHO if changes else NIL)
    expected = "0000000000000009" + WHO_BYTES + "00" * 24 + laid_out + WHO_BYTES * changes

    assert command_to_bytes(command).hex() == expected
    assert command_from_bytes(bytes.fromhex(expected)) == command


def recorded_commands(name):
    """Yield the commands that a real Broker 2.7 sent: frames behind the handshake, type 2."""
    stream = (Path(__file__).parent / "recorded" / name).read_bytes()
    while stream:
        length = int.from_bytes(stream[:4])
        frame, stream = stream[4 : 4 + length], stream[4 + length :]
        if length > 37 and frame[32] == 2:
            topic_end = 37 + int.from_bytes(frame[35:37])
            yield frame[topic_end:]


@pytest.mark.parametrize(("name", "changes"), [("store-s2c.bin", 6), ("store-c2s.bin", 2)])
def test_commands_of_a_real_session_come_back(name, changes):
    """The publisher ends what changes a store: 24 bytes were left over of each without it."""
    bodies = list(recorded_commands(name))
    commands = [command_from_bytes(body) for body in bodies]

    assert [command_to_bytes(command) for command in commands] == bodies
    assert sum(command.publisher != NIL for command in commands) == changes


@given(COMMANDS_SENT)
def test_a_command_comes_back(command):
    assert command_from_bytes(command_to_bytes(command)) == command


@given(COMMANDS_SENT, st.data())
def test_a_cut_or_longer_command_is_refused(command, draws):
    whole = command_to_bytes(command)

    with pytest.raises(InvalidData):
        command_from_bytes(whole[: draws.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(InvalidData, match="bytes follow"):
        command_from_bytes(whole + b"\x00")


@given(COMMANDS_SENT, st.data())
def test_a_flipped_bit_gives_another_command_or_a_typed_error(command, draws):
    damaged = bytearray(command_to_bytes(command))
    bit = draws.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8

    try:
        again = command_from_bytes(bytes(damaged))
    except InvalidData:
        return
    assert command_from_bytes(command_to_bytes(again)) == again


@pytest.mark.parametrize(
    "body",
    [
        "0e",
        "00" + KEY + ONE + "02",
        "0202",
        "05" + KEY + ONE + "0f00",
        "0bffff7f",
        "0c" + "00" * 10 + "ffff7f",
    ],
)
def test_what_is_no_command_is_refused(body):
    head = command_to_bytes(InternalCommand(0, NIL, (Command.CLEAR,)))[:-25]

    with pytest.raises(InvalidData):
        command_from_bytes(head + bytes.fromhex(body))
