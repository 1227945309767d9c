"""Fields that a log declares: names and types of columns that its payloads have.

They stand in the file `fields` of its folder, as JSON, and are told to all who read it as
columns: SQL, Arrow, Spark. A log declares more of them as it grows; none changes its type.

| type | in payloads | SQL | Arrow |
|---|---|---|---|
| bool | truth value | BOOLEAN | bool |
| int, uint | integer | BIGINT, UBIGINT | int64, uint64 |
| float | float or integer | DOUBLE | double |
| time | as `decoding.time_of` reads it | TIMESTAMPTZ | timestamp, microseconds, UTC |
| text | text | VARCHAR | string |
| `text[]` | list of these, as of the others | `VARCHAR[]` | list of string |
"""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from callboard.commitlog.arrow import arrow_schema, load_pyarrow
from callboard.commitlog.errors import FieldConflict, InvalidOption, LogFailed
from callboard.commitlog.folder import FIELDS, Folder

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]

#: Types, and those of Arrow.
TYPES: Final = {
    "bool": "bool",
    "int": "int64",
    "uint": "uint64",
    "float": "double",
    "text": "string",
    "time": "",
}
_LIST: Final = "[]"
#: Fields of a log: readers make a column of each.
FIELDS_LIMIT: Final = 1_000
#: Stands before the name of a field that is named as a column of records.
FIELD: Final = "payload."
#: Columns that records have in SQL beside those of Arrow, and one of Spark.
_TAKEN: Final = frozenset({"value", "time_ns", "error"})


class DeclaredField(NamedTuple):
    """A field of a log's payloads.

    Attributes:
        name: of the key in payloads.
        type: One of those that the module tells.
        label: What it is elsewhere, for people: `set[addr]`.
    """

    name: str
    type: str
    label: str = ""


def merge_fields(
    known: Iterable[DeclaredField], more: Iterable[DeclaredField]
) -> list[DeclaredField]:
    """Return fields with those that are added to them, in order.

    Raises:
        FieldConflict: a name stands for something else already; capitals do not tell two names
            from each other, as in SQL.
        InvalidOption: a type is none, or there are too many.
    """
    merged = {field.name.casefold(): field for field in known}
    for field in more:
        if type_parts(field)[0] not in TYPES:
            what = f"{field.name} has the type {field.type!r}; give one of {', '.join(TYPES)}"
            raise InvalidOption(what)
        here = merged.setdefault(field.name.casefold(), field)
        if here[:2] != field[:2]:
            what = f"{field.name} is {field.type}, and {here.name} was declared {here.type}"
            msg = f"{what}; give it another name"
            raise FieldConflict(msg)
    if len(merged) > FIELDS_LIMIT:
        what = f"{len(merged):,} fields; a log has {FIELDS_LIMIT:,} at most"
        raise InvalidOption(what)
    return list(merged.values())


def read_fields(folder: Folder) -> list[DeclaredField]:
    """Return the fields that the log in a folder declares, perhaps none.

    Raises:
        LogFailed: the disk refuses, or the file is none of ours.
    """
    with folder.reading():  # a server of an older callboard may not be asked for the file
        if FIELDS not in folder.disk.listdir(folder.path):
            return []
        data = folder.read(folder.file(FIELDS))
    try:
        told = [DeclaredField(*map(str, each)) for each in json.loads(data)]
        return merge_fields((), told)
    except (ValueError, TypeError, RecursionError) as error:
        what = f"{folder.file(FIELDS)} is damaged ({error}); declare the fields again"
        raise LogFailed(what) from error


def write_fields(folder: Folder, fields: Iterable[DeclaredField]) -> None:
    """Write fields, durably and at once.

    Raises:
        OSError: the disk refuses.
    """
    folder.replace(folder.file(FIELDS), json.dumps(list(fields)).encode())


def type_parts(field: DeclaredField) -> tuple[str, str]:
    """Return the type of a field or of what its lists hold, and `[]` for lists."""
    base = field.type.removesuffix(_LIST)
    return base, field.type[len(base) :]


def column_name(name: str) -> str:
    """Return what a field is called as a column: records have some names themselves."""
    is_taken = name.casefold() in _TAKEN or name.casefold() in arrow_schema().names
    return FIELD + name if is_taken else name


def arrow_fields(fields: Iterable[DeclaredField]) -> "list[pa.Field]":
    """Return the columns of declared fields.

    Raises:
        ExtraMissing: pyarrow is not installed.
    """
    pa = load_pyarrow()
    return [pa.field(column_name(each.name), _arrow_type(pa, each)) for each in fields]


def _arrow_type(pa: Any, field: DeclaredField) -> Any:
    """Return the type of a column."""
    base, is_list = type_parts(field)
    kind = pa.type_for_alias(TYPES[base]) if TYPES[base] else pa.timestamp("us", tz="UTC")
    return pa.list_(kind) if is_list else kind
