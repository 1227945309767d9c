"""The effect of one blocking handler on all other work of its node.

One actor sleeps in `time.sleep`, or computes in plain Python, for two seconds at a time. In the
meantime another actor of the same node is due every five milliseconds, and another process
repeatedly asks a third actor over a link: a delay of the answer is a delay of heartbeats. The
figure is the 99th percentile of both delays together while the actor blocks, less the same on
an idle node in the same run.

Computing holds the interpreter: another thread gets it after a switch interval (5 ms), so that
delay is counted in switch intervals.
"""

import json
import subprocess
import sys
import time
from statistics import quantiles
from typing import IO

from benchmarks.measure import Measure, Subject
from benchmarks.processes import ROOT
from callboard import Actor, Node, handler

INTERVAL = 0.005
BLOCKED = 2.0
ROUNDS = 3
LIMIT = 30.0


class Blocker(Actor):
    """Blocks its thread."""

    @handler
    def block(self, seconds: float) -> None:
        """Sleep as code does that knows nothing of event loops."""
        time.sleep(seconds)

    @handler
    def compute(self, until: str) -> int:
        """Compute until a time."""
        end, total = float(until), 0
        while time.perf_counter() < end:
            total += sum(range(1000))
        return total


class Ticker(Actor):
    """Is due at equal intervals, and notes how late it was called."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.due = 0.0

    @handler
    def on_tick(self, _: int) -> None:
        """Note the delay."""
        now = time.perf_counter()
        if self.due:
            self.delays.append(max(0.0, now - self.due))
        self.due = now + INTERVAL
        self.after(INTERVAL, 1)

    @handler
    def read(self, _: str) -> list[float]:
        """Return the delays since the last look."""
        delays, self.delays = self.delays, []
        return delays


def ask_when_told(address: str, orders: IO[str]) -> None:
    """In the other process: for each line, ask for its number of seconds, and print times."""
    with Node("neighbour") as node:
        echo = node.remote_actor(f"{address}/echo")
        echo.ask("read").result(LIMIT)
        print("linked", flush=True)
        for line in orders:
            taken: list[float] = []
            end = time.perf_counter() + float(line)
            while (asked_at := time.perf_counter()) < end:
                echo.ask("read").result(LIMIT)
                taken.append(time.perf_counter() - asked_at)
                time.sleep(INTERVAL)
            print(json.dumps(taken), flush=True)


class Place:
    """The node that is measured, and the process that asks it."""

    def __init__(self, node: Node) -> None:
        self.blocker, self.ticker = node.spawn(Blocker), node.spawn(Ticker)
        node.register("echo", node.spawn(Ticker))
        node.listen("127.0.0.1", 0)
        self.asker = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.blocked", node.address],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()
        self.ticker.tell(1)

    def _line(self) -> str:
        assert self.asker.stdout is not None
        return self.asker.stdout.readline()

    def delays(self, how: str, seconds: float) -> list[float]:
        """Return all delays of a while in which the node is idle, or one handler blocks."""
        assert self.asker.stdin is not None
        self.asker.stdin.write(f"{seconds * 0.9}\n")
        self.asker.stdin.flush()
        self.ticker.ask("read").result(LIMIT)
        if how == "sleep":
            self.blocker.ask(seconds).result(LIMIT)
        elif how == "compute":
            self.blocker.ask(str(time.perf_counter() + seconds)).result(LIMIT)
        else:
            time.sleep(seconds)
        mine: list[float] = self.ticker.ask("read").result(LIMIT)
        theirs: list[float] = json.loads(self._line())
        return mine + theirs

    def close(self) -> None:
        """End the other process."""
        self.asker.communicate(timeout=LIMIT)


def p99_ms(how: str, share: float) -> float:
    """Return the 99th percentile while an actor blocks, minus that of an idle node."""
    seconds = BLOCKED * max(0.2, share)
    with Node("measured") as node:
        place = Place(node)
        place.delays("idle", seconds)
        idle: list[float] = []
        blocked: list[float] = []
        for _ in range(ROUNDS):
            idle += place.delays("idle", seconds)
            blocked += place.delays(how, seconds)
        place.close()
    return (quantiles(blocked, n=100)[98] - quantiles(idle, n=100)[98]) * 1e3


def sleeping(share: float = 1.0) -> float:
    """Return milliseconds."""
    return max(0.0, p99_ms("sleep", share))


def computing(share: float = 1.0) -> float:
    """Return milliseconds."""
    return max(0.0, p99_ms("compute", share))


def computing_in_intervals(share: float = 1.0) -> float:
    """Return switch intervals."""
    return computing(share) / (sys.getswitchinterval() * 1e3)


MEASURE = Measure(
    title="p99 delay of others while a handler blocks, beyond an idle node",
    unit="ms",
    more_is_better=False,
    subjects=(
        Subject("callboard, time.sleep", sleeping),
        Subject("callboard, computing", computing),
    ),
)

if __name__ == "__main__":
    ask_when_told(sys.argv[1], sys.stdin)
