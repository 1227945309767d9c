"""A cluster with a dashboard, and a browser in which it is open.

    python -m benchmarks.dashboard [--join ADDRESS] [--actors 1250]

runs a node until stdin is closed, and prints its address; without `--join` it also prints the
link of its page. A few of its actors work, so the content of the pages changes.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

from benchmarks.idle import Idle
from benchmarks.measure import PeerMissingError
from benchmarks.processes import RunFailedError, serving
from callboard import Node
from tests.callboard.dashboard import browser as chromium

NODES, ACTORS = 4, 5_000
"""The cluster that is shown: nodes, and actors on all of them together."""

AT_WORK = 20
"""Actors of each node that handle a message each second."""

LIMIT = 30.0
"""Seconds for the page to show something."""

Cluster = tuple[list[Popen[str]], str]
"""Its processes, the one with the page first, and the link of the page."""


def prepare() -> None:
    """Find a browser.

    Raises:
        PeerMissingError: There is none that can be driven.
    """
    if why := chromium.why_not():
        raise PeerMissingError(why)


@contextmanager
def cluster(actors: int = ACTORS, *, has_page: bool = True) -> Iterator[Cluster]:
    """Start nodes in separate processes; each is linked with the one that serves the page."""
    options = ["--actors", str(actors // NODES), *([] if has_page else ["--no-page"])]
    program = [sys.executable, "-m", "benchmarks.dashboard", *options]
    with ExitStack() as stack:
        first, told = stack.enter_context(serving(program))
        address, _, link = told.partition(" ")
        joined = [
            stack.enter_context(serving([*program, "--join", address]))[0]
            for _ in range(NODES - 1)
        ]
        yield [first, *joined], link


def until(page: chromium.Browser, script: str) -> Any:
    """Return what a script of the page returns once that is something.

    Raises:
        RunFailedError: It never is.
    """
    over = time.monotonic() + LIMIT
    while not (found := page.script(script)):
        if time.monotonic() > over:
            message = f"the page never had {script}"
            raise RunFailedError(message)
        time.sleep(0.02)
    return found


def milliseconds_to_paint() -> float:
    """Return the first contentful paint of a browser that was never here."""
    with cluster(NODES) as (_, link), chromium.a_browser() as page:
        page.open(link)
        entry = "performance.getEntriesByName('first-contentful-paint')[0]"
        return float(until(page, f"return {entry} && {entry}.startTime"))


def percent_of_a_core(seconds: float, *, is_open: bool = False, has_page: bool = True) -> float:
    """Return the processor time of the busiest node, its page open on all actors or closed."""
    with ExitStack() as stack:
        processes, link = stack.enter_context(cluster(has_page=has_page))
        if is_open:
            open_actors(stack.enter_context(chromium.a_browser()), link)
        time.sleep(2.0)  # what starts is over
        before, started = [processor_time(each.pid) for each in processes], time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - started
        used = [
            processor_time(each.pid) - old for each, old in zip(processes, before, strict=True)
        ]
        return max(used) / took * 100


def frames_a_second(seconds: float) -> tuple[float, float]:
    """Return the frames that a browser shows while a script scrolls its table of actors.

    The second figure is the frames of a hundred with a row in the middle of the table.
    """
    with cluster() as (_, link), chromium.a_browser() as page:
        open_actors(page, link)
        page.driver.set_script_timeout(seconds + LIMIT)
        frames, shown = page.driver.execute_async_script(SCROLL, seconds * 1e3)
        return float(frames), float(shown)


SCROLL = """
const [during, done] = arguments, box = document.querySelector('.scroll');
const place = box.getBoundingClientRect();
const x = place.left + 40, y = place.top + place.height / 2;
let begun = 0, frames = 0, shown = 0;
const step = (now) => {
    begun = begun || now;
    if (document.elementFromPoint(x, y).closest('.body .tr')) shown += 1;
    box.scrollTop = (now - begun) * 3.6 % (box.scrollHeight - box.clientHeight);
    frames += 1;
    if (now - begun < during) requestAnimationFrame(step);
    else done([frames / (now - begun) * 1e3, shown / frames * 100]);
};
requestAnimationFrame(step);
"""
"""A hundred rows a second, to the end and again from the beginning."""


def milliseconds_to_lost() -> float:
    """Return the time from SIGKILL of a node until the page says that it is lost."""
    with cluster(NODES) as (processes, link), chromium.a_browser() as page:
        page.open(link)
        until(page, f"return document.body.innerText.includes('{NODES} nodes')")
        page.script(WATCH)
        killed_at = time.time_ns() / 1e6
        processes[-1].kill()
        return float(until(page, "return window.seen")) - killed_at


WATCH = """
const look = () => {
    if (!window.seen && document.body.innerText.includes('is lost')) window.seen = Date.now();
};
new MutationObserver(look).observe(document.body,
    {childList: true, subtree: true, characterData: true});
"""


def open_actors(page: chromium.Browser, link: str) -> None:
    """Open the table of all actors and wait until it has its rows."""
    page.open(link).go(link, "actors")
    until(page, f"return document.body.innerText.includes('{ACTORS:,} rows')")


def processor_time(process: int) -> float:
    """Return the seconds that a process has computed, in all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one node until stdin closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--join")
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument("--actors", type=int, default=ACTORS // NODES)
    options = parser.parse_args(arguments)
    has_page = not options.join and not options.no_page
    with Node("joined" if options.join else "first", dashboard=has_page) as node:
        node.listen("127.0.0.1", 0)
        actors = [node.spawn(Idle) for _ in range(options.actors)]
        if options.join:
            node.connect(options.join)
        link = f" {node.dashboard_url}" if has_page else ""
        over = threading.Event()

        def work() -> None:
            while not over.wait(1.0):
                for actor in actors[:AT_WORK]:
                    actor.tell(1)

        worker = threading.Thread(target=work)
        worker.start()
        print(f"{node.address}{link}", flush=True)
        sys.stdin.read()
        over.set()
        worker.join()


if __name__ == "__main__":
    main()
