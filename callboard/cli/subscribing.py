"""The work of `callboard topic sub`."""

import json
import threading
import time
from typing import Any, Final

import typer

from callboard.cli.joining import Joining
from callboard.cli.listening import catch_signals
from callboard.cli.publishing import PING, PONGS
from callboard.cli.values import to_json
from callboard.endpoint.hub import Hub
from callboard.endpoint.message_queue import MessageQueue
from callboard.endpoint.topic import is_reserved

LOOK_INTERVAL: Final = 0.1
"""Seconds between two looks whether a signal came."""

RATE_INTERVAL: Final = 1.0
"""Seconds between two lines of `--rate`."""


def print_messages(
    joining: Joining, topics: tuple[str, ...], *, count: int, shows_rate: bool, answers: bool
) -> None:
    """Print what arrives until a signal comes, or `count` messages did (0: without end)."""
    stop = threading.Event()
    queue: MessageQueue[Any] = MessageQueue(on_drop=_tell_dropped)
    with catch_signals(stop), joining.hub() as hub:
        hub.add_receiver(queue, topics).result(joining.timeout or 1.0)
        joining.link(hub)
        lines = Lines(hub, as_json=joining.as_json, shows_rate=shows_rate, answers=answers)
        while not stop.is_set() and not (count and lines.seen >= count):
            item = queue.get(LOOK_INTERVAL)
            if item is not None:
                lines.take(*item)
            lines.tell_rate(time.monotonic())


class Lines:
    """What is printed, and what is answered."""

    def __init__(self, hub: Hub, *, as_json: bool, shows_rate: bool, answers: bool) -> None:
        self._hub = hub
        self._as_json = as_json
        self._shows_rate = shows_rate
        self._answers = answers
        self._told = (time.monotonic(), 0)
        #: Messages so far, without those that belong to endpoints themselves.
        self.seen = 0

    def take(self, topic: str, value: Any) -> None:
        """Take a message."""
        if is_reserved(topic):
            return
        self.seen += 1
        if self._answers:
            match value:
                case (kind, str() as back, int() as number) if kind == PING and back.startswith(
                    PONGS
                ):
                    self._hub.publish(back, number)
        if self._shows_rate:
            return
        if self._as_json:
            typer.echo(f'{{"topic": {to_json(topic)}, "data": {to_json(value)}}}')
        else:
            typer.echo(f"{topic}  {value if isinstance(value, str) else to_json(value)}")

    def tell_rate(self, now: float) -> None:
        """Print the rate of the last second, when one is over."""
        since, before = self._told
        if not self._shows_rate or now - since < RATE_INTERVAL:
            return
        rate = (self.seen - before) / (now - since)
        self._told = (now, self.seen)
        if self._as_json:
            typer.echo(json.dumps({"rate": round(rate, 1), "messages": self.seen}))
        else:
            typer.echo(f"{rate:,.0f} messages/s, {self.seen:,} in all")


def _tell_dropped(count: int) -> None:
    typer.echo(f"{count:,} messages were dropped: they came faster than this prints", err=True)
