"""The questions of an operator, and the commands that docs/operations.md names for them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard import Actor, Child, Entity, Node, handler
from callboard.cli import main
from callboard.commitlog import CommitLog
from tests.polling import eventually

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
TABLE = PAGE.read_text(encoding="utf-8").split("### Questions")[1].split("\n## ")[0]
COMMANDS: dict[str, str] = dict(
    re.findall(r"^\| (.*\?) \| `callboard (.*?)`", TABLE, re.MULTILINE)
)

#: A text that the answer to each question contains.
ANSWERS = {
    "Which actor hangs?": "Till.text",
    "Who waits for whom?": "an answer of",
    "Which actor uses more and more memory?": "Hoarder",
    "Which job is dead, and why?": "no such user",
    "Which node runs which release?": "0.2",
    "Which link is slow?": "gate",
    "What was lost, and where?": "shop",
    "Who was restarted, and why?": "ValueError",
    "In which mailbox do messages wait longest?": "Till",
    "Which node owns this key?": "shop",
    "Is the backup good?": "",
}


class Clerk(Actor):
    """Promises answers and gives none."""

    @handler
    def text(self, msg: str) -> None:
        self.promise()


class Till(Actor):
    """Waits for a clerk."""

    def __init__(self, clerk: object) -> None:
        self.clerk = clerk

    @handler
    async def text(self, msg: str) -> object:
        return await self.clerk.ask(msg, timeout=None)  # type: ignore[attr-defined]


class Hoarder(Actor):
    """Keeps ten megabytes."""

    def __init__(self) -> None:
        self.kept = bytes(10_000_000)


class Weak(Actor):
    """Fails with each message."""

    @handler
    def text(self, msg: str) -> None:
        raise ValueError(msg)


class Cart(Entity):
    """An entity with a key."""

    name = "questions.Cart"

    @handler(read_only=True)
    def text(self, msg: str) -> str:
        return msg


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a node whose neighbour has each of the problems."""
    with Node("gate") as gate, Node("shop") as shop:
        gate.listen("127.0.0.1", 0)
        shop.connect(gate.address)
        assert eventually(lambda: len(gate.nodes()) == 1)
        till = shop.spawn(Till, shop.spawn(Clerk))
        for _ in range(2):
            till.tell("hello")
        shop.spawn(Hoarder)
        jobs = shop.queue("mails", state=f"sqlite:{tmp_path}/jobs.db", attempts=1)
        jobs.put("ann").result(10)
        jobs.take().result(10).nack(reason="no such user: ann").result(10)
        gone = shop.spawn(Clerk)
        gone.kill()
        gone.tell("too late")
        shop.supervise([Child(Weak, name="weak")], intensity=(5, 60.0), backoff=(0.0, 0.0))
        shop.find("weak").result(5).tell("fail")
        shop.host(Cart, state=f"sqlite:{tmp_path}/carts.db")
        shop.entity(Cart, "k-1").ask("hello").result(20)
        yield gate.address


def test_each_question_of_the_page_is_asked_here() -> None:
    assert COMMANDS.keys() == ANSWERS.keys()


def test_each_question_is_answered_by_one_command(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with CommitLog(tmp_path / "data" / "log") as log:
        log.append("/n", 1)
    assert main(["backup", str(tmp_path / "data"), str(tmp_path / "backup")]) == 0
    places = {
        "ADDRESS": address,
        "QUEUE": "mails",
        "KEY": "k-1",
        "TYPE": Cart.name,
        "FOLDER": str(tmp_path / "backup"),
    }

    def answers(question: str) -> bool:
        capsys.readouterr()
        assert main([places.get(word, word) for word in COMMANDS[question].split()]) == 0
        return ANSWERS[question] in capsys.readouterr().out

    for question in COMMANDS:
        assert eventually(lambda question=question: answers(question), interval=0.5), question
