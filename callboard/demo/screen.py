"""The terminal: output as plain lines, and the keyboard commands.

`callboard.demo.view` draws the picture.
"""

import os
import sys
import termios
import tty
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, TextIO

from callboard.demo.line import LINKS, NAMES
from callboard.demo.scene import Scene, SceneEvent
from callboard.support.text import printable


class DemoScreen(Protocol):
    """The output of the demo."""

    interval: float
    link: str

    def open(self, start_ms: float) -> None:
        """Start the output; `start_ms` is the time since the start, in milliseconds."""

    def event(self, event: SceneEvent, seconds: float) -> None:
        """Show an event."""

    def draw(self, scene: Scene, seconds: float, prompt: str) -> None:
        """Show the current state."""

    def close(self) -> None:
        """Restore the terminal."""


#: Seconds between two status lines.
STATUS_INTERVAL: Final = 2.0


class PlainScreen:
    """Prints lines without control characters; if silent, prints nothing."""

    #: Seconds between two pictures.
    interval = STATUS_INTERVAL

    def __init__(self, out: TextIO | None = None, *, is_silent: bool = False) -> None:
        self._out = out or sys.stdout
        self._is_silent = is_silent
        self.link = ""

    def open(self, start_ms: float) -> None:
        """Print the first line, with the time since the start."""
        self._print(
            "callboard demo: A ── B ── C ── D · "
            f"first picture {start_ms:,.0f} ms after the start"
        )

    def event(self, event: SceneEvent, seconds: float) -> None:
        """Print an event."""
        self._print(event_line(event, seconds))

    def draw(self, scene: Scene, seconds: float, prompt: str) -> None:
        """Print the status line."""
        self._print(status_line(scene, seconds))

    def close(self) -> None:
        """Do nothing: the terminal was not changed."""

    def _print(self, text: str) -> None:
        if not self._is_silent:
            print(printable(text, allowed="\n\t"), file=self._out, flush=True)


def event_line(event: SceneEvent, seconds: float) -> str:
    """Format an event as a line of the log."""
    since = "" if event.since_ms is None else f"{event.since_ms:+,.1f} ms"
    return f"{seconds:7.3f} s {since:>12}  {event.text}"


def status_line(scene: Scene, seconds: float) -> str:
    """Format the state of all nodes as one line."""
    states = " ".join(f"{view.name}:{view.state}" for view in scene.nodes.values())
    states = states.replace("unreachable", "out of reach")
    balance = scene.balance()
    parts = [
        f"{seconds:7.3f} s  {states}",
        f"aggregator on {scene.host or 'none'}",
        f"sent {balance.sent:,} delivered {balance.delivered:,} lost {balance.lost:,}",
    ]
    if scene.topic_rates:
        parts.append(f"{len(scene.topic_rates)} topics {scene.topics_rate():.0f} msg/s")
    cpu = scene.snapshot.get("subjects", {}).get("cpu")
    if cpu is not None:
        parts.append(f"cpu mean {cpu['mean']:.0f} % p95 {cpu['p95']:.0f} %")
    if scene.holdings.lives:
        parts.append(scene.holdings.status())
    if results := scene.findings.status():
        parts.append(results)
    if scene.follower.last is not None:
        parts.append(scene.follower.last.line())
    return " · ".join(parts)


HELP: Final = "k kill a node · p freeze it, again: let it go on · c cut a link · q end"

Verb = Literal["kill", "freeze", "cut"]

_VERBS: Final[dict[str, Verb]] = {"k": "kill", "p": "freeze", "c": "cut"}


class KeyCommand(NamedTuple):
    """A user's command; `target` is a node, for `cut` the link's end nearer to A."""

    verb: Verb | Literal["quit"]
    target: str = ""


class KeyParser:
    """Turns keys into commands. Pure: `k` then `c` kills C; any other key cancels `k`."""

    def __init__(self) -> None:
        self._verb: Verb | None = None

    @property
    def prompt(self) -> str:
        """The text of the bottom line."""
        if self._verb == "cut":
            links = " · ".join(f"{left.lower()}: {left}─{right}" for left, right in LINKS)
            return f"cut which link?  {links}"
        if self._verb is not None:
            return f"{self._verb} which node?  " + " · ".join(name.lower() for name in NAMES)
        return HELP

    def press(self, key: str) -> KeyCommand | None:
        """Handle a key; return the command that it completes, if any."""
        key = key.lower()
        verb, self._verb = self._verb, None
        if verb is None:
            if key == "q":
                return KeyCommand("quit")
            self._verb = _VERBS.get(key)
            return None
        target = key.upper()
        targets = [left for left, _ in LINKS] if verb == "cut" else NAMES
        return KeyCommand(verb, target) if target in targets else None


class Keyboard:
    """The keyboard, as a context manager that restores the terminal afterwards.

    If standard input is not a terminal, or this process is a background job, `is_there` is
    False and no keys are read.
    """

    def __init__(self) -> None:
        self.is_there = _is_ours()
        self._before: list[Any] | None = None

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return sys.stdin.fileno()

    def read(self) -> str:
        """Return the pressed keys."""
        return os.read(self.fileno(), 64).decode(errors="replace")

    def __enter__(self) -> Self:
        if self.is_there:
            self._before = termios.tcgetattr(self.fileno())
            tty.setcbreak(self.fileno())
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            termios.tcsetattr(self.fileno(), termios.TCSADRAIN, self._before)


def _is_ours() -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return True  # a terminal without a controlled process group, as in tests
