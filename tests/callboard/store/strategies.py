"""Hypothesis strategies for commands."""

from hypothesis import strategies as st

from callboard.endpoint.container import Table
from callboard.endpoint.data import DataType
from callboard.endpoint.timespan import Timespan
from callboard.store.command import COMMANDS, InternalCommand
from callboard.store.command_field import FIELDS, INTERVAL_MAX, NUMBER_MAX, Field
from callboard.store.entity_id import NIL, EntityId
from tests.callboard.endpoint.strategies import DATA

NUMBERS = st.integers(0, NUMBER_MAX)
ENTITIES = st.just(NIL) | st.builds(EntityId, st.uuids(), NUMBERS)
TABLES = st.lists(st.tuples(DATA, DATA), max_size=3).map(Table)
VALUES = {
    Field.DATA: DATA,
    Field.EXPIRY: st.none() | st.integers(-(2**63), 2**63 - 1).map(Timespan),
    Field.ENTITY: ENTITIES,
    Field.NUMBER: NUMBERS,
    Field.INTERVAL: st.integers(0, INTERVAL_MAX),
    Field.FLAG: st.booleans(),
    Field.TYPE: st.sampled_from(DataType),
    Field.SEQS: st.lists(NUMBERS, max_size=5).map(tuple),
    Field.STATE: TABLES,
}
CONTENTS = st.one_of(
    *(st.builds(kind, *(VALUES[field] for field in FIELDS[kind])) for kind in COMMANDS)
)
COMMANDS_SENT = st.builds(InternalCommand, NUMBERS, ENTITIES, CONTENTS, ENTITIES)
