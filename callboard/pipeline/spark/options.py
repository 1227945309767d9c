"""What users say to the source: where to begin and to end, which topics, what on trouble."""

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from zoneinfo import ZoneInfo

from callboard.commitlog import LogReader, Retention
from callboard.commitlog.fields.decoding import Rules
from callboard.commitlog.reader import is_archive
from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.spark.cluster import SHARED, check_folder
from callboard.pipeline.spark.conditions import Conditions
from callboard.pipeline.spark.store_journal import journal_at

_TRUE: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_NUMBER: Final = re.compile(r"-?\d+")

_STORAGE: Final = "storage."

#: Records that a schema is inferred from.
SAMPLE_RECORDS: Final = 1000


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of `format("callboard")` when it reads.

    Attributes:
        path: The directory of the log, `grpc://HOST:PORT/NAME` of one that is served, or
            `s3://…` of an archive.
        token: `token`: what proves to a server who reads; Spark hides it in what it shows.
        start: `startingOffsets`: earliest, latest, a number or a time.
        end: `endingOffsets`, of batches only.
        topics: `topics`: beginnings of topics, with commas; empty takes all.
        max_rows: `maxOffsetsPerTrigger`; None is no limit.
        fails_on_loss: `failOnDataLoss`.
        dead_letters: `deadLetters`: the log that takes records which do not decode; a folder,
            or on an object store.
        dead_letters_retain: `deadLettersRetain`: how long these are kept.
        query: `queryId`: whose dead letters those are; by default the id that Spark gives a
            stream, of a table its schema.
        query_name: What people call that query; no option.
        infers: `inferSchema`: whether fields of payloads are found in a sample.
        sample: `sampleRecords`: how many records that are.
        partitions: `numPartitions`; 0 lets the source choose.
        texts: `textFields`: fields of payloads whose numbers and times are text as well.
        required: `requiredFields`: those without which a record does not decode.
        where: `where`: conditions on topic, key, time and offset.
        pushes: `pushFilters`: whether conditions of the only query over a table are such, too.
        zone: `timeZone`: where times in payloads are at home that tell no zone.
        tail: `tail`: of an archive, where the log is written, for what is not copied yet.
        storage: `storage.NAME`: what fsspec needs for an archive and dead letters, as JSON.
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
    where: Conditions = Conditions()
    pushes: bool = False
    tail: str | None = None
    storage: str = field(default="", repr=False)

    @property
    def access(self) -> dict[str, Any]:
        """What a reader of the log needs beside its path."""
        is_for_letters = "://" in (self.dead_letters or "") and not is_archive(self.path)
        storage = None if is_for_letters else self.storage_options
        return {"token": self.token, "tail": self.tail, "storage_options": storage}

    @property
    def storage_options(self) -> dict[str, Any] | None:
        """What fsspec needs for the log, if that is on a store, and for dead letters there."""
        return json.loads(self.storage) if self.storage else None

    @property
    def rules(self) -> Rules:
        """How fields of payloads are read."""
        return Rules(self.texts, self.required, _zone(self.zone))

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Read Spark's options, whose names it has in lower case.

        Raises:
            InvalidSetting: one of them makes no sense, or the path is missing.
        """
        given = lowered(options)
        zone = given.get("timezone", "UTC")
        _zone(zone)  # or say what is wrong
        if letters := given.get("deadletters", ""):
            _check_letters(letters, given)
        return cls(
            path=given["path"],
            start=_place(given.get("startingoffsets", "earliest"), "startingOffsets"),
            end=_place(given.get("endingoffsets", "latest"), "endingOffsets"),
            topics=_names(given, "topics"),
            max_rows=_at_least(given, "maxOffsetsPerTrigger", 1),
            fails_on_loss=_flag(given, "failOnDataLoss", default=True),
            dead_letters=letters or None,
            dead_letters_retain=retention_of(given, "deadLettersRetain"),
            query=given.get("queryid", "").strip(),
            infers=_flag(given, "inferSchema", default=False),
            sample=_at_least(given, "sampleRecords", 1) or SAMPLE_RECORDS,
            partitions=_at_least(given, "numPartitions", 1) or 0,
            token=given.get("token"),
            texts=frozenset(_names(given, "textFields")),
            required=frozenset(_names(given, "requiredFields")),
            zone=zone,
            where=Conditions.parse(given.get("where", "")),
            pushes=_flag(given, "pushFilters", default=False),
            tail=given.get("tail"),
            storage=storage_of(given),
        )


def _check_letters(letters: str, given: Mapping[str, str]) -> None:
    """Raise `InvalidSetting` if tasks cannot write dead letters there."""
    if "://" in letters:
        storage = storage_of(given)
        journal_at(letters, json.loads(storage) if storage else None)
    elif given.get("staging") != SHARED:
        check_folder(
            letters,
            "tasks append dead letters there: give s3://…, ask for the column error STRING"
            f' instead, or give option("staging", "{SHARED}") if all hosts have it under this'
            " path",
        )


def _names(given: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return an option that is a list with commas."""
    return tuple(filter(None, map(str.strip, given.get(name.lower(), "").split(","))))


def _zone(name: str) -> datetime.tzinfo:
    """Return a zone by its name.

    Raises:
        InvalidSetting: there is none.
    """
    if name == "UTC":
        return datetime.UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        what = f"timeZone={name!r}: give a zone like Europe/Berlin"
        raise InvalidSetting(what) from None


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """Return options by their names in lower case, as Spark may give them.

    Raises:
        InvalidSetting: the path is missing.
    """
    given = {name.lower(): value for name, value in options.items()}
    if not given.get("path"):
        what = 'the option "path" is missing; give the directory of a log'
        raise InvalidSetting(what)
    return given


def storage_of(given: Mapping[str, str]) -> str:
    """Return the options `storage.NAME`, which are fsspec's for a store, as JSON."""
    found: dict[str, Any] = {}
    for name, text in sorted(given.items()):
        if name.startswith(_STORAGE):
            try:
                found[name.removeprefix(_STORAGE)] = json.loads(text)
            except ValueError:
                found[name.removeprefix(_STORAGE)] = text
    return json.dumps(found) if found else ""


def find_offset(log: LogReader, place: str) -> int:
    """Return the offset that `earliest`, `latest`, a number or a time stands for."""
    if place == "earliest":
        return log.start
    if place == "latest":
        return log.end
    if _NUMBER.fullmatch(place):
        return int(place)
    return log.offset_at(nanoseconds(place))


def retention_of(given: Mapping[str, str], name: str) -> Retention | None:
    """Return how long a log is kept, by an option like `bytes=1000000000,seconds=86400`.

    Raises:
        InvalidSetting: it is something else.
    """
    text = given.get(name.lower(), "")
    try:
        return Retention.parse(text) if text else None
    except ValueError:
        what = f"{name}={text!r}; give for instance bytes=1000000000,seconds=86400"
        raise InvalidSetting(what) from None


def nanoseconds(text: str) -> int:
    """Return a time of ISO 8601 in nanoseconds since 1970; without a zone it is UTC.

    Raises:
        ValueError: it is no time.
    """
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    since = moment - datetime.datetime.fromtimestamp(0, datetime.UTC)
    return (since // datetime.timedelta(microseconds=1)) * 1000


def _place(text: str, name: str) -> str:
    """Return a begin or end of reading, checked."""
    place = text.strip()
    if place.lower() in {"earliest", "latest"}:
        return place.lower()
    if _NUMBER.fullmatch(place) and int(place) >= 0:
        return place
    try:
        nanoseconds(place)
    except ValueError:
        what = (
            f"{name}={text!r}: give earliest, latest, an offset or a time like"
            " 2026-01-31T12:00:00Z"
        )
        raise InvalidSetting(what) from None
    return place


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return an option that is true or false."""
    text = given.get(name.lower())
    if text is None:
        return default
    value = _TRUE.get(text.strip().lower())
    if value is None:
        what = f"{name}={text!r}: give true or false"
        raise InvalidSetting(what)
    return value


def _at_least(given: Mapping[str, str], name: str, least: int) -> int | None:
    """Return an option that is a number; None if it is not given."""
    text = given.get(name.lower())
    if text is None:
        return None
    if not _NUMBER.fullmatch(text.strip()) or int(text) < least:
        what = f"{name}={text!r}: give a number of at least {least}"
        raise InvalidSetting(what)
    return int(text)
