"""Options of the source: start and end, topics, limits, and the treatment of errors."""

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

from callboard.commitlog import LogReader, Retention, parse_position
from callboard.commitlog.fields.decoding import Rules
from callboard.commitlog.folder import PUBLISHED
from callboard.commitlog.reader import is_archive
from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.queries import seconds_of
from callboard.pipeline.spark.cluster import SHARED, check_folder
from callboard.pipeline.spark.conditions import Conditions
from callboard.pipeline.spark.option_table import STORAGE, Side, read_options, refuse
from callboard.pipeline.spark.store_journal import journal_at

_TRUE: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_NUMBER: Final = re.compile(r"-?\d+")

#: Seconds for which a micro-batch waits for enough records, as with Kafka.
MAX_DELAY: Final = 900.0

#: Records from which a schema is inferred.
SAMPLE_RECORDS: Final = 1000


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of `format("callboard")` for reading.

    Attributes:
        path: The directory of the log, `grpc://HOST:PORT/NAME` of a served log, or `s3://…` of
            an archive.
        token: `token`: authenticates the reader to a server; Spark hides it in its output.
        start: `startingOffsets`: earliest, latest, a number or a time.
        end: `endingOffsets`, only for tables.
        topics: `topics`: prefixes of topics, separated by commas; empty for all.
        max_rows: `maxOffsetsPerTrigger`; None for no limit.
        min_rows: `minOffsetsPerTrigger`; a micro-batch waits for so many records.
        max_delay: `maxTriggerDelay`: how long it waits, in seconds.
        fails_on_loss: `failOnDataLoss`.
        accept_log: `acceptLog`: the state of the log, `LOG/EPOCH`, with which the checkpoint of
            another log is continued.
        dead_letters: `deadLetters`: the log for records that do not decode; a folder, or on an
            object store.
        dead_letters_retain: `deadLettersRetain`: how long dead letters are kept.
        query: `queryId`: the query that dead letters belong to; by default Spark's id of a
            stream, and for a table one derived from its schema.
        query_name: Name of that query for people; not an option.
        infers: `inferSchema`: whether fields of payloads are inferred from a sample.
        sample: `sampleRecords`: number of records in the sample.
        partitions: `numPartitions`; 0 lets the source choose.
        texts: `textFields`: fields of payloads whose numbers and times are also read as text.
        required: `requiredFields`: fields without which a record does not decode.
        where: `where`: conditions on topic, key, time and offset.
        pushes: `pushFilters`: whether the conditions of a table's only query are used as well.
        zone: `timeZone`: time zone of times in payloads that name none.
        keeps_nan: `nan`: whether NaN stays in fields that are floats (`keep`) or is null.
        tail: `tail`: for an archive, the log that it copies, to read records not copied yet.
        storage: `storage.NAME`: options of fsspec for an archive and dead letters, as JSON.
    """

    path: str
    start: str = "earliest"
    end: str = "latest"
    topics: tuple[str, ...] = ()
    max_rows: int | None = None
    fails_on_loss: bool = True
    dead_letters: str | None = None
    dead_letters_retain: Retention | None = None
    query: str = ""
    query_name: str = ""
    infers: bool = False
    sample: int = SAMPLE_RECORDS
    partitions: int = 0
    token: str | None = field(default=None, repr=False)
    texts: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    zone: str = "UTC"
    keeps_nan: bool = False
    where: Conditions = Conditions()
    pushes: bool = False
    tail: str | None = None
    storage: str = field(default="", repr=False)
    min_rows: int = 1
    max_delay: float = MAX_DELAY
    accept_log: str = ""

    @property
    def access(self) -> dict[str, Any]:
        """Arguments for a reader of the log, besides its path."""
        is_for_letters = "://" in (self.dead_letters or "") and not is_archive(self.path)
        storage = None if is_for_letters else self.storage_options
        return {"token": self.token, "tail": self.tail, "storage_options": storage}

    @property
    def storage_options(self) -> dict[str, Any] | None:
        """Options of fsspec for the log and the dead letters on a store."""
        return json.loads(self.storage) if self.storage else None

    @property
    def rules(self) -> Rules:
        """Rules for decoding fields of payloads."""
        return Rules(self.texts, self.required, _zone(self.zone), self.keeps_nan)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Parse Spark's options.

        Raises:
            InvalidSetting: an option is invalid, or the path is missing.
        """
        values = read_options(options, "source")
        zone = values.get("timezone", "UTC")
        _zone(zone)  # raises for an unknown zone
        if letters := values.get("deadletters", ""):
            _check_letters(letters, values)
        return cls(
            path=values["path"],
            start=_place(values.get("startingoffsets", "earliest"), "startingOffsets"),
            end=_place(values.get("endingoffsets", "latest"), "endingOffsets"),
            topics=_names(values, "topics"),
            max_rows=_count(values, "maxOffsetsPerTrigger"),
            fails_on_loss=_flag(values, "failOnDataLoss", default=True),
            dead_letters=letters or None,
            dead_letters_retain=retention_of(values, "deadLettersRetain"),
            query=values.get("queryid", "").strip(),
            infers=_flag(values, "inferSchema", default=False),
            sample=_count(values, "sampleRecords") or SAMPLE_RECORDS,
            partitions=_count(values, "numPartitions") or 0,
            token=values.get("token"),
            texts=frozenset(_names(values, "textFields")),
            required=frozenset(_names(values, "requiredFields")),
            zone=zone,
            keeps_nan=_keeps_nan(values),
            where=Conditions.parse(values.get("where", "")),
            pushes=_flag(values, "pushFilters", default=False),
            tail=values.get("tail"),
            storage=storage_of(values),
            min_rows=_count(values, "minOffsetsPerTrigger") or 1,
            max_delay=_span(values, "maxTriggerDelay", MAX_DELAY),
            accept_log=values.get("acceptlog", "").strip(),
        )


def _check_letters(letters: str, values: Mapping[str, str]) -> None:
    """Raise `InvalidSetting` if tasks cannot write dead letters there."""
    if Path(letters).absolute() == Path(values["path"]).absolute():
        msg = f"deadLetters={letters!r} is the log that is read; name a log of its own"
        raise InvalidSetting(msg)
    if "://" not in letters and next(Path(letters).glob(f"*{PUBLISHED}"), None):
        msg = f"deadLetters={letters!r} has results of queries; name a log of its own"
        raise InvalidSetting(msg)
    if "://" in letters:
        storage = storage_of(values)
        journal_at(letters, json.loads(storage) if storage else None)
    elif values.get("staging") != SHARED:
        check_folder(
            letters,
            "tasks append dead letters there: use s3://…, read the column error STRING"
            f' instead, or set option("staging", "{SHARED}") if all hosts have it under this'
            " path",
        )


def _names(values: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return an option that is a list separated by commas."""
    return tuple(filter(None, map(str.strip, values.get(name.lower(), "").split(","))))


def _zone(name: str) -> datetime.tzinfo:
    """Return a time zone by its name.

    Raises:
        InvalidSetting: the zone is unknown.
    """
    if name == "UTC":
        return datetime.UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        refuse("timeZone", name)


def _keeps_nan(values: Mapping[str, str]) -> bool:
    """Return whether the option `nan` keeps NaN."""
    text = values.get("nan", "null")
    if text not in {"null", "keep"}:
        refuse("nan", text)
    return text == "keep"


def storage_of(values: Mapping[str, str]) -> str:
    """Return the options `storage.NAME`, which are meant for fsspec, as JSON."""
    storage_options: dict[str, Any] = {}
    for name, text in sorted(values.items()):
        if name.startswith(STORAGE):
            try:
                storage_options[name.removeprefix(STORAGE)] = json.loads(text)
            except ValueError:
                storage_options[name.removeprefix(STORAGE)] = text
    return json.dumps(storage_options) if storage_options else ""


def find_offset(log: LogReader, place: str) -> int:
    """Return the offset for `earliest`, `latest`, a number, a position or a time.

    Raises:
        PositionRefused: the position does not belong to this log.
    """
    if place == "earliest":
        return log.start
    if place == "latest":
        return log.end
    if _NUMBER.fullmatch(place):
        return int(place)
    if "@" in place:
        way = "use an offset without a log"
        return log.resume(place, name="the option startingOffsets", way=way).offset
    return log.offset_at(nanoseconds(place))


def retention_of(
    values: Mapping[str, str], name: str, side: Side = "source"
) -> Retention | None:
    """Return the retention in an option like `bytes=1000000000,seconds=86400`.

    Raises:
        InvalidSetting: the option is invalid.
    """
    text = values.get(name.lower(), "")
    try:
        return Retention.parse(text) if text else None
    except ValueError:
        refuse(name, text, side)


def nanoseconds(text: str) -> int:
    """Return a time in ISO 8601 as nanoseconds since 1970; the default zone is UTC.

    Raises:
        ValueError: the text is not a time.
    """
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    since = moment - datetime.datetime.fromtimestamp(0, datetime.UTC)
    return (since // datetime.timedelta(microseconds=1)) * 1000


def _place(text: str, name: str) -> str:
    """Return a valid start or end."""
    place = text.strip()
    if place.lower() in {"earliest", "latest"}:
        return place.lower()
    if _NUMBER.fullmatch(place) and int(place) >= 0:
        return place
    try:
        parse_position(place) if "@" in place else nanoseconds(place)
    except ValueError:
        refuse(name, text)
    return place


def _flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return an option that is true or false."""
    text = values.get(name.lower())
    if text is None:
        return default
    value = _TRUE.get(text.strip().lower())
    if value is None:
        refuse(name, text)
    return value


def _span(values: Mapping[str, str], name: str, default: float) -> float:
    """Return an option that is a time span, in seconds."""
    text = values.get(name.lower())
    if text is None:
        return default
    try:
        return seconds_of(text)
    except InvalidSetting:
        refuse(name, text)


def _count(values: Mapping[str, str], name: str) -> int | None:
    """Return an option that is a number of at least 1; None if it is missing."""
    text = values.get(name.lower())
    if text is None:
        return None
    if not _NUMBER.fullmatch(text.strip()) or int(text) < 1:
        refuse(name, text)
    return int(text)
