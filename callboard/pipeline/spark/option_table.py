"""The options of `format("callboard")`: their names and values, for checks and for the docs.

Spark passes unknown options on without a word, so that a misspelled one would have no effect.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, Literal, NoReturn

from callboard.pipeline.errors import InvalidSetting

Side = Literal["source", "sink"]

_FLAG: Final = "true or false"
_COUNT: Final = "a number of at least 1"
_PLACE: Final = "earliest, latest, an offset or a time like 2026-01-31T12:00:00Z, or a position"
_LIMITS: Final = "a value like bytes=1000000000,seconds=86400"
_SPAN: Final = "a time span like 30s, 5m or 1h"
_TEXT: Final = ""
_NAMES: Final = "names, separated by commas"

#: Options of the source, with their values; "" for any text.
SOURCE: Final[Mapping[str, str]] = {
    "path": _TEXT,
    "token": _TEXT,
    "tail": _TEXT,
    "topics": _NAMES,
    "where": "conditions on topic, key, time and offset",
    "pushFilters": _FLAG,
    "startingOffsets": _PLACE,
    "endingOffsets": _PLACE,
    "maxOffsetsPerTrigger": _COUNT,
    "minOffsetsPerTrigger": _COUNT,
    "maxTriggerDelay": _SPAN,
    "failOnDataLoss": _FLAG,
    "acceptLog": _TEXT,
    "deadLetters": _TEXT,
    "queryId": _TEXT,
    "deadLettersRetain": _LIMITS,
    "staging": "shared or driver",
    "textFields": _NAMES,
    "requiredFields": _NAMES,
    "timeZone": "a zone like Europe/Berlin",
    "nan": "null or keep",
    "inferSchema": _FLAG,
    "sampleRecords": _COUNT,
    "numPartitions": _COUNT,
}

#: Options of the sink, with their values.
SINK: Final[Mapping[str, str]] = {
    "path": _TEXT,
    "topic": _TEXT,
    "checkpointLocation": _TEXT,
    "queryId": _TEXT,
    "staging": "shared or driver",
    "retain": _LIMITS,
    "sync": "batch, checkpoint or none",
}

_TABLES: Final[Mapping[Side, Mapping[str, str]]] = {"source": SOURCE, "sink": SINK}

#: Prefix of options for fsspec, on both sides.
STORAGE: Final = "storage."

#: An option that Spark adds for tables of its catalog.
_OF_TABLES: Final = "owner"

#: Options that Spark itself adds.
_OF_SPARK: Final = frozenset(("queryname", "outputmode"))


def read_options(options: Mapping[str, str], side: Side) -> dict[str, str]:
    """Return options with their names in lower case: Spark may give either case.

    Raises:
        InvalidSetting: an option is unknown, or the path is missing.
    """
    values = {name.lower(): value for name, value in options.items()}
    names = {name.lower() for name in _TABLES[side]}
    if _OF_TABLES in values and _OF_TABLES not in names:
        msg = (
            "a log cannot be a table of the catalog (CREATE TABLE, saveAsTable); write CREATE"
            " TEMPORARY VIEW name USING callboard OPTIONS (path '…')"
        )
        raise InvalidSetting(msg)
    for name in options:
        lower = name.lower()
        if lower not in names and lower not in _OF_SPARK and not lower.startswith(STORAGE):
            raise InvalidSetting(_unknown(name, side))
    if not values.get("path"):
        msg = 'the option "path" is missing; set it to the directory of a log'
        raise InvalidSetting(msg)
    return values


def refuse(name: str, text: str, side: Side = "source") -> NoReturn:
    """Raise `InvalidSetting` for the value of an option; it names the valid ones."""
    msg = f"{name}={text!r}: use {_TABLES[side][name]}"
    raise InvalidSetting(msg) from None


def _unknown(name: str, side: Side) -> str:
    """Return the error text for an unknown option."""
    names = {option.lower(): option for option in _TABLES[side]}
    opposite: Side = "sink" if side == "source" else "source"
    is_opposite = name.lower() in {option.lower() for option in _TABLES[opposite]}
    if matches := get_close_matches(name.lower(), names, 1, cutoff=0.7):
        step = f"did you mean {names[matches[0]]}?"
    elif is_opposite:
        step = f"it is an option of the {opposite}"
    else:
        step = f"it has {', '.join(_TABLES[side])} and {STORAGE}NAME"
    return f"the {side} has no option {name!r}; {step}"
