"""Thespian's own system bases, with their counterparts of asks and floods.

An actor of Thespian cannot await an answer; it sends, and the answer is its next message. So
the ask is a ping-pong of plain messages. Both measures are timed inside the sending actor. With
the multiprocess bases each actor is a process.
"""

import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from thespian.actors import Actor, ActorAddress, ActorSystem

from benchmarks.processes import BUILD, RunFailedError

LIMIT = timedelta(seconds=50)
"""For one measure."""


@dataclass
class Start:
    """Start with this partner."""

    count: int
    partner: ActorAddress


class Pong(Actor):
    """Counts numbers below zero, tells its count when asked in words, returns the rest."""

    seen = 0

    def receiveMessage(self, message: Any, sender: ActorAddress) -> None:
        """Handle any message."""
        if message == "count":
            self.send(sender, f"{self.seen}")
        elif isinstance(message, int):
            if message < 0:
                self.seen += 1
            else:
                self.send(sender, message)


class Ping(Actor):
    """Sends a number, and again when it comes back."""

    def receiveMessage(self, message: Any, sender: ActorAddress) -> None:
        """Start, or take one number back."""
        if isinstance(message, Start):
            self.left, self.asker = message.count, sender
            self.started = time.perf_counter()
            self.send(message.partner, 1)
        elif isinstance(message, int):
            self.left -= 1
            if self.left:
                self.send(sender, message)
            else:
                self.send(self.asker, time.perf_counter() - self.started)


class Flooder(Actor):
    """Fires all messages inside one handler, then asks for the count."""

    def receiveMessage(self, message: Any, sender: ActorAddress) -> None:
        """Start, or take the count."""
        if isinstance(message, Start):
            self.count, self.asker = message.count, sender
            self.started = time.perf_counter()
            for number in range(message.count):
                self.send(message.partner, -1 - number)
            self.send(message.partner, "count")
        elif isinstance(message, str):
            took = time.perf_counter() - self.started
            self.send(self.asker, took if int(message) == self.count else f"saw only {message}")


def ping_pong(base: str, count: int) -> float:
    """Measure round trips for each second between two actors."""
    return measured(base, Ping, count)


def flood(base: str, count: int) -> float:
    """Measure one-way messages for each second, until all were counted."""
    return measured(base, Flooder, count)


def measured(base: str, sender_class: type[Actor], count: int) -> float:
    """Return the rate of an actor of `sender_class` with a pong."""
    BUILD.mkdir(parents=True, exist_ok=True)
    os.environ["THESPLOG_FILE"] = str(BUILD / "thespian.log")
    quiet = {"version": 1}
    admin = {"Admin Port": free_port()}
    system = ActorSystem(base, admin, logDefs=quiet, transientUnique=True)
    try:
        pong = system.createActor(Pong)
        sender = system.createActor(sender_class)
        took = system.ask(sender, Start(count, pong), LIMIT)
    finally:
        system.shutdown()
    if not isinstance(took, float):
        message = f"{base}: {took or 'no answer'}"
        raise RunFailedError(message)
    return count / took


def free_port() -> int:
    """Find a free port on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
