"""Typed columns of a sealed segment: which fields they have, and which payloads they replace.

`SegmentFields` sees the records of a segment twice. `survey` finds the fields and how they are
encoded; `columns_of` then returns the columns of each batch, with the payloads that the columns
do not give back. The fields are those that the log declares, those of the segment before, and
those that the records have. A field keeps its type from segment to segment, or becomes wider.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from callboard.commitlog.fields.declared import (
    FIELD,
    DeclaredField,
    arrow_fields,
    type_name,
    wider_type,
)
from callboard.commitlog.fields.decoding import Rules, decode_arrays, infer_fields
from callboard.commitlog.fields.restoring import (
    CONSTANT,
    StoredSlot,
    StoredTemplate,
    restored,
)
from callboard.commitlog.fields.templates import (
    BOOL,
    BYTES,
    FLOAT,
    INT,
    NULL,
    TEXT,
    TIME,
    Numbers,
    ParsedPayloads,
    Template,
    TemplateGroup,
    Values,
    floats_of,
    scan,
)

#: Number of the template of a record whose payload is stored although its columns are complete.
COMPLETE: Final = -1
#: Limit of the columns that are inferred; further fields stay in the payloads.
INFERRED_LIMIT: Final = 200
#: Records without a template from which fields are inferred.
_SAMPLE: Final = 200

_TYPES: Final = {
    INT: "int",
    FLOAT: "float",
    TEXT: "text",
    BOOL: "bool",
    BYTES: "bytes",
    TIME: "time",
}
_ENCODINGS: Final = {INT: "int", TEXT: "text", BOOL: "bool", BYTES: "bytes", TIME: "time"}
_FLOAT_ENCODINGS: Final = {0xFB: "f64", 0xFA: "f32", 0xF9: "f16"}
#: Arrow types whose columns each encoding can restore.
_RESTORABLE: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"int", "uint", "float"}),
    "f64": frozenset({"float"}),
    "f32": frozenset({"float"}),
    "f16": frozenset({"float"}),
    "text": frozenset({"text"}),
    "bool": frozenset({"bool"}),
    "bytes": frozenset({"bytes"}),
    "time": frozenset({"time"}),
    "time text": frozenset({"time"}),
}


class BatchColumns(NamedTuple):
    """The columns of a batch.

    Attributes:
        fields: A column for each field.
        payloads: The stored payloads; null where the columns give back the same bytes.
        templates: The number of the template of each record, `COMPLETE`, or null.
    """

    fields: list[pa.Array]
    payloads: pa.Array
    templates: pa.Array


class _Uses:
    """Counts of the encodings of the values of one slot."""

    def __init__(self) -> None:
        self.kinds: Counter[int] = Counter()
        self.floats: Counter[int] = Counter()
        self.nulls: Counter[bytes] = Counter()
        self.has_large = False  # an integer that needs 64 bits without a sign
        self.has_negative = False

    def add(self, values: Values) -> None:
        """Count some values."""
        kinds = np.bincount(values.kinds, minlength=8)
        self.kinds.update({int(kind): int(kinds[kind]) for kind in np.flatnonzero(kinds)})
        if kinds[NULL]:
            self.nulls[b"\xf6"] += int(kinds[NULL])
        if kinds[INT]:
            is_int = values.kinds == INT
            is_negative = (values.heads & 0xE0) == 0x20
            self.has_negative |= bool((is_int & is_negative).any())
            self.has_large |= bool((is_int & (values.numbers >= np.uint64(1 << 63))).any())
        if kinds[FLOAT]:
            heads = values.heads[values.kinds == FLOAT]
            counts = np.bincount(heads, minlength=256)
            self.floats.update({head: int(counts[head]) for head in _FLOAT_ENCODINGS})
            is_nan = (values.kinds == FLOAT) & np.isnan(floats_of(values))
            if is_nan.any():
                first = int(np.flatnonzero(is_nan)[0])
                head = int(values.heads[first])
                size = {0xFB: 8, 0xFA: 4, 0xF9: 2}[head]
                bits = int(values.numbers[first]).to_bytes(size, "big")
                self.nulls[bytes((head,)) + bits] += int(is_nan.sum())
                self.floats[head] -= int(is_nan.sum())

    @property
    def type(self) -> str:
        """The type of a column for these values; empty if there is none."""
        kinds = Counter({kind: n for kind, n in self.kinds.items() if kind != NULL})
        if not kinds:
            return ""
        if set(kinds) <= {INT, FLOAT}:
            if FLOAT in kinds or (self.has_large and self.has_negative):
                return "float"
            return "uint" if self.has_large else "int"
        return _TYPES[kinds.most_common(1)[0][0]]

    def encoding(self, type_: str) -> str:
        """Return the most frequent encoding of the values of a column; empty if unknown."""
        counts: Counter[str] = Counter()
        for kind, count in self.kinds.items():
            if kind == FLOAT:
                counts.update({_FLOAT_ENCODINGS[head]: n for head, n in self.floats.items()})
            elif kind == TEXT and type_ == "time":
                counts["time text"] = count
            elif kind != NULL:
                counts[_ENCODINGS[kind]] = count
        fitting = [name for name, _ in counts.most_common() if type_ in _RESTORABLE[name]]
        return fitting[0] if fitting else ""


class SegmentFields:
    """The fields of one segment.

    Attributes:
        fields: All fields, after `decide`: the declared ones come first.
        declared: The number of declared fields.
        templates: The templates of payloads that are left out, after `decide`.
        unknown: How many records have a field without a column, by name, after `decide`.
    """

    def __init__(
        self, declared: Iterable[DeclaredField], earlier: Iterable[DeclaredField]
    ) -> None:
        """Begin with the declared fields, and with the inferred ones of an earlier segment."""
        self.fields = list(declared)
        self.declared = len(self.fields)
        self.templates: list[StoredTemplate] = []
        self.unknown: Counter[str] = Counter()
        self._earlier = {field.name: field.type for field in earlier}
        self._seen_templates: list[Template] = []
        self._uses: dict[Template, list[_Uses]] = {}
        self._sample: list[tuple[bytes, bool]] = []
        self._numbers: dict[Template, int] = {}
        self._are_complete: set[Template] = set()
        self._arrow: list[pa.Field] = []

    def survey(self, payloads: pa.Array, kinds: pa.Array) -> ParsedPayloads:
        """Find the fields of a batch; return the parsed batch."""
        parsed = scan(payloads, kinds, self._seen_templates)
        for group in parsed.groups:
            uses = self._uses.setdefault(group.template, [_Uses() for _ in group.values])
            for use, values in zip(uses, group.values, strict=True):
                use.add(values)
        for row in parsed.rest[: max(0, _SAMPLE - len(self._sample))]:
            self._sample.append((payloads[int(row)].as_py(), kinds[int(row)].as_py()))
        return parsed

    def decide(self) -> None:
        """Decide the columns and the templates."""
        counts = self._infer()
        types = {field.name: field.type for field in self.fields}
        self._arrow = arrow_fields(self.fields)
        columns = {
            field.name: column.name
            for field, column in zip(self.fields, self._arrow, strict=True)
        }
        for template, uses in self._uses.items():
            slots = []
            is_complete = True
            for literal, name, use in zip(
                template.literals, template.names, uses, strict=False
            ):
                encoding = use.encoding(types.get(name, ""))
                null = use.nulls.most_common(1)[0][0] if use.nulls else b"\xf6"
                if not use.type:  # all values are null
                    slots.append(StoredSlot(literal, "", CONSTANT, null))
                elif name in columns and encoding:
                    slots.append(StoredSlot(literal, columns[name], encoding, null))
                is_complete &= not use.type or name in columns
            if is_complete:
                self._are_complete.add(template)
            if len(slots) == len(template.names):
                end = b"" if slots else template.literals[0]
                self._numbers[template] = len(self.templates)
                self.templates.append(StoredTemplate(tuple(slots), end))
        self.unknown = Counter(
            {name: count for name, count in counts.items() if name not in columns}
        )

    def _infer(self) -> Counter[str]:
        """Add the fields that are not declared; return in how many records each one is."""
        counts: Counter[str] = Counter()
        types: dict[str, str] = dict(self._earlier)
        for template, uses in self._uses.items():
            for name, use in zip(template.names, uses, strict=True):
                counts[name] += use.kinds.total()
                if use.type:
                    types[name] = wider_type(types.get(name, use.type), use.type)
        data = [payload for payload, is_bytes in self._sample if not is_bytes]
        kinds = [False] * len(data)
        for field in infer_fields(data, kinds):
            counts[field.name] += 1
            if type_ := type_name(field.type):
                types.setdefault(field.name, type_)
        used_keys = {field.name.casefold() for field in self.fields}
        added = 0
        for name, type_ in types.items():
            key = name.casefold()
            if key not in used_keys and not key.startswith(FIELD) and added < INFERRED_LIMIT:
                used_keys.add(key)
                self.fields.append(DeclaredField(name, type_))
                added += 1
        return counts

    def columns_of(
        self, payloads: pa.Array, kinds: pa.Array, parsed: ParsedPayloads | None = None
    ) -> BatchColumns:
        """Return the columns of a batch, which `survey` has seen and may have parsed."""
        parsed = parsed or scan(payloads, kinds, self._seen_templates)
        decoded = decode_arrays(payloads, kinds, self._arrow, Rules(), parsed)
        count = len(payloads)
        numbers: Numbers = np.full(count, COMPLETE, np.int32)
        is_unsure: Numbers = np.ones(count, bool)
        is_left_out: Numbers = np.zeros(count, bool)
        columns = {
            field.name: column
            for field, column in zip(self._arrow, decoded.columns, strict=True)
        }
        for group in parsed.groups:
            if group.template in self._are_complete:
                is_unsure[group.rows] = _has_nan(group)
            number = self._numbers.get(group.template)
            if number is not None:
                same = self._are_restored(parsed, group, number, payloads, columns)
                numbers[group.rows[same]] = number
                is_left_out[group.rows[same]] = True
        for row in decoded.reasons:
            is_unsure[row] = True
        is_unsure &= ~is_left_out
        return BatchColumns(
            decoded.columns,
            _with_nulls(payloads, is_left_out),
            pa.array(numbers, mask=is_unsure if is_unsure.any() else None),
        )

    def _are_restored(
        self,
        parsed: ParsedPayloads,
        group: TemplateGroup,
        number: int,
        payloads: pa.Array,
        columns: Mapping[str, pa.Array],
    ) -> Numbers:
        """Return which records of a group have columns that give back their payload."""
        template, rows = self.templates[number], group.rows
        own = {slot.column: columns[slot.column] for slot in template.slots if slot.column}
        if len(rows) < len(parsed.begins):
            places = pa.array(rows)
            own = {name: column.take(places) for name, column in own.items()}
            payloads = payloads.take(places)
        try:
            again = restored(template, own, len(rows))
        except pa.ArrowInvalid:  # a value that no encoder covers
            return np.zeros(len(rows), bool)
        return np.asarray(pc.equal(again, payloads))


def _has_nan(group: TemplateGroup) -> Numbers:
    """Return which records of a group have a value that is not a number."""
    result: Numbers = np.zeros(len(group.rows), bool)
    for values in group.values:
        is_float = values.kinds == FLOAT
        if is_float.any():
            result |= is_float & np.isnan(floats_of(values))
    return result


def _with_nulls(column: Any, is_null: Numbers) -> pa.Array:
    """Return a column with nulls where `is_null`."""
    if is_null.all():
        return pa.nulls(len(column), column.type)
    if not is_null.any():
        return column
    return pc.if_else(pa.array(is_null), pa.scalar(None, column.type), column)
