"""The work of `callboard topic record`."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast, get_args

import typer

from callboard.broker.recording import Recording
from callboard.cli.failure import FAILED, MISUSED, Failure
from callboard.cli.joining import Joining
from callboard.cli.listening import catch_signals
from callboard.commitlog import CommitLog, LogError, Retention
from callboard.commitlog.log import Sync

LOOK_INTERVAL: Final = 0.05
"""Seconds between two looks whether enough was recorded."""

RATE_INTERVAL: Final = 1.0
"""Seconds between two lines of `--rate`."""


def split_arguments(
    arguments: Sequence[str], folder: Path | None
) -> tuple[tuple[str, ...], Path]:
    """Return topics and the directory of the log, which may be the last argument.

    Raises:
        Failure: no directory was named.
    """
    if folder is not None:
        return tuple(arguments) or ("",), folder
    if len(arguments) < 2:  # one could be either of them
        raise Failure(
            why="no log was named", step="say --log FOLDER, or TOPIC FOLDER", code=MISUSED
        )
    *topics, last = arguments
    return tuple(topics), Path(last)


def parse_sync(text: str) -> Sync:
    """Return a mode of durability.

    Raises:
        Failure: there is no such mode.
    """
    for mode in get_args(Sync):
        if mode == text:
            return cast(Sync, mode)
    modes = ", ".join(get_args(Sync))
    raise Failure(why=f"--sync {text!r} is no mode", step=f"give {modes}", code=MISUSED)


def parse_retention(text: str) -> Retention | None:
    """Return how long records are kept: `bytes=1000000,records=1000,seconds=3600`.

    Raises:
        Failure: it is something else.
    """
    if not text:
        return None
    try:
        return Retention.parse(text)
    except ValueError:
        raise Failure(
            why=f"--retain {text!r} cannot be read",
            step="give for instance bytes=1000000000,seconds=86400 (or records=…)",
            code=MISUSED,
        ) from None


def record_topics(
    joining: Joining,
    topics: tuple[str, ...],
    make_log: Callable[[], CommitLog],
    *,
    count: int,
    shows_rate: bool,
) -> int:
    """Record until a signal comes, or `count` messages came (0: without end).

    Returns the exit code: 1 if messages were lost.
    """
    stop = threading.Event()
    with catch_signals(stop), joining.hub() as hub:
        try:
            recording = Recording(hub, topics, make_log)
        except LogError as error:
            why, _, step = str(error).partition(";")
            raise Failure(why=why, step=step.strip() or "callboard log ls") from None
        with recording:
            _tell_begin(recording, as_json=joining.as_json)
            joining.link(hub)
            told, before = time.monotonic(), 0
            while not stop.wait(LOOK_INTERVAL):
                if count and recording.recorded + recording.lost >= count:
                    break
                now = time.monotonic()
                if shows_rate and now - told >= RATE_INTERVAL:
                    rate = (recording.recorded - before) / (now - told)
                    told, before = now, recording.recorded
                    _tell_rate(recording, rate, as_json=joining.as_json)
    _tell_end(recording, as_json=joining.as_json)
    return FAILED if recording.lost else 0


def _tell_begin(recording: Recording, *, as_json: bool) -> None:
    """Say where the recording begins; on the standard error, beside what is printed."""
    if as_json:
        row = {"log": str(recording.folder), "start": recording.start}
        typer.echo(json.dumps(row | {"resumed": recording.resumed}), err=True)
        return
    since = ""
    if recording.resumed is not None:
        moment = datetime.fromtimestamp(recording.resumed / 1e9, UTC)
        since = f", where it stopped at {moment:%Y-%m-%dT%H:%M:%SZ}"
    typer.echo(f"records into {recording.folder} from {recording.start}{since}", err=True)


def _tell_rate(recording: Recording, rate: float, *, as_json: bool) -> None:
    row = {
        "rate": round(rate, 1),
        "recorded": recording.recorded,
        "waiting": recording.waiting,
        "lost": recording.lost,
        "durable": recording.durable,
    }
    text = "{rate:,.0f} messages/s, {recorded:,} in all, {waiting:,} wait, {lost:,} lost"
    typer.echo(json.dumps(row) if as_json else text.format(**row))


def _tell_end(recording: Recording, *, as_json: bool) -> None:
    row = {
        "log": str(recording.folder),
        "start": recording.start,
        "end": recording.end,
        "recorded": recording.recorded,
        "lost": recording.lost,
    }
    text = "recorded {recorded:,} messages, offsets {start} to {end}, {lost:,} lost"
    typer.echo(json.dumps(row) if as_json else text.format(**row))
    if recording.error:
        typer.echo(recording.error, err=True)
