"""Implementation of `callboard zeek logger`: run the logger, and print its figures."""

import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any, Final

from callboard.cli.cli_error import FAILED, CliError, UsageError, explained
from callboard.cli.options import JsonOptions, flag, option
from callboard.cli.own_node import METRICS_HOST, catch_signals, open_metrics
from callboard.cli.topic import parse_retention
from callboard.commitlog.errors import LogError
from callboard.support.dataclass import dataclass

#: Seconds between checks for a signal, and for the number of records.
_POLL_SECONDS: Final = 0.05
_HELP: Final = "see callboard zeek logger --help"


@dataclass(frozen=True, kw_only=True)
class LoggerOptions(JsonOptions):
    """Address of the logger, and retention of its logs."""

    listen: str = option(
        "127.0.0.1:5557", "Address for nodes; port 0 picks a free one.", metavar="HOST:PORT"
    )
    curve: Path | None = option(
        None, "TOML file with CURVE keys: secret, and a list of clients.", metavar="FILE"
    )
    insecure: bool = flag("Listen on a public address without keys.", "--insecure")
    retain: str = option(
        "", "bytes=N,records=N,seconds=N of each log; default: all.", metavar="LIMITS"
    )
    segment_seconds: float | None = option(
        None, "Largest age of a segment, in seconds.", min=0.001
    )
    columns: bool = flag("Also keep sealed segments as Parquet.", "--columns")
    compression: str = option("", "Compression of batches: zstd or zlib.")
    archive: str = option(
        "", "Target for copies of the logs, like s3://bucket/zeek.", metavar="ADDRESS"
    )
    sync_interval: float = option(0.2, "Seconds between syncs of a log.", min=0.001)
    high_water_mark: int = option(
        1000, "Messages queued here per node; above it the node queues its own.", min=1
    )
    metrics: str = option("", "Serve /metrics for Prometheus.", metavar="HOST:PORT")
    metrics_host: list[str] | None = option(None, METRICS_HOST, metavar="NAME")
    interval: float = option(10.0, "Seconds between lines of figures; 0 for none.", min=0.0)
    count: int = option(0, "End after this many records; 0 for no end.", min=0)
    as_json: bool = flag("Print JSON lines.", "--json")


def run_logger(folder: Path, options: LoggerOptions) -> int:
    """Run a logger until a signal; return the exit code.

    Raises:
        CliError: the logger cannot start.
    """
    from callboard.kernel.errors import PortUnavailable, PublicAddress
    from callboard.model.errors import EndpointError

    try:
        from callboard.zeek.doors.zeek_logger import ZeekLogger
    except ImportError as error:
        reason = f"this needs a package ({error.name})"
        raise CliError(why=reason, step="pip install 'callboard[zmq]'") from error
    limits = parse_retention(options.retain)
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # for logs and connections
    with catch_signals() as stop, ExitStack() as stack:
        try:
            with explained((LogError, EndpointError, PortUnavailable), _HELP):
                logger = ZeekLogger(
                    folder,
                    options.listen,
                    curve=options.curve,
                    insecure=options.insecure,
                    high_water_mark=options.high_water_mark,
                    sync_interval=options.sync_interval,
                    retain=limits,
                    segment_seconds=options.segment_seconds,
                    columns=options.columns,
                    compression=options.compression or None,  # type: ignore[arg-type]
                    archive=options.archive,
                )
        except PublicAddress as error:
            reason, step = str(error).partition(";")[0], "list its nodes with --curve FILE"
            raise UsageError(why=reason, step=f"{step}, or use --insecure") from None
        reporter = _Reporter(logger, options)
        stack.callback(reporter.last)
        stack.enter_context(reporter.closing())
        if options.metrics:
            stack.enter_context(_metrics(options))
        reporter.begin()
        while not stop.wait(_POLL_SECONDS) and not reporter.report():
            pass
    return reporter.code


@contextmanager
def _metrics(options: LoggerOptions) -> Iterator[None]:
    """Serve the metrics of this process."""
    from callboard.figures import process_metrics
    from callboard.pages import metrics_page

    def page() -> Any:
        return metrics_page(process_metrics())

    server = open_metrics(options.metrics, options.metrics_host, page)
    options.say({"metrics": server.url}, f"metrics at {server.url}/metrics", err=True)
    try:
        yield
    finally:
        server.close()


class _Reporter:
    """Prints the figures of a logger.

    Attributes:
        code: the exit code.
    """

    def __init__(self, logger: Any, options: LoggerOptions) -> None:
        self._logger, self._options = logger, options
        self._since, self._before = monotonic(), 0
        self._stalled = ""
        self.code = 0

    def begin(self) -> None:
        """Print the address for nodes."""
        address, folder = self._logger.address, self._logger.folder
        text = f"logs of Zeek are written to {folder}; connect_log_endpoints: {address}"
        self._options.say({"address": address, "folder": str(folder)}, text, err=True)

    def report(self) -> bool:
        """Print due figures and errors; return whether there are enough records."""
        stats, now, every = self._logger.stats(), monotonic(), self._options.interval
        if stats.stalled != self._stalled:
            self._stalled = stats.stalled
            if self._options.as_json:  # in text mode the logger itself logs it
                self._options.say({"stalled": self._stalled}, "", err=True)
        if every and now - self._since >= every:
            rate = (stats.records - self._before) / (now - self._since)
            self._since, self._before = now, stats.records
            self._print_figures(stats, f" ({rate:,.0f}/s)", {"rate": round(rate, 1)})
        return bool(self._options.count) and stats.records >= self._options.count

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Close the logger at the end, and report records that were not written."""
        try:
            yield
        finally:
            try:
                self._logger.close()
            except LogError as error:
                self.code = FAILED
                self._options.say({"error": str(error)}, f"callboard: {error}", err=True)

    def last(self) -> None:
        """Print the last figures."""
        self._print_figures(self._logger.stats(), "", {})

    def _print_figures(self, stats: Any, rate: str, more: dict[str, Any]) -> None:
        """Print figures."""
        parts = [f"{stats.records:,} records{rate} in {len(stats.logs)} logs"]
        parts.append(f"from {len(stats.nodes)} nodes")
        malformed = sum(stats.malformed.values())
        for count, label in (
            (malformed, "malformed messages"),
            (stats.refused, "records beyond the limit of logs"),
            (stats.rejected, "connections with other keys"),
            (stats.lost, "records lost"),
        ):
            parts += [f"{count:,} {label}"] * bool(count)
        self._options.say(asdict(stats) | more, ", ".join(parts))
