"""`callboard topic …`: publish, subscribe, record."""

import sys
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_args

import typer

from callboard.backoff import is_reached
from callboard.cli.cli_error import FAILED, CliError, UsageError, explained
from callboard.cli.options import JsonOptions, command, flag, noun, option
from callboard.cli.output import from_text, say, to_json
from callboard.cli.own_node import JoinOptions, catch_signals, confirm
from callboard.commitlog import CommitLog, LogError, Retention
from callboard.commitlog.log import Sync

if TYPE_CHECKING:
    from callboard.broker.recording import Recording
    from callboard.topics.hub import Hub
    from callboard.topics.message_queue import MessageQueue

#: Seconds between checks for subscribers.
PUBLISH_POLL_SECONDS: Final = 0.01

#: Seconds between checks for a signal, or for the end of the recording.
SIGNAL_POLL_SECONDS: Final = 0.05

#: Seconds between lines of `--rate`.
RATE_INTERVAL: Final = 1.0

#: Timeout of the reply to a ping, in seconds.
ANSWER_LIMIT: Final = 2.0

#: First item of a ping: `[PING, topic of the reply, number]`.
PING: Final = "callboard ping"

#: Prefix of the reply's topic; it is reserved, so users' subscriptions do not match it.
PONGS: Final = "<$>/pong/"

app = noun()


@dataclass(frozen=True, kw_only=True)
class PubOptions(JoinOptions):
    """Options of publishing."""

    rate: float = option(0.0, "Most messages per second; 0 for no limit.", min=0.0)
    ping: bool = flag("Measure round trips to a `topic sub --ping` instead.", "--ping")
    count: int = option(10, "Number of round trips with --ping.", min=1)
    timeout: float = option(10.0, "Seconds for peers and subscribers to appear.", min=0.0)

    def pace(self, started: float, count: int) -> None:
        """Wait until message number `count` is due."""
        if self.rate:
            time.sleep(max(started + count / self.rate - time.monotonic(), 0.0))


@dataclass(frozen=True, kw_only=True)
class SubOptions(JoinOptions):
    """Options of printing."""

    count: int = option(0, "End after this many messages; 0 for no end.", min=0)
    rate: bool = flag("Print messages per second instead of messages.", "--rate")
    ping: bool = flag("Answer each `topic pub --ping`.", "--ping")
    timeout: float = option(10.0, "Seconds to reach each peer.", min=0.0)


@dataclass(frozen=True, kw_only=True)
class RecordOptions(JoinOptions):
    """Options of a recording."""

    folder: Path | None = option(None, "The directory of the log.", "--log", metavar="FOLDER")
    count: int = option(0, "End after this many messages; 0 for no end.", min=0)
    sync: str = option("group", "Durability: none, group (every 10 ms) or each message.")
    retain: str = option("", "bytes=N,records=N,seconds=N; default: all.", metavar="LIMITS")
    columns: bool = flag("Also keep sealed segments as Parquet.", "--columns")
    rate: bool = flag("Print figures every second.", "--rate")
    timeout: float = option(10.0, "Seconds to reach each peer.", min=0.0)


# --- pub ---


@command(app, "pub")
def publish(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="For instance /metrics/cpu.")],
    options: PubOptions,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VALUES]...", help="Each JSON or text; default: the lines of stdin."
        ),
    ] = None,
) -> None:
    """Publish values, and wait until all subscribers' nodes have received them.

    Publishing starts when a reachable node subscribes to the topic, and ends when all nodes
    have confirmed. With --timeout 0 it starts at once.

    \b
    Examples:
      callboard topic pub /metrics/cpu 0.5 --peer basp://127.0.0.1:4222
      tail -f app.log | callboard topic pub /log/app --listen 127.0.0.1:4223
      callboard topic pub /metrics --ping --count 100 --peer basp://127.0.0.1:4222 --json
    """  # noqa: D301
    if options.ping:
        _measure_round_trips(topic, options)
    else:
        _publish_values(topic, values or (), options)


def _publish_values(topic: str, values: Sequence[str], options: PubOptions) -> None:
    """Publish values, or the lines of standard input as they arrive.

    Raises:
        CliError: there is no subscriber, or a message was not confirmed.
    """
    lines: Iterable[str] = values or (line.rstrip("\r\n") for line in sys.stdin)
    count = 0
    with options.hub() as hub:
        options.link(hub)
        _wait_for_subscribers(hub, topic, options.timeout)
        started = time.monotonic()
        for line in lines:
            options.pace(started, count)
            hub.publish(topic, from_text(line))
            count += 1
        confirm(hub)
        nodes = len(hub.receivers_of(topic).result(options.timeout or 1.0))
    if options.as_json:
        say(to_json({"topic": topic, "published": count, "nodes": nodes}))


def _measure_round_trips(topic: str, options: PubOptions) -> None:
    """Publish pings one after the other, and print the time of each reply.

    Raises:
        CliError: there was no reply.
    """
    from callboard.topics.message_queue import MessageQueue

    replies: MessageQueue[Any] = MessageQueue()
    back = f"{PONGS}{uuid.uuid4().hex}"
    times: list[float] = []
    with options.hub() as hub:
        hub.add_receiver(replies, [back]).result(options.timeout or 1.0)
        options.link(hub)
        _wait_for_subscribers(hub, topic, options.timeout)
        started = time.monotonic()
        for number in range(options.count):
            options.pace(started, number)
            seconds = _round_trip(hub, topic, back, number, replies)
            if seconds is not None:
                times.append(seconds)
                row = {"number": number, "ms": round(seconds * 1000, 3)}
                options.say(row, "answer {number} after {ms:.3f} ms".format(**row))
    if not times:
        step = f"start a subscriber that answers: callboard topic sub {topic} --ping"
        raise CliError(why=f"none of {options.count} pings on {topic} was answered", step=step)
    _sum_up(options.count, times, options)


def _round_trip(
    hub: "Hub", topic: str, back: str, number: int, replies: "MessageQueue[Any]"
) -> float | None:
    """Return the seconds until the first reply; None if there was none in time."""
    start = time.monotonic()
    hub.publish(topic, [PING, back, number])
    limit = start + ANSWER_LIMIT
    while (left := limit - time.monotonic()) > 0:
        reply = replies.get(left)
        # Several subscribers may reply, and a late reply may belong to an earlier ping.
        if reply is not None and reply[1] == number:
            return time.monotonic() - start
    return None


def _sum_up(count: int, times: list[float], options: JsonOptions) -> None:
    """Print the shortest, median and longest round trip."""
    row: dict[str, float] = {"sent": count, "answered": len(times)}
    for name, figure in (("min", min), ("median", median), ("max", max)):
        row[f"{name}_ms"] = round(figure(times) * 1000, 3)
    text = (
        "{sent} sent, {answered} answered · "
        "min {min_ms:.3f} · median {median_ms:.3f} · max {max_ms:.3f} ms"
    )
    options.say(row, text.format(**row))


def _wait_for_subscribers(hub: "Hub", topic: str, timeout: float) -> None:
    """Wait until a reachable node subscribes; return at once if `timeout` is 0.

    Raises:
        CliError: no node subscribed in time.
    """

    def has_subscriber() -> bool:
        return bool(hub.receivers_of(topic).result(timeout))

    if timeout and not is_reached(has_subscriber, PUBLISH_POLL_SECONDS, timeout):
        step = f"start a subscriber: callboard topic sub {topic} --peer ADDRESS"
        reason = f"no node subscribed to {topic} within {timeout:g} s"
        raise CliError(why=reason, step=step)


# --- sub ---


@command(app, "sub")
def subscribe(
    options: SubOptions,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPICS]...", help="Prefixes of topics; default: all."),
    ] = None,
) -> None:
    """Print received messages, one per line, until Ctrl-C or SIGTERM.

    A subscription matches every topic with that prefix: /a matches /a/b and /ab.

    \b
    Examples:
      callboard topic sub /metrics --listen 127.0.0.1:4222
      callboard topic sub /metrics /log --peer basp://127.0.0.1:4222 --json | jq .data
      callboard topic sub --rate --peer basp://127.0.0.1:4222
    """  # noqa: D301
    from callboard.topics.machine.topic import is_reserved
    from callboard.topics.message_queue import MessageQueue

    queue: MessageQueue[Any] = MessageQueue(on_drop=_print_dropped)
    with catch_signals() as stop, options.hub() as hub:
        hub.add_receiver(queue, tuple(topics or ("",))).result(options.timeout or 1.0)
        options.link(hub)
        lines = Lines(hub, options)
        while not stop.is_set() and not (options.count and lines.seen >= options.count):
            item = queue.get(SIGNAL_POLL_SECONDS)
            if item is not None and not is_reserved(item[0]):
                lines.take(*item)
            lines.print_rate(time.monotonic())


class Lines:
    """Prints messages and rates, and answers pings."""

    def __init__(self, hub: "Hub", options: SubOptions) -> None:
        self._hub = hub
        self._options = options
        self._last_report = (time.monotonic(), 0)
        #: Number of received messages, except on reserved topics.
        self.seen = 0

    def take(self, topic: str, value: Any) -> None:
        """Print a message, and answer it if it is a ping."""
        self.seen += 1
        if self._options.ping:
            match value:
                case (kind, str() as back, int() as number):
                    if kind == PING and back.startswith(PONGS):
                        self._hub.publish(back, number)
        if self._options.rate:
            return
        if self._options.as_json:
            say(f'{{"topic": {to_json(topic)}, "data": {to_json(value)}}}')
        else:
            say(f"{topic}  {value if isinstance(value, str) else to_json(value)}")

    def print_rate(self, now: float) -> None:
        """Print the rate since the last time, once per second."""
        since, previous = self._last_report
        if not self._options.rate or now - since < RATE_INTERVAL:
            return
        rate = (self.seen - previous) / (now - since)
        self._last_report = (now, self.seen)
        row = {"rate": round(rate, 1), "messages": self.seen}
        self._options.say(row, f"{rate:,.0f} messages/s, {self.seen:,} in total")


def _print_dropped(count: int) -> None:
    """Report messages that arrived faster than they were printed."""
    say(f"{count:,} messages were dropped: they arrive faster than they are printed", err=True)


# --- record ---


@command(app)
def record(
    options: RecordOptions,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPICS]... [FOLDER]",
            help="Prefixes of topics, default all; without --log also the log's directory.",
        ),
    ] = None,
) -> int:
    """Record messages in a log, until Ctrl-C or SIGTERM.

    An existing log is continued. All received messages are durable when the command has ended.
    The exit code is 1 if messages were lost, because the disk was too slow or failed.

    \b
    Examples:
      callboard topic record /metrics metrics --listen 127.0.0.1:4222
      callboard topic record /cpu /disk --log metrics --peer basp://127.0.0.1:4222 --rate
      callboard topic record --log all --peer basp://127.0.0.1:4222 --retain seconds=86400
    """  # noqa: D301
    prefixes, place = _split_arguments(topics or [], options.folder)
    make_log = partial(
        CommitLog,
        place,
        sync=_parse_sync(options.sync),
        retain=parse_retention(options.retain),
        columns=options.columns,
    )
    from callboard.broker.recording import Recording

    with catch_signals() as stop, options.hub() as hub:
        with explained(LogError, "callboard log ls"):
            recording = Recording(hub, prefixes, make_log)
        with recording:
            _print_begin(recording, options)
            options.link(hub)
            _follow_recording(recording, stop, options)
    _print_end(recording, options)
    return FAILED if recording.lost else 0


def _follow_recording(recording: "Recording", stop: Event, options: RecordOptions) -> None:
    """Wait for a signal or the end of the recording; print the rate."""
    last_report, previous = time.monotonic(), 0
    while not stop.wait(SIGNAL_POLL_SECONDS):
        if options.count and recording.recorded + recording.lost >= options.count:
            return
        now = time.monotonic()
        if options.rate and now - last_report >= RATE_INTERVAL:
            rate = (recording.recorded - previous) / (now - last_report)
            last_report, previous = now, recording.recorded
            figures = _figures(recording, "recorded", "waiting", "lost", "durable")
            row = {"rate": round(rate, 1), **figures}
            text = (
                "{rate:,.0f} messages/s, {recorded:,} in total, {waiting:,} wait, {lost:,} lost"
            )
            options.say(row, text.format(**row))


def _split_arguments(
    arguments: Sequence[str], folder: Path | None
) -> tuple[tuple[str, ...], Path]:
    """Return topics and the directory of the log, which may be the last argument.

    Raises:
        CliError: the directory is missing.
    """
    if folder is not None:
        return tuple(arguments) or ("",), folder
    if len(arguments) < 2:  # a single argument could be a topic or a directory
        raise UsageError(why="the log is missing", step="use --log FOLDER, or TOPIC FOLDER")
    *topics, folder_name = arguments
    return tuple(topics), Path(folder_name)


def _parse_sync(text: str) -> Sync:
    """Return a mode of durability.

    Raises:
        CliError: there is no such mode.
    """
    if text in get_args(Sync):
        return cast(Sync, text)
    modes = ", ".join(get_args(Sync))
    raise UsageError(why=f"--sync {text!r} is not a mode", step=f"use {modes}")


def parse_retention(text: str) -> Retention | None:
    """Return a retention such as `bytes=1000000,records=1000,seconds=3600`.

    Raises:
        CliError: the text has another form.
    """
    if not text:
        return None
    try:
        return Retention.parse(text)
    except ValueError:
        step = "use a value like bytes=1000000000,seconds=86400 (or records=…)"
        raise UsageError(why=f"--retain {text!r} cannot be read", step=step) from None


def _print_begin(recording: "Recording", options: JsonOptions) -> None:
    """Print the start of the recording to standard error."""
    if options.as_json:
        row = {"log": str(recording.folder), "start": recording.start}
        say(to_json(row | {"resumed": recording.resumed}), err=True)
        return
    since = ""
    if recording.resumed is not None:
        moment = datetime.fromtimestamp(recording.resumed / 1e9, UTC)
        since = f", continuing from {moment:%Y-%m-%dT%H:%M:%SZ}"
    say(f"records into {recording.folder} from {recording.start}{since}", err=True)


def _print_end(recording: "Recording", options: JsonOptions) -> None:
    """Print the result of the recording."""
    figures = _figures(recording, "start", "end", "recorded", "lost")
    row = {"log": str(recording.folder), **figures}
    text = "recorded {recorded:,} messages, offsets {start} to {end}, {lost:,} lost"
    options.say(row, text.format(**row))
    if recording.error:
        say(recording.error, err=True)


def _figures(recording: "Recording", *names: str) -> dict[str, Any]:
    """Return figures of a recording by name."""
    return {name: getattr(recording, name) for name in names}
