"""Commands: kinds, tags, and what they are in terms of channels."""

from uuid import UUID

import pytest
from hypothesis import given

from callboard.channel import (
    CumulativeAck,
    Event,
    Handshake,
    Heartbeat,
    Nack,
    RetransmitFailed,
)
from callboard.endpoint.container import Table
from callboard.endpoint.data import Data, DataType
from callboard.store.command import (
    COMMANDS,
    AckClone,
    Add,
    AttachWriter,
    Clear,
    CommandTag,
    CumulativeAckCommand,
    Erase,
    Expire,
    InternalCommand,
    Keepalive,
    NackCommand,
    Put,
    PutUnique,
    PutUniqueResult,
    RetransmitFailedCommand,
    Subtract,
    tag_of,
)
from callboard.store.command_channel import channel_message, control_command
from callboard.store.command_field import FIELDS
from callboard.store.entity_id import NIL, EntityId
from tests.callboard.store.strategies import COMMANDS_SENT

KEY, STATE = Data("k"), Table([(Data("k"), Data(1))])
WHO = EntityId(UUID(int=7), 3)

#: Each kind in the order of the wire, with its tag.
EACH_KIND = [
    (Put(KEY, KEY), CommandTag.ACTION),
    (PutUnique(KEY, KEY, None, WHO, 1), CommandTag.ACTION),
    (PutUniqueResult(True, WHO, 1), CommandTag.ACTION),
    (Erase(KEY), CommandTag.ACTION),
    (Expire(KEY), CommandTag.ACTION),
    (Add(KEY, KEY, DataType.Set), CommandTag.ACTION),
    (Subtract(KEY, KEY), CommandTag.ACTION),
    (Clear(), CommandTag.ACTION),
    (AttachWriter(4, 5), CommandTag.PRODUCER_CONTROL),
    (Keepalive(4), CommandTag.PRODUCER_CONTROL),
    (CumulativeAckCommand(4), CommandTag.CONSUMER_CONTROL),
    (NackCommand((4, 6)), CommandTag.CONSUMER_CONTROL),
    (AckClone(4, 5, STATE), CommandTag.PRODUCER_CONTROL),
    (RetransmitFailedCommand(4), CommandTag.PRODUCER_CONTROL),
]


def test_there_are_fourteen_kinds_in_the_order_of_the_wire():
    assert tuple(type(content) for content, _ in EACH_KIND) == COMMANDS
    assert len(COMMANDS) == len(set(COMMANDS)) == 14


@pytest.mark.parametrize(("content", "tag"), EACH_KIND)
def test_tag_of_tells_actions_and_both_controls_apart(content, tag):
    assert tag_of(InternalCommand(0, WHO, content)) is tag


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (AttachWriter(4, 5), Handshake(5, 5)),
        (AckClone(4, 5, STATE), Handshake(5, 5)),
        (CumulativeAckCommand(4), CumulativeAck(4)),
        (NackCommand((4, 6)), Nack((4, 6))),
        (Keepalive(4), Heartbeat(4)),
        (RetransmitFailedCommand(4), RetransmitFailed(4)),
    ],
)
def test_controls_map_to_messages_of_channels_and_back(content, message):
    state = STATE if isinstance(content, AckClone) else None

    assert channel_message(InternalCommand(0, WHO, content)) == message
    assert control_command(message, state) == content


@given(COMMANDS_SENT)
def test_actions_are_events_in_sequence_order(command):
    message = channel_message(command)

    if tag_of(command) is CommandTag.ACTION:
        assert message == Event(command.seq, command)
        assert control_command(message) == command.content
    else:
        assert not isinstance(message, Event)


def test_every_kind_tells_its_fields():
    for kind in COMMANDS:
        assert len(FIELDS[kind]) == len(kind.__dataclass_fields__)


def test_entities_are_ordered_and_nobody_is_false():
    assert sorted([WHO, NIL, EntityId(UUID(int=7), 2)]) == [NIL, EntityId(UUID(int=7), 2), WHO]
    assert (bool(NIL), bool(WHO), str(NIL)) == (False, True, "none")
    assert str(WHO) == "3@00000000-0000-0000-0000-000000000007"
    with pytest.raises(OverflowError):
        EntityId(UUID(int=7), 2**64)
