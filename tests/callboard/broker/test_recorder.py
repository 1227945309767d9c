"""A disk that is slow or refuses: publishers wait, and what is missing is told."""

import threading

import pytest

from callboard.broker.recording import LOST_TOPIC, Recording
from callboard.commitlog import CommitLog, LogFailed, LogReader
from callboard.simulation import SimulatedDisk
from callboard.topics.events import NotRecorded
from tests.callboard.broker.test_recording import wait_for

NODE = bytes(17) + b"\1"


class Hub:
    """Notes how publishers are slowed."""

    class node:  # noqa: N801
        node_id = NODE

        class context:  # noqa: N801
            is_closed = False

            @staticmethod
            def is_runner_thread():
                return True

    runtime = node.context

    def __init__(self):
        self.events = []
        self.node.context.report = self.events.append
        self.holds = []
        self.relaxed = threading.Event()

    def add_receiver(self, receiver, topics, *, sees_own, publisher):
        pass

    def remove_receiver(self, receiver):
        pass

    def flushed(self, timeout):
        pass  # what is published here needs no handing over

    def hold(self, receiver, sender, seconds):
        self.holds.append((sender, seconds))

    def relax(self, receiver):
        self.relaxed.set()


class SlowLog(CommitLog):
    """Appends when it may."""

    def __init__(self, *arguments, **options):
        self.may_append = threading.Event()
        super().__init__(*arguments, **options)

    def append_batch(self, *arguments, **options):
        assert self.may_append.wait(20)
        return super().append_batch(*arguments, **options)


def bound(monkeypatch, **bounds):
    for name, value in bounds.items():
        monkeypatch.setattr(f"callboard.broker.recording.{name.upper()}", value)


@pytest.fixture
def make_recorder(monkeypatch):
    made = []

    def make(make_log, **bounds):
        bound(monkeypatch, **bounds)
        made.append(Recording(Hub(), ("/a",), make_log))
        return made[-1]

    yield make
    for recorder in made:
        getattr(recorder._log, "may_append", threading.Event()).set()
        recorder.close()


def run(*values):
    return [("/a", value) for value in values]


def test_beyond_the_mark_publishers_are_slowed_until_half_of_it_is_written(
    make_recorder, tmp_path
):
    recorder = make_recorder(lambda: SlowLog(tmp_path), mark=(4, 100), limit=(100, 1000))
    hub = recorder._hub
    recorder.take_from(NODE, run(1, 2, 3, 4), 10)
    assert hub.holds == []

    recorder.take_from(NODE, run(5), 1)
    recorder.take_from(NODE, run(6), 95)

    assert [sender for sender, _ in hub.holds] == [NODE, NODE]
    assert 0 < hub.holds[0][1] < hub.holds[1][1] < 0.5  # heartbeats are heard in time
    assert recorder.waiting == 6
    assert not hub.relaxed.is_set()
    recorder._log.may_append.set()
    assert hub.relaxed.wait(10)
    assert recorder._reach(10)
    assert (recorder.recorded, recorder.lost, recorder.waiting) == (6, 0, 0)


def test_beyond_the_limit_messages_are_lost_and_the_log_says_where(make_recorder, tmp_path):
    recorder = make_recorder(lambda: SlowLog(tmp_path), mark=(1, 100), limit=(3, 1000))
    recorder.take_from(NODE, run(1, 2, 3), 1)
    recorder.take_from(NODE, run(4), 1)
    recorder.take_from(NODE, run(5, 6), 1)
    recorder._log.may_append.set()
    assert recorder._reach(10)
    recorder.take_from(NODE, run(7), 1)
    recorder.take_from(NODE, run(*range(10)), 1)
    recorder.close()

    assert [(record.topic, record.payload) for record in LogReader(tmp_path)] == [
        *(run(1, 2, 3)),
        (LOST_TOPIC, 3),
        *run(7),
        (LOST_TOPIC, 10),
    ]
    assert (recorder.recorded, recorder.lost) == (4, 13)
    assert recorder._hub.events == [NotRecorded(str(tmp_path), count) for count in (1, 2, 10)]


def test_a_full_disk_is_tried_until_there_is_room(make_recorder, monkeypatch, caplog):
    monkeypatch.setattr("callboard.broker.recording.RETRY", (0.001, 0.01))
    disk = SimulatedDisk()
    recorder = make_recorder(lambda: CommitLog("/log", disk=disk))
    recorder.take_from(NODE, run("before"), 1)
    assert recorder._reach(10)
    disk.faults.capacity = 1
    recorder.take_from(NODE, run("while"), 1)
    wait_for(lambda: recorder.error)
    assert recorder.waiting == 1
    disk.faults.capacity = None
    recorder.take_from(NODE, run("after"), 1)
    assert recorder._reach(10)

    recorder.close()
    values = [record.payload for record in LogReader("/log", disk=disk)]
    assert values == ["before", "while", "after"]
    assert (recorder.recorded, recorder.lost, recorder.error) == (3, 0, "")
    assert caplog.text.count("works again") == 1


def test_a_log_that_takes_nothing_after_an_error_is_opened_again(make_recorder, monkeypatch):
    monkeypatch.setattr("callboard.broker.recording.RETRY", (0.001, 0.01))
    disk = SimulatedDisk()
    recorder = make_recorder(lambda: CommitLog("/log", disk=disk))
    first = recorder._log
    disk.faults.fsync_errors = 1.0
    recorder.take_from(NODE, run(1), 1)
    assert recorder._reach(10)
    with pytest.raises(LogFailed):
        first.flush()
    recorder.take_from(NODE, run(2), 1)
    disk.faults.fsync_errors = 0.0
    assert recorder._reach(10)
    recorder.close()

    assert recorder._log is not first
    assert [record.payload for record in LogReader("/log", disk=disk)] == [1, 2]
    assert (recorder.recorded, recorder.lost) == (2, 0)


def test_what_the_disk_refuses_at_the_end_is_counted(make_recorder):
    disk = SimulatedDisk()
    recorder = make_recorder(lambda: CommitLog("/log", disk=disk))
    disk.faults.capacity = 1
    recorder.take_from(NODE, run(1, 2), 1)
    recorder.close()

    assert (recorder.recorded, recorder.lost, recorder.waiting) == (0, 2, 0)
    assert recorder._hub.events == [NotRecorded("/log", 2)]
    assert "free space" in recorder.error


def test_what_is_too_large_for_a_log_is_lost_and_counted(make_recorder, tmp_path, monkeypatch):
    monkeypatch.setattr("callboard.broker.recording.MAX_RECORD", 100)
    recorder = make_recorder(lambda: CommitLog(tmp_path))
    recorder.take_from(NODE, run("small", "x" * 200, "small again"), 1)
    recorder.close()

    assert [record.payload for record in LogReader(tmp_path)] == ["small", "small again"]
    assert (recorder.recorded, recorder.lost) == (2, 1)


@pytest.mark.slow
def test_publishers_of_other_nodes_wait_for_a_slow_disk(make_endpoint, tmp_path, monkeypatch):
    here, there = make_endpoint(), make_endpoint()
    count, payload = 28_000, "x" * 2_000
    bound(monkeypatch, mark=(500, 1 << 20), limit=(10_000, 1 << 30))
    recorder = Recording(here.hub, ("/a",), lambda: SlowLog(tmp_path))
    assert there.peer("127.0.0.1", here.listen("127.0.0.1", 0))
    assert there.await_filter_entry("/a")

    publisher = threading.Thread(
        target=lambda: [there.publish("/a", [number, payload]) for number in range(count)]
    )
    publisher.start()
    # Without back-pressure it ends while the disk stands still, and messages are refused.
    wait_for(
        lambda: (
            here.node.stats().pauses >= 6
            or recorder.lost
            or not (publisher.is_alive() or there.hub.buffered)
        )
    )
    was_slowed = publisher.is_alive()
    recorder._log.may_append.set()
    publisher.join(30)
    wait_for(lambda: recorder.recorded + recorder.lost == count, 30)
    recorder.close()

    assert was_slowed
    assert recorder.lost == 0
    assert [record.payload[0] for record in LogReader(tmp_path)] == list(range(count))


def test_threads_of_the_same_node_wait_for_a_slow_disk(make_endpoint, tmp_path, monkeypatch):
    endpoint, count = make_endpoint(), 60_000
    bound(monkeypatch, mark=(500, 1 << 20), limit=(30_000, 1 << 30))
    recorder = Recording(endpoint.hub, ("/a",), lambda: SlowLog(tmp_path))

    publisher = threading.Thread(
        target=lambda: [endpoint.publish("/a", number) for number in range(count)]
    )
    publisher.start()
    inputs = endpoint.hub.inputs
    wait_for(lambda: recorder.waiting > 500 and inputs.is_congested or recorder.lost)
    recorder._log.may_append.set()
    publisher.join(30)
    wait_for(lambda: recorder.recorded + recorder.lost == count, 30)
    recorder.close()

    assert recorder.lost == 0
    assert [record.payload for record in LogReader(tmp_path)] == list(range(count))
    wait_for(endpoint.hub.has_room)
