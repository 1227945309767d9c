"""Commands as CBOR: golden bytes, round trips, what is refused."""

from uuid import UUID

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.endpoint.data import Data
from callboard.endpoint.errors import InvalidData
from callboard.store.command import Clear, InternalCommand, Put
from callboard.store.command_cbor import command_from_cbor, command_to_cbor
from callboard.store.entity_id import NIL, EntityId
from tests.callboard.store.strategies import COMMANDS_SENT

WHO = EntityId(UUID(int=1), 2)


def test_a_command_has_its_bytes():
    put = InternalCommand(9, WHO, Put(Data("k"), Data(1)))

    assert command_to_cbor(put).hex() == (
        "87" + "09" + "8250" + "00" * 15 + "0102" + "f6" + "00" + "42616b" + "4101" + "f6"
    )
    assert command_to_cbor(InternalCommand(0, NIL, Clear())).hex() == "8400f6f607"


@given(COMMANDS_SENT)
def test_a_command_comes_back(command):
    assert command_from_cbor(command_to_cbor(command)) == command


@given(COMMANDS_SENT, st.data())
def test_a_cut_command_is_refused(command, draws):
    whole = command_to_cbor(command)

    with pytest.raises(InvalidData):
        command_from_cbor(whole[: draws.draw(st.integers(0, len(whole) - 1))])


SOMEBODY = [bytes(16), 1]


@pytest.mark.parametrize(
    "parts",
    [
        5,
        [],
        [1, SOMEBODY, None],
        [1, SOMEBODY, None, 14],
        [1, SOMEBODY, None, -1],
        [1, SOMEBODY, None, True],
        [1, SOMEBODY, None, 7, 0],
        [-1, SOMEBODY, None, 7],
        [2**64, SOMEBODY, None, 7],
        [1, [bytes(15), 1], None, 7],
        [1, [bytes(16), -1], None, 7],
        [1, [bytes(16)], None, 7],
        [1, "somebody", None, 7],
        [1, SOMEBODY, None, 3, "k"],
        [1, SOMEBODY, None, 3, b"\xff"],
        [1, SOMEBODY, None, 0, b"\x01", b"\x01", 2**63],
        [1, SOMEBODY, None, 0, b"\x01", b"\x01", True],
        [1, SOMEBODY, None, 0, b"\x01", b"\x01", 1.5],
        [1, SOMEBODY, None, 2, 1, None, 0],
        [1, SOMEBODY, None, 5, b"\x01", b"\x01", 15, None],
        [1, SOMEBODY, None, 8, 0, 65_536],
        [1, SOMEBODY, None, 11, [1, -1]],
        [1, SOMEBODY, None, 11, 1],
        [1, SOMEBODY, None, 11, [1] * 65_537],
        [1, SOMEBODY, None, 12, 0, 5, b"\x01"],
    ],
)
def test_what_is_no_command_is_refused(parts):
    with pytest.raises(InvalidData):
        command_from_cbor(cbor2.dumps(parts))
