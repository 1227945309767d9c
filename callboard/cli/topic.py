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

from callboard.cli.options import JsonOptions, command, flag, noun, option
from callboard.cli.output import from_text, say, to_json
from callboard.cli.own_node import JoinOptions, catch_signals, confirm
from callboard.cli.problem import FAILED, Misuse, Problem, explained
from callboard.commitlog import CommitLog, LogError, Retention
from callboard.commitlog.log import Sync

if TYPE_CHECKING:
    from callboard.broker.recording import Recording
    from callboard.endpoint.hub import Hub
    from callboard.endpoint.message_queue import MessageQueue

#: Seconds between two looks for subscribers or confirmations.
PUBLISH_LOOK: Final = 0.01

#: Seconds between two looks whether a signal came, or enough was recorded.
SIGNAL_LOOK: Final = 0.05

#: Seconds between two lines of `--rate`.
RATE_INTERVAL: Final = 1.0

#: Seconds that the answer to a ping may take.
ANSWER_LIMIT: Final = 2.0

#: First part of a ping: `[PING, topic of the answer, number]`.
PING: Final = "callboard ping"

#: Where the topic of an answer begins: it is reserved, so users' subscriptions do not see it.
PONGS: Final = "<$>/pong/"

app = noun()


@dataclass(frozen=True, kw_only=True)
class PubOptions(JoinOptions):
    """How values are published."""

    rate: float = option(0.0, "Messages a second at most; 0 is no limit.", min=0.0)
    ping: bool = flag("Measure round trips to a `topic sub --ping` instead.", "--ping")
    count: int = option(10, "Round trips of --ping.", min=1)
    timeout: float = option(10.0, "Seconds for peers and subscribers to appear.", min=0.0)

    def pace(self, started: float, count: int) -> None:
        """Wait until message number `count` is due."""
        if self.rate:
            time.sleep(max(started + count / self.rate - time.monotonic(), 0.0))


@dataclass(frozen=True, kw_only=True)
class SubOptions(JoinOptions):
    """What is printed of the messages that arrive."""

    count: int = option(0, "End after so many messages; 0 is no end.", min=0)
    rate: bool = flag("Print messages a second instead of messages.", "--rate")
    ping: bool = flag("Answer each `topic pub --ping`.", "--ping")
    timeout: float = option(10.0, "Seconds to reach each peer.", min=0.0)


@dataclass(frozen=True, kw_only=True)
class RecordOptions(JoinOptions):
    """How messages are recorded."""

    folder: Path | None = option(None, "The directory of the log.", "--log", metavar="FOLDER")
    count: int = option(0, "End after so many messages; 0 is no end.", min=0)
    sync: str = option("group", "What is durable when: none, group (10 ms) or each.")
    retain: str = option("", "bytes=N,records=N,seconds=N; default: all.", metavar="LIMITS")
    columns: bool = flag("Keep what is complete as Parquet as well.", "--columns")
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
            metavar="[VALUES]...", help="Each JSON, or else text; default: the lines of stdin."
        ),
    ] = None,
) -> None:
    """Publish values, and wait until they are where somebody wants them.

    Publishing begins when some node in reach subscribes to the topic, and ends when all nodes
    have confirmed; --timeout 0 publishes to whoever is there.

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
    """Publish values, or the lines of the standard input as they come.

    Raises:
        Problem: nobody subscribes, or something was not confirmed.
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
    """Publish pings one after the other and print how long each answer took.

    Raises:
        Problem: no answer came.
    """
    from callboard.endpoint.message_queue import MessageQueue

    answers: MessageQueue[Any] = MessageQueue()
    back = f"{PONGS}{uuid.uuid4().hex}"
    times: list[float] = []
    with options.hub() as hub:
        hub.add_receiver(answers, [back]).result(options.timeout or 1.0)
        options.link(hub)
        _wait_for_subscribers(hub, topic, options.timeout)
        started = time.monotonic()
        for number in range(options.count):
            options.pace(started, number)
            took = _round_trip(hub, topic, back, number, answers)
            if took is not None:
                times.append(took)
                row = {"number": number, "ms": round(took * 1000, 3)}
                options.say(row, "answer {number} after {ms:.3f} ms".format(**row))
    if not times:
        step = f"start a subscriber that answers: callboard topic sub {topic} --ping"
        raise Problem(why=f"none of {options.count} pings on {topic} was answered", step=step)
    _sum_up(options.count, times, options)


def _round_trip(
    hub: "Hub", topic: str, back: str, number: int, answers: "MessageQueue[Any]"
) -> float | None:
    """Return the seconds until the first answer; None when none came in time."""
    sent = time.monotonic()
    hub.publish(topic, [PING, back, number])
    limit = sent + ANSWER_LIMIT
    while (left := limit - time.monotonic()) > 0:
        answer = answers.get(left)
        # Several subscribers may answer, and late ones after the next ping went out.
        if answer is not None and answer[1] == number:
            return time.monotonic() - sent
    return None


def _sum_up(count: int, times: list[float], options: JsonOptions) -> None:
    """Print the shortest, the median and the longest round trip."""
    row: dict[str, float] = {"sent": count, "answered": len(times)}
    for name, figure in (("min", min), ("median", median), ("max", max)):
        row[f"{name}_ms"] = round(figure(times) * 1000, 3)
    text = (
        "{sent} sent, {answered} answered · "
        "min {min_ms:.3f} · median {median_ms:.3f} · max {max_ms:.3f} ms"
    )
    options.say(row, text.format(**row))


def _wait_for_subscribers(hub: "Hub", topic: str, timeout: float) -> None:
    """Wait until some node in reach wants a topic; with `timeout` 0 do not care.

    Raises:
        Problem: none does in time.
    """
    deadline = time.monotonic() + timeout
    while timeout and not hub.receivers_of(topic).result(timeout):
        if time.monotonic() > deadline:
            step = f"start a subscriber: callboard topic sub {topic} --peer ADDRESS"
            raise Problem(why=f"nobody subscribed to {topic} within {timeout:g} s", step=step)
        time.sleep(PUBLISH_LOOK)


# --- sub ---


@command(app, "sub")
def subscribe(
    options: SubOptions,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPICS]...", help="What they begin with; default: all."),
    ] = None,
) -> None:
    """Print what arrives, one message a line, until Ctrl-C or SIGTERM.

    A subscription takes every topic that begins with it: /a takes /a/b and /ab.

    \b
    Examples:
      callboard topic sub /metrics --listen 127.0.0.1:4222
      callboard topic sub /metrics /log --peer basp://127.0.0.1:4222 --json | jq .data
      callboard topic sub --rate --peer basp://127.0.0.1:4222
    """  # noqa: D301
    from callboard.endpoint.machine.topic import is_reserved
    from callboard.endpoint.message_queue import MessageQueue

    queue: MessageQueue[Any] = MessageQueue(on_drop=_tell_dropped)
    with catch_signals() as stop, options.hub() as hub:
        hub.add_receiver(queue, tuple(topics or ("",))).result(options.timeout or 1.0)
        options.link(hub)
        lines = Lines(hub, options)
        while not stop.is_set() and not (options.count and lines.seen >= options.count):
            item = queue.get(SIGNAL_LOOK)
            if item is not None and not is_reserved(item[0]):
                lines.take(*item)
            lines.tell_rate(time.monotonic())


class Lines:
    """What is printed, and what is answered."""

    def __init__(self, hub: "Hub", options: SubOptions) -> None:
        self._hub = hub
        self._options = options
        self._told = (time.monotonic(), 0)
        #: Messages so far, without those that belong to endpoints themselves.
        self.seen = 0

    def take(self, topic: str, value: Any) -> None:
        """Take a message."""
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

    def tell_rate(self, now: float) -> None:
        """Print the rate of the last second, when one is over."""
        since, before = self._told
        if not self._options.rate or now - since < RATE_INTERVAL:
            return
        rate = (self.seen - before) / (now - since)
        self._told = (now, self.seen)
        row = {"rate": round(rate, 1), "messages": self.seen}
        self._options.say(row, f"{rate:,.0f} messages/s, {self.seen:,} in all")


def _tell_dropped(count: int) -> None:
    """Tell that messages came faster than they were printed."""
    say(f"{count:,} messages were dropped: they came faster than this prints", err=True)


# --- record ---


@command(app)
def record(
    options: RecordOptions,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPICS]... [FOLDER]",
            help="What they begin with, default all; without --log the log's directory.",
        ),
    ] = None,
) -> int:
    """Record what arrives into a log, until Ctrl-C or SIGTERM.

    A log that exists is gone on with. What came is durable when the command has ended; the
    exit code is 1 if messages were lost, because the disk was too slow or refused.

    \b
    Examples:
      callboard topic record /metrics metrics --listen 127.0.0.1:4222
      callboard topic record /cpu /disk --log metrics --peer basp://127.0.0.1:4222 --rate
      callboard topic record --log all --peer basp://127.0.0.1:4222 --retain seconds=86400
    """  # noqa: D301
    wanted, place = _split_arguments(topics or [], options.folder)
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
            recording = Recording(hub, wanted, make_log)
        with recording:
            _tell_begin(recording, options)
            options.link(hub)
            _follow_recording(recording, stop, options)
    _tell_end(recording, options)
    return FAILED if recording.lost else 0


def _follow_recording(recording: "Recording", stop: Event, options: RecordOptions) -> None:
    """Wait until a signal comes or enough was recorded."""
    told, before = time.monotonic(), 0
    while not stop.wait(SIGNAL_LOOK):
        if options.count and recording.recorded + recording.lost >= options.count:
            return
        now = time.monotonic()
        if options.rate and now - told >= RATE_INTERVAL:
            rate = (recording.recorded - before) / (now - told)
            told, before = now, recording.recorded
            figures = _figures(recording, "recorded", "waiting", "lost", "durable")
            row = {"rate": round(rate, 1), **figures}
            text = (
                "{rate:,.0f} messages/s, {recorded:,} in all, {waiting:,} wait, {lost:,} lost"
            )
            options.say(row, text.format(**row))


def _split_arguments(
    arguments: Sequence[str], folder: Path | None
) -> tuple[tuple[str, ...], Path]:
    """Return topics and the directory of the log, which may be the last argument.

    Raises:
        Problem: no directory was named.
    """
    if folder is not None:
        return tuple(arguments) or ("",), folder
    if len(arguments) < 2:  # one could be either of them
        raise Misuse(why="no log was named", step="say --log FOLDER, or TOPIC FOLDER")
    *topics, last = arguments
    return tuple(topics), Path(last)


def _parse_sync(text: str) -> Sync:
    """Return a mode of durability.

    Raises:
        Problem: there is no such mode.
    """
    if text in get_args(Sync):
        return cast(Sync, text)
    modes = ", ".join(get_args(Sync))
    raise Misuse(why=f"--sync {text!r} is no mode", step=f"give {modes}")


def parse_retention(text: str) -> Retention | None:
    """Return how long records are kept: `bytes=1000000,records=1000,seconds=3600`.

    Raises:
        Problem: it is something else.
    """
    if not text:
        return None
    try:
        return Retention.parse(text)
    except ValueError:
        step = "give for instance bytes=1000000000,seconds=86400 (or records=…)"
        raise Misuse(why=f"--retain {text!r} cannot be read", step=step) from None


def _tell_begin(recording: "Recording", options: JsonOptions) -> None:
    """Say where the recording begins; on the standard error, beside what is printed."""
    if options.as_json:
        row = {"log": str(recording.folder), "start": recording.start}
        say(to_json(row | {"resumed": recording.resumed}), err=True)
        return
    since = ""
    if recording.resumed is not None:
        moment = datetime.fromtimestamp(recording.resumed / 1e9, UTC)
        since = f", where it stopped at {moment:%Y-%m-%dT%H:%M:%SZ}"
    say(f"records into {recording.folder} from {recording.start}{since}", err=True)


def _tell_end(recording: "Recording", options: JsonOptions) -> None:
    """Print what was recorded."""
    figures = _figures(recording, "start", "end", "recorded", "lost")
    row = {"log": str(recording.folder), **figures}
    text = "recorded {recorded:,} messages, offsets {start} to {end}, {lost:,} lost"
    options.say(row, text.format(**row))
    if recording.error:
        say(recording.error, err=True)


def _figures(recording: "Recording", *names: str) -> dict[str, Any]:
    """Return figures of a recording by name."""
    return {name: getattr(recording, name) for name in names}
