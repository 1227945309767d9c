"""Commands: their table, golden bytes of their CBOR, round trips, what is refused."""

from uuid import UUID

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.channel import CumulativeAck, Handshake, Heartbeat, Nack, RetransmitFailed
from callboard.model.errors import InvalidData
from callboard.store.machine.command import (
    ACTIONS,
    CONTROLS,
    FIELDS,
    FIRST_OWN,
    NIL,
    RUN_SIZE_LIMIT,
    WRITES,
    Command,
    CommandRun,
    EntityId,
    encode_run,
    read_run,
)
from callboard.store.machine.snapshot import SnapshotChunk
from callboard.store.machine.stored import stored_of, token_of
from tests.callboard.model.strategies import DATA

WHO = EntityId(UUID(int=1), 2)
PLAIN_WHO = (WHO.endpoint.bytes, WHO.object)
TOKENS = DATA.map(token_of)
VALUES = DATA.map(stored_of)
EXPIRIES = st.none() | st.integers(-(2**63) + 1, 2**63 - 1)
NUMBERS = st.integers(0, 2**64 - 1)
RUN_ACTIONS = st.one_of(
    st.tuples(st.just(Command.PUT), TOKENS, VALUES, EXPIRIES),
    st.tuples(
        st.just(Command.PUT_UNIQUE), TOKENS, VALUES, EXPIRIES, st.just(PLAIN_WHO), NUMBERS
    ),
    st.tuples(st.just(Command.RESULT), st.booleans(), st.just(PLAIN_WHO), NUMBERS),
    st.tuples(st.just(Command.ERASE), TOKENS),
    st.tuples(st.just(Command.ADD), TOKENS, VALUES, st.integers(0, 14), EXPIRIES),
    st.tuples(st.just(Command.SUBTRACT), TOKENS, VALUES, EXPIRIES),
    st.just((Command.CLEAR,)),
)
RUN_CONTROLS = st.one_of(
    st.builds(Handshake, st.integers(1, 2**64), st.integers(0, 65_535)),
    st.builds(Heartbeat, NUMBERS),
    st.builds(CumulativeAck, NUMBERS),
    st.builds(RetransmitFailed, NUMBERS),
    st.builds(Nack, st.lists(NUMBERS, max_size=4).map(tuple)),
    st.builds(
        SnapshotChunk,
        NUMBERS,
        st.integers(0, 65_535),
        NUMBERS,
        st.booleans(),
        st.lists(st.tuples(TOKENS, VALUES), max_size=3).map(lambda pairs: sum(pairs, ())),
    ),
)


def _read(encoded):
    return read_run(cbor2.loads(encoded, immutable=True))


def test_a_run_has_its_bytes():
    run = CommandRun(WHO, NIL, 9, [(Command.PUT, "k", 1, None), (Command.ERASE, b"\x05")])

    (encoded,) = encode_run(run)

    head = "85" + "8250" + "00" * 15 + "0102" + "f6" + "09"
    assert encoded.hex() == head + "84" + "00" + "616b" + "01" + "f6" + "82" + "03" + "4105"


@given(st.lists(RUN_ACTIONS, min_size=1, max_size=5), st.integers(1, 2**60))
def test_actions_come_back(actions, first):
    (encoded,) = encode_run(CommandRun(WHO, NIL, first, actions))

    assert repr(_read(encoded)) == repr(CommandRun(WHO, NIL, first, actions))


@given(RUN_CONTROLS)
def test_controls_come_back(control):
    (encoded,) = encode_run(CommandRun(WHO, WHO, control=control))

    assert repr(_read(encoded)) == repr(CommandRun(WHO, WHO, control=control))


def test_long_runs_are_cut_by_length_and_size():
    actions = [
        (Command.PUT, f"k{i}", "x" * (1000 if i % 7 else 90_000), None) for i in range(3000)
    ]

    encoded = encode_run(CommandRun(WHO, NIL, 5, actions))

    runs = [_read(one) for one in encoded]
    assert [action for run in runs for action in run.actions] == actions
    assert [run.first for run in runs] == [
        5 + sum(len(before.actions) for before in runs[:at]) for at in range(len(runs))
    ]
    assert max(map(len, encoded)) <= RUN_SIZE_LIMIT


SOMEBODY = (bytes(16), 1)


@pytest.mark.parametrize(
    "content",
    [
        5,
        (),
        (SOMEBODY, None, 1),
        (SOMEBODY, None, -1, (Command.CLEAR,)),
        (SOMEBODY, None, 2**64, (Command.CLEAR,)),
        ((bytes(15), 1), None, 1, (Command.CLEAR,)),
        ((bytes(16), -1), None, 1, (Command.CLEAR,)),
        ("somebody", None, 1, (Command.CLEAR,)),
        (SOMEBODY, None, 1, 5),
        (SOMEBODY, None, 1, ()),
        (SOMEBODY, None, 1, (-1, Command.PUT, "k", "a reason")),
        (SOMEBODY, None, 1, (2**64,)),
        (SOMEBODY, None, 1, (10**5000,)),
        (SOMEBODY, None, 1, (Command.KEEPALIVE, 1)),
        (SOMEBODY, None, 0, (Command.CLEAR,)),
        (SOMEBODY, None, 0, (14, 1)),
        (SOMEBODY, None, 0, (8, 0, 65_536)),
        (SOMEBODY, None, 0, (9, -1)),
        (SOMEBODY, None, 0, (9, 1), (9, 1)),
        (SOMEBODY, None, 0, (11, (1, -1))),
        (SOMEBODY, None, 0, (11, (1,) * 65_537)),
        (SOMEBODY, None, 0, (12, 0, 5, 0)),
        (SOMEBODY, None, 0, (12, 0, 5, 0, True, "k")),
        (SOMEBODY, None, 0, (12, 0, 5, 0, 1, "k", 1)),
    ],
)
def test_what_is_no_run_is_refused(content):
    with pytest.raises(InvalidData):
        read_run(content)


@pytest.mark.parametrize(
    "action",
    [
        (Command.CLEAR, 0),
        (14,),
        (FIRST_OWN, "k", 1),
        (Command.ERASE, 5),
        (Command.ERASE, b"\xff"),
        (Command.PUT, "k", 2**63, None),
        (Command.PUT, "k", 10**5000, None),
        (Command.PUT, "k", b"\xff", None),
        (Command.PUT, "k", (1, (b"x",)), None),
        (Command.PUT, "k", 1, 2**63),
        (Command.PUT, "k", 1, True),
        (Command.PUT_UNIQUE, "k", 1, None, None, 1),
        (Command.PUT_UNIQUE, "k", 1, None, SOMEBODY, -1),
        (Command.RESULT, 1, SOMEBODY, 1),
        (Command.ADD, "k", 1, 15, None),
    ],
)
def test_an_action_that_cannot_be_read_keeps_its_place_in_the_run(action):
    run = read_run((SOMEBODY, None, 7, (Command.CLEAR,), action, (Command.ERASE, "a")))

    first, unreadable, last = run.actions
    assert (first, last) == ((Command.CLEAR,), (Command.ERASE, "a"))
    assert unreadable[:2] == (Command.UNREADABLE, action[0])
    assert unreadable[2] == ("k" if action[1:2] == ("k",) and action[0] in ACTIONS else None)
    assert unreadable[3].startswith(f"command {action[0]}")


def test_an_entry_of_a_snapshot_that_cannot_be_read_is_left_out():
    chunk = (Command.ACK_CLONE, 5, 5, 0, True, "a", 1, "b", b"\xff", b"\xff", 2, "c", 3)

    control = read_run((SOMEBODY, None, 0, chunk)).control

    assert control.entries == ("a", 1, "c", 3)
    assert [reason[:19] for reason in control.unreadable] == [
        "the entry 'b' canno",
        "the entry b'\\xff' c",
    ]


def test_a_command_of_a_later_release_is_named_as_such():
    ((*_, reason),) = read_run((SOMEBODY, None, 1, (FIRST_OWN, "k", 1))).actions

    assert reason == (
        "command 32 cannot be read: this release does not know its number; update this node"
    )


def test_there_are_fourteen_commands_and_each_action_has_one_place():
    assert sorted(FIELDS) == list(range(14))
    assert not ACTIONS.keys() & CONTROLS.keys()
    assert WRITES - {Command.UNREADABLE} < ACTIONS.keys()


def test_entities_are_ordered_and_nobody_is_false():
    seven = EntityId(UUID(int=7), 3)
    assert sorted([seven, NIL, EntityId(UUID(int=7), 2)]) == [
        NIL,
        EntityId(UUID(int=7), 2),
        seven,
    ]
    assert (bool(NIL), bool(seven), str(NIL)) == (False, True, "none")
    assert str(seven) == "3@00000000-0000-0000-0000-000000000007"
    with pytest.raises(OverflowError):
        EntityId(UUID(int=7), 2**64)
