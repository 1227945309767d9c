"""Programs of users under a strict type checker: what is inferred, and what is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
from dataclasses import dataclass

from callboard import Actor, Child, Group, Mailbox, Node, Query, WorkerPool, handler, message


@message("typed.Add")
@dataclass(frozen=True)
class Add:
    amount: int


@message("typed.Total")
@dataclass(frozen=True)
class Total(Query[int]):
    currency: str = "EUR"


class Counter(Actor):
    mailbox = Mailbox(limit=1000, bytes=1 << 20, on_full="wait")

    def __init__(self, start: int = 0) -> None:
        self.total = start

    @handler
    def on_add(self, msg: Add) -> None:
        self.total += msg.amount
        self.after(1.0, Add(1)).cancel()

    @handler(concurrent=True)
    async def on_total(self, msg: Total) -> int:
        reveal_type(await self.spawn(Counter, 1).ask(Total()))
        return self.total

    def add(self, k: int) -> int:
        return self.total + k

    async def later(self, k: int) -> str:
        return str(k)


def program(node: Node, pool: WorkerPool, group: Group[Counter]) -> None:
    counter = node.spawn(Counter, 40)
    reveal_type(counter)
    counter.tell(Add(1))
    reveal_type(counter.ask(Total()))
    reveal_type(counter.ask(Add(1)))
    reveal_type(counter.call(Counter.add, 1))
    reveal_type(counter.call(Counter.later, k=1))
    reveal_type(counter.proxy().add(1))
    reveal_type(node.monitor(counter))
    reveal_type(node.spawn(Counter.with_options(detached=True), 40))
    reveal_type(pool.spawn(Counter, 40))
    reveal_type(group.ask(Total()))
    reveal_type(group.call(Counter.add, 1))
    node.supervise([Child(Counter, 40, restart="permanent")], strategy="one_for_one")


async def twins(node: Node) -> None:
    reveal_type(await node.aspawn(Counter, 40))
    reveal_type(await node.aworkers(2))
    async for change in node.watch("till"):
        reveal_type(change)
"""

REVEALED = [
    "int",
    "callboard.actors.reference.ActorRef[program.Counter]",
    "callboard.actors.future.Future[int]",
    "callboard.actors.future.Future[Any]",
    "callboard.actors.future.Future[int]",
    "callboard.actors.future.Future[str]",
    "callboard.actors.future.Future[Any]",
    "callboard.actors.future.Future[callboard.actors.reference.Down]",
    "callboard.actors.reference.ActorRef[program.Counter]",
    "callboard.actors.reference.ActorRef[program.Counter]",
    "callboard.actors.future.Future[int]",
    "callboard.actors.future.Future[int]",
    "callboard.actors.reference.ActorRef[program.Counter]",
    "callboard.proxies.workers.pool.WorkerPool",
    "callboard.proxies.names.watch.NameAdded | callboard.proxies.names.watch.NameRemoved",
]

MISTAKES = """
from program import Counter, Total

from callboard import ActorRef, Node, WorkerPool, handler


def mistakes(node: Node, counter: ActorRef[Counter]) -> None:
    counter.call(Counter.add, "one")
    text: str = counter.ask(Total()).result(5)
    counter.tel(1)
    node.spawn(Counter, "not int")
    node.spawn(Counter, 1, 2)
    node.spawn(Counter, begin=1)


def places(node: Node, pool: WorkerPool, counter: ActorRef) -> ActorRef:
    pool.spawn(Counter, "not int")
    return node.spawn(Counter, 40, on=pool)


async def twin(node: Node) -> None:
    await node.aspawn(Counter, "not int")


class Wrong(Counter):
    @handler
    def on_text(self, msg: str) -> None:
        self.createActor(Counter).stop()
        self.sned(self.me, msg)
        self.spawn(Counter).call(Wrong.on_text, msg)
"""

EXPORTS = "\n".join(
    f"from {module} import *"
    for module in ("callboard", "callboard.errors", "callboard.events")
)


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What mypy says about each of the programs; one run, as it reads all of callboard."""
    folder = tmp_path_factory.mktemp("typed")
    for name, text in (("program", PROGRAM), ("mistakes", MISTAKES), ("exports", EXPORTS)):
        (folder / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "."],
        cwd=folder,
        env={
            **os.environ,
            "MYPYPATH": str(ROOT),
            "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache" / "users"),
        },
        capture_output=True,
        text=True,
    )
    assert not done.stderr
    lines = done.stdout.splitlines()
    return {
        name: [line.split(": ", 1)[1] for line in lines if line.startswith(f"{name}.py")]
        for name in ("program", "mistakes", "exports")
    } | {"lines": lines}


@pytest.mark.slow
def test_types_of_answers_refs_and_twins_are_inferred(checked):
    prefix = 'note: Revealed type is "'

    assert [line.removeprefix(prefix).rstrip('"') for line in checked["program"]] == REVEALED


@pytest.mark.slow
def test_wrong_arguments_answers_and_names_are_found_inside_actors_too(checked):
    errors = [line for line in checked["mistakes"] if line.startswith("error")]

    assert [error.rsplit("[", 1)[1] for error in errors] == [
        "call-overload]",
        "assignment]",
        "attr-defined]",
        "call-overload]",  # the wrong arguments of spawn
        "call-overload]",
        "call-overload]",
        "arg-type]",
        "call-overload]",
        "attr-defined]",
        "call-overload]",
    ]


def test_nothing_else_is_wrong_for_users(checked):
    assert not checked["exports"]
    files = {line.split(":", 1)[0] for line in checked["lines"]}
    assert files == {"program.py", "mistakes.py"}
