"""Singletons: entities that run whenever a node has their slot."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from callboard import Entity, Node, handler
from callboard.errors import DuplicateEntityType, RemoteError, WrongArgument, WrongValue
from callboard.simulation import Cluster

FILE = "sqlite:singletons.db"


class Scheduler(Entity):
    name = "singleton-tests.Scheduler"
    idle = 1.0

    #: Where each activation began, of all of the process.
    begun: list[str] = []

    def __init__(self, greeting: str = "") -> None:
        self.greeting = greeting

    async def activated(self) -> None:
        Scheduler.begun.append(f"{self.key} on {self.node.name}")

    @handler(read_only=True)
    def on_text(self, msg: str) -> str:
        return f"{msg} {self.greeting}"


class Broken(Entity):
    name = "singleton-tests.Broken"

    #: How often it was begun, and until when it fails.
    begun = 0

    async def activated(self) -> None:
        Broken.begun += 1
        if Broken.begun < 4:
            raise ValueError("not yet")

    @handler(read_only=True)
    def on_text(self, msg: str) -> str:
        return msg


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    Scheduler.begun.clear()
    Broken.begun = 0
    with closing(Cluster(3)) as made:
        yield made


def test_it_runs_without_a_message_and_is_never_put_away(cluster: Cluster) -> None:
    one, other, asker = cluster(3, topology="mesh")
    refs = [node.singleton(Scheduler, "main", "hi", state=FILE) for node in (one, other)]
    assert refs[0] == refs[1]
    cluster.advance(10.0)
    assert set(Scheduler.begun) <= {f"main on {one.name}", f"main on {other.name}"}
    began = len(Scheduler.begun)
    assert 1 <= began <= 2, "once, and again where it moved when the second node came"
    cluster.advance(10.0)
    assert len(Scheduler.begun) == began
    assert asker.entity(Scheduler, "main").ask("say").result(5) == "say hi"


@pytest.mark.parametrize("how", ["kill", "crash"])
def test_it_runs_on_the_next_owner_when_its_node_is_lost(cluster: Cluster, how: str) -> None:
    one, other, _ = cluster(3, topology="mesh")
    for node in (one, other):
        node.singleton(Scheduler, "main", state=FILE)
    cluster.advance(5.0)
    before = Scheduler.begun[-1]
    owner, heir = (one, other) if before.endswith(one.name) else (other, one)
    getattr(cluster, how)(owner)
    cluster.advance(6.0)
    assert Scheduler.begun[-1] == f"main on {heir.name}" != before


def test_one_that_is_put_away_by_hand_begins_again(cluster: Cluster) -> None:
    (node,) = cluster(1)
    ref = node.singleton(Scheduler, "main", state=FILE)
    cluster.advance(1.0)
    ref.stop()
    cluster.advance(1.0)
    assert Scheduler.begun == [f"main on {node.name}"] * 2


def test_more_keys_of_a_class_are_singletons_too(cluster: Cluster) -> None:
    (node,) = cluster(1)
    for key in ("a", "b", "a"):
        node.singleton(Scheduler, key, "hi", state=FILE)
    cluster.advance(1.0)
    assert sorted(Scheduler.begun) == [f"a on {node.name}", f"b on {node.name}"]
    with pytest.raises(DuplicateEntityType):
        node.singleton(Scheduler, "c", "other", state=FILE)


def test_one_that_fails_at_its_start_is_started_again_later(cluster: Cluster) -> None:
    (node,) = cluster(1)
    ref = node.singleton(Broken, "main", state=FILE)
    cluster.advance(0.1)
    assert Broken.begun == 1, "it is not tried again at once"
    cluster.advance(3.0)
    assert Broken.begun == 4
    assert ref.ask("here").result(5) == "here"


def test_a_message_to_an_entity_that_fails_at_its_start_fails(cluster: Cluster) -> None:
    (node,) = cluster(1)
    node.host(Broken, state=FILE)
    ref = node.entity(Broken, "k")
    with pytest.raises(RemoteError, match="not yet"):
        ref.ask("here").result(5)
    assert Broken.begun == 1


def test_what_cannot_be_meant_is_refused(cluster: Cluster) -> None:
    (node,) = cluster(1)
    with pytest.raises(WrongArgument):
        node.singleton(Scheduler, 7)  # type: ignore[arg-type]
    with pytest.raises(WrongValue):
        node.singleton(Scheduler, "")
    with pytest.raises(WrongArgument):
        node.singleton(str, "main")


def test_on_a_real_file(tmp_path: Path) -> None:
    Scheduler.begun.clear()
    with Node("one") as node:
        ref = node.singleton(Scheduler, "main", "hi", state=f"sqlite:{tmp_path}/a.db")
        assert ref.ask("say").result(5) == "say hi"
        assert Scheduler.begun == ["main on one"]
