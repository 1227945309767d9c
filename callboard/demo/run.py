"""The demo's parent process: starts the nodes, plays the story, draws, checks the balance.

It has no node. One thread waits for reports, keys, signals and the next step of the story.
"""

import functools
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, Final

from callboard.demo.analysis import Analysis
from callboard.demo.line import LINKS, NAMES, Line
from callboard.demo.outcome import RunOutcome
from callboard.demo.page import DemoPage
from callboard.demo.scene import Scene, SceneEvent
from callboard.demo.screen import DemoScreen, Keyboard, KeyCommand, KeyParser, PlainScreen
from callboard.demo.story import Blow, DemoOptions, Timeline
from callboard.support.platform.system import process_start_ns
from callboard.support.text import printable

#: Seconds until the line must be complete.
STAND_LIMIT: Final = 60.0

#: If the line is not complete within this fraction of the story, the story is delayed.
EARLY: Final = 0.1

#: Seconds until the accounts must be settled. An unreachable node is noticed after three
#: seconds; the rest is for busy machines.
SETTLE_LIMIT: Final = 60.0

#: Seconds until the store must be settled, and until each of its sides must be closed.
STORE_LIMIT: Final = 40.0

#: Seconds for which the nodes wait for late results of Spark on a busy machine.
RESULTS_LIMIT: Final = 15.0

#: Seconds after the story until the cluster must have recovered from the scripted blow.
HEALING_LIMIT: Final = 60.0

#: Seconds between two rounds of delivery reports.
ROUND: Final = 0.05

#: Seconds for which a link that the user cut is refused.
CUT_SECONDS: Final = 3.0


@dataclass(eq=False)
class Show:
    """One run of the demo."""

    options: DemoOptions
    line: Line
    keyboard: Keyboard
    screen: DemoScreen
    analysis: Analysis
    stood_ms: float = 0.0
    start_ms: float = 0.0

    def __post_init__(self) -> None:
        self._keys = KeyParser()
        self.scene = Scene(NAMES)
        self._timeline = Timeline(None if self.options.forever else self.options.seconds)
        self._origin_ns = process_start_ns()
        self._delay = 0.0
        self._next_draw = 0.0
        self._is_ending = self._was_interrupted = False
        #: Pending commands from the page; `wake` wakes the thread that executes them.
        self._clicked: deque[KeyCommand] = deque()
        self.wake: Callable[[], object] = lambda: None
        #: Closes the page before the accounts are settled.
        self.end_page: Callable[[], object] = lambda: None

    # --- the run ---

    def click(self, command: KeyCommand) -> None:
        """Queue a command from the page; thread-safe."""
        self._clicked.append(command)
        self.wake()

    def play(self) -> RunOutcome:
        """Run the demo from the first process to the final balance."""
        for name in NAMES:
            self._start(name, again=False)
        self.start_ms = self._seconds() * 1000
        self.screen.open(self.start_ms)
        limit = time.monotonic() + STAND_LIMIT
        self._pump(self._has_risen, limit)
        problem = ""
        if not self.scene.stands() and not self._is_ending:
            problem = self._standing_problem()
        else:
            self.stood_ms = self._seconds() * 1000
            self._delay = max(self.stood_ms / 1000 - EARLY * self.options.seconds, 0.0)
            self._pump(lambda: self._is_ending or self._timeline.is_over(self._played()))
            self._await_results()
        return self._settle(problem)

    def summary(self, outcome: RunOutcome) -> dict[str, Any]:
        """Return the figures of the run as plain values."""
        return {
            **asdict(outcome.balance),
            "exact": outcome.balance.is_exact,
            "topics": self.scene.topics(),
            "store": self.scene.holdings.summary(),
            "mqtt": self.scene.mqtt,
            "results": self.scene.findings.summary(),
            "down_ms": outcome.down_ms,
            "service_ms": outcome.service_ms,
            "peaks": outcome.peaks,
            "peaks_ms": outcome.peaks_ms,
            "first_picture_ms": self.start_ms,
            "line_stood_ms": self.stood_ms,
            "incidents": [
                {
                    "blow": incident.blow,
                    "target": incident.target,
                    "ms": {name: incident.ms(name) for name in incident.milestones},
                }
                for incident in self.scene.chronicle.incidents
            ],
            "problem": outcome.problem,
        }

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """End early but in order; the second call ends immediately."""
        if self._was_interrupted:
            raise KeyboardInterrupt
        self._is_ending = self._was_interrupted = True

    # --- the clock ---

    def _seconds(self, at_ns: int | None = None) -> float:
        """Return seconds since this process started."""
        return ((time.monotonic_ns() if at_ns is None else at_ns) - self._origin_ns) / 1e9

    def _played(self) -> float:
        """Return the seconds since the start of the story."""
        return self._seconds() - self._delay

    # --- waiting and acting ---

    def _pump(self, is_done: Callable[[], bool], limit: float | None = None) -> None:
        """Handle events until `is_done` or the monotonic time `limit`."""
        while not is_done():
            now = time.monotonic()
            if limit is not None and now >= limit:
                return
            if now >= self._next_draw:
                self._draw()
            wait = self._next_draw - now
            if limit is not None:
                wait = min(wait, limit - now)
            if self.stood_ms and not self._timeline.is_over(self._played()):
                wait = min(wait, self._timeline.next_at() - self._played())
            self._take(max(wait, 0.0))
            if self.stood_ms and not self._is_ending:
                self._act()

    def _take(self, wait: float) -> None:
        """Wait for reports, keys and signals, and handle them."""
        for key, _ in self.line.selector.select(wait):
            if key.data is None:
                os.read(key.fd, 64)  # woken by a signal, whose handler has run, or by a click
                while self._clicked:
                    command = self._clicked.popleft()
                    if not self._is_ending:
                        self._obey(command)
            elif key.data is self.keyboard:
                self._press(self.keyboard.read())
            else:
                for name, report in self.line.read(key):
                    for event in self.scene.report(name, report):
                        self._show(event)
        self._record_ended()

    def _act(self) -> None:
        """Execute the due steps of the story."""
        for step in self._timeline.due(self._played()):
            if step.action == "kill" and self.line.processes[step.node].is_alive:
                self._kill(step.node, is_scripted=True)
            elif step.action == "start" and not self.line.processes[step.node].is_alive:
                self._start(step.node, again=True)

    def _start(self, name: str, *, again: bool) -> None:
        """Start the process of a node, the first time or again."""
        at_ns = time.monotonic_ns()
        self.line.start(name)
        pid = self.line.processes[name].popen.pid
        event = self.scene.started(name, pid, at_ns, again=again)
        if event is not None:
            self._show(event)

    def _kill(self, name: str, *, is_scripted: bool = False) -> None:
        """Kill a node; a node that the user killed restarts a little later."""
        at_ns = self.line.kill(name)
        self._strike("kill", name, at_ns, is_scripted=is_scripted)
        if is_scripted:
            self.analysis.kill()
        if not is_scripted:
            self._timeline.restart(name, self._played())

    def _strike(
        self, blow: Blow, target: str, at_ns: int, *, is_scripted: bool = False
    ) -> None:
        """Record a blow, and show it."""
        incident = self.scene.chronicle.strike(blow, target, at_ns, is_scripted=is_scripted)
        self._show(self.scene.struck(incident))

    def _record_ended(self) -> None:
        """Record processes that ended without being killed, and schedule their restarts."""
        for name, process in self.line.processes.items():
            if self.scene.nodes[name].is_alive and not process.is_alive:
                status = process.popen.returncode
                self._show(self.scene.ended(name, time.monotonic_ns(), status))
                if self.stood_ms and not self._is_ending:
                    self._timeline.restart(name, self._played())

    def _press(self, keys: str) -> None:
        """Handle keys, and redraw immediately."""
        for key in keys:
            command = self._keys.press(key)
            if command is not None and not self._is_ending:
                self._obey(command)
        self._next_draw = 0.0

    def _obey(self, command: KeyCommand) -> None:
        """Execute a command of the user."""
        if command.verb == "quit":
            self._is_ending = True
        elif not self.stood_ms or not self.line.processes[command.target].is_alive:
            return
        elif command.verb == "kill":
            self._kill(command.target)
        elif command.verb == "freeze":
            at_ns = self.line.freeze(command.target)
            is_frozen = self.line.processes[command.target].is_frozen
            self._strike("freeze" if is_frozen else "thaw", command.target, at_ns)
        else:
            self._cut(command.target)

    def _cut(self, left: str) -> None:
        """Make both ends of a link refuse each other for `CUT_SECONDS`."""
        right = dict(LINKS)[left]
        at_ns = time.monotonic_ns()
        # Both sides must refuse; otherwise the dialing one would restore the link immediately.
        for name, peer in ((left, right), (right, left)):
            command = {"do": "cut", "peer": peer, "seconds": CUT_SECONDS}
            self.line.processes[name].send(command)
        self._strike("cut", f"{left}─{right}", at_ns)

    # --- the end ---

    def _await_results(self) -> None:
        """Wait until the cluster has recovered and all results arrived, with limits.

        On a busy machine, recovery takes longer than the story.
        """
        chronicle, analysis = self.scene.chronicle, self.analysis
        self._pump(
            lambda: self._is_ending or chronicle.has_healed, time.monotonic() + HEALING_LIMIT
        )

        def is_over() -> bool:
            return self._is_ending or not analysis.is_running or analysis.is_complete

        if not is_over():
            text = f"Spark is not finished: up to {RESULTS_LIMIT:g} s more for its results"
            self._show(self.scene.say(text, time.monotonic_ns()))
            self._pump(is_over, time.monotonic() + RESULTS_LIMIT)

    def _settle(self, problem: str) -> RunOutcome:
        """Stop the traffic, wait until nothing is in flight, and return the outcome."""
        self._is_ending = True
        self.end_page()
        if self.line.thaw_all():
            for view in self.scene.nodes.values():
                view.is_frozen = False
        self.line.send_all({"do": "rest"})
        self._settle_store()
        limit = time.monotonic() + SETTLE_LIMIT
        number, previous = 0, None
        while time.monotonic() < limit:
            number += 1
            self.line.send_all({"do": "settle", "round": number})
            self._pump(functools.partial(self._has_reported, number), limit)
            balance = self.scene.balance()
            if balance.is_exact and balance == previous:
                break
            previous = balance
            self._pump(lambda: False, time.monotonic() + ROUND)
        incident = self.scene.chronicle.headline()
        return RunOutcome(
            self.scene.balance(),
            None if incident is None else incident.ms("down"),
            None if incident is None else incident.ms("serving"),
            self.scene.holdings.line(),
            problem or self.scene.holdings.problem() or self._peaks_problem(),
            None if incident is None else incident.ms("peaks"),
            self.scene.peaks[0],
        )

    def _peaks_problem(self) -> str:
        """Return an error text about the daily peaks; empty without an error."""
        lower = self.scene.peaks[1]
        return f"{lower} daily peaks lost acknowledged values" if lower else ""

    def _settle_store(self) -> None:
        """Wait for all acknowledgements, then close the clones, and the master last."""
        holdings = self.scene.holdings
        self._pump(
            lambda: holdings.is_settled({process.name for process in self.line.alive()}),
            time.monotonic() + STORE_LIMIT,
        )
        writers = {life.node for life in holdings.latest_lives()}
        for names in (writers, {holdings.host}):
            present = {process.name for process in self.line.alive()} & names
            for name in present:
                self.line.processes[name].send({"do": "part"})
            self._pump(
                functools.partial(present.issubset, holdings.parted),
                time.monotonic() + STORE_LIMIT,
            )

    def _has_reported(self, number: int) -> bool:
        """Return whether all living nodes have reported for a round of settling."""
        views = [view for view in self.scene.nodes.values() if view.is_alive]
        return all(view.has_reported and view.round >= number for view in views)

    def _has_risen(self) -> bool:
        """Return whether the line is complete, or cannot become complete."""
        has_ended = any(not process.is_alive for process in self.line.processes.values())
        return self._is_ending or has_ended or self.scene.stands()

    def _standing_problem(self) -> str:
        """Return why the line is incomplete: the last error of a node, or the missing nodes."""
        for name, process in self.line.processes.items():
            if error := process.last_error():
                return f"node {name}: {error}"
        missing = [name for name, view in self.scene.nodes.items() if view.state != "up"]
        names = ", ".join(missing) or "readings"
        return f"the line was not complete within {STAND_LIMIT:g} s; missing: {names}"

    # --- display ---

    def _show(self, event: SceneEvent) -> None:
        """Show an event."""
        self.screen.event(event, self._seconds(event.at_ns))

    def _draw(self) -> None:
        """Draw the scene, and schedule the next drawing."""
        self.scene.findings.state = self.analysis.state()
        while self.analysis.news:
            self._show(self.scene.say(self.analysis.news.pop(0), time.monotonic_ns()))
        prompt = self._keys.prompt if self.keyboard.is_there else ""
        if self._is_ending:
            prompt = "settling the accounts"
        elif not self.stood_ms:
            prompt = "starting the nodes"  # keys have no effect before all nodes are connected
        self.screen.draw(self.scene, self._seconds(), prompt)
        self._next_draw = time.monotonic() + self.screen.interval


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def choose_screen(options: DemoOptions) -> DemoScreen:
    """Return the screen for the options and the terminal."""
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if options.as_json or options.plain or not is_terminal:
        return PlainScreen(is_silent=options.as_json)
    from callboard.demo.view import LiveScreen  # loads rich

    return LiveScreen(None if options.forever else options.seconds)


def _wake(descriptor: int) -> None:
    """Wake the thread that reads the other end of a pipe; ignore a closed pipe."""
    with suppress(OSError):
        os.write(descriptor, b"c")


def run(options: DemoOptions) -> int:
    """Play the demo; return the exit code: 0 if the balance is exact."""
    screen = choose_screen(options)
    with (
        Analysis(options) as analysis,
        Line() as line,
        Keyboard() as keyboard,
        ExitStack() as stack,
    ):
        show = Show(options, line, keyboard, screen, analysis)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        show.wake = functools.partial(_wake, wake_write)
        if not options.as_json and DemoPage.is_possible():
            page = stack.enter_context(DemoPage(line.address("A"), show.click))
            show.end_page = page.close
            screen.link = page.link
            print(f"open {page.link}", flush=True)  # noqa: T201
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
        analysis_result = analysis.finish()
    summary = {**show.summary(outcome), "analysis": analysis_result.summary()}
    if not options.as_json:
        analysis_result.print()
        if results_line := show.scene.findings.line():
            print(printable(results_line))  # noqa: T201
    text = json.dumps(summary) if options.as_json else outcome.line()
    print(printable(text, allowed="\n"), flush=True)  # noqa: T201
    return outcome.exit_code
