"""Conditions on topic, key, time and offset, by which a log is read in part.

Segments that are too old are not opened, batches are passed over by their headers and names,
and payloads of records that are not wanted are not decoded.
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
    """What a record has to be: name of a column, sign and value of each condition.

    Times are in microseconds since 1970, which is what Spark has.
    """

    all: tuple[tuple[str, str, Any], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Conditions":
        """Read conditions as SQL has them, joined by AND; empty text is none.

        Raises:
            InvalidSetting: they cannot be read.
        """
        found, at = [], 0
        while at < len(text):
            match = _CONDITION.match(text, at)
            try:
                assert match is not None
                name, sign, one, like, prefix, _, many = match.groups()
                found_in = re.findall(_LITERAL, many or "", re.IGNORECASE)
                values = [_value(each) for each in found_in]
                value = values if many else _value(one or f"{prefix}'")
                found.append(_checked(name.lower(), sign or ("LIKE" if like else "IN"), value))
            except (AssertionError, ValueError):
                what = (
                    f"where={text!r} cannot be read at {text[at:].strip()!r}; give topic or key"
                    " = or IN a text, LIKE 'x%', time or offset = < > a value, joined by AND"
                )
                raise InvalidSetting(what) from None
            at = match.end()
        return cls(tuple(found))

    def and_of(self, filters: Iterable[Any]) -> "Conditions":
        """Return these and filters of Spark, but for those of kinds that are not known."""
        known = []
        for each in filters:
            sign = _FILTERS.get(type(each).__name__)
            if sign and len(each.attribute) == 1:
                try:
                    known.append(_checked(each.attribute[0], sign, each.value))
                except ValueError:  # Spark checks it itself
                    continue
        return Conditions((*self.all, *known))

    def ranges(self, log: LogReader, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a range of a log that may hold such records."""
        since = self._since
        if since is None:
            return [(start, end)]
        found: list[tuple[int, int]] = []
        segments = log.segments
        behind = [following.base for _, following in pairwise(segments)] + [end]
        for segment, last in zip(segments, behind, strict=True):
            begin, stop = max(segment.base, start), min(last, end)
            is_whole = segment.end >= stop  # else its index ends at damage
            if begin < stop and not (is_whole and segment.latest_time < since):
                found.append(
                    (found.pop()[0] if found and found[-1][1] == begin else begin, stop)
                )
        return found

    @property
    def _since(self) -> int | None:
        """Before which time no record is wanted, in nanoseconds; None for any."""
        times = [
            at for name, sign, at in self.all if name == "time" and sign in {"=", ">", ">="}
        ]
        return max(times) * 1000 if times else None

    def choose(self, batch: Batch) -> Batch | None:
        """Return a batch, no longer compressed; None if no record of it is wanted."""
        if batch.header.latest_time < (self._since or batch.header.latest_time):
            return None
        tests = [each for each in self.all if each[0] in {"topic", "key"}]
        if not tests:
            return batch
        batch = plain(batch)
        names = layout_of(batch).names
        own = {"topic": names.topics, "key": [_key_text(each) for each in names.keys]}
        for name, sign, value in tests:
            if not any(each is not None and _NAMES[sign](each, value) for each in own[name]):
                return None
        return batch

    def select(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records that are wanted."""
        for name, sign, value in self.all:
            column = records[name]
            if name in {"topic", "key"}:
                known = column.dictionary_encode()
                texts = [_key_text(each) for each in known.dictionary.to_pylist()]
                fits = pa.array([_NAMES[sign](each, value) for each in texts], pa.bool_())
                records = records.filter(fits.take(known.indices))
                continue
            if name == "time":
                column = pc.floor_temporal(column, unit="microsecond").cast(pa.int64())
                value = value * 1000  # nanoseconds, as the column
            value = max(-(2**63), min(value, 2**63 - 1))  # Arrow compares no larger ones
            records = records.filter(getattr(pc, _ORDER[sign])(column, value))
        return records


def _value(text: str) -> str | int:
    """Return a literal of SQL."""
    quote = text.find("'")
    return int(text) if quote < 0 else text[quote + 1 : -1].replace("''", "'")


def _checked(name: str, sign: str, value: Any) -> tuple[str, str, Any]:
    """Return a condition; raise `ValueError` if it is none of ours."""
    from callboard.commitlog.fields.decoding import time_of

    if name in {"topic", "key"} and sign in _NAMES:
        texts = value if sign == "IN" else [value]
        if all(isinstance(each, str) for each in texts):
            return name, sign, value
    elif name == "time" and sign in _ORDER and not isinstance(value, int | list):
        return name, sign, (time_of(value) - _1970) // timedelta(microseconds=1)
    elif name == "offset" and sign in _ORDER and type(value) is int:
        return name, sign, value
    what = f"{name} {sign} {value!r}"
    raise ValueError(what)


def _key_text(key: str | bytes | None) -> str | None:
    r"""Return a key as a column of text shows it; bytes that are none as \x and digits."""
    try:
        return key.decode() if isinstance(key, bytes) else key
    except UnicodeDecodeError:
        return "\\x" + key.hex() if isinstance(key, bytes) else None
