"""Where the demo is shown: a terminal, lines, or nowhere."""

import os
import sys
from typing import Protocol

from callboard.demo.options import DemoOptions
from callboard.demo.scene import Event, Scene


class Screen(Protocol):
    """Where the demo is shown."""

    interval: float

    def open(self, start_ms: float) -> None:
        """Begin."""

    def event(self, event: Event, seconds: float) -> None:
        """Show an event."""

    def draw(self, scene: Scene, seconds: float, prompt: str) -> None:
        """Show the state of things."""

    def close(self) -> None:
        """Put the terminal back."""


class SilentScreen:
    """Shows nothing: for `--json`."""

    interval = 60.0

    def open(self, start_ms: float) -> None:
        """Nothing to begin."""

    def event(self, event: Event, seconds: float) -> None:
        """Nothing to show."""

    def draw(self, scene: Scene, seconds: float, prompt: str) -> None:
        """Nothing to show."""

    def close(self) -> None:
        """Nothing to put back."""


def choose_screen(options: DemoOptions) -> Screen:
    """Return the screen that fits the options and the terminal."""
    if options.as_json:
        return SilentScreen()
    if options.plain or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        from callboard.demo.plain import PlainScreen

        return PlainScreen()
    from callboard.demo.view import LiveScreen

    return LiveScreen(None if options.forever else options.seconds)
