"""What topics bring is kept in a log: who sent it, in order, nothing lost without a word."""

import asyncio
import datetime
import threading

import pytest

from callboard import Actor, Endpoint, Node, handler
from callboard.actors.errors import NodeClosed, WouldBlock
from callboard.broker import Count, Enum, Port, Recording
from callboard.commitlog import CommitLog, LogLocked, LogReader, Retention
from callboard.model.errors import InvalidTopic


def values(folder, start=0):
    return [(record.topic, record.payload) for record in LogReader(folder).read(start)]


def test_records_have_the_topic_the_value_and_the_node_that_sent_it(pair, tmp_path):
    here, there, port = pair
    with here.record("/cpu", tmp_path) as recording:
        assert there.peer("127.0.0.1", port)
        assert there.await_filter_entry("/cpu")
        there.publish("/cpu/1", {"load": 0.5})
        there.publish("/memory", 1)
        there.publish_batch(("/cpu/2", [1, "two"]), ("/cpu/3", b"\xff"))
        assert here.node.ref  # its own messages come as well:
        here.publish("/cpu/own", None)
        wait_for(lambda: recording.recorded == 4)
        assert recording.flush(5.0)
        assert recording.durable == recording.end == 4

    ids = {"/cpu/own": here.node.node_id.hex()}
    assert sorted(values(tmp_path)) == [
        ("/cpu/1", {"load": 0.5}),
        ("/cpu/2", [1, "two"]),
        ("/cpu/3", b"\xff"),
        ("/cpu/own", None),
    ]
    for record in LogReader(tmp_path):
        assert record.sender == ids.get(record.topic, there.node.node_id.hex())
        assert not record.is_bytes


def test_values_that_cbor_has_no_type_for_are_numbers_and_texts(make_endpoint, tmp_path):
    endpoint = make_endpoint()
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    with endpoint.record("/a", tmp_path):
        endpoint.publish("/a", [Count(5), Enum("a::B"), Port(80, Port.TCP)])
        endpoint.publish("/a", {"t": datetime.timedelta(seconds=1.5), ("k", 1): {moment}})

    assert [value for _, value in values(tmp_path)] == [
        [5, "a::B", "80/tcp"],
        {"t": 1.5, ("k", 1): {moment}},
    ]


def test_closing_writes_what_was_published_before(make_endpoint, tmp_path):
    endpoint = make_endpoint()
    recording = endpoint.record(["/a", "/b"], tmp_path)
    for number in range(5_000):
        endpoint.publish(f"/{'ab'[number % 2]}", number)
    recording.close()
    endpoint.publish("/a", "late")
    recording.close()

    assert [value for _, value in values(tmp_path)] == list(range(5_000))
    assert (recording.recorded, recording.lost, recording.waiting) == (5_000, 0, 0)


def test_a_recording_goes_on_where_the_last_one_stopped(make_endpoint, tmp_path):
    endpoint = make_endpoint()
    with endpoint.record("/a", tmp_path) as first:
        endpoint.publish("/a", 1)
    with endpoint.record("/a", tmp_path) as second:
        endpoint.publish("/a", 2)

    assert (first.start, first.resumed) == (0, None)
    assert second.start == 1
    assert second.resumed == next(LogReader(tmp_path).read(0)).time
    assert [value for _, value in values(tmp_path)] == [1, 2]


def test_a_damaged_log_is_gone_on_with(make_endpoint, tmp_path):
    endpoint = make_endpoint()
    with endpoint.record("/a", tmp_path):
        endpoint.publish("/a", 1)
    (path,) = tmp_path.glob("*.log")
    path.write_bytes(path.read_bytes()[:-1] + b"x")

    with endpoint.record("/a", tmp_path) as recording:
        endpoint.publish("/a", 2)

    assert (recording.start, recording.resumed) == (1, None)
    assert values(tmp_path, 1) == [("/a", 2)]


def test_a_topic_that_is_none_leaves_the_log_alone(make_endpoint, tmp_path):
    endpoint = make_endpoint()
    with pytest.raises(InvalidTopic):
        endpoint.record("a" * 70_000, tmp_path)
    with pytest.raises(InvalidTopic):
        Recording(endpoint.hub, ("a" * 70_000,), lambda: CommitLog(tmp_path))

    CommitLog(tmp_path).close()


def test_shutting_the_endpoint_down_ends_its_recordings(tmp_path):
    with Node() as node, Endpoint(node=node) as endpoint:
        recording = endpoint.record("/a", tmp_path)
        endpoint.publish("/a", 1)
        endpoint.shutdown()

        assert values(tmp_path) == [("/a", 1)]
        with CommitLog(tmp_path) as log:  # nobody writes it any more
            assert log.recovery.cut_bytes == 0
        with pytest.raises(NodeClosed):
            endpoint.record("/a", tmp_path)
    assert recording.lost == 0


def test_a_recording_ends_with_its_node(tmp_path, monkeypatch):
    monkeypatch.setattr("callboard.broker.recording.POLL_SECONDS", 0.01)
    with Node() as node:
        recording = Endpoint(node=node).record("/a", tmp_path)
    wait_for(lambda: not recording._thread.is_alive())

    CommitLog(tmp_path).close()
    recording.close()


def test_one_log_is_written_by_one_recording(make_endpoint, tmp_path):
    endpoint = make_endpoint()
    with endpoint.record("/a", tmp_path), pytest.raises(LogLocked, match="this process"):
        endpoint.record("/b", tmp_path)


def test_retention_bounds_a_recording(make_endpoint, tmp_path):
    endpoint = make_endpoint()
    with endpoint.record("/a", tmp_path, retain=Retention(records=100)) as recording:
        for number in range(1_000):
            endpoint.publish("/a", number)
            if number % 100 == 0:
                recording.flush()

    log = LogReader(tmp_path)
    assert log.end == 1_000
    assert log.end - log.start < 400


def test_topics_of_endpoints_themselves_are_recorded_only_by_name(make_endpoint, tmp_path):
    endpoint = make_endpoint()
    with endpoint.record("", tmp_path / "all"), endpoint.record("<$>/x", tmp_path / "x"):
        endpoint.publish("<$>/x/y", 1)
        endpoint.publish("/a", 2)

    assert values(tmp_path / "all") == [("/a", 2)]
    assert values(tmp_path / "x") == [("<$>/x/y", 1)]


def test_blocking_calls_name_their_twins_on_an_event_loop(make_endpoint, tmp_path):
    endpoint = make_endpoint()

    async def program():
        with pytest.raises(WouldBlock, match="arecord"):
            endpoint.record("/a", tmp_path)
        async with await endpoint.arecord("/a", tmp_path) as recording:
            endpoint.publish("/a", 1)
            assert await recording.aflush()
            assert recording.durable == 1
            for call in (recording.flush, recording.close):
                with pytest.raises(WouldBlock, match=f"recording.a{call.__name__}"):
                    call()

    asyncio.run(program())
    assert values(tmp_path) == [("/a", 1)]


class Keeper(Actor):
    """Records from inside an actor."""

    def __init__(self, endpoint, folder):
        self.endpoint, self.folder = endpoint, folder

    @handler
    async def record(self, message: str) -> int:
        async with await self.endpoint.arecord("/a", self.folder) as recording:
            self.endpoint.publish("/a", message)
        return recording.recorded


def test_an_actor_may_record(tmp_path):
    with Node() as node, Endpoint(node=node) as endpoint:
        keeper = node.spawn(Keeper, endpoint, tmp_path)

        assert keeper.ask("hello").result(10) == 1
    assert values(tmp_path) == [("/a", "hello")]


def test_what_comes_over_other_nodes_is_recorded_with_its_first_sender(cluster, tmp_path):
    first, middle, last = cluster(3, topology="line")
    publishing, recording_end = Endpoint(node=first), Endpoint(node=last)
    with recording_end.record("/a", tmp_path) as recording:
        assert publishing.await_filter_entry("/a")
        publishing.publish_batch(("/a/1", 1), ("/a/2", 2))
        cluster.advance(1.0)
        cluster.partition(middle, last)
        cluster.advance(10.0)
        publishing.publish("/a/3", "nobody hears it")
        cluster.heal()
        assert publishing.await_filter_entry("/a")
        publishing.publish("/a/4", 4)
        cluster.advance(1.0)
        assert recording.flush(10.0)

    assert values(tmp_path) == [("/a/1", 1), ("/a/2", 2), ("/a/4", 4)]
    assert {record.sender for record in LogReader(tmp_path)} == {first.node_id.hex()}


def wait_for(check, seconds=10.0):
    """Wait for a condition."""
    done = threading.Event()
    for _ in range(int(seconds / 0.005)):
        if check():
            return
        done.wait(0.005)
    raise AssertionError(f"not within {seconds:g} s")
