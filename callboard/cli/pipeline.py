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
from callboard.cli.problem import FAILED, MISUSED, Problem, one_line, problem_of
from callboard.cli.topic import parse_retention
from callboard.cli.work.query_watch import QueryWatch, line_of, rows_from, rows_in
from callboard.commitlog import LogError, LogReader
from callboard.pipeline.errors import InvalidSetting, PipelineError, SparkMissing
from callboard.pipeline.failure import reason_of
from callboard.pipeline.function import stated_by
from callboard.pipeline.job import Job, find_query
from callboard.pipeline.progress import Handed, Progress, StatusFile, listener, query_metrics
from callboard.pipeline.queries import Query, Settings, seconds_of
from callboard.pipeline.state import Detection
from callboard.support.private_file import make_folder, open_private
from callboard.support.text import printable

if TYPE_CHECKING:
    from callboard.endpoint.hub import Hub
    from callboard.pages import Page, PageServer
    from callboard.pipeline.bridge import Bridge

#: Seconds between two looks whether a query has ended.
_LOOK: Final = 0.1

_BAR: Final = 24
_REASON: Final = 300

app = noun()


@dataclass(frozen=True, kw_only=True)
class QueryOptions(JsonOptions):
    """What a query is told, and the logs that it reads and writes."""

    log: str = option(
        ..., "The log: a folder or grpc://HOST:PORT/NAME.", "--log", metavar="FOLDER", **READ
    )
    topic: list[str] | None = option(
        None, "Only topics that begin so; repeatable.", "--topic", metavar="PREFIX", **READ
    )
    where: str = option(
        "",
        "Only records with such a topic, key, time or offset, like \"topic LIKE '/cpu/%' AND "
        "time >= '2026-01-31'\"; others are not decoded.",
        metavar="CONDITION",
        **READ,
    )
    schema: str = option(
        "",
        "Fields of payloads with types, like 'origin string, delay double, at timestamp', or a "
        "file with that. What does not fit is left out, or a dead letter.",
        metavar="DDL|FILE",
        **READ,
    )
    time: str = option(
        "",
        "The field with the event time: ISO 8601, seconds or milliseconds since 1970; default: "
        "when it was recorded.",
        metavar="FIELD",
        **READ,
    )
    dead_letters: str = option(
        "",
        "The log that takes records which do not decode: a folder, or s3://BUCKET/NAME.",
        "--dead-letters",
        metavar="FOLDER",
        **READ,
    )
    field: str = option("value", "The field that holds the value.", metavar="FIELD", **ASKED)
    by: str = option(
        "",
        "Tell results for each value of this field, or of key or sender; default: topic.",
        metavar="FIELD",
        **ASKED,
    )
    window: str = option("10s", "Length of windows, gap of sessions.", metavar="SPAN", **ASKED)
    delay: str = option("10s", "How late records may be.", metavar="SPAN", **ASKED)
    threshold: float = option(
        4.0, "Standard deviations that make an anomaly.", min=0.1, **ASKED
    )
    season: str = option(
        "", "For anomalies: for instance 1d:24.", metavar="SPAN:SLOTS", **ASKED
    )
    left: str = option("", "For a join: topics of one side.", metavar="PREFIX", **ASKED)
    right: str = option("", "For a join: of the other side.", metavar="PREFIX", **ASKED)
    within: str = option("10s", "For a join: how far apart.", metavar="SPAN", **ASKED)
    to: str = option(
        ...,
        "The log that takes the results: a folder, or s3://BUCKET/NAME.",
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
        "On a cluster, who has --to under this path: shared (all hosts) or driver.",
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
        "Be quicker by what leans on Spark's insides.", "--shortcuts", **RUNS
    )
    as_json: bool = flag("Print JSON lines.", "--json", **RUNS)

    def job(self, query: str, **run: Any) -> Job:
        """Return a query with all it needs; `run` is what `Job` takes beside.

        Raises:
            Problem: something of it makes no sense.
        """
        parse_retention(self.retain)  # or say what is wrong
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

    def _check(self, query: Query, settings: Settings) -> None:
        """Raise `InvalidSetting` where an option means nothing to the query."""
        usual = Settings()
        for name, (options, queries) in _MEANT.items():
            if name not in query.uses and getattr(settings, name) != getattr(usual, name):
                what = f"{options} means nothing to this query; it is for {queries}"
                raise InvalidSetting(what)
        if settings.by and stated_by(query):
            what = "--by means nothing to a function; let it group its rows itself"
            raise InvalidSetting(what)

    @property
    def settings_of_spark(self) -> dict[str, str]:
        """What `--conf` says.

        Raises:
            InvalidSetting: it has another form.
        """
        pairs = [each.partition("=") for each in self.conf or ()]
        for key, equals, _ in pairs:
            if not key.strip() or not equals:
                what = f"--conf {key!r} is no setting; give one like spark.executor.memory=2g"
                raise InvalidSetting(what)
        return {key.strip(): value for key, _, value in pairs}


#: Options that not all queries heed, by their settings, and which do.
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
    """How a query runs, and where results and progress go beside the log."""

    start: str = option(
        "earliest", "earliest, latest, offset or time.", "--from", metavar="PLACE", **READ
    )
    batch: bool = flag("Read what there is once, without a checkpoint.", "--batch", **RUNS)
    once: bool = flag("End when all that there is was read.", "--once", **RUNS)
    interval: str = option(
        "", "Time from one micro-batch to the next; default: none.", metavar="SPAN", **RUNS
    )
    max_rows: int | None = option(None, "Records of a micro-batch at most.", min=1, **RUNS)
    checkpoint: str = option(
        "",
        "Where the query keeps its place, any path of Spark; default: with the results.",
        metavar="FOLDER",
        **RUNS,
    )
    name: str = option("", "What this run is called; default: as the query.", **RUNS)
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
        "", "Where nodes reach this one for them.", metavar="HOST:PORT", **RESULTS
    )
    store: str = option(
        "", "A store whose entries are the results as well.", metavar="NAME", **RESULTS
    )
    wait: float = option(
        10.0,
        "Seconds that results wait for subscribers; then they are unheard.",
        min=0.0,
        metavar="SECONDS",
        **RESULTS,
    )
    insecure: bool = flag("Listen on public addresses without secret.", "--insecure", **RESULTS)

    def stream_job(self, query: str) -> Job:
        """Return the query that is run.

        Raises:
            Problem: options contradict each other.
        """
        with explained():
            if self.batch:
                given = [f"--{name}" for name in _OF_STREAMS if getattr(self, name)]
                if self.max_rows is not None:
                    given.append("--max-rows")
                if given:
                    what = f"{given[0]} means nothing to --batch; leave one of them out"
                    raise InvalidSetting(what)
            if self.once and self.interval:
                what = "--interval means nothing to --once, which ends when all was read"
                raise InvalidSetting(what)
            if self.store and not self.publishes:
                what = "--store needs a cluster that has it; give --peer or --listen"
                raise InvalidSetting(what)
            interval = seconds_of(self.interval) if self.interval else 0.0
        for listen in filter(None, (self.metrics, self.listen)):
            parse_listen(listen)
        read_secret(self.secret_file)
        return self.job(
            query,
            start=self.start,
            max_rows=self.max_rows,
            ends=self.once,
            interval=interval,
            name=self.name,
            checkpoint_at=self.checkpoint,
        )

    @property
    def publishes(self) -> bool:
        """Whether other nodes are told."""
        return bool(self.peer or self.listen)


#: Options that a batch has no use for.
_OF_STREAMS: Final = ("interval", "checkpoint", "peer", "listen", "store", "metrics")


@dataclass(frozen=True, kw_only=True)
class AgainOptions(QueryOptions):
    """Which part of a log is read again."""

    start: str = option(
        ..., "earliest, an offset or a time.", "--from", metavar="PLACE", **READ
    )
    until: str = option("latest", "latest, an offset or a time.", metavar="PLACE", **READ)


@dataclass(frozen=True, kw_only=True)
class StatusOptions(AccessOptions):
    """How the state of queries is printed."""

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
    """Run a query over a log until Ctrl-C; the next run goes on where this one ends.

    Results are appended to the log --to, each batch once whatever dies. With --peer or
    --listen they are messages as well, on their topics, and the progress of each batch is on
    $spark/NAME/progress.

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
    return _run_batch(job, options)


@command(app)
def status(
    place: Annotated[
        str, typer.Argument(metavar="FOLDER", help="The log of results, or basp://HOST:PORT.")
    ],
    options: StatusOptions,
) -> None:
    """Tell of queries: how far they are and how quick, what came too late or did not decode.

    In the folder of a log of results those that wrote there. At the address of a node all that
    run in its cluster with --peer or --listen: they tell of themselves each second.

    \b
    Examples:
      callboard pipeline status results
      callboard pipeline status basp://10.0.0.1:4222
      callboard pipeline status results --json | jq .lag
    """  # noqa: D301
    read_secret(options.secret_file)
    if "://" in place:
        found = rows_from(place, options, options.wait)
    else:
        found = rows_in(Path(place))
    if not found:
        step = "start one with: callboard pipeline run QUERY --log FOLDER --to FOLDER"
        raise Problem(why=f"no query has written into {place}", step=step)
    for row in found:
        options.say(row, line_of(row))


def _read_schema(text: str) -> str:
    """Return a schema, or what the file holds that is named.

    Raises:
        InvalidSetting: there is no such file.
    """
    with suppress(OSError, ValueError):  # names that are too long, or have zeros
        if text and Path(text).is_file():
            return Path(text).read_text()
    if text and not any(each in text for each in " \t\n:{"):
        what = (
            f"there is no file {text}; give one, or fields like 'origin string, delay double'"
        )
        raise InvalidSetting(what)
    return text


def _detection(threshold: float, season: str) -> Detection:
    """Return how anomalies are found."""
    if not season:
        return Detection(threshold)
    span, _, slots = season.partition(":")
    if not slots.isdecimal() or int(slots) < 1:
        what = f"--season {season!r} is no season; give one like 1d:24"
        raise InvalidSetting(what)
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
    """Run a query once over what there is; returns the exit code."""
    with explained(), _spark(job, options) as spark, catch_signals() as stop:
        begun, before = time.monotonic(), _end_of(job.to)
        try:
            with _interrupted(spark, stop):
                left_out = job.run_batch(spark)
        except Exception as error:  # noqa: BLE001  # Spark's errors are of many kinds
            if stop.is_set():
                say("stopped; no results were added", err=True)
                return FAILED
            raise _failure(error) from None
        row = {
            "query": job.title,
            "results": _end_of(job.to) - before,
            "seconds": round(time.monotonic() - begun, 3),
            "to": job.to,
            "undecodable": left_out,
        }
        text = "{query}: {results:,} results in {seconds:.1f} s, in {to}"
        if left_out:
            text += "; left out {undecodable:,} records that do not decode"
        options.say(row, text.format(**row))
        return 0


@contextmanager
def _interrupted(spark: Any, stop: Event) -> Iterator[None]:
    """Let a signal end what Spark does."""
    ended = Event()

    def watch() -> None:
        while not ended.is_set():
            if stop.wait(_LOOK) and not ended.is_set():
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
    """Run a query until a signal, or with `ends` until all was read; returns the exit code."""
    with ExitStack() as stack:
        stack.enter_context(explained())
        hub = stack.enter_context(options.hub()) if options.publishes else None
        if hub is not None:  # before Java takes its time
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
        if options.metrics:
            stack.callback(_serve_metrics(options, status).close)
        show = _shows(options)
        stack.callback(show, None)

        told: set[int] = set()

        def tell(progress: Progress) -> None:
            if progress.batch in told:
                return
            told.add(progress.batch)
            status.add(progress)
            show(progress)
            if hub is not None:
                hub.publish_batch((progress.topic, progress.as_message()))

        watcher = listener(job.title, tell)
        spark.streams.addListener(watcher)
        how, error = _follow(job, spark, stop, tell, watch)
        spark.streams.removeListener(watcher)
        show(None)
        if bridge is not None:
            _hand_over(bridge, stop)
        watch.close(how)
        if error is not None:
            raise _failure(error)
        handed = status.status.handed
        results = "" if handed is None else f"; {handed.text}"
        say(f"{job.title}: {how} after {status.status.rows:,} records{results}", err=True)
        return FAILED if handed is not None and handed.under_way else 0


def _follow(
    job: Job, spark: Any, stop: Event, tell: Callable[[Progress], None], watch: QueryWatch
) -> tuple[str, Exception | None]:
    """Run a query to its end; returns how that came, and why."""
    try:
        query = job.start_stream(spark)
        watch.query = query.id
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


@contextmanager
def _spark(job: Job, options: QueryOptions) -> Iterator[Any]:
    """Run a session; what is wrong with the query is told before, without Java."""
    job.check()
    settings = options.settings_of_spark
    from callboard.pipeline.spark_session import session

    # Java keeps the file, and what it says there.
    with _removed_unless_started(job.folder), _stderr_in(job.folder / "spark.log"):
        spark = session(
            options.master,
            name=f"callboard {job.title}",
            conf=settings,
            shortcuts=options.shortcuts,
        )
    from pyspark.logger import PySparkLogger

    # It writes the whole stack of Java to stderr for a name that is misspelt.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
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
    make_folder(path.parent)
    sys.stderr.flush()
    before = os.dup(2)
    file = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(file)


@contextmanager
def _bridge(job: Job, hub: "Hub", options: StreamOptions) -> Iterator["Bridge"]:
    """Hand results on as messages, and as entries of a store, while the block runs."""
    from callboard.pipeline.bridge import Bridge
    from callboard.store.attach import attach_clone, attach_master
    from callboard.store.errors import MasterExists

    def tell(topic: str, count: int) -> None:
        if count > 0:
            what = f"nobody subscribes to {topic}: {count:,} results wait"
            say(f"{what} for {options.wait:g} s", err=True)
        else:
            what = f"nobody came for {topic}: {-count:,} results are unheard, and those that"
            say(f"{what} follow until somebody subscribes", err=True)

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
        )
        stack.callback(bridge.close)
        yield bridge


def _hand_over(bridge: "Bridge", stop: Event) -> None:
    """Hand on what is there, and wait until those who take it have confirmed it.

    After a signal nothing waits for subscribers any more.
    """
    closing = Thread(target=bridge.close, daemon=True)
    closing.start()
    while closing.is_alive():
        if stop.is_set():
            bridge.leave()
        closing.join(_LOOK)
    bridge.await_taken(CONFIRM_LIMIT)


def _handed_of(bridge: "Bridge", job: Job) -> Handed:
    """Return what became of the results so far."""
    position = bridge.position  # first: what is handed on meanwhile is no more than counted
    waiting = max(0, _end_of(job.to, position) - position)
    under_way = bridge.under_way  # the other way round
    return Handed(
        max(bridge.handed, under_way), bridge.unheard, bridge.lost, waiting, under_way
    )


def _serve_metrics(options: StreamOptions, status: StatusFile) -> "PageServer":
    """Open the page with the figures of a query."""
    from callboard.pages import metrics_page

    def page() -> "Page":
        return metrics_page(query_metrics(status.status))

    server = open_metrics(options.metrics, options.metrics_host, page)
    say(f"metrics on {server.url}/metrics", err=True)
    return server


def _end_of(folder: str, otherwise: int = 0) -> int:
    """Return the end of a log, or something else where there is none."""
    try:
        return LogReader(folder).end
    except LogError:
        return otherwise


def _shows(options: JsonOptions) -> Callable[[Progress | None], None]:
    """Return what draws a batch: a bar in a terminal, else a line; None ends the drawing."""
    if options.as_json:
        return lambda each: None if each is None else say(to_json(each.as_message()))
    if not sys.stderr.isatty():
        return lambda each: None if each is None else say(_line(each), err=True)
    drawn = False

    def show(each: Progress | None) -> None:
        nonlocal drawn
        if each is not None:
            share = each.offset / each.end if each.end else 1.0
            bar = "█" * round(_BAR * share)
            line = printable(f"{bar:░<{_BAR}} {share:4.0%} {_line(each)}")
            typer.echo(f"\r\x1b[K{line}", err=True, nl=False)
        elif drawn:
            say("", err=True)
        drawn = each is not None

    return show


def _line(progress: Progress) -> str:
    """Return a micro-batch as a line of text."""
    return (
        f"{progress.query} batch {progress.batch}: {progress.rows:,} records in"
        f" {progress.seconds:.2f} s, {progress.rate:,.0f}/s, {progress.lag:,} wait"
    )


def _failure(error: Exception) -> Exception:
    """Return one line for what Spark tells in hundreds."""
    if isinstance(error, PipelineError | LogError):
        return error
    reason = reason_of(error).replace('option("deadLetters", …)', "--dead-letters")
    why, _, step = reason.partition(";")
    return Problem(why=one_line(why)[:_REASON], step=step.strip() or "see docs/pipeline.md")
