"""The work of `callboard pipeline …`."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from callboard.cli.failure import FAILED, Failure, one_line
from callboard.cli.joining import Joining
from callboard.cli.listening import catch_signals, parse_listen
from callboard.cli.pipeline_job import explained
from callboard.commitlog import LogError, LogReader
from callboard.exposition import CONTENT_TYPE, exposition
from callboard.page_server import Page, PageServer
from callboard.pipeline.bridge import Bridge
from callboard.pipeline.errors import InvalidSetting, PipelineError, SparkMissing
from callboard.pipeline.job import Job
from callboard.pipeline.progress import (
    Progress,
    Status,
    StatusFile,
    listener,
    metrics_of,
    read_offset,
    read_status,
)
from callboard.store.attach import attach_clone, attach_master
from callboard.store.errors import MasterExists

if TYPE_CHECKING:
    from callboard.endpoint.hub import Hub

_LOOK: Final = 0.1
"""Seconds between two looks whether a query has ended."""

_BAR: Final = 24
_REASON: Final = 300


class Outlets(NamedTuple):
    """Where results and progress go beside the log.

    Attributes:
        joining: The nodes that get them as messages.
        store: The store that gets results as entries; "" is none.
        metrics: HOST:PORT of a page with figures; "" is none.
    """

    joining: Joining
    store: str
    metrics: str

    @property
    def publishes(self) -> bool:
        """Whether other nodes are told."""
        return bool(self.joining.peers or self.joining.listen)


def run_batch(job: Job, master: str, *, as_json: bool) -> int:
    """Run a query once over what there is; returns the exit code."""
    stop = threading.Event()
    with explained(), _spark(job, master) as spark, catch_signals(stop):
        begun, before = time.monotonic(), _end_of(job.to)
        try:
            with _interrupted(spark, stop):
                job.run_batch(spark)
        except Exception as error:  # noqa: BLE001  # Spark's errors are of many kinds
            if stop.is_set():
                typer.echo("stopped; no results were added", err=True)
                return FAILED
            raise _failure(error) from None
        row = {
            "query": job.title,
            "results": _end_of(job.to) - before,
            "seconds": round(time.monotonic() - begun, 3),
            "to": job.to,
        }
        text = "{query}: {results:,} results in {seconds:.1f} s, in {to}"
        typer.echo(json.dumps(row) if as_json else text.format(**row))
        return 0


@contextmanager
def _interrupted(spark: Any, stop: threading.Event) -> Iterator[None]:
    """Let a signal end what Spark does."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            if stop.wait(_LOOK) and not ended.is_set():
                spark.sparkContext.cancelAllJobs()
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def run_stream(job: Job, master: str, outlets: Outlets, *, as_json: bool) -> int:
    """Run a query until a signal, or with `ends` until all was read; returns the exit code."""
    stop = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(explained())
        hub = stack.enter_context(outlets.joining.hub()) if outlets.publishes else None
        if hub is not None:  # before Java takes its time
            outlets.joining.link(hub)
        spark = stack.enter_context(_spark(job, master))
        stack.enter_context(catch_signals(stop))
        status = StatusFile(job.folder, job.title, job.log)
        if hub is not None:
            stack.enter_context(_bridge(job, hub, outlets.store))
        if outlets.metrics:
            stack.callback(_serve_metrics(outlets.metrics, status).close)
        show = _shows(as_json=as_json)
        stack.callback(show, None)

        told: set[int] = set()

        def tell(progress: Progress) -> None:
            if progress.batch in told:
                return
            told.add(progress.batch)
            status.add(progress)
            show(progress)
            if hub is not None:
                hub.publish_all([(progress.topic, progress.as_message())])

        watcher = listener(job.title, tell)
        spark.streams.addListener(watcher)
        how, error = _follow(job, spark, stop, tell)
        spark.streams.removeListener(watcher)
        status.end(how)
        show(None)
        if error is not None:
            raise _failure(error)
        typer.echo(f"{job.title}: {how} after {status.status.rows:,} records", err=True)
        return 0


def _follow(
    job: Job, spark: Any, stop: threading.Event, tell: Callable[[Progress], None]
) -> tuple[str, Exception | None]:
    """Run a query to its end; returns how that came, and why."""
    try:
        query = job.start_stream(spark)
    except Exception as refused:  # noqa: BLE001  # Spark's errors are of many kinds
        return "failed", refused
    try:
        while query.isActive and not stop.wait(_LOOK):
            pass
        if stop.is_set():
            query.stop()
        for each in query.recentProgress:  # the listener hears of the last ones too late
            tell(Progress.parse(job.title, json.loads(each.json)))
        error = query.exception()
    except Exception as raised:  # noqa: BLE001
        return ("stopped", None) if stop.is_set() else ("failed", raised)
    if stop.is_set():
        return "stopped", None
    return ("done", None) if error is None else ("failed", error)


def print_status(folder: Path, *, as_json: bool) -> None:
    """Print a line for each query of a log of results."""
    found = read_status(folder)
    if not found:
        raise Failure(
            why=f"no query has written into {folder}",
            step="start one with: callboard pipeline run QUERY --log FOLDER --to FOLDER",
        )
    for status in found:
        row = _row(folder, status)
        text = "{query}: {state}, batch {batch}, {rows:,} records, {rate:,.0f}/s, {lag:,} wait"
        typer.echo(json.dumps(row) if as_json else text.format(**row))


def _row(folder: Path, status: Status) -> dict[str, Any]:
    last = status.last
    offset = read_offset(folder, status.query)
    try:
        end = LogReader(status.log).end
    except LogError:
        end = last.end if last else 0
    return {
        "query": status.query,
        "state": status.state,
        "log": status.log,
        "batch": last.batch if last else 0,
        "offset": offset,
        "lag": max(0, end - offset),
        "rows": status.rows,
        "rate": last.rate if last else 0.0,
        "watermark": last.watermark if last else "",
        "pid": status.pid,
        "started": status.started,
    }


# --- what runs beside ---


@contextmanager
def _spark(job: Job, master: str) -> Iterator[Any]:
    """Run a session; what is wrong with the query is told before, without Java."""
    job.check()
    from callboard.pipeline.spark_session import default_master, session

    # Java keeps the file, and what it says there.
    with _removed_unless_started(job.folder), _stderr_in(job.folder / "spark.log"):
        spark = session(master or default_master(), name=f"callboard {job.title}")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _removed_unless_started(folder: Path) -> Iterator[None]:
    """Leave no folder behind if Java was not even asked."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        yield
    except (InvalidSetting, SparkMissing):
        if folder in made:
            (folder / "spark.log").unlink(missing_ok=True)
        with suppress(OSError):  # somebody else has put something there
            for each in made:
                each.rmdir()
        raise
    except PipelineError as error:
        what = f"{error} in {folder / 'spark.log'}"
        raise PipelineError(what) from None


@contextmanager
def _stderr_in(path: Path) -> Iterator[None]:
    """Let processes that are started write their errors into a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    before = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(file)


class _Messages:
    """Publishes results on the topics of a node."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub

    def publish_batch(self, *batch: tuple[str, Any]) -> None:
        """Publish pairs of topic and value."""
        self._hub.publish_all(list(batch))


@contextmanager
def _bridge(job: Job, hub: "Hub", store: str) -> Iterator[None]:
    with ExitStack() as stack:
        entries = None
        if store:
            try:
                entries = attach_master(hub, store)
            except MasterExists:
                entries = attach_clone(hub, store)
            stack.callback(entries.close)
        bridge = Bridge(
            job.to,
            endpoint=_Messages(hub),
            store=entries,
            name=job.title,
            start=_end_of(job.to),
        )
        stack.callback(bridge.close)
        yield


def _serve_metrics(address: str, status: StatusFile) -> PageServer:
    def page() -> Page:
        return Page(HTTPStatus.OK, CONTENT_TYPE, exposition(metrics_of(status.status)))

    host, port = parse_listen(address)
    try:
        server = PageServer({"/metrics": page}, host, port)
    except OSError as error:
        raise Failure(
            why=f"cannot serve metrics on {address}: {error.strerror or error}",
            step="choose another --metrics HOST:PORT",
        ) from error
    typer.echo(f"metrics on {server.url}/metrics", err=True)
    return server


def _end_of(folder: str) -> int:
    try:
        return LogReader(folder).end
    except LogError:
        return 0


# --- what people see ---


def _shows(*, as_json: bool) -> Callable[[Progress | None], None]:
    """Return what draws a batch: a bar in a terminal, else a line; None ends the drawing."""
    if as_json:
        return lambda each: None if each is None else typer.echo(json.dumps(each.as_message()))
    if not sys.stderr.isatty():
        return lambda each: None if each is None else typer.echo(_line(each), err=True)
    drawn = False

    def show(each: Progress | None) -> None:
        nonlocal drawn
        if each is not None:
            share = each.offset / each.end if each.end else 1.0
            bar = "█" * round(_BAR * share)
            typer.echo(f"\r\x1b[K{bar:░<{_BAR}} {share:4.0%} {_line(each)}", err=True, nl=False)
        elif drawn:
            typer.echo("", err=True)
        drawn = each is not None

    return show


def _line(progress: Progress) -> str:
    return (
        f"{progress.query} batch {progress.batch}: {progress.rows:,} records in"
        f" {progress.seconds:.2f} s, {progress.rate:,.0f}/s, {progress.lag:,} wait"
    )


def _failure(error: Exception) -> Failure:
    """Return one line for what Spark tells in hundreds."""
    lines = [line.strip() for line in str(error).splitlines()]
    ours = [line for line in lines if line.startswith("callboard.")]
    text = ours[-1].partition(": ")[2] if ours else one_line(lines[0] if lines else repr(error))
    why, _, step = text.partition(";")
    return Failure(why=why[:_REASON], step=step.strip() or "see docs/pipeline.md")
