"""`callboard log …`: look into logs."""

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
from callboard.cli.problem import FAILED, Misuse, explained, one_line
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

#: The table that is the log which the command names.
LOG: Final = "log"

_NANOSECONDS: Final = 10**9
_NUMBERS: Final = (int, float)

app = noun()


def _explained(*more: type[Exception]) -> AbstractContextManager[None]:
    """Turn errors of logs into one line; what no log could be is wrong use."""
    return explained((LogError, *more), "try: callboard log verify")


class _Damage:
    """Tells what a command cannot read, each piece once; then the exit code is 1."""

    def __init__(self) -> None:
        self._lost: dict[int, int] = {}

    def __call__(self, error: LogCorrupt) -> None:
        """Tell of one piece."""
        if error.offset not in self._lost:
            self._lost[error.offset] = error.next_offset - error.offset
            say(one_line(str(error)), err=True)

    @property
    def lost(self) -> int:
        """How many records that is."""
        return sum(self._lost.values())

    def code(self) -> int:
        """Sum up; returns the exit code."""
        if self._lost:
            what = f"{self.lost:,} records cannot be read; try: callboard log verify"
            say(what, err=True)
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
    """How a log is shown."""

    as_json: bool = flag("Print JSON, one object each line.", "--json")


@dataclass(frozen=True, kw_only=True)
class ListOptions(LogOptions, AccessOptions):
    """What proves who lists the logs of a node or a server."""


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(LogOptions, AccessOptions):
    """Where the rest of an archived log is, and what proves who reads a served one."""

    rest: str = option(
        "",
        "With an archive: where the log is written, for what is not copied yet.",
        "--tail",
        metavar="FOLDER|ADDRESS",
    )

    def open(self, folder: str, name: str = LOG) -> LogReader:
        """Return a reader of the log at a place; `name` is its table in a query."""
        secret, rest = read_secret(self.secret_file), self.rest if name == LOG else ""
        return LogReader(folder, token=secret, tls=self.tls, tail=rest or None)


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(LogOptions):
    """How a log is archived."""

    follow: bool = flag(
        "Copy what is sealed from now on as well; end with Ctrl-C.", "--follow", "-f"
    )
    retain: str = option(
        "", "Remove copies beyond this: bytes=1000000000,seconds=86400.", metavar="LIMITS"
    )


@dataclass(frozen=True, kw_only=True)
class CatOptions(PlaceOptions):
    """Which records are printed."""

    start: int | None = option(None, "Begin with this one.", "--from", min=0, metavar="OFFSET")
    since: str = option("", "Begin here: 2026-01-31T12:00:00Z, or seconds ago.", metavar="TIME")
    limit: int | None = option(None, "Print so many records.", min=1)
    topic: str = option("", "Only topics that begin so.", "--topic", metavar="PREFIX")


@dataclass(frozen=True, kw_only=True)
class TailOptions(PlaceOptions):
    """How many records are printed."""

    count: int = option(10, "How many records.", "-n", min=0)
    follow: bool = flag("Wait for more; end with Ctrl-C.", "--follow", "-f")
    topic: str = option("", "Only topics that begin so.", "--topic", metavar="PREFIX")


@dataclass(frozen=True, kw_only=True)
class ServeLogsOptions(JsonOptions):
    """Where logs are served, and to whom."""

    listen: str = option("127.0.0.1:0", "Where readers reach it.", metavar="HOST:PORT")
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
class SqlOptions(PlaceOptions):
    """How many rows are printed."""

    limit: int = option(100, "Print so many rows; with --json all are printed.", min=1)


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
    """List the logs in a directory and below, on an object store, or those that are served.

    Of a node or a server it lists the logs that the secret may read.

    \b
    Examples:
      callboard log ls
      callboard log ls /var/lib/shop --json | jq .path
      callboard log ls basp://127.0.0.1:4222 --secret-file billing.secret
      callboard log ls grpc+tls://shop:8815 --secret-file billing.secret --tls tls
      callboard log ls s3://bucket
    """  # noqa: D301
    if "://" not in place and not Path(place).is_dir():
        raise Misuse(why=f"{place} is no directory", step="give one that holds logs")
    secret, code = read_secret(options.secret_file), 0
    with _explained():
        found = list_logs(place, token=secret, tls=options.tls)
    for path in found:
        try:
            log = LogReader(path, token=secret, tls=options.tls)
            segments, end = log.segments, log.end
        except LogError as error:  # the others are there
            say(one_line(str(error)), err=True)
            code = FAILED
            continue
        row = {
            "path": path,
            "start": segments[0].base,
            "end": end,
            "bytes": sum(each.bytes for each in segments),
            "segments": len(segments),
        }
        text = "{path}: records {start} to {end}, {bytes:,} bytes in {segments} segments"
        options.say(row, text.format(**row))
    if not found and not options.as_json:
        is_served = "://" in place and not is_archive(place)
        where = f"at {place} that may be read" if is_served else f"in {place} or below"
        say(f"no logs {where}", err=True)
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
        raise Misuse(why="--from and --since are two beginnings", step="give one")
    damage = _Damage()
    with _explained():
        log = options.open(folder)
        begin = log.offset_at(_time(since)) if since else (start or 0)
        reading = log.read(begin, on_damage=damage)
        _print_all(islice(_about(reading, options.topic), options.limit), options, damage)
        if reading.lost and start is not None:
            say(f"{reading.lost} records were removed by retention before", err=True)
    return damage.code()


@command(app)
def tail(folder: Place, options: TailOptions) -> int:
    """Print the newest records, and with -f those that come.

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
    """Return the last records about a topic, looking back further and further."""
    reach = max(1, count)
    while True:
        begin = max(log.start, end - reach)
        reading = log.read(begin, on_damage=damage)
        found = [each for each in _about(reading, topic) if each.offset < end]
        if len(found) >= count or begin <= log.start:
            return found[-count:] if count else []
        reach *= 10


@command(app)
def verify(folder: Place, options: PlaceOptions) -> int:
    """Check every byte of a log; the exit code is 1 when some are damaged.

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
        lines.append(f"{report.torn_bytes:,} bytes of half a batch follow; a writer cuts them")
    options.say(asdict(report), "\n".join(lines))
    return FAILED if report.damage else 0


@command(app)
def stats(folder: Place, options: PlaceOptions) -> int:
    """Tell size, times, segments, and how many records each topic has.

    \b
    Examples:
      callboard log stats metrics
      callboard log stats metrics --json | jq .topics
    """  # noqa: D301
    damage, topics = _Damage(), Counter[str]()
    times: list[int] = []
    with _explained():
        log = options.open(folder)
        segments, end, named, copies = log.segments, log.end, log.readers, log.archives
        for record in log.read(log.start, on_damage=damage):
            topics[record.topic] += 1
            if not times:
                times = [record.time] * 2
            times[1] = max(times[1], record.time)
    size, records = sum(each.bytes for each in segments), topics.total()
    row: dict[str, Any] = {
        "start": segments[0].base,
        "end": end,
        "records": records,
        "lost": damage.lost,
        "bytes": size,
        "first_time": times[0] if times else None,
        "latest_time": times[1] if times else None,
        "segments": [each._asdict() for each in segments],
        "topics": dict(topics.most_common()),
        "readers": [{**each._asdict(), "lag": max(0, end - each.offset)} for each in named],
        "archives": [{**each._asdict(), "lag": max(0, end - each.end)} for each in copies],
    }
    places = f"records {row['start']} to {row['end']}"
    lines = [f"{places}, {size:,} bytes, {len(segments)} segments"]
    if times:
        lines.append("from {} to {}".format(*map(_clock, times)))
    lines += [f"{count:>12,}  {printable(topic)}" for topic, count in topics.most_common()]
    lines += [
        "reader {name}: {lag:,} records behind, next is {offset}, committed ".format(**each)
        + _clock(each["time"])
        for each in row["readers"]
    ]
    lines += [
        "archive {place}: {lag:,} records behind, has them to {end}".format(**each)
        + (f", copied {_clock(each['time'])}" if each["time"] else "")
        + (f"; trouble: {one_line(each['trouble'])}" if each["trouble"] else "")
        for each in row["archives"]
    ]
    options.say(row, "\n".join(lines))
    return damage.code()


@command(app)
def archive(
    folder: Folder,
    place: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Where it is copied to: s3://BUCKET/NAME …")
    ],
    options: ArchiveOptions,
) -> None:
    """Copy the sealed segments of a log to an object store, each once.

    Sealed are all segments but the newest. What is there already is not copied again, and the
    log may be written meanwhile. Credentials are those of the environment, such as
    AWS_ACCESS_KEY_ID, or of ~/.aws.

    \b
    Examples:
      callboard log archive metrics s3://bucket/metrics
      callboard log archive metrics s3://bucket/metrics --follow --retain seconds=2592000
      callboard log cat s3://bucket/metrics --limit 10
    """  # noqa: D301
    from callboard.cli.work.log_archive import archive_log

    with _explained():
        archive_log(folder, place, options.retain, options, follows=options.follow)


@command(app)
def columns(folder: Place, options: LogOptions) -> None:
    """Write each sealed segment as Parquet beside it, for Spark, DuckDB and others.

    Sealed are all segments but the newest. What is there already is not written again, and the
    log may be written meanwhile.

    \b
    Examples:
      callboard log columns metrics
      callboard log columns metrics --json | jq -r .columns
    """  # noqa: D301
    with _explained():
        made = {each.base for each in write_columns(folder)}
        segments = sealed_segments(folder)
    for each in segments:
        row = {**each._asdict(), "is_made": each.base in made}
        what = f"{each.columns} {'made' if row['is_made'] else 'there'}"
        if each.columns is None:
            what = f"none, {each.path} is damaged"
        options.say(row, f"records {each.base} to {each.end}: {what}")
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

    Columns: offset, time, topic, key, headers, sender, payload, is_bytes, time_ns, and value: the
    payload as JSON; and a column for each field that the log declares.

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
                found = connection.execute(query)
                names = [str(column[0]) for column in found.description]
                if options.as_json:
                    kinds = [str(column[1]) for column in found.description]
                    for row in iter(found.fetchone, None):
                        say(to_json(dict(zip(names, _parsed(row, kinds), strict=True))))
                    return damage.code()
                rows = found.fetchmany(options.limit + 1)
        except duckdb.Error as error:
            why = f"the query fails: {str(error).splitlines()[0]}"
            raise Misuse(why=why, step="see --help for columns") from None
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
    """Serve logs to readers on other machines by Arrow Flight, until Ctrl-C or SIGTERM.

    Each is served under its directory's name. Who reads shows one of the secrets of
    --permissions as a token, whose `logs` say which ones; without that file everybody of this
    machine may read all. Other machines are let in with --permissions and --tls only.

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
    """Append the records of dead letters to the log they come from, once their query is mended.

    Each record goes into a log once, whatever ends this command: run it again and it goes on.
    All who read that log read the record a second time, now with the header `requeued`; --to
    another log spares those that had no trouble with it. The letters stay where they are.

    \b
    Examples:
      callboard log requeue dead --dry-run
      callboard log requeue dead --query flights --error "field delay"
      callboard log requeue dead --since 2026-01-31 --until 2026-02-01 --to again
      callboard log requeue s3://bucket/dead --to again
    """  # noqa: D301
    damage = _Damage()
    since, until = (_time(each) if each else None for each in (options.since, options.until))
    with _explained(PipelineError):
        options.run(folder, since, until, damage)
    return damage.code()


@command(app, "replay")
def replay_log(place: Place, options: LogReplayOptions) -> int:
    """Publish the records of a log again on their topics, at the pace of their times.

    The pace is that of the times of the records, or of a field of their payloads; records that
    come before an earlier time go at once. It begins when somebody subscribes. After Ctrl-C it
    says where it stopped.

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
        wanted = _about(log.read(start, on_damage=damage), tuple(options.topic or ("",)))
        code = options.run(place, start, takewhile(lambda each: each.offset < end, wanted))
    return code or damage.code()


def _offset(log: LogReader, text: str) -> int:
    """Return the offset of a place: earliest, latest, an offset or a time."""
    if text in {"earliest", "latest"}:
        return log.start if text == "earliest" else log.end
    return int(text) if text.isdecimal() else log.offset_at(_time(text))


def _about(records: Iterable[Record], topic: str | tuple[str, ...]) -> Iterator[Record]:
    """Return the records about topics that begin so."""
    return (each for each in records if each.topic.startswith(topic))


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
            say(f"{place} {key}{_shown(payload)}")


def _shown(payload: Any) -> str:
    """Return a payload as text; integers that have too many digits for that as in JSON."""
    try:
        return repr(payload)
    except ValueError:
        return to_json(payload)


def _clock(nanoseconds: int) -> str:
    """Return a time as text; one that no calendar has, as its number."""
    try:
        moment = datetime.fromtimestamp(nanoseconds // _NANOSECONDS, UTC)
    except (ValueError, OverflowError, OSError):
        return str(nanoseconds)
    micros = nanoseconds % _NANOSECONDS // 1000
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{micros:06}Z"


def _time(text: str) -> int:
    """Return nanoseconds since 1970 for a time, or for seconds before now."""
    with suppress(ValueError, OverflowError):
        if (seconds := float(text)) >= 0:
            return time.time_ns() - int(seconds * _NANOSECONDS)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        why = f"{text!r} is no time"
        raise Misuse(why=why, step="give seconds before now, or 2026-01-31T12:00:00Z") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000) * 1000


# --- SQL ---


def _tables(duckdb: Any, query: str, folder: str) -> dict[str, str]:
    """Return the logs that a query names: `log`, and paths."""
    with duckdb.connect() as connection:
        (tree,) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchone()
        names = set(_base_tables(json.loads(tree))) or connection.get_table_names(query)
    return {
        name: folder if name == LOG else name
        for name in sorted(names)
        if name == LOG or "://" in name or Path(name).is_dir()
    }


def _base_tables(node: Any) -> Iterator[str]:
    """Yield the names of tables in a syntax tree of DuckDB; none if it is no SELECT."""
    if isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            yield node["table_name"]
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _base_tables(part)


def _parsed(row: tuple[Any, ...], kinds: list[str]) -> list[Any]:
    """Return a row with its columns of JSON as values."""
    return [
        json.loads(value) if kind == "JSON" and value is not None else value
        for value, kind in zip(row, kinds, strict=True)
    ]


def _print_table(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    """Print rows as a table; columns of numbers stand at their right edge."""
    texts = [[_text(value) for value in row] for row in rows]
    right = {
        index
        for index in range(len(names))
        if rows and all(isinstance(row[index], _NUMBERS) for row in rows)
    }
    say(columns_text(names, texts, right=right))


def _text(value: Any) -> str:
    """Return a value as the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return repr(value)[2:-1]
    if isinstance(value, dict | list):
        return json_of(value, default=str)
    return str(value)
