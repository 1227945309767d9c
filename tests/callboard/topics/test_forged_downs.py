"""A `Down` that another node sends as a message ends nothing, whatever it says."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from callboard import Actor, ActorRef, handler
from callboard.actors.exit_reason import ExitReason
from callboard.actors.reference import Down
from callboard.basp.header import CORE_ACTOR, DIRECTORY
from callboard.proxies.messages import HoldersChanged, WatchName
from callboard.simulation import Cluster
from callboard.topics.hub import Hub


class Taker:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def take(self, items: list[Any]) -> None:
        self.items += items


class Watcher(Actor):
    """Hears of the holders of a name on another node."""

    def __init__(self) -> None:
        self.heard = 0

    @handler
    def on_directory(self, directory: ActorRef) -> None:  # type: ignore[type-arg]
        directory.tell(WatchName("echo"))

    @handler
    def on_change(self, _: HoldersChanged) -> None:
        self.heard += 1

    @handler
    def on_text(self, _: str) -> int:
        return self.heard


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with closing(Cluster(9)) as made:
        yield made


@pytest.mark.parametrize("ref", ["true", 255, [], None, "x"])
def test_a_forged_down_takes_no_topic_and_no_watched_name_away(
    cluster: Cluster, ref: Any
) -> None:
    victim, friend, mad = cluster(3, "star")
    mine, theirs = Taker(), Taker()
    Hub.of(victim).add_receiver(mine, ["/friend"]).result(5)
    Hub.of(friend).add_receiver(theirs, ["/victim"]).result(5)
    watcher = friend.spawn(Watcher)
    watcher.tell(friend.runtime.ref_of(victim.node_id, DIRECTORY))
    cluster.advance(1.0)
    heard = watcher.ask("heard").result(5)
    true = {CORE_ACTOR: friend.runtime.ref_of(friend.node_id, CORE_ACTOR), DIRECTORY: watcher}
    for part, truth in true.items():
        down = Down(truth if ref == "true" else ref, ExitReason.NORMAL, "x")
        mad.runtime.ref_of(victim.node_id, part).tell(down)
    cluster.advance(1.0)

    Hub.of(friend).publish("/friend", 1)
    Hub.of(victim).publish("/victim", 2)
    victim.register("echo", victim.spawn(Watcher))
    cluster.advance(1.0)
    assert mine.items == [("/friend", 1)]
    assert theirs.items == [("/victim", 2)]
    assert watcher.ask("heard").result(5) == heard + 1
