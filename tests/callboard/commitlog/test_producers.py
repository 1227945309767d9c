"""Receipts: what a producer was told stands in the log once, whatever happens to either."""

import threading
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from callboard.commitlog import (
    CommitLog,
    LogError,
    LogFailed,
    LogReader,
    ProducerFenced,
    ProducerForgotten,
    Retention,
    WrongNumber,
)
from callboard.commitlog.batch import Batch, decode_header, plain, records_of
from callboard.commitlog.errors import InvalidOption, InvalidRecord
from callboard.commitlog.producing import restore
from callboard.commitlog.producing.table import Claim, ProducerTable
from callboard.commitlog.verify import verify
from callboard.simulation import SimulatedDisk

WEEK = 7 * 86400 * 10**9


def payloads(log):
    return [record.payload for record in log.read()]


def test_a_record_tried_again_is_no_double(tmp_path):
    with CommitLog(tmp_path / "log") as log:
        meter = log.producer("meter-7")
        assert meter.last is None
        assert meter.append("/t", 1, key="k", headers={"b": "1", "a": "2"}) == 0
        assert log.durable == 1
        assert meter.append("/t", 1, key="k", headers={"a": "2", "b": "1"}, number=1) == 0
        log.append("/t", "between")
        assert meter.append("/t", 1) == 2  # the same again, but another record
        assert meter.last == 2
    with CommitLog(tmp_path / "log") as log:
        meter = log.producer("meter-7")
        assert meter.last == 2
        assert meter.append("/t", 1, number=2) == 2
        assert meter.append("/t", 1, key="k", headers={"a": "2", "b": "1"}, number=1) == 0
        assert payloads(log) == [1, "between", 1]


def test_a_number_with_another_record_or_behind_a_gap_is_refused():
    log = CommitLog()
    meter = log.producer("meter-7")
    meter.append("/t", 1)
    for other in ({"payload": 2}, {"topic": "/u"}, {"key": "k"}, {"headers": {"a": ""}}):
        with pytest.raises(WrongNumber, match="number 1 of meter-7 belongs to another"):
            meter.append(**{"topic": "/t", "payload": 1, **other}, number=1)
    with pytest.raises(WrongNumber, match="leaves a gap: the last number is 1"):
        meter.append("/t", 2, number=3)
    with pytest.raises(WrongNumber, match="another record"):
        meter.append("/t", b"\x01", number=1)  # the same bytes, but not the same value
    assert meter.append("/t", 2) == 1


def test_a_batch_is_taken_whole_and_once(tmp_path):
    with CommitLog(tmp_path / "log", compression="zlib") as log:
        meter = log.producer("meter-7")
        many = [{"n": n % 3} for n in range(1000)]
        assert meter.append_batch(many, topic="/t") == range(1000)
        assert meter.append_batch(many, topic="/t", number=1) == range(1000)
        with pytest.raises(WrongNumber):
            meter.append_batch(many[:10], topic="/t", number=1)
        assert meter.last == 1000
        assert payloads(log) == many
        with pytest.raises(InvalidRecord, match="8,193 records"):
            meter.append_batch([b""] * 8193, topic="/t")
    assert LogReader(tmp_path / "log").to_arrow().num_rows == 1000
    assert verify(tmp_path / "log").records == 1000


def test_who_opens_a_producer_again_fences_the_first():
    log = CommitLog()
    first = log.producer("meter-7")
    first.append("/t", "first")
    second = log.producer("meter-7")
    with pytest.raises(ProducerFenced, match="opened again"):
        first.append("/t", "lost?")
    second.append("/t", "second")
    with pytest.raises(ProducerFenced):
        first.append("/t", "first", number=1)
    assert payloads(log) == ["first", "second"]


@pytest.mark.parametrize("name", ["", " ", "a b", "é", "x" * 129, ".", 7, None])
def test_a_name_is_checked(name):
    with pytest.raises(InvalidOption):
        CommitLog().producer(name)


@pytest.mark.parametrize("number", [-1, 1.0, "1", True, 2**63])
def test_a_number_is_checked(number):
    with pytest.raises(InvalidOption):
        CommitLog().producer("a").append("/t", 1, number=number)


def test_a_producer_begins_with_numbers_of_its_own():
    log = CommitLog()
    file = log.producer("file.csv", begin=500)
    assert (file.append("/t", 1), file.last) == (0, 500)
    assert log.producer("file.csv", begin=1).last == 500
    assert log.producer("other", begin=0).append("/t", 1, number=0) == 1


def test_numbers_outlive_the_segments_they_stand_in(tmp_path):
    with CommitLog(tmp_path / "log", segment_bytes=2000, sync="none") as log:
        meter = log.producer("meter-7")
        for number in range(20):
            meter.append("/t", number)
        for each in range(200):
            log.append("/other", each)
        assert log.trim(before=100) > 20
    with CommitLog(tmp_path / "log", retain=Retention(records=50)) as log:
        meter = log.producer("meter-7")
        assert meter.last == 20
        assert meter.append("/t", 19, number=20) == 19  # its offset, though the record is gone
        with pytest.raises(WrongNumber, match="long ago"):
            meter.append("/t", 18, number=19)
        assert [each.name for each in LogReader(tmp_path / "log").producers] == ["meter-7"]


def test_a_large_table_fills_no_segment(tmp_path):
    with CommitLog(tmp_path / "log", segment_bytes=1000, sync="none") as log:
        for each in range(100):
            log.producer(f"a-producer-with-a-long-name-{each}").append("/t", each)
        before = len(log.segments)
        for each in range(100):
            log.append("/t", each)
        assert len(log.segments) - before < 12


@pytest.mark.slow
def test_who_was_silent_for_a_week_is_forgotten_and_told(tmp_path):
    now = 10**18
    with CommitLog(tmp_path / "log", clock=lambda: now) as log:
        meter, other = log.producer("meter-7"), log.producer("other")
        meter.append("/t", 1)
        now += WEEK + 1
        other.append("/t", "other")
        again = log.producer("meter-7")
        assert again.last is None
        with pytest.raises(
            ProducerForgotten, match="whether its number 1 was taken is unknown"
        ):
            again.append("/t", 1, number=1)
        assert again.append("/t", 2) == 2  # no retry: it begins anew
        assert log.producer("new").append("/t", 3) == 3
        begun = log.producer("newer", begin=1)
        assert begun.append("/t", 4, number=1) == 4
        now += WEEK + 1
        log.producer("again")
        assert begun.append("/t", 5) == 5  # goes on after it was forgotten
        assert begun.last == 2
    with CommitLog(tmp_path / "log", clock=lambda: now) as log:
        unheard = log.producer("unheard")
        with pytest.raises(ProducerForgotten):
            unheard.append("/t", 1, number=1)


def test_beyond_so_many_the_one_silent_longest_is_forgotten():
    table = ProducerTable(limit=3)
    for now, name in enumerate("abcade", start=1):
        epoch = table.open(name, now).epoch
        last = table.entries.get(name)
        claim = Claim(name, epoch, 1 if last is None else last.number + 1, 1, 0)
        entry = table.admit(claim, now, now)
        assert entry is not None
        table.put(entry)
    assert list(table.entries) == ["a", "d", "e"]
    with pytest.raises(ProducerForgotten):
        table.admit(Claim("c", 3, 2, 1, 0), 9, 9)


def test_older_readers_refuse_what_has_a_note_and_logs_without_stay_as_they_were(tmp_path):
    def contents(name, with_producer):
        with CommitLog(tmp_path / name, clock=lambda: 7, sync="none") as log:
            log.append("/t", 1)
            if with_producer:
                log.producer("p").append("/t", 2)
        return (tmp_path / name / f"{0:020}.log").read_bytes()

    before, behind = contents("a", False), contents("b", True)
    assert behind.startswith(before)
    header = decode_header(behind, len(before))
    assert header.flags & ~0x7F == 0x80  # which a reader without notes takes for a kind of
    body = behind[len(before) + 48 :]  # compression that it does not know
    batch = Batch(header, body, 0)
    assert [each.payload for each in records_of(batch)] == [2]
    for cut in range(len(body)):
        with pytest.raises((ValueError, LogError)):
            list(records_of(Batch(header, body[:cut], 0)))
    assert plain(batch).header.flags & 0x80 == 0


def test_a_full_disk_refuses_and_the_record_is_taken_later():
    disk = SimulatedDisk()
    log = CommitLog("/a", disk=disk, sync="none")
    meter = log.producer("meter-7")
    meter.append("/t", 1)
    disk.faults.capacity = disk.size(f"/a/{0:020}.log") + 100
    with pytest.raises(LogFailed, match="nothing was appended"):
        meter.append("/t", 2)
    disk.faults.capacity = None
    assert meter.append("/t", 2) == 1
    assert meter.last == 2


def test_a_sync_that_failed_leaves_it_to_the_retry():
    disk = SimulatedDisk()
    log = CommitLog("/a", disk=disk, sync="none")
    meter = log.producer("meter-7")
    meter.append("/t", 1)
    disk.faults.fsync_errors = 1.0
    with pytest.raises(LogFailed):
        meter.append("/t", 2)
    disk.faults.fsync_errors = 0.0
    with pytest.raises(LogFailed, match="open it again"):
        meter.append("/t", 2, number=2)
    again = CommitLog("/a", disk=disk, sync="none")
    assert again.producer("meter-7").append("/t", 2, number=2) == 1
    assert payloads(again) == [1, 2]


def test_threads_share_syncs_and_keep_their_order(tmp_path):
    with CommitLog(tmp_path / "log", sync="none") as log:

        def run(name):
            producer = log.producer(name)
            for each in range(40):
                producer.append(name, each)

        threads = [threading.Thread(target=run, args=(f"p{n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = list(log.read())
        for n in range(8):
            assert [each.payload for each in found if each.topic == f"p{n}"] == [*range(40)]


NAMES = [f"p{each}" for each in range(5)]


class Producing(RuleBasedStateMachine):
    """Producers of a log on a disk that crashes; some are forgotten, and segments removed."""

    def __init__(self):
        super().__init__()
        self.disk = SimulatedDisk(1)
        self.now = 10**18
        self.told: dict[bytes, int] = {}  # offsets of what was acknowledged
        self.tried: dict[str, list[tuple[int, bytes]]] = {name: [] for name in NAMES}
        self.made = 0
        restore.ProducerTable = partial(ProducerTable, limit=3)
        self.open()

    def teardown(self):
        restore.ProducerTable = ProducerTable

    def open(self):
        self.log = CommitLog(
            "/a", disk=self.disk, sync="none", segment_bytes=400, clock=lambda: self.now
        )
        self.producers = {}
        self.lives = {}

    def producer(self, name):
        if name not in self.producers:
            self.producers[name] = self.log.producer(name)
        return self.producers[name]

    @rule(name=st.sampled_from(NAMES), size=st.sampled_from([0, 0, 100]))
    def append(self, name, size):
        self.now += 1
        producer, payload = self.producer(name), b"%d" % self.made + bytes(size)
        self.made += 1
        offset = producer.append(name, payload)
        assert payload not in self.told
        self.told[payload] = offset
        if producer.last <= len(self.tried[name]) and producer.last == 1:
            self.tried[name].clear()  # it was forgotten, and began anew
        self.tried[name].append((producer.last, payload))

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def retry(self, name, data):
        if not self.tried[name]:
            return
        number, payload = data.draw(st.sampled_from(self.tried[name]))
        try:
            offset = self.producer(name).append(name, payload, number=number)
        except (ProducerForgotten, WrongNumber):
            # Forgotten, or so long ago that retention has removed it: never another offset.
            return
        assert self.told.setdefault(payload, offset) == offset

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def other_record(self, name, data):
        # What a crash took was never acknowledged, and its number is free.
        taken = [number for number, payload in self.tried[name] if payload in self.told]
        if taken:
            number = data.draw(st.sampled_from(taken))
            with pytest.raises((WrongNumber, ProducerForgotten)):
                self.producer(name).append(name, b"other", number=number)

    @rule(name=st.sampled_from(NAMES))
    def open_again(self, name):
        old = self.producers.pop(name, None)
        self.producer(name)
        if old is not None:
            with pytest.raises((ProducerFenced, ProducerForgotten)):
                old.append(name, b"fenced", number=old.last or 1)

    @rule()
    def plain_append(self):
        self.log.append("/plain", b"plain")

    @rule(share=st.floats(0, 1))
    def trim(self, share):
        start = self.log.start
        self.log.trim(before=start + int(share * (self.log.end - start)))

    @rule(days=st.sampled_from([0.5, 8]))
    def wait(self, days):
        self.now += int(days * 86400e9)

    @rule()
    def crash(self):
        self.disk.crash()
        self.open()

    @precondition(lambda self: self.producers)
    @rule(data=st.data())
    def crash_while_appending(self, data):
        """What was written and not synced is torn at any byte; the retry decides."""
        name = data.draw(st.sampled_from(sorted(self.producers)))
        payload = b"%d" % self.made
        self.made += 1
        self.disk.faults.fsync_errors = 1.0
        before = self.producers[name].last or 0
        with pytest.raises(LogFailed):
            self.producers[name].append(name, payload)
        self.disk.faults.fsync_errors = 0.0
        self.crash()
        self.tried[name].append((before + 1, payload))

    @rule()
    def close(self):
        self.log.close()
        self.open()

    @invariant()
    def each_is_there_once(self):
        found = [each for each in self.log.read(self.log.start) if each.topic != "/plain"]
        assert len({each.payload for each in found}) == len(found)
        at = {each.payload: each.offset for each in found}
        for payload, offset in self.told.items():
            assert at.get(payload, offset) == offset
            assert payload in at or offset < self.log.start
        for name in NAMES:
            mine = [int(each.payload.rstrip(b"\0")) for each in found if each.topic == name]
            assert len(mine) == len(set(mine))


TestProducing = Producing.TestCase
TestProducing.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
