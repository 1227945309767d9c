"""Runs the demo once: terminal, signals and processes around one `Show`."""

import json
import os
import signal
from typing import Final

from callboard.demo.analysis import Analysis
from callboard.demo.keys import Keyboard
from callboard.demo.line import Line
from callboard.demo.options import DemoOptions
from callboard.demo.screen import choose_screen
from callboard.demo.show import Show

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(options: DemoOptions) -> int:
    """Play the demo; returns the exit code: 0 when the books close exactly."""
    screen = choose_screen(options)
    with Analysis(options) as analysis, Line() as line, Keyboard() as keyboard:
        show = Show(options, line, keyboard, screen, analysis)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)  # noqa: FBT003
        line.selector.register(wake_read, 1)
        if keyboard.is_there:
            line.selector.register(keyboard, 1, keyboard)
        handlers = {number: signal.signal(number, show.interrupt) for number in _SIGNALS}
        wakeup = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        try:
            outcome = show.play()
            line.close()
        finally:
            screen.close()
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.close(wake_read)
            os.close(wake_write)
        found = analysis.finish()
    summary = {**show.summary(outcome), "analysis": found.summary()}
    if not options.as_json:
        found.print()
        if returned := show.returned():
            print(returned)  # noqa: T201
    print(json.dumps(summary) if options.as_json else outcome.line(), flush=True)  # noqa: T201
    return outcome.exit_code
