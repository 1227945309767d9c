"""The work of `callboard log …`."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import typer

from callboard.cli.failure import FAILED, MISUSED, Failure
from callboard.cli.values import to_json
from callboard.commitlog import (
    LogError,
    LogReader,
    Record,
    sealed_segments,
    write_columns,
)
from callboard.commitlog.verify import verify

_NANOSECONDS: Final = 10**9


def print_logs(folder: Path, *, as_json: bool) -> None:
    """Print a line for each log in a folder and below."""
    if not folder.is_dir():
        raise Failure(
            why=f"{folder} is no directory", step="give one that holds logs", code=MISUSED
        )
    found = sorted({path.parent for path in folder.rglob("*.log") if path.stem.isdecimal()})
    for path in found:
        with explained():
            log = LogReader(path)
            row = {
                "path": str(path),
                "start": log.start,
                "end": log.end,
                "bytes": sum(each.bytes for each in log.segments),
                "segments": len(log.segments),
            }
        text = "{path}: records {start} to {end}, {bytes:,} bytes in {segments} segments"
        typer.echo(to_json(row) if as_json else text.format(**row))
    if not found and not as_json:
        typer.echo(f"no logs in {folder} or below", err=True)


def print_records(
    folder: Path, *, start: int | None, since: str, limit: int | None, topic: str, as_json: bool
) -> None:
    """Print records from a place on."""
    if since and start is not None:
        raise Failure(
            why="--from and --since are two beginnings", step="give one", code=MISUSED
        )
    with explained():
        log = LogReader(folder)
        begin = log.offset_at(_time(since)) if since else (start or 0)
        reading = log.read(begin)
        _print_all(islice(_about(reading, topic), limit), as_json=as_json)
        if reading.lost and start is not None:
            typer.echo(f"{reading.lost} records were removed by retention before", err=True)


def print_tail(folder: Path, *, count: int, follow: bool, topic: str, as_json: bool) -> None:
    """Print the newest records; with `follow`, all that come as well."""
    with explained():
        log = LogReader(folder)
        end = log.end
        _print_all(_newest(log, end, count, topic), as_json=as_json)
        if follow:
            _print_all(_about(log.follow(end), topic), as_json=as_json)


def _newest(log: LogReader, end: int, count: int, topic: str) -> list[Record]:
    """Return the last records about a topic, looking back further and further."""
    reach = max(1, count)
    while True:
        begin = max(log.start, end - reach)
        found = [each for each in _about(log.read(begin), topic) if each.offset < end]
        if len(found) >= count or begin <= log.start:
            return found[-count:] if count else []
        reach *= 10


def print_report(folder: Path, *, as_json: bool) -> int:
    """Check a log and print what was found; returns the exit code."""
    with explained():
        report = verify(folder)
    if as_json:
        typer.echo(to_json(asdict(report)))
    else:
        for each in report.damage:
            typer.echo(each)
        text = f"{report.records:,} records from {report.start} to {report.end} are intact"
        typer.echo(text + (f", {report.lost:,} are lost" if report.lost else ""))
        if report.torn_bytes:
            typer.echo(
                f"{report.torn_bytes:,} bytes of half a batch follow; a writer cuts them"
            )
    return FAILED if report.damage else 0


def print_columns(folder: Path, *, as_json: bool) -> None:
    """Write the columns of sealed segments, and print which ones there are."""
    with explained():
        made = {each.base for each in write_columns(folder)}
        segments = sealed_segments(folder)
    for each in segments:
        row = {**each._asdict(), "is_made": each.base in made}
        if as_json:
            typer.echo(to_json(row))
        elif each.columns is None:
            typer.echo(f"records {each.base} to {each.end}: none, {each.path} is damaged")
        else:
            word = "made" if row["is_made"] else "there"
            typer.echo(f"records {each.base} to {each.end}: {each.columns} {word}")
    if not segments and not as_json:
        typer.echo(f"no sealed segments in {folder}: the newest one is still written", err=True)


def print_stats(folder: Path, *, as_json: bool) -> None:
    """Print figures of a log."""
    with explained():
        log = LogReader(folder)
        segments = log.segments
        topics = Counter(record.topic for record in log)
        first = next(log.read(log.start), None)
    size, records = sum(each.bytes for each in segments), topics.total()
    row: dict[str, Any] = {
        "start": segments[0].base,
        "end": segments[-1].end,
        "records": records,
        "bytes": size,
        "first_time": first.time if first else None,
        "latest_time": max(each.latest_time for each in segments) if first else None,
        "segments": [each._asdict() for each in segments],
        "topics": dict(topics.most_common()),
    }
    if as_json:
        typer.echo(to_json(row))
        return
    typer.echo(
        f"records {row['start']} to {row['end']}, {size:,} bytes, {len(segments)} segments"
    )
    if first is not None:
        typer.echo(f"from {_clock(first.time)} to {_clock(row['latest_time'])}")
    for topic, count in topics.most_common():
        typer.echo(f"{count:>12,}  {topic}")


def _about(records: Iterable[Record], topic: str) -> Iterator[Record]:
    return (each for each in records if each.topic.startswith(topic))


def _print_all(records: Iterable[Record], *, as_json: bool) -> None:
    for record in records:
        if as_json:
            fields = {**record._asdict(), "headers": dict(record.headers)}
            del fields["data"]
            typer.echo(to_json({**fields, "payload": record.payload}))
        else:
            key = "" if record.key is None else f"{record.key!r} "
            shown = (
                f"{record.offset} {_clock(record.time)} {record.topic} {key}{record.payload!r}"
            )
            typer.echo(shown)


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
    try:
        return time.time_ns() - int(float(text) * _NANOSECONDS)
    except (ValueError, OverflowError):
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Failure(
            why=f"--since {text!r} is no time",
            step="give seconds before now, or 2026-01-31T12:00:00Z",
            code=MISUSED,
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000) * 1000


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of logs into one line."""
    try:
        yield
    except LogError as error:
        why, _, step = str(error).partition(";")
        raise Failure(why=why, step=step.strip() or "try: callboard log verify") from None
