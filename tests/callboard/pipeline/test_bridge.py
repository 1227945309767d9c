"""Results become messages and entries, and a restart skips none."""

import os
import shutil
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pytest

from callboard import Endpoint
from callboard.actors.errors import CallboardError
from callboard.actors.future import Future
from callboard.commitlog import CommitLog, LogCorrupt, LogReader, OtherLog, PositionAhead
from callboard.commitlog.columns import Cbor
from callboard.commitlog.identity.position import decode_position
from callboard.pipeline import InvalidSetting, result_publisher
from callboard.pipeline import bridge as module
from callboard.pipeline.bridge import Bridge
from callboard.pipeline.result_publisher import InFlight
from callboard.topics.message_queue import MessageQueue
from tests.polling import eventually


class Taker:
    """Takes messages and entries; refuses as often as it is told."""

    def __init__(self, refusals=0):
        self.messages = []
        self.entries = {}
        self.refusals = refusals

    def publish_batch(self, *batch):
        if self.refusals:
            self.refusals -= 1
            raise CallboardError("not now")
        self.messages += batch

    def put(self, key, value):
        self.entries[key] = value


def test_records_become_messages_in_order_and_the_newest_of_each_topic_an_entry(fill, folder):
    fill([{"n": 1}, {"n": 2}, {"n": 3}], topic=["/a", "/b", "/a"])
    taker = Taker()

    with Bridge(folder, endpoint=taker, store=taker):
        pass

    assert taker.messages == [("/a", {"n": 1}), ("/b", {"n": 2}), ("/a", {"n": 3})]
    assert taker.entries == {"/a": {"n": 3}, "/b": {"n": 2}}


def test_a_bridge_continues_at_its_own_stored_position(fill, folder):
    fill([1, 2])
    with Bridge(folder, endpoint=Taker()):
        pass
    fill([3])
    again, other = Taker(), Taker()

    with Bridge(folder, endpoint=again), Bridge(folder, endpoint=other, name="other"):
        pass

    assert again.messages == [("/cpu", 3)]
    assert [value for _, value in other.messages] == [1, 2, 3]


def test_only_the_topics_asked_for_are_handed_on(fill, folder):
    fill([1, 2, 3], topic=["/a/x", "/b", "/a/y"])
    taker = Taker()

    with Bridge(folder, endpoint=taker, topics=["/a"]) as bridge:
        pass

    assert [topic for topic, _ in taker.messages] == ["/a/x", "/a/y"]
    assert (bridge.handed, bridge.position) == (2, 3)


def test_a_refused_result_is_published_again(fill, folder, monkeypatch):
    monkeypatch.setattr(module, "_RETRY", 0.01)
    fill([1, 2])
    taker = Taker(refusals=3)

    with Bridge(folder, endpoint=taker):
        eventually(lambda: taker.messages)

    assert taker.messages == [("/cpu", 1), ("/cpu", 2)]


def test_a_log_may_be_created_later_and_grow(folder):
    taker = Taker()

    with Bridge(folder, endpoint=taker), CommitLog(folder) as log:
        log.append("/a", 1)
        eventually(lambda: len(taker.messages) == 1)
        log.append("/a", 2)
        eventually(lambda: len(taker.messages) == 2)


def test_a_bridge_that_leads_nowhere_is_refused(folder):
    with pytest.raises(InvalidSetting, match="pass an endpoint, a store or both"):
        Bridge(folder)


def test_results_reach_subscribers_and_clones(fill, folder):
    fill([{"rate": 0.5}], topic="/rates/cpu")
    with (
        Endpoint() as there,
        Endpoint() as here,
        here.make_subscriber("/rates") as subscriber,
        here.attach_clone("results") as clone,
        there.attach_master("results") as master,
    ):
        assert there.peer("127.0.0.1", here.listen("127.0.0.1", 0))
        assert there.await_peer(here.node_id())
        assert clone.await_idle()

        with Bridge(folder, endpoint=there, store=master):
            assert subscriber.get() == ("/rates/cpu", {"rate": 0.5})
            eventually(lambda: "/rates/cpu" in clone.keys())  # noqa: SIM118
        assert clone.get("/rates/cpu") == {"rate": 0.5}


def test_a_bridge_skips_damaged_records_and_counts_them(folder, caplog):
    with CommitLog(folder, sync="none") as log:
        for number in range(20):
            log.append("/cpu", number)
        log.append_batch([Cbor(b"\xff\xff"), 21], topic="/cpu")
    (segment,) = Path(folder).glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    taker = Taker()

    with Bridge(folder, endpoint=taker) as bridge:
        pass

    values = [value for _, value in taker.messages]
    assert len(values) == 20
    assert values == sorted({*range(20), 21}.intersection(values))
    assert (bridge.lost, bridge.position) == (2, 22)
    assert "skips damaged records" in caplog.text


def test_damage_that_was_met_before_the_close_is_counted_once(folder):
    with CommitLog(folder, sync="none") as log:
        for number in range(20):
            log.append("/cpu", number)
    (segment,) = Path(folder).glob("*.log")
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    taker = Taker()

    with Bridge(folder, endpoint=taker) as bridge:
        eventually(lambda: bridge.lost)

    assert [value for _, value in taker.messages] == list(range(19))
    assert (bridge.handed, bridge.lost, bridge.position) == (19, 1, 20)


@pytest.mark.parametrize("place", ["-1", "", "many", "9" * 5000, '{"offset": 1, "sum": 7}'])
def test_a_damaged_position_is_refused_until_its_file_is_removed(fill, folder, place):
    fill([1, 2])
    path = Path(folder, "bridge.position")
    path.write_text(place)
    taker = Taker()

    with pytest.raises(LogCorrupt, match=r"bridge.position is unknown: .*remove it"):
        Bridge(folder, endpoint=taker)
    path.unlink()
    with Bridge(folder, endpoint=taker) as bridge:
        pass

    assert [value for _, value in taker.messages] == [1, 2]
    assert bridge.position == 2


def test_the_position_of_another_log_is_refused_until_it_is_accepted(fill, folder, tmp_path):
    fill([1, 2])
    with Bridge(folder, endpoint=Taker()):
        pass
    shutil.move(folder, tmp_path / "before")
    fill([3, 4, 5])
    shutil.copy(tmp_path / "before/bridge.position", folder)
    taker = Taker()

    with pytest.raises(OtherLog, match=r"the bridge bridge is at 2 .*--accept-log"):
        Bridge(folder, endpoint=taker)
    state = str(LogReader(folder).identity)
    with Bridge(folder, endpoint=taker, accept_log=state):
        pass
    assert [value for _, value in taker.messages] == [5]
    with Bridge(folder, endpoint=taker) as bridge:  # it belongs to this log now
        assert bridge.failure is None


def test_a_position_ahead_of_the_log_is_refused(fill, folder):
    fill([1, 2])
    Path(folder, "bridge.position").write_text("99")
    with pytest.raises(PositionAhead, match="ends at 2"):
        Bridge(folder, endpoint=Taker())


def test_a_position_of_the_first_release_adopts_its_log(fill, folder, caplog):
    fill([1, 2])
    path, taker = Path(folder, "bridge.position"), Taker()
    path.write_text("1")
    with Bridge(folder, endpoint=taker):
        pass
    assert [value for _, value in taker.messages] == [2]
    assert decode_position(path.read_bytes()) == LogReader(folder).position(2)
    assert "belongs to" in caplog.text


def test_a_bridge_ends_when_its_log_is_replaced(fill, folder, caplog):
    fill([1, 2])
    taker = Taker()
    with Bridge(folder, endpoint=taker) as bridge:
        eventually(lambda: len(taker.messages) == 2)
        shutil.rmtree(folder)
        fill([3, 4, 5])
        eventually(lambda: bridge.failure is not None)
    assert isinstance(bridge.failure, OtherLog)
    assert "the bridge ends" in caplog.text
    assert len(taker.messages) == 2


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["bridge.position", "bridge.tmp"])
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_bridge_follows_no_link_and_waits_for_no_pipe(fill, folder, name, kind):
    fill([1])
    target, planted = Path(folder).with_name("target"), Path(folder, name)
    target.write_text("precious")
    planted.symlink_to(target) if kind == "link" else os.mkfifo(planted)
    taker = Taker()

    with Bridge(folder, endpoint=taker):
        pass

    assert [value for _, value in taker.messages] == [1]
    assert target.read_text() == "precious"


class Listeners(Taker):
    """Knows which topics have subscribers."""

    def __init__(self, *topics):
        super().__init__()
        self.topics = set(topics)
        self.offers = 0

    def has_room(self):
        return True

    def offer(self, messages, *, whole=False, origins=frozenset()):
        self.offers += 1
        rest = [n for n, (topic, _) in enumerate(messages) if topic not in self.topics]
        if not (rest and whole):
            self.messages += [each for each in messages if each[0] in self.topics]
        return rest


def test_results_without_subscribers_count_as_unheard_and_the_sums_are_exact(fill, folder):
    fill([1, 2, 3, 4], topic=["/a", "/b", "/a", "/b"])
    hub = Listeners("/a")

    with Bridge(folder, endpoint=hub) as bridge:
        pass

    assert hub.messages == [("/a", 1), ("/a", 3)]
    assert (bridge.handed, bridge.unheard, bridge.lost, bridge.position) == (2, 2, 0, 4)


def test_a_run_waits_until_all_results_are_taken(fill, folder, monkeypatch):
    monkeypatch.setattr(result_publisher, "_POLL_SECONDS", 0.001)
    fill([1, 2], topic=["/a", "/b"])
    hub, said = Listeners("/a"), []

    with Bridge(
        folder, endpoint=hub, wait=60, on_silence=lambda *told: said.append(told)
    ) as it:
        eventually(lambda: hub.offers > 3)
        assert (hub.messages, it.position) == ([], 0)
        hub.topics.add("/b")

    assert hub.messages == [("/a", 1), ("/b", 2)]
    assert (it.handed, it.unheard) == (2, 0)
    assert said == [("/b", 1)]


def test_waiting_for_subscribers_is_bounded_and_then_results_count_as_unheard(
    fill, folder, monkeypatch
):
    monkeypatch.setattr(result_publisher, "_POLL_SECONDS", 0.001)
    fill([1, 2], topic=["/a", "/b"])
    hub, said = Listeners("/a"), []

    with Bridge(folder, endpoint=hub, wait=0.01, on_silence=lambda *told: said.append(told)):
        pass

    assert hub.messages == [("/a", 1)]
    assert said == [("/b", 1), ("/b", -1)]


def test_a_closed_bridge_leaves_its_results_for_the_next_one(fill, folder):
    fill([1, 2])
    hub = Listeners()

    with Bridge(folder, endpoint=hub, wait=60) as bridge:
        eventually(lambda: hub.offers)
        bridge.leave()

    assert (bridge.handed, bridge.unheard, bridge.position) == (0, 0, 0)
    hub.topics.add("/cpu")
    with Bridge(folder, endpoint=hub):
        pass
    assert hub.messages == [("/cpu", 1), ("/cpu", 2)]


def test_subscribers_of_another_node_are_waited_for_and_counted(fill, folder, monkeypatch):
    monkeypatch.setattr(result_publisher, "_POLL_SECONDS", 0.001)
    fill(range(3000), topic=[f"/n/{number % 3}" for number in range(3000)])
    with Endpoint() as there, Endpoint() as here:
        assert there.peer("127.0.0.1", here.listen("127.0.0.1", 0))
        assert there.await_peer(here.node_id())
        said = []
        with Bridge(
            folder, endpoint=there, wait=60, on_silence=lambda *told: said.append(told)
        ) as bridge:
            eventually(lambda: said)
            assert bridge.position == 0
            with here.make_subscriber("/n/") as subscriber:
                bridge.close()
                assert [subscriber.get()[1] for _ in range(3000)] == [*range(3000)]
        assert (bridge.handed, bridge.unheard) == (3000, 0)


def test_a_hub_also_serves_receivers_of_its_own_messages():
    with Endpoint() as endpoint:
        queue = MessageQueue()
        endpoint.hub.add_receiver(queue, ["/a"], sees_own=True).result(5)

        assert endpoint.hub.offer([("/a", 1), ("/b", 2), ("/a", 3)]) == [1]
        assert endpoint.hub.offer([("/a", 4), ("/b", 5)], whole=True) == [1]

        assert [queue.get(5), queue.get(5)] == [("/a", 1), ("/a", 3)]
        assert queue.get(0) is None


def test_rows_that_cannot_be_messages_are_skipped_and_counted(folder, caplog):
    with CommitLog(folder) as log:
        log.append_batch([1, Decimal("1.5"), 3], topic="/a")
    with Endpoint() as endpoint:
        queue = MessageQueue()
        endpoint.hub.add_receiver(queue, ["/a"], sees_own=True).result(5)

        with Bridge(folder, endpoint=endpoint) as bridge:
            pass

        assert [queue.get(5), queue.get(5)] == [("/a", 1), ("/a", 3)]
    assert (bridge.handed, bridge.unheard, bridge.lost, bridge.position) == (2, 0, 1, 3)
    assert "skips records that cannot be messages" in caplog.text


# --- what was handed on, and who has confirmed it ---


class Account(NamedTuple):
    sent: int = 0
    confirmed: int = 0
    lost: int = 0
    waiting: int = 0


class Links:
    """A hub whose node reports prepared values."""

    def __init__(self):
        self.node, self.told = self, {b"a": Account(7, 5, 2)}  # of before

    def accounts(self):
        return self.told

    def receivers_of(self, _):
        done = Future()
        done.set_result(())
        return done


def test_a_result_is_in_flight_until_every_node_has_confirmed_it():
    links = Links()
    way = InFlight(links)

    way.add(3)
    links.told = {b"a": Account(10, 5, 2), b"b": Account(1, 0, 0)}
    assert way.count() == 3
    links.told = {b"a": Account(10, 8, 2), b"b": Account(1, 0, 0)}
    assert way.count() == 3
    links.told = {b"a": Account(10, 8, 2), b"b": Account(1, 1, 0)}
    assert way.count() == 0
    way.add(4)
    links.told = {b"a": Account(10, 8, 2), b"b": Account(1, 1, 0, waiting=4)}
    assert way.count() == 4


def test_results_lost_with_a_link_never_count_as_taken_and_later_ones_do():
    links = Links()
    way = InFlight(links)
    for size, sent in ((3, 10), (2, 12), (4, 16)):
        way.add(size)
        links.told = {b"a": Account(sent, 5, 2)}
        assert way.count()
    links.told = {b"a": Account(16, 8, 2)}  # the first of these runs
    assert way.count() == 6
    links.told = {b"a": Account(16, 8, 8)}  # the link breaks
    assert way.count() == 6
    way.add(5)
    links.told = {b"a": Account(21, 13, 8)}
    assert way.count() == 6
    links.told = {}  # the node is forgotten
    way.add(1)
    assert way.count() == 6


def test_results_count_as_taken_when_the_subscribers_node_has_confirmed_them(folder):
    with CommitLog(folder) as log:
        log.append_batch(list(range(2500)), topic="/n/a")
    with Endpoint() as here, Endpoint() as there:
        there.peer("127.0.0.1", here.listen("127.0.0.1", 0))
        with here.make_subscriber("/n/") as subscriber:
            assert there.await_peer(here.node_id())
            with Bridge(folder, endpoint=there, wait=60) as bridge:
                assert [subscriber.get()[1] for _ in range(2500)] == [*range(2500)]
                assert bridge.await_taken(60)
                assert (bridge.handed, bridge.under_way, bridge.unheard) == (2500, 0, 0)
