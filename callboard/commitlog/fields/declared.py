"""Declared fields of a log: fields of its payloads that readers get as typed columns.

They are stored as JSON in the file `fields` of the log's folder, and become columns in SQL,
Arrow and Spark. More fields can be declared later. The type of a field can become wider, for
example float for int; it never changes otherwise.

| type | in payloads | SQL | Arrow |
|---|---|---|---|
| bool | truth value | BOOLEAN | bool |
| int, uint | integer | BIGINT, UBIGINT | int64, uint64 |
| float | float or integer | DOUBLE | double |
| time | as `decoding.time_of` reads it | TIMESTAMPTZ | timestamp, microseconds, UTC |
| text | text | VARCHAR | string |
| bytes | bytes | BLOB | binary |
| decimal | decimal or integer | DECIMAL(38, 18) | decimal128(38, 18) |
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

#: Types of fields, with their Arrow types.
TYPES: Final = {
    "bool": "bool",
    "int": "int64",
    "uint": "uint64",
    "float": "double",
    "text": "string",
    "bytes": "binary",
    "decimal": "",
    "time": "",
}
_LIST: Final = "[]"
#: Limit of the fields of a log: readers create a column for each.
FIELDS_LIMIT: Final = 1_000
#: Prefix of a field that is named like a column of records.
FIELD: Final = "payload."
#: Columns of records in SQL but not in Arrow, and one of Spark.
_TAKEN: Final = frozenset({"value", "time_ns", "error", "payload_template"})

#: Types that hold all values of a type, or nearly all: floats round large integers.
_WIDER: Final = {"int": ("float", "decimal"), "uint": ("float", "decimal")}


class DeclaredField(NamedTuple):
    """A field of a log's payloads.

    Attributes:
        name: Key in the payloads.
        type: A type from the table above.
        label: Name of the type in its source, for people: `set[addr]`.
    """

    name: str
    type: str
    label: str = ""


def merge_fields(
    known: Iterable[DeclaredField], added: Iterable[DeclaredField]
) -> list[DeclaredField]:
    """Return the known fields followed by the new ones; of two types the wider one stays.

    Raises:
        FieldConflict: a name is declared already with a type of another kind. Names are
            compared without regard to case, as in SQL.
        InvalidOption: a type is unknown, or there are too many fields.
    """
    merged = {field.name.casefold(): field for field in known}
    for field in added:
        if type_parts(field)[0] not in TYPES:
            msg = f"{field.name} has the type {field.type!r}; use one of {', '.join(TYPES)}"
            raise InvalidOption(msg)
        first = merged.setdefault(field.name.casefold(), field)
        if first.name == field.name and field.type in _WIDER.get(first.type, ()):
            merged[field.name.casefold()] = first._replace(type=field.type)
        elif first.name == field.name and first.type in _WIDER.get(field.type, ()):
            continue  # the wider type stays, as for a program that was not updated yet
        elif first[:2] != field[:2]:
            conflict = (
                f"{field.name} is {field.type}, but {first.name} is declared {first.type}"
            )
            msg = f"{conflict}; use another name"
            raise FieldConflict(msg)
    if len(merged) > FIELDS_LIMIT:
        msg = f"{len(merged):,} fields; a log can have at most {FIELDS_LIMIT:,}"
        raise InvalidOption(msg)
    return list(merged.values())


def read_fields(folder: Folder) -> list[DeclaredField]:
    """Return the declared fields of the log in a folder; may be empty.

    Raises:
        LogFailed: the disk failed, or the file is damaged.
    """
    with folder.reading():  # servers of an older callboard refuse to read this file
        if FIELDS not in folder.disk.listdir(folder.path):
            return []
        data = folder.read(folder.file(FIELDS))
    try:
        fields = [DeclaredField(*map(str, row)) for row in json.loads(data)]
        return merge_fields((), fields)
    except (ValueError, TypeError, RecursionError) as error:
        msg = f"{folder.file(FIELDS)} is damaged ({error}); declare the fields again"
        raise LogFailed(msg) from error


def write_fields(folder: Folder, fields: Iterable[DeclaredField]) -> None:
    """Write fields durably and atomically.

    Raises:
        OSError: the disk failed.
    """
    folder.replace(folder.file(FIELDS), json.dumps(list(fields)).encode())


def type_parts(field: DeclaredField) -> tuple[str, str]:
    """Return the type of a field or of the items of its lists, and `[]` for lists, else ""."""
    base = field.type.removesuffix(_LIST)
    return base, field.type[len(base) :]


def wider_type(current: str, added: str) -> str:
    """Return the type of a field whose values have two types; the current one if none fits."""
    if added in _WIDER.get(current, ()):
        return added
    return "float" if {current, added} == {"int", "uint"} else current


def column_name(name: str) -> str:
    """Return the column name of a field; with a prefix if records have such a column."""
    is_taken = name.casefold() in _TAKEN or name.casefold() in arrow_schema().names
    return FIELD + name if is_taken else name


def arrow_fields(fields: Iterable[DeclaredField]) -> "list[pa.Field]":
    """Return the columns of declared fields.

    Raises:
        ExtraMissing: pyarrow is not installed.
    """
    pa = load_pyarrow()
    return [pa.field(column_name(field.name), _arrow_type(pa, field)) for field in fields]


def type_name(kind: "pa.DataType") -> str:
    """Return the declared type whose column has a type of Arrow; empty if there is none."""
    pa = load_pyarrow()
    is_list = pa.types.is_list(kind)
    item = kind.value_type if is_list else kind
    for name in TYPES:
        if _arrow_type(pa, DeclaredField("", name)) == item:
            return f"{name}{_LIST if is_list else ''}"
    return ""


def _arrow_type(pa: Any, field: DeclaredField) -> Any:
    """Return the type of a column."""
    base, is_list = type_parts(field)
    if base == "decimal":
        kind = pa.decimal128(38, 18)
    else:
        kind = pa.type_for_alias(TYPES[base]) if TYPES[base] else pa.timestamp("us", tz="UTC")
    return pa.list_(kind) if is_list else kind
