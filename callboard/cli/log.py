"""`callboard log …`: inspect logs."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice, takewhile
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from callboard.cli.cli_error import FAILED, UsageError, explained, one_line
from callboard.cli.options import (
    AccessOptions,
    JsonOptions,
    command,
    flag,
    noun,
    option,
    read_secret,
)
from callboard.cli.output import columns as columns_text
from callboard.cli.output import say, to_json
from callboard.cli.work.log_replay import LogReplayOptions
from callboard.cli.work.requeue import RequeueOptions
from callboard.commitlog import (
    Cursor,
    LogCorrupt,
    LogError,
    LogReader,
    Record,
    sealed_segments,
    write_columns,
)
from callboard.commitlog.reader import is_archive, list_logs
from callboard.commitlog.verify import verify as verify_log
from callboard.pipeline.errors import PipelineError
from callboard.support.json_form import json_of
from callboard.support.text import printable

#: Table name of the log that the command names.
LOG: Final = "log"

_NANOSECONDS: Final = 10**9
_NUMBERS: Final = (int, float)

app = noun()


def _explained(*more: type[Exception]) -> AbstractContextManager[None]:
    """Turn errors of logs into one line; a ValueError counts as wrong usage."""
    return explained((LogError, *more), "try: callboard log verify")


class _Damage:
    """Reports damaged parts of a log, each once; then the exit code is 1."""

    def __init__(self) -> None:
        self._lost: dict[int, int] = {}

    def __call__(self, error: LogCorrupt) -> None:
        """Report a damaged part."""
        if error.offset not in self._lost:
            self._lost[error.offset] = error.next_offset - error.offset
            say(one_line(str(error)), err=True)

    @property
    def lost(self) -> int:
        """Number of damaged records."""
        return sum(self._lost.values())

    def code(self) -> int:
        """Print a summary; return the exit code."""
        if self._lost:
            text = f"{self.lost:,} records cannot be read; try: callboard log verify"
            say(text, err=True)
        return FAILED if self._lost else 0


Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The directory of the log.")]
Place = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER",
        help="Its directory; basp://HOST:PORT/NAME of a node's, grpc://… of a server's; s3://…",
    ),
]


@dataclass(frozen=True, kw_only=True)
class LogOptions(JsonOptions):
    """Output format."""

    as_json: bool = flag("Print JSON, one object per line.", "--json")


@dataclass(frozen=True, kw_only=True)
class ListOptions(LogOptions, AccessOptions):
    """Credentials for the logs of a node or a server."""


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(LogOptions, AccessOptions):
    """The source of an archive's rest, and credentials for a served log."""

    rest: str = option(
        "",
        "With an archive: the log that it copies, for records not copied yet.",
        "--tail",
        metavar="FOLDER|ADDRESS",
    )

    def open(self, folder: str, name: str = LOG) -> LogReader:
        """Return a reader of a log; `name` is its table in a query."""
        secret, rest = read_secret(self.secret_file), self.rest if name == LOG else ""
        return LogReader(folder, token=secret, tls=self.tls, tail=rest or None)


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(LogOptions):
    """Options of an archive."""

    follow: bool = flag(
        "Also copy segments that are sealed from now on; end with Ctrl-C.", "--follow", "-f"
    )
    retain: str = option(
        "", "Limits for the copies: bytes=1000000000,seconds=86400.", metavar="LIMITS"
    )


@dataclass(frozen=True, kw_only=True)
class CatOptions(PlaceOptions):
    """Selection of the printed records."""

    start: int | None = option(None, "First record.", "--from", min=0, metavar="OFFSET")
    since: str = option("", "Start: 2026-01-31T12:00:00Z, or seconds ago.", metavar="TIME")
    limit: int | None = option(None, "Most records to print.", min=1)
    topic: str = option("", "Only topics with this prefix.", "--topic", metavar="PREFIX")


@dataclass(frozen=True, kw_only=True)
class TailOptions(PlaceOptions):
    """Number of the printed records."""

    count: int = option(10, "Number of records.", "-n", min=0)
    follow: bool = flag("Wait for more; end with Ctrl-C.", "--follow", "-f")
    topic: str = option("", "Only topics with this prefix.", "--topic", metavar="PREFIX")


@dataclass(frozen=True, kw_only=True)
class ServeLogsOptions(JsonOptions):
    """Address of a log server, and its readers' rights."""

    listen: str = option("127.0.0.1:0", "Address for readers.", metavar="HOST:PORT")
    permissions: Path | None = option(
        None, "Named secrets, and the logs that each may read.", metavar="FILE.toml"
    )
    tls: Path | None = option(
        None,
        "Folder with certificate.pem and key.pem of the server.",
        "--tls",
        metavar="FOLDER",
        envvar="CALLBOARD_TLS",
    )
    as_json: bool = flag("Print the addresses as JSON.", "--json")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(PlaceOptions):
    """Format and partitions of an export."""

    format: str = option(
        "parquet", "Format of the target: parquet, delta or postgresql.", "--format"
    )
    partition: str = option("", "Partitions of the target: day.", metavar="day")
    value: bool = flag("Add a column `value` with the payload as JSON.", "--value")
    start: int | None = option(
        None, "Skip the records before this one.", "--from", min=0, metavar="OFFSET"
    )


@dataclass(frozen=True, kw_only=True)
class SqlOptions(PlaceOptions):
    """Number of the printed rows."""

    limit: int = option(100, "Most rows to print; --json prints all.", min=1)


@command(app, "ls")
def list_them(
    options: ListOptions,
    place: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="A directory; basp://HOST:PORT of a node, grpc://… of a server; s3://BUCKET.",
        ),
    ] = ".",
) -> int:
    """List the logs below a directory, on an object store, or of a node or server.

    For a node or a server it lists the logs that the secret may read.

    \b
    Examples:
      callboard log ls
      callboard log ls /var/lib/shop --json | jq .path
      callboard log ls basp://127.0.0.1:4222 --secret-file billing.secret
      callboard log ls grpc+tls://shop:8815 --secret-file billing.secret --tls tls
      callboard log ls s3://bucket
    """  # noqa: D301
    if "://" not in place and not Path(place).is_dir():
        raise UsageError(why=f"{place} is not a directory", step="pass a directory with logs")
    secret, code = read_secret(options.secret_file), 0
    with _explained():
        paths = list_logs(place, token=secret, tls=options.tls)
    for path in paths:
        try:
            log = LogReader(path, token=secret, tls=options.tls)
            segments, end = log.segments, log.end
        except LogError as error:  # list the remaining logs
            say(one_line(str(error)), err=True)
            code = FAILED
            continue
        row = {
            "path": path,
            "start": segments[0].base,
            "end": end,
            "bytes": sum(segment.bytes for segment in segments),
            "segments": len(segments),
        }
        text = "{path}: records {start} to {end}, {bytes:,} bytes in {segments} segments"
        options.say(row, text.format(**row))
    if not paths and not options.as_json:
        is_served = "://" in place and not is_archive(place)
        location = f"at {place} that may be read" if is_served else f"in {place} or below"
        say(f"no logs {location}", err=True)
    return code


@command(app)
def cat(folder: Place, options: CatOptions) -> int:
    """Print records.

    \b
    Examples:
      callboard log cat metrics --limit 10
      callboard log cat metrics --since 60 --topic /cpu
      callboard log cat metrics --from 1000 --json | jq .payload
      callboard log cat s3://bucket/metrics --tail grpc://shop:8815/metrics
    """  # noqa: D301
    start, since = options.start, options.since
    if since and start is not None:
        raise UsageError(why="--from and --since are both given", step="use one of them")
    damage = _Damage()
    with _explained():
        log = options.open(folder)
        begin = log.offset_at(_time(since)) if since else (start or 0)
        reading = log.read(begin, on_damage=damage)
        _print_all(islice(_about(reading, options.topic), options.limit), options, damage)
        if reading.lost and start is not None:
            say(f"{reading.lost} earlier records were removed by retention", err=True)
    return damage.code()


@command(app)
def tail(folder: Place, options: TailOptions) -> int:
    """Print the newest records, and with -f all later ones.

    \b
    Examples:
      callboard log tail metrics -n 3
      callboard log tail metrics -f --topic /cpu
      callboard log tail -f basp://127.0.0.1:4222/metrics --secret-file billing.secret
    """  # noqa: D301
    damage = _Damage()
    with _explained():
        log = options.open(folder)
        end = log.end
        newest = _newest(log, end, options.count, options.topic, damage)
        _print_all(newest, options, damage)
        follower = log.follow(end)
        while options.follow:
            try:
                _print_all(_about(follower, options.topic), options, damage)
            except LogCorrupt as error:
                damage(error)
                follower.cursor = Cursor(error.next_offset)
    return damage.code()


def _newest(log: LogReader, end: int, count: int, topic: str, damage: _Damage) -> list[Record]:
    """Return the last records on a topic; the range is extended until there are enough."""
    reach = max(1, count)
    while True:
        begin = max(log.start, end - reach)
        reading = log.read(begin, on_damage=damage)
        records = [record for record in _about(reading, topic) if record.offset < end]
        if len(records) >= count or begin <= log.start:
            return records[-count:] if count else []
        reach *= 10


@command(app)
def verify(folder: Place, options: PlaceOptions) -> int:
    """Check every byte of a log; the exit code is 1 if there is damage.

    \b
    Examples:
      callboard log verify metrics
      callboard log verify metrics --json | jq .lost
    """  # noqa: D301
    with _explained():
        report = verify_log(options.open(folder))
    text = f"{report.records:,} records from {report.start} to {report.end} are intact"
    lines = [*report.damage, text + (f", {report.lost:,} are lost" if report.lost else "")]
    if report.torn_bytes:
        size = f"{report.torn_bytes:,} bytes"
        lines.append(f"{size} of an incomplete batch follow; the next writer removes them")
    options.say(asdict(report), "\n".join(lines))
    return FAILED if report.damage else 0


@command(app)
def stats(folder: Place, options: PlaceOptions) -> int:
    """Print size, times, segments, and the number of records per topic.

    \b
    Examples:
      callboard log stats metrics
      callboard log stats metrics --json | jq .topics
    """  # noqa: D301
    damage, topics = _Damage(), Counter[str]()
    times: list[int] = []
    with _explained():
        log = options.open(folder)
        segments, end, readers, copies = log.segments, log.end, log.readers, log.archives
        for record in log.read(log.start, on_damage=damage):
            topics[record.topic] += 1
            if not times:
                times = [record.time] * 2
            times[1] = max(times[1], record.time)
    size, records = sum(item.bytes for item in segments), topics.total()
    row: dict[str, Any] = {
        "start": segments[0].base,
        "end": end,
        "records": records,
        "lost": damage.lost,
        "bytes": size,
        "first_time": times[0] if times else None,
        "latest_time": times[1] if times else None,
        "segments": [item._asdict() for item in segments],
        "topics": dict(topics.most_common()),
        "readers": [{**item._asdict(), "lag": max(0, end - item.offset)} for item in readers],
        "archives": [{**item._asdict(), "lag": max(0, end - item.end)} for item in copies],
    }
    places = f"records {row['start']} to {row['end']}"
    lines = [f"{places}, {size:,} bytes, {len(segments)} segments"]
    if times:
        lines.append("from {} to {}".format(*map(_clock, times)))
    lines += [f"{count:>12,}  {printable(topic)}" for topic, count in topics.most_common()]
    lines += [
        "reader {name}: {lag:,} records behind, next is {offset}, committed ".format(**item)
        + _clock(item["time"])
        for item in row["readers"]
    ]
    lines += [
        "archive {place}: {lag:,} records behind, has them to {end}".format(**item)
        + (f", copied {_clock(item['time'])}" if item["time"] else "")
        + (f"; trouble: {one_line(item['trouble'])}" if item["trouble"] else "")
        for item in row["archives"]
    ]
    options.say(row, "\n".join(lines))
    return damage.code()


@command(app)
def archive(
    folder: Folder,
    place: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Target of the copy: s3://BUCKET/NAME …")
    ],
    options: ArchiveOptions,
) -> None:
    """Copy the sealed segments of a log to an object store, each once.

    All segments except the newest are sealed. Existing copies are kept, and the log may be
    written at the same time. Credentials come from the environment, such as
    AWS_ACCESS_KEY_ID, or from ~/.aws.

    \b
    Examples:
      callboard log archive metrics s3://bucket/metrics
      callboard log archive metrics s3://bucket/metrics --follow --retain seconds=2592000
      callboard log cat s3://bucket/metrics --limit 10
    """  # noqa: D301
    from callboard.cli.work.log_archive import archive_log

    with _explained():
        archive_log(folder, place, options.retain, options, follows=options.follow)


@command(app, "export")
def export_log(
    folder: Place,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A directory, the address of a Delta table, or postgresql://…/DATABASE#TABLE.",
        ),
    ],
    options: ExportOptions,
) -> None:
    """Export records and the fields of their payloads as a table, each record once.

    The position is stored in the target together with the rows. After an interruption, run the
    command again: it continues where the target ends.

    \b
    Examples:
      callboard log export flights lake/flights --partition day
      callboard log export flights s3://lake/flights --format delta --partition day
      callboard log export flights postgresql://lake/air#flights --format postgresql
    """  # noqa: D301
    from callboard.cli.work.log_export import run_export

    if options.partition not in {"", "day"}:
        raise UsageError(why=f"--partition {options.partition}", step="use --partition day")
    with _explained():
        parts = run_export(
            options.open(folder),
            target,
            options.format,
            partition=options.partition,
            value=options.value,
            start=options.start,
        )
        for start, end in parts:
            options.say({"start": start, "end": end}, f"records {start} to {end - 1}: exported")


@command(app)
def columns(folder: Place, options: LogOptions) -> None:
    """Write each sealed segment also as Parquet, for Spark, DuckDB and others.

    All segments except the newest are sealed. Existing files are kept, and the log may be
    written at the same time.

    \b
    Examples:
      callboard log columns metrics
      callboard log columns metrics --json | jq -r .columns
    """  # noqa: D301
    with _explained():
        new_bases = {segment.base for segment in write_columns(folder)}
        segments = sealed_segments(folder)
    for segment in segments:
        row = {**segment._asdict(), "is_made": segment.base in new_bases}
        state = f"{segment.columns} {'made' if row['is_made'] else 'there'}"
        if segment.columns is None:
            state = f"none, {segment.path} is damaged"
        options.say(row, f"records {segment.base} to {segment.end}: {state}")
    if not segments and not options.as_json:
        say(f"no sealed segments in {folder}: the newest one is still written", err=True)


@command(app)
def sql(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="Tables are logs, by path; `log` is FOLDER.")
    ],
    options: SqlOptions,
    folder: Place = ".",
) -> int:
    """Query logs with SQL (DuckDB; pip install 'callboard[sql]').

    Columns: offset, time, topic, key, headers, sender, payload, is_bytes, time_ns, value (the
    payload as JSON), and a column for each field that the log declares.

    \b
    Examples:
      callboard log sql "select topic, count(*) from log group by topic" metrics
      callboard log sql "select avg((value->>'load')::double) from log where topic = '/cpu'" metrics
      callboard log sql "select time, value from '/var/lib/shop' order by time desc limit 9" --json
    """  # noqa: D301, E501
    from callboard.commitlog.sql import load_duckdb, open_sql

    damage = _Damage()
    with _explained():
        duckdb = load_duckdb()
        try:
            tables = _tables(duckdb, query, folder)
            logs = {name: options.open(place, name) for name, place in tables.items()}
            with open_sql(logs, on_damage=damage) as connection:
                result = connection.execute(query)
                names = [str(column[0]) for column in result.description]
                if options.as_json:
                    kinds = [str(column[1]) for column in result.description]
                    for row in iter(result.fetchone, None):
                        say(to_json(dict(zip(names, _parsed(row, kinds), strict=True))))
                    return damage.code()
                rows = result.fetchmany(options.limit + 1)
        except duckdb.Error as error:
            reason = f"the query fails: {str(error).splitlines()[0]}"
            raise UsageError(why=reason, step="see --help for columns") from None
    _print_table(names, rows[: options.limit])
    if len(rows) > options.limit:
        say(f"only the first {options.limit} rows; --limit prints more, --json all", err=True)
    return damage.code()


@command(app)
def serve(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER…", help="Directories of logs.")
    ],
    options: ServeLogsOptions,
) -> None:
    """Serve logs over Arrow Flight, until Ctrl-C or SIGTERM.

    Each log is served under its directory's name. A reader sends one of the secrets of
    --permissions as its token; the `logs` of that secret select the logs. Without the file, all
    users of this machine may read all logs. Other machines need --permissions and --tls.

    \b
    Examples:
      callboard log serve metrics
      callboard log tail grpc://127.0.0.1:8815/metrics
      callboard log serve metrics orders --listen 0.0.0.0:8815 --permissions peers.toml --tls tls
    """  # noqa: D301, E501
    from callboard.cli.work.log_server import serve_logs

    with _explained():
        serve_logs(folders, options.listen, options.permissions, options.tls, options)


@command(app, "requeue")
def requeue_letters(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="The dead letters: a directory, or s3://….")
    ],
    options: RequeueOptions,
) -> int:
    """Append the records of dead letters to their log again, after their query was corrected.

    Each record is appended once: after an interruption, run the command again. All readers of
    the log read the record a second time, now with the header `requeued`; use --to another log
    if other readers should not. The letters are kept.

    \b
    Examples:
      callboard log requeue dead --dry-run
      callboard log requeue dead --query flights --error "field delay"
      callboard log requeue dead --since 2026-01-31 --until 2026-02-01 --to again
      callboard log requeue s3://bucket/dead --to again
    """  # noqa: D301
    damage = _Damage()
    since, until = (_time(text) if text else None for text in (options.since, options.until))
    with _explained(PipelineError):
        options.run(folder, since, until, damage)
    return damage.code()


@command(app, "replay")
def replay_log(place: Place, options: LogReplayOptions) -> int:
    """Publish the records of a log on their topics, at the pace of their times.

    The pace follows the times of the records, or of a field of their payloads; a record with an
    earlier time than the one before is published at once. Publishing starts with the first
    subscriber. After Ctrl-C the position is printed.

    \b
    Examples:
      callboard log replay flights --speed 60 --listen 127.0.0.1:4222
      callboard log replay flights --speed 3600 --time sched_dep --longest-pause 2s --peer basp://127.0.0.1:4222
      callboard log replay metrics --speed max --from 1000 --topic /cpu --peer basp://127.0.0.1:4222
    """  # noqa: D301
    damage = _Damage()
    with _explained(PipelineError):
        log = LogReader(place)
        start = _offset(log, options.start)
        end = min(_offset(log, options.until), log.end)
        selected = _about(log.read(start, on_damage=damage), tuple(options.topic or ("",)))
        code = options.run(
            place, start, takewhile(lambda record: record.offset < end, selected)
        )
    return code or damage.code()


def _offset(log: LogReader, text: str) -> int:
    """Return the offset for earliest, latest, an offset or a time."""
    if text in {"earliest", "latest"}:
        return log.start if text == "earliest" else log.end
    return int(text) if text.isdecimal() else log.offset_at(_time(text))


def _about(records: Iterable[Record], topic: str | tuple[str, ...]) -> Iterator[Record]:
    """Return the records whose topic has one of the prefixes."""
    return (record for record in records if record.topic.startswith(topic))


def _print_all(records: Iterable[Record], options: JsonOptions, damage: _Damage) -> None:
    """Print records."""
    for record in records:
        try:
            payload = record.payload
        except LogCorrupt as error:
            damage(error)
            continue
        if options.as_json:
            fields = {**record._asdict(), "headers": dict(record.headers)}
            del fields["data"]
            say(to_json({**fields, "payload": payload}))
        else:
            key = "" if record.key is None else f"{record.key!r} "
            place = f"{record.offset} {_clock(record.time)} {printable(record.topic)}"
            say(f"{place} {key}{_payload_text(payload)}")


def _payload_text(payload: Any) -> str:
    """Return a payload as text; as JSON if it has an integer that is too long for repr."""
    try:
        return repr(payload)
    except ValueError:
        return to_json(payload)


def _clock(nanoseconds: int) -> str:
    """Return a time as text; as a number if it is outside the calendar."""
    try:
        moment = datetime.fromtimestamp(nanoseconds // _NANOSECONDS, UTC)
    except (ValueError, OverflowError, OSError):
        return str(nanoseconds)
    micros = nanoseconds % _NANOSECONDS // 1000
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{micros:06}Z"


def _time(text: str) -> int:
    """Return the nanoseconds since 1970 for a time, or for seconds before now."""
    with suppress(ValueError, OverflowError):
        if (seconds := float(text)) >= 0:
            return time.time_ns() - int(seconds * _NANOSECONDS)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        reason = f"{text!r} is not a time"
        step = "use seconds before now, or 2026-01-31T12:00:00Z"
        raise UsageError(why=reason, step=step) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000) * 1000


# --- SQL ---


def _tables(duckdb: Any, query: str, folder: str) -> dict[str, str]:
    """Return the logs that a query uses: `log`, and paths."""
    with duckdb.connect() as connection:
        (tree,) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchone()
        names = set(_base_tables(json.loads(tree))) or connection.get_table_names(query)
    return {
        name: folder if name == LOG else name
        for name in sorted(names)
        if name == LOG or "://" in name or Path(name).is_dir()
    }


def _base_tables(node: Any) -> Iterator[str]:
    """Yield the table names in DuckDB's syntax tree; none unless it is a SELECT."""
    if isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            yield node["table_name"]
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _base_tables(part)


def _parsed(row: tuple[Any, ...], kinds: list[str]) -> list[Any]:
    """Return a row with its JSON columns decoded."""
    return [
        json.loads(value) if kind == "JSON" and value is not None else value
        for value, kind in zip(row, kinds, strict=True)
    ]


def _print_table(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    """Print rows as a table; numbers are aligned right."""
    texts = [[_text(value) for value in row] for row in rows]
    right = {
        index
        for index in range(len(names))
        if rows and all(isinstance(row[index], _NUMBERS) for row in rows)
    }
    say(columns_text(names, texts, right=right))


def _text(value: Any) -> str:
    """Return a value as text for a cell."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return repr(value)[2:-1]
    if isinstance(value, dict | list):
        return json_of(value, default=str)
    return str(value)
