"""Conditions on topic, key, time and offset, which limit the part of a log that is read.

Old segments are not opened, batches are skipped by their headers and names, and payloads of
records that do not match are not decoded.
"""

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from callboard.commitlog import LogReader
from callboard.commitlog.batch import Batch, layout_of, plain
from callboard.pipeline.errors import InvalidSetting

_1970: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LITERAL: Final = r"(?:TIMESTAMP\s*)?'(?:[^']|'')*'|-?\d+"
_CONDITION: Final = re.compile(
    rf"\s*(topic|key|time|offset)\s*(?:(<=|>=|=|<|>)\s*({_LITERAL})|(LIKE)\s*('[^'%_]*)%'"
    rf"|(IN)\s*\((\s*(?:{_LITERAL})(?:\s*,\s*(?:{_LITERAL}))*\s*)\))\s*(?:$|\bAND\b(?=.))",
    re.IGNORECASE,
)
_ORDER: Final = {
    "=": "equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"
}  # fmt: skip
_NAMES: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "IN": lambda own, many: own in many,
    "LIKE": str.startswith,
}
_FILTERS: Final = {
    "EqualTo": "=", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">",
    "GreaterThanOrEqual": ">=", "In": "IN", "StringStartsWith": "LIKE",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions on records: column, operator and value of each.

    Times are in microseconds since 1970, as in Spark.
    """

    all: tuple[tuple[str, str, Any], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Conditions":
        """Parse SQL conditions joined by AND; an empty text means no condition.

        Raises:
            InvalidSetting: the text cannot be parsed.
        """
        conditions, offset = [], 0
        while offset < len(text):
            match = _CONDITION.match(text, offset)
            try:
                assert match is not None
                name, sign, one, like, prefix, _, many = match.groups()
                literals = re.findall(_LITERAL, many or "", re.IGNORECASE)
                values = [_value(literal) for literal in literals]
                value = values if many else _value(one or f"{prefix}'")
                conditions.append(
                    _checked(name.lower(), sign or ("LIKE" if like else "IN"), value)
                )
            except (AssertionError, ValueError):
                msg = (
                    f"where={text!r} cannot be parsed at {text[offset:].strip()!r}; write topic"
                    " or key = or IN a text, LIKE 'x%', time or offset = < > a value, joined by"
                    " AND"
                )
                raise InvalidSetting(msg) from None
            offset = match.end()
        return cls(tuple(conditions))

    def and_of(self, filters: Iterable[Any]) -> "Conditions":
        """Return these and Spark's filters; filters of unsupported types are omitted."""
        supported = []
        for spark_filter in filters:
            sign = _FILTERS.get(type(spark_filter).__name__)
            if sign and len(spark_filter.attribute) == 1:
                try:
                    supported.append(
                        _checked(spark_filter.attribute[0], sign, spark_filter.value)
                    )
                except ValueError:  # Spark applies the filter itself
                    continue
        return Conditions((*self.all, *supported))

    def ranges(self, log: LogReader, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a range of a log that may hold matching records."""
        since = self._since
        if since is None:
            return [(start, end)]
        ranges: list[tuple[int, int]] = []
        segments = log.segments
        ends = [following.base for _, following in pairwise(segments)] + [end]
        for segment, last in zip(segments, ends, strict=True):
            begin, stop = max(segment.base, start), min(last, end)
            is_whole = segment.end >= stop  # a damaged segment ends early
            if begin < stop and not (is_whole and segment.latest_time < since):
                ranges.append(
                    (ranges.pop()[0] if ranges and ranges[-1][1] == begin else begin, stop)
                )
        return ranges

    @property
    def columns(self) -> set[str]:
        """The columns that the conditions use."""
        return {name for name, _, _ in self.all}

    @property
    def _since(self) -> int | None:
        """Earliest matching time in nanoseconds; None for any."""
        times = [
            moment
            for name, sign, moment in self.all
            if name == "time" and sign in {"=", ">", ">="}
        ]
        return max(times) * 1000 if times else None

    def choose(self, batch: Batch) -> Batch | None:
        """Return a batch, uncompressed; None if none of its records matches."""
        if batch.header.latest_time < (self._since or batch.header.latest_time):
            return None
        tests = [item for item in self.all if item[0] in {"topic", "key"}]
        if not tests:
            return batch
        batch = plain(batch)
        names = layout_of(batch).names
        own = {"topic": names.topics, "key": [_key_text(item) for item in names.keys]}
        for name, sign, value in tests:
            if not any(item is not None and _NAMES[sign](item, value) for item in own[name]):
                return None
        return batch

    def select(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the matching records."""
        for name, sign, value in self.all:
            column = records[name]
            if name in {"topic", "key"}:
                encoded = column.dictionary_encode()
                texts = [_key_text(item) for item in encoded.dictionary.to_pylist()]
                fits = pa.array([_NAMES[sign](item, value) for item in texts], pa.bool_())
                records = records.filter(fits.take(encoded.indices))
                continue
            if name == "time":
                column = pc.floor_temporal(column, unit="microsecond").cast(pa.int64())
                value = value * 1000  # to nanoseconds, as in the column
            value = max(-(2**63), min(value, 2**63 - 1))  # Arrow's integers have 64 bits
            records = records.filter(getattr(pc, _ORDER[sign])(column, value))
        return records


def _value(text: str) -> str | int:
    """Return the value of an SQL literal."""
    quote = text.find("'")
    return int(text) if quote < 0 else text[quote + 1 : -1].replace("''", "'")


def _checked(name: str, sign: str, value: Any) -> tuple[str, str, Any]:
    """Return a condition; raise `ValueError` if it is not supported."""
    from callboard.commitlog.fields.decoding import time_of

    if name in {"topic", "key"} and sign in _NAMES:
        texts = value if sign == "IN" else [value]
        if all(isinstance(item, str) for item in texts):
            return name, sign, value
    elif name == "time" and sign in _ORDER and not isinstance(value, int | list):
        return name, sign, (time_of(value) - _1970) // timedelta(microseconds=1)
    elif name == "offset" and sign in _ORDER and type(value) is int:
        return name, sign, value
    msg = f"{name} {sign} {value!r}"
    raise ValueError(msg)


def _key_text(key: str | bytes | None) -> str | None:
    r"""Return a key as a text column shows it; other bytes as \x and hexadecimal digits."""
    try:
        return key.decode() if isinstance(key, bytes) else key
    except UnicodeDecodeError:
        return "\\x" + key.hex() if isinstance(key, bytes) else None
