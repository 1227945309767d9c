"""Broker's wire 2.x: values of every type, and commands of stores."""

from typing import Any

from callboard.model.data import Data, DataType, Table
from callboard.model.timespan import Timespan
from callboard.zeek.value import value_from_bytes, value_to_bytes
from tests.callboard.zeek.broker_command import (
    InternalCommand,
    command_from_bytes,
    command_to_bytes,
)
from tests.golden.sample import Sample
from tests.golden.stores import MASTER, NAMES, WRITER
from tests.golden.topics import DATA

KEY, VALUE, SPAN = Data("k"), Data((1, "x")), Timespan(5)
CONTENTS: tuple[tuple[Any, ...], ...] = (
    (KEY, VALUE, SPAN),
    (KEY, VALUE, None, WRITER, 7),
    (True, WRITER, 7),
    (KEY,),
    (KEY,),
    (KEY, VALUE, DataType.Vector, SPAN),
    (KEY, VALUE, None),
    (),
    (12, 65_535),
    (2**64 - 1,),
    (300,),
    ((1, 2, 70_000),),
    (4, 5, Table([(KEY, VALUE)])),
    (4,),
)
SAMPLES = {
    f"value: {kind.name}": Sample(sample.value, value_to_bytes, value_from_bytes)
    for kind, sample in DATA.items()
}
SAMPLES |= {
    f"command: {name}": Sample(
        InternalCommand(41, WRITER, (number, *fields), MASTER, *[WRITER] * (number < 8)),
        command_to_bytes,
        command_from_bytes,
    )
    for number, (name, fields) in enumerate(zip(NAMES, CONTENTS, strict=True))
}


def missing() -> set[object]:
    """Return types without a sample; `NAMES` has all commands."""
    return {*DataType} - DATA.keys()
