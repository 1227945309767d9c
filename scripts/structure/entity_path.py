"""The path of a persisted event that is answered to another node, function by function.

    python -m scripts.structure.entity_path [--seeds 5] [--calls]

Two simulated nodes run in this process, and one asks entities of the other, which persist an
event and answer with their state. `sys.setprofile` reports the calls. The path starts where the
owner's node has decoded a frame, and ends where it hands the frame of the last answer to the
link. It leaves out the loop of the runner and its timers, the simulation with what only it
checks, and the code of the entity itself.

An ask is sent in one of these ways:

- `batched`: an actor asks two entities in one handler, so both asks travel in one batch.
- `alone`: a thread asks, so the ask travels in a separate frame.
- `gathered`: an actor asks one entity twice, so the second event is gathered while the first
  one is being committed.
- `telling`: the handler also sends a message, which waits for the event like the answer.

Counted are distinct *functions* and the *files* that hold them, for each way and for all ways
together, as a reader has to know all of these. Several asks are sent for each seed and way,
and the shortest path counts, because timers of other subjects add calls.
"""

import argparse
import sys
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, Final

import callboard
from callboard import Actor, ActorRef, Entity, Future, event, handler, message
from callboard.simulation import Cluster

ROOT: Final = Path(callboard.__file__).resolve().parents[1]

#: Asks of each seed; the shortest path counts.
REPEATS: Final = 5

#: The function that gets a decoded frame from a link, and the one that gives it a frame.
FIRST: Final = "Incoming.deliver"
LAST: Final = "Stream.write"

#: Files that take part in everything, or only here: the loop of the runner, and the simulation.
LEFT_OUT: Final = ("actors/runner/", "callboard/simulation/", "callboard/locks.py", "scripts/")

#: The check of simulated nodes that handlers change the state only by events.
CHECK: Final = "checking.<locals>.check"
CHECKS: Final = frozenset({
    CHECK,
    "_state_of", "_compare", "public_state", "public_state.<locals>.<dictcomp>",
    "EventSerializer.write", "EventSerializer._plain", "_encoder.<locals>.<lambda>",
})  # fmt: skip


@message("entity-path.Added")
@dataclass(frozen=True)
class Added:
    """An event, and the command for it."""

    number: int


class Total(Entity):
    """Adds numbers."""

    name = "entity-path.Total"

    def __init__(self, sink: ActorRef[Any]) -> None:
        self.total = 0
        self.sink = sink

    @handler
    def on_add(self, msg: Added) -> int:
        """Persist the number; report a negative one."""
        self.persist(msg)
        if msg.number < 0:
            self.sink.tell("negative")
        return self.total

    @event
    def on_added(self, added: Added) -> None:
        """Add the number."""
        self.total += added.number


class Sink(Actor):
    """Receives messages, and does nothing."""

    @handler
    def on_text(self, text: str) -> None:
        """Do nothing."""


class Asker(Actor):
    """Asks two entities in one handler."""

    @handler
    async def on_keys(self, keys: str) -> None:
        """Ask the entities of two keys."""
        assert self.node is not None
        one, other = [self.node.entity(Total, key).ask(Added(1)) for key in keys]
        await one
        await other


@dataclass(frozen=True)
class EntityPath:
    """The calls of one path, each as file and function."""

    calls: tuple[tuple[str, str], ...]

    @property
    def functions(self) -> int:
        """The number of distinct functions."""
        return len(set(self.calls))

    @property
    def files(self) -> int:
        """The number of distinct files."""
        return len({file for file, _ in self.calls})

    def __str__(self) -> str:
        seen: set[tuple[str, str]] = set()
        lines = []
        for file, calls in groupby(self.calls, key=lambda call: call[0]):
            fresh = [call for call in dict.fromkeys(calls) if call not in seen]
            seen.update(fresh)
            if fresh:
                lines.append(f"  {file}: {', '.join(function for _, function in fresh)}")
        return "\n".join(lines)


class Recorder:
    """Records the calls of functions of ours."""

    def __init__(self) -> None:
        """Record nothing yet."""
        self.calls: list[tuple[str, str]] = []

    def record(self, frame: FrameType, kind: str, _: Any) -> None:
        """Record a call; for `sys.setprofile`."""
        if kind == "call":
            file = Path(frame.f_code.co_filename)
            with suppress(ValueError):
                self.calls.append((str(file.relative_to(ROOT)), frame.f_code.co_qualname))

    def path(self, answers: int) -> EntityPath:
        """Return the path on the owner: from the first frame to the last one that is sent."""
        functions = [function for _, function in self.calls]
        last = first = functions.index(FIRST)
        for _ in range(answers):
            last = functions.index(LAST, last) + 1
        return EntityPath(
            tuple(
                (file, function)
                for file, function in self.calls[first:last]
                if function not in CHECKS and not any(part in file for part in LEFT_OUT)
            )
        )


def measured(seed: int) -> dict[str, EntityPath]:
    """Return the shortest path of each way for a seed."""
    with closing(Cluster(seed)) as cluster:
        owner, asker = cluster(2, topology="mesh")
        owner.host(Total, owner.spawn(Sink), state="sqlite:path.db")
        sender = asker.spawn(Asker)
        ways: dict[str, Callable[[], Future[Any]]] = {
            "batched": lambda: sender.ask("ab"),
            "alone": lambda: asker.entity(Total, "a").ask(Added(1)),
            "gathered": lambda: sender.ask("aa"),
            "telling": lambda: asker.entity(Total, "a").ask(Added(-1)),
        }
        return {name: shortest(cluster, ask, name) for name, ask in ways.items()}


def shortest(cluster: Cluster, ask: Callable[[], Future[Any]], way: str) -> EntityPath:
    """Return the shortest path of several asks that are sent in one way."""
    ask().result(5)
    paths = []
    for _ in range(REPEATS):
        cluster.advance(1.0)
        recorder = Recorder()
        sys.setprofile(recorder.record)
        try:
            ask().result(5)
        finally:
            sys.setprofile(None)
        paths.append(recorder.path(answers=2 if way == "gathered" else 1))
    return min(paths, key=lambda path: path.functions)


def joined(paths: Iterable[EntityPath]) -> EntityPath:
    """Return the calls of several paths together."""
    return EntityPath(tuple(call for path in paths for call in path.calls))


def main(arguments: Iterable[str] | None = None) -> int:
    """Print the figures of each seed, and the calls of the shortest path."""
    parser = argparse.ArgumentParser(prog="python -m scripts.structure.entity_path")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--calls", action="store_true", help="print the path, file by file")
    options = parser.parse_args(None if arguments is None else list(arguments))
    ways: dict[str, EntityPath] = {}
    for seed in range(options.seeds):
        ways = measured(seed)
        ways["all ways"] = joined(ways.values())
        figures = [f"{name} {way.functions} in {way.files}" for name, way in ways.items()]
        print(f"seed {seed}, functions in files: {', '.join(figures)}")
    if options.calls:
        print(*(f"{name}:\n{way}" for name, way in ways.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
