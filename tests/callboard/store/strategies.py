"""Hypothesis strategies for commands."""

from hypothesis import strategies as st

from callboard.model.data import DataType, Table
from callboard.model.timespan import Timespan
from callboard.store.machine.command import (
    FIELDS,
    INTERVAL_LIMIT,
    NIL,
    NUMBER_LIMIT,
    Command,
    CommandField,
    EntityId,
)
from tests.callboard.model.strategies import DATA
from tests.callboard.zeek.broker_command import InternalCommand

NUMBERS = st.integers(0, NUMBER_LIMIT)
ENTITIES = st.just(NIL) | st.builds(EntityId, st.uuids(), NUMBERS)
TABLES = st.lists(st.tuples(DATA, DATA), max_size=3).map(Table)
VALUES = {
    CommandField.KEY: DATA,
    CommandField.VALUE: DATA,
    CommandField.EXPIRY: st.none() | st.integers(-(2**63), 2**63 - 1).map(Timespan),
    CommandField.ENTITY: ENTITIES,
    CommandField.NUMBER: NUMBERS,
    CommandField.INTERVAL: st.integers(0, INTERVAL_LIMIT),
    CommandField.FLAG: st.booleans(),
    CommandField.TYPE: st.sampled_from(DataType),
    CommandField.SEQS: st.lists(NUMBERS, max_size=5).map(tuple),
    CommandField.STATE: TABLES,
}
CONTENTS = st.one_of(
    *(
        st.tuples(st.just(number), *(VALUES[field] for field in fields))
        for number, fields in FIELDS.items()
    )
)
CONTROLS = range(Command.ATTACH_WRITER, len(FIELDS))
COMMANDS_SENT = CONTENTS.flatmap(
    lambda content: st.builds(
        InternalCommand,
        NUMBERS,
        ENTITIES,
        st.just(content),
        ENTITIES,
        st.just(NIL) if content[0] in CONTROLS else ENTITIES,
    )
)
