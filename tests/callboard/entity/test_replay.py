"""Recovery from many events: a page after the other, none of which is kept."""

import gc
import tracemalloc
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from callboard import Entity, Node, event, handler, message
from callboard.entity.host import REPLAYED_AT_ONCE
from callboard.entity.machine.table import slot_of
from callboard.entity.state.backends import open_state
from callboard.entity.state.interface import NewEvent, SlotBatch
from callboard.errors import EntityUnavailable, StateCorrupt
from callboard.simulation import Cluster
from tests.callboard.entity.state.postgresql_server import running_server

PAGES, AT_ONCE = 12, 1_000
URL = "postgresql://simulated/shop"


@message("replay-tests.Counted")
@dataclass(frozen=True)
class Counted:
    text: str


class Count(Entity):
    name = "replay-tests.Count"
    snapshot_every = 10**9
    keep = "all"

    def __init__(self) -> None:
        self.count = 0

    @handler
    def on_times(self, times: int) -> int:
        for _ in range(times):
            self.persist(Counted("tea"))
        return self.count

    @event
    def on_counted(self, event: Counted) -> None:
        self.count += 1

    @handler(read_only=True)
    def on_text(self, msg: str) -> int:
        return self.count


def batch(key: str, numbers: Sequence[int]) -> SlotBatch:
    """Return events of a key, with texts that are worth being measured."""
    body = f'{{"text": "{"x" * 200}"}}'
    events = [NewEvent(key, number, "replay-tests.Counted", 1, body) for number in numbers]
    return SlotBatch((Count.name, slot_of(key)), 0, events)


def fill(url: str, counts: dict[str, int]) -> None:
    """Store so many events of each key."""
    with closing(open_state(url, "filler")) as state:
        state.claim(Count.name, dict.fromkeys(map(slot_of, counts), 0))
        for key, count in counts.items():
            for first in range(1, count + 1, AT_ONCE):
                numbers = range(first, min(first + AT_ONCE, count + 1))
                done = state.commit([batch(key, numbers)])
                assert not done.fenced
                assert not done.failed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_many_events_take_the_memory_of_a_page(kind: str, tmp_path: Path) -> None:
    is_file = kind == "sqlite"
    url = f"sqlite:{tmp_path}/state.db" if is_file else running_server().new_database()
    counts = {"one": 1, "few": 2 * REPLAYED_AT_ONCE, "many": PAGES * REPLAYED_AT_ONCE}
    fill(url, counts)
    peaks = {}
    with Node() as node:
        node.host(Count, state=url)
        # The first entity of a process pays for what is loaded and remembered once.
        assert node.entity(Count, "first").ask("count", timeout=60.0).result(60) == 0
        tracemalloc.start()
        try:
            for key, count in counts.items():
                gc.collect()
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                assert node.entity(Count, key).ask("count", timeout=60.0).result(60) == count
                peaks[key] = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
    assert peaks["many"] < 1.5 * peaks["few"], peaks
    assert peaks["one"] < peaks["few"] / 4, "what is measured are events"


def test_others_have_their_turns_between_pages() -> None:
    with closing(Cluster(7)) as cluster:
        node, asker = cluster(2)
        node.host(Count, state=URL)
        count = PAGES * REPLAYED_AT_ONCE
        assert asker.entity(Count, "many").ask(count, timeout=30.0).result(30) == count
        asker.entity(Count, "many").stop()
        cluster.advance(1.0)
        many = asker.entity(Count, "many").ask("count")
        assert asker.entity(Count, "other").ask("count").result(5) == 0
        assert not many.done()
        assert many.result(5) == count
        assert asker.entity(Count, "many").ask(1).result(5) == count + 1


@pytest.mark.parametrize("place", [5, 2 * REPLAYED_AT_ONCE + 5])
def test_a_missing_event_is_found_on_every_page(place: int) -> None:
    with closing(Cluster(7)) as cluster:
        node, asker = cluster(2)
        node.host(Count, state=URL)
        count = 3 * REPLAYED_AT_ONCE
        assert asker.entity(Count, "a").ask(count, timeout=30.0).result(30) == count
        asker.entity(Count, "a").stop()
        cluster.advance(1.0)
        del cluster.database(URL).tables.events[Count.name, "a"][place]
        text = f"where event {place + 1} should"
        with pytest.raises((StateCorrupt, EntityUnavailable), match=text):
            asker.entity(Count, "a").ask("count").result(5)
