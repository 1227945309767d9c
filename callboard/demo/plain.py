"""The demo without a terminal: a status line every two seconds, and each event as it comes."""

import sys
from typing import Final, TextIO

from callboard.demo.scene import Event, NodeState, Scene

STATUS_INTERVAL: Final = 2.0
"""Seconds between two status lines."""

_SIGNS: Final[dict[NodeState, str]] = {
    "starting": "starting",
    "up": "up",
    "unreachable": "out of reach",
    "frozen": "frozen",
    "dead": "dead",
}


class PlainScreen:
    """Prints lines, without control characters."""

    #: Seconds between two pictures.
    interval = STATUS_INTERVAL

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._has_stood = False

    def open(self, start_ms: float) -> None:
        """Print the first line: how long it took to get here."""
        self._print(
            "callboard demo: A ── B ── C ── D · "
            f"first picture {start_ms:,.0f} ms after the start"
        )

    def event(self, event: Event, seconds: float) -> None:
        """Print an event."""
        self._print(event_line(event, seconds))

    def draw(self, scene: Scene, seconds: float, prompt: str) -> None:
        """Print the status line."""
        self._print(status_line(scene, seconds))

    def close(self) -> None:
        """Nothing to put back."""

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)  # noqa: T201


def event_line(event: Event, seconds: float) -> str:
    """Return one line of the log."""
    since = "" if event.since_ms is None else f"{event.since_ms:+,.1f} ms"
    return f"{seconds:7.3f} s {since:>12}  {event.text}"


def status_line(scene: Scene, seconds: float) -> str:
    """Return the state of the whole line in one."""
    states = " ".join(f"{view.name}:{_SIGNS[view.state]}" for view in scene.nodes.values())
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
    if found := scene.findings.status():
        parts.append(found)
    if scene.follower.last is not None:
        parts.append(scene.follower.last.line())
    return " · ".join(parts)
