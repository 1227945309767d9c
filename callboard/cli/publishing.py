"""The work of `callboard topic pub`."""

import json
import sys
import time
import uuid
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, Final

import typer

from callboard.cli.failure import Failure
from callboard.cli.joining import Joining
from callboard.cli.values import from_text
from callboard.endpoint.hub import Hub
from callboard.endpoint.message_queue import MessageQueue
from callboard.endpoint.topic import RESERVED

LOOK_INTERVAL: Final = 0.01
"""Seconds between two looks for subscribers or confirmations."""

CONFIRM_LIMIT: Final = 10.0
"""Seconds that the nodes of subscribers may take to confirm; they do so once a second."""

ANSWER_LIMIT: Final = 2.0
"""Seconds that the answer to a ping may take."""

PING: Final = "callboard ping"
"""First part of a ping: `[PING, topic of the answer, number]`."""

PONGS: Final = f"{RESERVED}/pong/"
"""Where the topic of an answer begins: no user's subscription to a name of theirs sees it."""


def publish_values(joining: Joining, topic: str, values: Sequence[str], *, rate: float) -> None:
    """Publish values, or the lines of the standard input as they come.

    Raises:
        Failure: nobody subscribes, or something was not confirmed.
    """
    lines: Iterable[str] = values or (line.rstrip("\r\n") for line in sys.stdin)
    count = 0
    with joining.hub() as hub:
        joining.link(hub)
        wait_for_subscribers(hub, topic, joining.timeout)
        started = time.monotonic()
        for line in lines:
            pace(started, count, rate)
            hub.publish(topic, from_text(line))
            count += 1
        confirm(hub)
        nodes = len(hub.receivers_of(topic).result(joining.timeout or 1.0))
    if joining.as_json:
        typer.echo(json.dumps({"topic": topic, "published": count, "nodes": nodes}))


def measure_round_trips(joining: Joining, topic: str, *, count: int, rate: float) -> None:
    """Publish pings one after the other and print how long each answer took.

    Raises:
        Failure: no answer came.
    """
    answers: MessageQueue[Any] = MessageQueue()
    back = f"{PONGS}{uuid.uuid4().hex}"
    times: list[float] = []
    with joining.hub() as hub:
        hub.add_receiver(answers, [back]).result(joining.timeout or 1.0)
        joining.link(hub)
        wait_for_subscribers(hub, topic, joining.timeout)
        started = time.monotonic()
        for number in range(count):
            pace(started, number, rate)
            took = _round_trip(hub, topic, back, number, answers)
            if took is not None:
                times.append(took)
                _tell_time(number, took, as_json=joining.as_json)
    if not times:
        raise Failure(
            why=f"none of {count} pings on {topic} was answered",
            step=f"start a subscriber that answers: callboard topic sub {topic} --ping",
        )
    _sum_up(count, times, as_json=joining.as_json)


def _round_trip(
    hub: Hub, topic: str, back: str, number: int, answers: MessageQueue[Any]
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


def _tell_time(number: int, seconds: float, *, as_json: bool) -> None:
    milliseconds = round(seconds * 1000, 3)
    if as_json:
        typer.echo(json.dumps({"number": number, "ms": milliseconds}))
    else:
        typer.echo(f"answer {number} after {milliseconds:.3f} ms")


def _sum_up(count: int, times: list[float], *, as_json: bool) -> None:
    low, middle, high = (
        round(value * 1000, 3) for value in (min(times), median(times), max(times))
    )
    if as_json:
        figures = {"min_ms": low, "median_ms": middle, "max_ms": high}
        typer.echo(json.dumps({"sent": count, "answered": len(times), **figures}))
    else:
        typer.echo(
            f"{count} sent, {len(times)} answered · "
            f"min {low:.3f} · median {middle:.3f} · max {high:.3f} ms"
        )


def wait_for_subscribers(hub: Hub, topic: str, timeout: float) -> None:
    """Wait until some node in reach wants a topic; with `timeout` 0 do not care.

    Raises:
        Failure: none does in time.
    """
    deadline = time.monotonic() + timeout
    while timeout and not hub.receivers_of(topic).result(timeout):
        if time.monotonic() > deadline:
            raise Failure(
                why=f"nobody subscribed to {topic} within {timeout:g} s",
                step=f"start a subscriber: callboard topic sub {topic} --peer ADDRESS",
            )
        time.sleep(LOOK_INTERVAL)


def pace(started: float, count: int, rate: float) -> None:
    """Wait until message number `count` is due."""
    if rate:
        time.sleep(max(started + count / rate - time.monotonic(), 0.0))


def confirm(hub: Hub) -> None:
    """Wait until every node has confirmed what went to it.

    Raises:
        Failure: something is lost or unconfirmed.
    """
    deadline = time.monotonic() + CONFIRM_LIMIT
    hub.receivers_of("").result(CONFIRM_LIMIT)  # behind all that was published
    while any(account.in_flight for account in hub.node.accounts().values()):
        if time.monotonic() > deadline:
            raise Failure(
                why=f"some messages were not confirmed within {CONFIRM_LIMIT:g} s",
                step="see the logs of the nodes that subscribe",
            )
        time.sleep(LOOK_INTERVAL)
    lost = sum(account.lost for account in hub.node.accounts().values())
    if lost or hub.counters.dropped:
        raise Failure(
            why="some messages are lost or unconfirmed: a link or a node went away",
            step="publish them again when it is back",
        )
