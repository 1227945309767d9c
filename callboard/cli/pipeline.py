"""`callboard pipeline …`: run queries over logs with Spark."""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from callboard.backoff import Backoff, retrying
from callboard.cli.cli_error import FAILED, MISUSED, CliError, one_line, problem_of
from callboard.cli.options import (
    ASKED,
    READ,
    RESULTS,
    RUNS,
    AccessOptions,
    JsonOptions,
    command,
    flag,
    noun,
    option,
    read_secret,
)
from callboard.cli.output import say, to_json
from callboard.cli.own_node import (
    CONFIRM_LIMIT,
    METRICS_HOST,
    JoinOptions,
    catch_signals,
    open_metrics,
    parse_listen,
)
from callboard.cli.work.query_watch import QueryWatch, line_of, rows_from, rows_in
from callboard.commitlog import LogError, LogReader
from callboard.pipeline.errors import InvalidSetting, PipelineError, SparkMissing
from callboard.pipeline.failure import is_slow_start, reason_of
from callboard.pipeline.function import stated_by
from callboard.pipeline.job import Job, find_query
from callboard.pipeline.progress import (
    DeliveryStats,
    Progress,
    StatusFile,
    listener,
    query_metrics,
)
from callboard.pipeline.queries import QueryKind, Settings, seconds_of
from callboard.pipeline.state import Detection
from callboard.support.files.private_file import make_folder, open_private
from callboard.support.text import printable

if TYPE_CHECKING:
    from callboard.pages import Page, PageServer
    from callboard.pipeline.bridge import Bridge
    from callboard.topics.hub import Hub

#: Seconds until a query that a busy machine did not start is started again, and their limit.
_RESTART_PAUSE: Final = 2.0
_RESTART_LIMIT: Final = 120.0

#: Seconds between checks whether a query has ended.
_POLL_SECONDS: Final = 0.1

_BAR: Final = 24
_REASON: Final = 300

app = noun()


@dataclass(frozen=True, kw_only=True)
class QueryOptions(JsonOptions):
    """Settings of a query, and the logs that it reads and writes."""

    log: str = option(
        ..., "The log: a folder or grpc://HOST:PORT/NAME.", "--log", metavar="FOLDER", **READ
    )
    topic: list[str] | None = option(
        None, "Only topics with this prefix; repeatable.", "--topic", metavar="PREFIX", **READ
    )
    where: str = option(
        "",
        "Only records with this topic, key, time or offset, like \"topic LIKE '/cpu/%' AND "
        "time >= '2026-01-31'\"; others are not decoded.",
        metavar="CONDITION",
        **READ,
    )
    schema: str = option(
        "",
        "Fields of payloads with types, like 'origin string, delay double, at timestamp', or a "
        "file with them. Records that do not fit are skipped, or become dead letters.",
        metavar="DDL|FILE",
        **READ,
    )
    time: str = option(
        "",
        "The field with the event time: ISO 8601, seconds or milliseconds since 1970; default: "
        "the time of the record.",
        metavar="FIELD",
        **READ,
    )
    dead_letters: str = option(
        "",
        "The log for records that do not decode: a folder, or s3://BUCKET/NAME.",
        "--dead-letters",
        metavar="FOLDER",
        **READ,
    )
    field: str = option("value", "The field with the value.", metavar="FIELD", **ASKED)
    by: str = option(
        "",
        "Group results by this field, or by key or sender; default: topic.",
        metavar="FIELD",
        **ASKED,
    )
    window: str = option("10s", "Length of windows, gap of sessions.", metavar="SPAN", **ASKED)
    delay: str = option("10s", "How late records may be.", metavar="SPAN", **ASKED)
    threshold: float = option(
        4.0, "Standard deviations above which a value is an anomaly.", min=0.1, **ASKED
    )
    season: str = option(
        "", "For anomalies: for instance 1d:24.", metavar="SPAN:SLOTS", **ASKED
    )
    left: str = option("", "For a join: topics of one side.", metavar="PREFIX", **ASKED)
    right: str = option("", "For a join: topics of the other side.", metavar="PREFIX", **ASKED)
    within: str = option("10s", "For a join: largest time between.", metavar="SPAN", **ASKED)
    to: str = option(
        ...,
        "The log for the results: a folder, or s3://BUCKET/NAME.",
        "--to",
        metavar="FOLDER",
        **RESULTS,
    )
    retain: str = option(
        "",
        "How long results are kept: bytes=1000000000,records=…,seconds=86400; "
        "default: for ever.",
        metavar="LIMITS",
        **RESULTS,
    )
    staging: str = option(
        "",
        "On a cluster, the hosts with --to under this path: shared (all) or driver.",
        metavar="WHO",
        **RESULTS,
    )
    master: str = option(
        "", "local[N] or spark://HOST:PORT; default: all cores.", metavar="URL", **RUNS
    )
    conf: list[str] | None = option(
        None, "A setting of Spark; repeatable.", "--conf", metavar="KEY=VALUE", **RUNS
    )
    shortcuts: bool = flag(
        "Write checkpoints faster by relying on Spark's internals.", "--shortcuts", **RUNS
    )
    as_json: bool = flag("Print JSON lines.", "--json", **RUNS)

    def job(self, query: str, **run: Any) -> Job:
        """Return a job for a query; `run` are further arguments of `Job`.

        Raises:
            CliError: an option is invalid.
        """
        from callboard.cli.topic import parse_retention  # not for `--help`

        parse_retention(self.retain)  # raises if it is invalid
        with explained():
            settings = Settings(
                self.field,
                seconds_of(self.window),
                seconds_of(self.delay),
                _detection(self.threshold, self.season),
                self.left,
                self.right,
                seconds_of(self.within),
                self.time,
                "" if self.by == "topic" else self.by,
                _read_schema(self.schema),
            )
            self._check(find_query(query), settings)
        topics, to = ",".join(self.topic or ()), self.to
        run |= {"retain": self.retain, "staging": self.staging}
        run["where"] = self.where
        run["dead_letters"] = self.dead_letters
        return Job(query, self.log, to, settings, topics, **run)

    def _check(self, query: QueryKind, settings: Settings) -> None:
        """Raise `InvalidSetting` for an option that the query does not use."""
        defaults = Settings()
        for name, (options, queries) in _MEANT.items():
            if name not in query.uses and getattr(settings, name) != getattr(defaults, name):
                msg = f"{options} has no effect on this query; it is for {queries}"
                raise InvalidSetting(msg)
        if settings.by and stated_by(query):
            msg = "--by has no effect on a function; group the rows in the function"
            raise InvalidSetting(msg)

    @property
    def settings_of_spark(self) -> dict[str, str]:
        """Settings of Spark from `--conf`.

        Raises:
            InvalidSetting: an item has another form.
        """
        pairs = [item.partition("=") for item in self.conf or ()]
        for key, equals, _ in pairs:
            if not key.strip() or not equals:
                msg = f"--conf {key!r} is not a setting; use one like spark.executor.memory=2g"
                raise InvalidSetting(msg)
        return {key.strip(): value for key, _, value in pairs}


#: Options that only some queries use, by their settings, and these queries.
_MEANT: Final = {
    "window": ("--window", "rates, quantiles, windows and sessions"),
    "delay": ("--delay", "all queries but anomalies"),
    "detection": ("--threshold and --season", "anomalies"),
    "left": ("--left", "join"),
    "right": ("--right", "join"),
    "within": ("--within", "join"),
}


@dataclass(frozen=True, kw_only=True)
class StreamOptions(QueryOptions, JoinOptions):
    """Options of a stream, and the targets of results and progress besides the log."""

    start: str = option(
        "earliest", "earliest, latest, offset or time.", "--from", metavar="PLACE", **READ
    )
    batch: bool = flag("Read the log once, without a checkpoint.", "--batch", **RUNS)
    once: bool = flag("End when the whole log was read.", "--once", **RUNS)
    interval: str = option(
        "", "Time from one micro-batch to the next; default: none.", metavar="SPAN", **RUNS
    )
    max_rows: int | None = option(None, "Most records in a micro-batch.", min=1, **RUNS)
    min_rows: int | None = option(
        None, "Fewest records in a micro-batch; it waits up to 15 minutes.", min=1, **RUNS
    )
    checkpoint: str = option(
        "",
        "Folder for the position of the query, any path of Spark; default: with the results.",
        metavar="FOLDER",
        **RUNS,
    )
    name: str = option("", "Name of this run; default: that of the query.", **RUNS)
    accept_log: str = option(
        "",
        "A state of a log, as an error named it, to continue with despite the error.",
        metavar="LOG/EPOCH",
        **RUNS,
    )
    metrics: str = option("", "Serve /metrics for monitoring.", metavar="HOST:PORT", **RUNS)
    metrics_host: list[str] | None = option(None, METRICS_HOST, metavar="NAME", **RUNS)
    peer: list[str] | None = option(
        None,
        "Publish results and progress there; repeatable.",
        "--peer",
        metavar="ADDRESS",
        **RESULTS,
    )
    listen: str = option(
        "", "Address of this node for subscribers.", metavar="HOST:PORT", **RESULTS
    )
    store: str = option("", "A store for the results as entries.", metavar="NAME", **RESULTS)
    wait: float = option(
        10.0,
        "Seconds that results wait for subscribers; then they count as unheard.",
        min=0.0,
        metavar="SECONDS",
        **RESULTS,
    )
    insecure: bool = flag("Listen on public addresses without secret.", "--insecure", **RESULTS)

    def stream_job(self, query: str) -> Job:
        """Return the job for a stream or batch.

        Raises:
            CliError: options contradict each other.
        """
        with explained():
            if self.batch:
                conflicts = [f"--{name}" for name in _OF_STREAMS if getattr(self, name)]
                if self.max_rows is not None:
                    conflicts.append("--max-rows")
                if self.min_rows is not None:
                    conflicts.append("--min-rows")
                if conflicts:
                    msg = f"{conflicts[0]} has no effect with --batch; omit one of them"
                    raise InvalidSetting(msg)
            if self.once and self.interval:
                msg = "--interval has no effect with --once; omit one of them"
                raise InvalidSetting(msg)
            if self.store and not self.publishes:
                msg = "--store needs a cluster with that store; pass --peer or --listen"
                raise InvalidSetting(msg)
            interval = seconds_of(self.interval) if self.interval else 0.0
        for listen in filter(None, (self.metrics, self.listen)):
            parse_listen(listen)
        read_secret(self.secret_file)
        return self.job(
            query,
            start=self.start,
            max_rows=self.max_rows,
            min_rows=self.min_rows,
            ends=self.once,
            interval=interval,
            name=self.name,
            checkpoint_at=self.checkpoint,
            accept_log=self.accept_log,
        )

    @property
    def publishes(self) -> bool:
        """Whether results are published to other nodes."""
        return bool(self.peer or self.listen)


#: Options that have no effect on a batch.
_OF_STREAMS: Final = ("interval", "checkpoint", "peer", "listen", "store", "metrics")


@dataclass(frozen=True, kw_only=True)
class AgainOptions(QueryOptions):
    """The part of a log to read again."""

    start: str = option(
        ..., "earliest, an offset or a time.", "--from", metavar="PLACE", **READ
    )
    until: str = option("latest", "latest, an offset or a time.", metavar="PLACE", **READ)


@dataclass(frozen=True, kw_only=True)
class StatusOptions(AccessOptions):
    """Options for reading and printing the state of queries."""

    wait: float = option(3.0, "Seconds to listen at a node.", min=0.1, metavar="SECONDS")
    as_json: bool = flag("Print JSON lines.", "--json")


QueryName = Annotated[
    str,
    typer.Argument(
        metavar="QUERY",
        help="rates, quantiles, windows, sessions, late, anomalies, join, or FILE.py:FUNCTION.",
    ),
]


@command(app)
def run(query: QueryName, options: StreamOptions) -> int:
    """Run a query over a log until Ctrl-C; the next run continues where this one ends.

    Results are appended to the log --to, each batch exactly once. With --peer or --listen they
    are also published on their topics, and the progress of each batch on $spark/NAME/progress.

    \b
    Examples:
      callboard pipeline run rates --log metrics --to results
      callboard pipeline run quantiles --log metrics --to results --field load --once
      callboard pipeline run quantiles --log air --to out --time at --by origin --field delay
      callboard pipeline run rates --log air --to out --schema air.ddl --dead-letters bad
      callboard pipeline run join --log air --to out --left /flight --right /weather --by origin
      callboard pipeline run anomalies --log temperatures --to results --season 1d:24 --batch
      callboard pipeline run rates --log metrics --to results --where "key IN ('a', 'b')" --once
      callboard pipeline run mine.py:delayed --log air --to out --interval 10s
      callboard pipeline run rates --log metrics --to results --peer basp://127.0.0.1:4222
    """  # noqa: D301
    job = options.stream_job(query)
    if options.batch:
        return _run_batch(job, options)
    return _run_stream(job, options)


@command(app)
def replay(query: QueryName, options: AgainOptions) -> int:
    """Run a query again over a part of a log, into another log.

    \b
    Examples:
      callboard pipeline replay rates --log metrics --to again --from 2026-01-31T12:00:00Z
      callboard pipeline replay quantiles --log metrics --to again --from 1000 --until 9000
    """  # noqa: D301
    job = options.job(query, start=options.start, end=options.until)
    with explained():
        job.check_again()
    return _run_batch(job, options)


@command(app)
def status(
    place: Annotated[
        str, typer.Argument(metavar="FOLDER", help="The log of results, or basp://HOST:PORT.")
    ],
    options: StatusOptions,
) -> None:
    """Print the state of queries: position, speed, late and undecodable records.

    For the folder of a log of results: the queries that wrote to it. For the address of a node:
    all queries that run in its cluster with --peer or --listen.

    \b
    Examples:
      callboard pipeline status results
      callboard pipeline status basp://10.0.0.1:4222
      callboard pipeline status results --json | jq .lag
    """  # noqa: D301
    read_secret(options.secret_file)
    if "://" in place:
        rows = rows_from(place, options, options.wait)
    else:
        rows = rows_in(Path(place))
    if not rows:
        step = "start one with: callboard pipeline run QUERY --log FOLDER --to FOLDER"
        raise CliError(why=f"no query has written into {place}", step=step)
    for row in rows:
        options.say(row, line_of(row))


def _read_schema(text: str) -> str:
    """Return a schema, or the content of a schema file.

    Raises:
        InvalidSetting: the file is missing.
    """
    with suppress(OSError, ValueError):  # the text may be too long for a path, or contain NUL
        if text and Path(text).is_file():
            return Path(text).read_text()
    if text and not any(char in text for char in " \t\n:{"):
        msg = f"there is no file {text}; pass one, or fields like 'origin string, delay double'"
        raise InvalidSetting(msg)
    return text


def _detection(threshold: float, season: str) -> Detection:
    """Return the settings of the anomaly detection."""
    if not season:
        return Detection(threshold)
    span, _, slots = season.partition(":")
    if not slots.isdecimal() or int(slots) < 1:
        msg = f"--season {season!r} is not a season; use one like 1d:24"
        raise InvalidSetting(msg)
    return Detection(
        threshold, warmup=3 * int(slots), slots=int(slots), season=seconds_of(span)
    )


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of the pipeline and of logs into one line."""
    try:
        yield
    except (PipelineError, LogError) as error:
        is_misuse = isinstance(error, InvalidSetting) and not isinstance(error, SparkMissing)
        code = MISUSED if is_misuse else FAILED
        raise problem_of(error, "see docs/pipeline.md", code) from None


def _run_batch(job: Job, options: QueryOptions) -> int:
    """Run a query once over a log; return the exit code."""
    with explained(), _spark(job, options) as spark, catch_signals() as stop:
        start, end_before = time.monotonic(), _end_of(job.to)
        try:
            with _interrupted(spark, stop):
                skipped = job.run_batch(spark)
        except Exception as error:  # noqa: BLE001  # Spark's errors have many types
            if stop.is_set():
                say("stopped; no results were added", err=True)
                return FAILED
            raise _failure(error) from None
        row = {
            "query": job.title,
            "results": _end_of(job.to) - end_before,
            "seconds": round(time.monotonic() - start, 3),
            "to": job.to,
            "undecodable": skipped,
        }
        text = "{query}: {results:,} results in {seconds:.1f} s, in {to}"
        if skipped:
            text += "; skipped {undecodable:,} records that do not decode"
        options.say(row, text.format(**row))
        return 0


@contextmanager
def _interrupted(spark: Any, stop: Event) -> Iterator[None]:
    """Cancel Spark's jobs on a signal."""
    ended = Event()

    def watch() -> None:
        while not ended.is_set():
            if stop.wait(_POLL_SECONDS) and not ended.is_set():
                spark.sparkContext.cancelAllJobs()
                return

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _run_stream(job: Job, options: StreamOptions) -> int:
    """Run a query until a signal, or until the log is read; return the exit code."""
    with ExitStack() as stack:
        stack.enter_context(explained())
        hub = stack.enter_context(options.hub()) if options.publishes else None
        if hub is not None:  # before the slow start of Java
            options.link(hub)
        spark = stack.enter_context(_spark(job, options))
        stop = stack.enter_context(catch_signals())
        log = job.log if "://" in job.log else str(Path(job.log).absolute())
        status = StatusFile(job.folder, job.title, log)
        bridge = None
        if hub is not None:
            bridge = stack.enter_context(_bridge(job, hub, options))
        watch = QueryWatch(
            status,
            job.log,
            letters=job.dead_letters,
            handed=lambda: None if bridge is None else _handed_of(bridge, job),
            hub=hub,
        )
        stack.callback(watch.close)
        stack.enter_context(_serve_metrics(options, status))
        show = _shows(options)
        stack.callback(show, None)

        reported: set[int] = set()

        def tell(progress: Progress) -> None:
            if progress.batch in reported:
                return
            reported.add(progress.batch)
            status.add(progress)
            show(progress)
            if hub is not None:
                hub.publish_batch((progress.topic, progress.as_message()))

        stack.enter_context(_listening(spark, job.title, tell))
        ending, error = _follow_started(job, spark, stop, tell, watch)
        show(None)
        if bridge is not None:
            _hand_over(bridge, stop)
        watch.close(ending)
        if error is not None:
            raise _failure(error)
        say(f"{job.title}: {ending} after {status.status.text}", err=True)
        return FAILED if status.status.is_under_way else 0


@contextmanager
def _listening(spark: Any, name: str, tell: Callable[[Progress], None]) -> Iterator[None]:
    """Report each batch of a query while the block runs."""
    watcher = listener(name, tell)
    spark.streams.addListener(watcher)
    yield
    with suppress(Exception):  # Java may have ended by the same signal
        spark.streams.removeListener(watcher)


def _follow_started(
    job: Job, spark: Any, stop: Event, tell: Callable[[Progress], None], watch: QueryWatch
) -> tuple[str, Exception | None]:
    """Run a query to its end; start it again where a busy machine did not start its Python."""
    ending: str = "failed"
    error: Exception | None = None
    for _ in retrying(Backoff.fixed(_RESTART_PAUSE), _RESTART_LIMIT, stop=stop):
        ending, error = _follow(job, spark, stop, tell, watch)
        if error is None or not is_slow_start(error):
            break
        reason, _, _ = reason_of(error).partition(";")
        say(f"{job.title}: {reason}; it is started again", err=True)
    return ending, error


def _follow(
    job: Job, spark: Any, stop: Event, tell: Callable[[Progress], None], watch: QueryWatch
) -> tuple[str, Exception | None]:
    """Run a query to its end; return the kind of the end, and the error."""
    try:
        query = job.start_stream(spark)
        watch.query = query.id
    except Exception as refused:  # noqa: BLE001  # Spark's errors are of many kinds
        return "failed", refused
    try:
        while query.isActive and not stop.wait(_POLL_SECONDS):
            pass
        if stop.is_set():
            query.stop()
        for report in query.recentProgress:  # the listener gets the last reports too late
            tell(Progress.parse(job.title, json.loads(report.json)))
        error = query.exception()
    except Exception as raised:  # noqa: BLE001
        return ("stopped", None) if stop.is_set() else ("failed", raised)
    if stop.is_set():
        return "stopped", None
    return ("done", None) if error is None else ("failed", error)


@contextmanager
def _spark(job: Job, options: QueryOptions) -> Iterator[Any]:
    """Run a Spark session; errors of the query are raised before Java starts."""
    job.check()
    settings = options.settings_of_spark
    from callboard.pipeline.spark_session import session

    # Java keeps the file open and writes its output there.
    with _removed_unless_started(job.folder), _stderr_in(job.folder / "spark.log"):
        spark = session(
            options.master,
            name=f"callboard {job.title} of {job.log}",
            conf=settings,
            shortcuts=options.shortcuts,
        )
    from pyspark.logger import PySparkLogger

    # It would write Java's whole stack trace to stderr for a misspelled name.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    try:
        yield spark
    finally:
        with suppress(Exception):  # Java may have ended by a signal to all processes
            spark.stop()


@contextmanager
def _removed_unless_started(folder: Path) -> Iterator[None]:
    """Remove new folders if Java was not started."""
    created = [
        created_folder
        for created_folder in (folder, *folder.parents)
        if not created_folder.exists()
    ]
    try:
        yield
    except (InvalidSetting, SparkMissing):
        if folder in created:
            (folder / "spark.log").unlink(missing_ok=True)
        with suppress(OSError):  # another process may have put a file there
            for created_folder in created:
                created_folder.rmdir()
        raise
    except PipelineError as error:
        msg = f"{error} in {folder / 'spark.log'}"
        raise PipelineError(msg) from None


@contextmanager
def _stderr_in(path: Path) -> Iterator[None]:
    """Redirect standard error, also of started processes, into a file."""
    make_folder(path.parent)
    sys.stderr.flush()
    original = os.dup(2)
    file = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
        os.close(file)


@contextmanager
def _bridge(job: Job, hub: "Hub", options: StreamOptions) -> Iterator["Bridge"]:
    """Publish results, and put them into a store, while the block runs."""
    from callboard.pipeline.bridge import Bridge
    from callboard.store.attach import attach_clone, attach_master
    from callboard.store.errors import MasterExists

    def tell(topic: str, count: int) -> None:
        if count > 0:
            msg = f"no node subscribes to {topic}: {count:,} results wait"
            say(f"{msg} for {options.wait:g} s", err=True)
        else:
            msg = f"no node subscribed to {topic}: {-count:,} results are unheard, as are those"
            say(f"{msg} that follow until one subscribes", err=True)

    with ExitStack() as stack:
        entries = None
        if options.store:
            try:
                entries = attach_master(hub, options.store)
            except MasterExists:
                entries = attach_clone(hub, options.store)
            stack.callback(entries.close)
        bridge = Bridge(
            job.to,
            endpoint=hub,
            store=entries,
            name=job.title,
            start=_end_of(job.to),
            wait=options.wait,
            on_silence=tell,
            accept_log=job.accept_log,
        )
        stack.callback(bridge.close)
        yield bridge


def _hand_over(bridge: "Bridge", stop: Event) -> None:
    """Publish the remaining results, and wait for the confirmation of the subscribers' nodes.

    After a signal it no longer waits for subscribers.
    """
    closing = Thread(target=bridge.close, daemon=True)
    closing.start()
    while closing.is_alive():
        if stop.is_set():
            bridge.leave()
        closing.join(_POLL_SECONDS)
    bridge.await_taken(CONFIRM_LIMIT)


def _handed_of(bridge: "Bridge", job: Job) -> DeliveryStats:
    """Return the delivery counts of the results."""
    position = bridge.position  # read first: the counts may only grow after it
    waiting = max(0, _end_of(job.to, position) - position)
    under_way = bridge.under_way  # before `handed`, which must not be smaller
    return DeliveryStats(
        max(bridge.handed, under_way), bridge.unheard, bridge.lost, waiting, under_way
    )


@contextmanager
def _serve_metrics(options: StreamOptions, status: StatusFile) -> Iterator["PageServer | None"]:
    """Serve the figures of a query while the block runs, if they are wanted."""
    if not options.metrics:
        yield None
        return
    from callboard.pages import metrics_page

    def page() -> "Page":
        return metrics_page(query_metrics(status.status))

    server = open_metrics(options.metrics, options.metrics_host, page)
    say(f"metrics on {server.url}/metrics", err=True)
    try:
        yield server
    finally:
        server.close()


def _end_of(folder: str, otherwise: int = 0) -> int:
    """Return the end of a log; `otherwise` if it does not exist."""
    try:
        return LogReader(folder).end
    except LogError:
        return otherwise


def _shows(options: JsonOptions) -> Callable[[Progress | None], None]:
    """Return a function that shows a batch, as a bar in a terminal, else as a line."""
    if options.as_json:
        return lambda progress: (
            None if progress is None else say(to_json(progress.as_message()))
        )
    if not sys.stderr.isatty():
        return lambda progress: None if progress is None else say(_line(progress), err=True)
    is_drawn = False

    def show(progress: Progress | None) -> None:
        nonlocal is_drawn
        if progress is not None:
            share = progress.offset / progress.end if progress.end else 1.0
            bar = "█" * round(_BAR * share)
            line = printable(f"{bar:░<{_BAR}} {share:4.0%} {_line(progress)}")
            typer.echo(f"\r\x1b[K{line}", err=True, nl=False)
        elif is_drawn:
            say("", err=True)
        is_drawn = progress is not None

    return show


def _line(progress: Progress) -> str:
    """Return a micro-batch as a line of text."""
    return (
        f"{progress.query} batch {progress.batch}: {progress.rows:,} records in"
        f" {progress.seconds:.2f} s, {progress.rate:,.0f}/s, {progress.lag:,} wait"
    )


def _failure(error: Exception) -> Exception:
    """Return a one-line error for an error from Spark."""
    if isinstance(error, PipelineError | LogError):
        return error
    reason = reason_of(error).replace('option("deadLetters", …)', "--dead-letters")
    cause, _, step = reason.partition(";")
    return CliError(why=one_line(cause)[:_REASON], step=step.strip() or "see docs/pipeline.md")
