"""Results on an object store are published all together, and once, whatever fails."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from callboard.commitlog import LogReader, Retention
from callboard.commitlog.batch import encode_batch
from callboard.commitlog.columns import many_records
from callboard.commitlog.objects.disk import ObjectDisk
from callboard.commitlog.objects.manifest import ORPHAN_SECONDS, Manifest, Manifests
from callboard.commitlog.verify import verify
from callboard.pipeline import PublishFailed
from callboard.pipeline.spark import store_journal as module
from callboard.pipeline.spark.segments import MANY
from callboard.pipeline.spark.store_journal import StoreJournal
from tests.callboard.commitlog.stores import FlakyObjects, Killed


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE", 0.0)
    monkeypatch.setattr("callboard.commitlog.objects.disk.FRESH_SECONDS", 0.0)


@pytest.fixture
def store():
    return FlakyObjects()


def stage(journal, *payloads):
    batches = [
        (encode_batch(0, 0, many_records([each], ["/t"], [None], [None], [""], None))[0], 1)
        for each in payloads
    ]
    return journal.stage(batches)


def reader(store):
    return LogReader(store.url, disk=ObjectDisk(Manifests(store.client(lambda *_: ""))))


def payloads(store):
    return [(record.offset, record.payload) for record in reader(store)]


def test_segments_staged_by_tasks_become_one_segment_in_the_order_of_tasks(store):
    journal = StoreJournal(store)
    staged = [stage(journal, "a", "b"), stage(journal), stage(journal, "c")]
    assert journal.publish("q", 0, staged)
    assert payloads(store) == [(0, "a"), (1, "b"), (2, "c")]
    assert len(Manifests(store).newest().segments) == 1
    assert store.names("staged") == []


def test_queries_publish_each_batch_once(store):
    journal = StoreJournal(store)
    for query in ("one", "two", "one", "two"):
        fresh = journal.publish(query, 0, [stage(journal, query)])
    assert not fresh
    assert journal.publish("one", 1, [stage(journal, "more")])
    assert payloads(store) == [(0, "one"), (1, "two"), (2, "more")]
    assert journal.published() == {"two": 0, "one": 1}
    assert journal.publish("three", 0, [stage(journal)])
    assert store.names("staged") == []


@pytest.mark.parametrize("kind", ["killed before", "killed behind", "unheard", "refused"])
def test_a_publisher_that_fails_at_any_request_publishes_all_or_nothing(kind):
    at, done = 0, False
    while not done:
        store = FlakyObjects()
        calm = StoreJournal(store.client(lambda *_: ""))
        calm.publish("other", 0, [stage(calm, "x")])
        count = iter(range(10**6))
        flaky = store.client(lambda *_, at=at, count=count: kind if next(count) == at else "")
        with suppress(Killed, PublishFailed):
            journal = StoreJournal(flaky)
            journal.publish("q", 7, [stage(journal, "a"), stage(journal, "b")])
        done = len(flaky.requests) <= at
        assert payloads(store) in ([(0, "x")], [(0, "x"), (1, "a"), (2, "b")])
        calm.publish("q", 7, [stage(calm, "a"), stage(calm, "b")])
        assert payloads(store) == [(0, "x"), (1, "a"), (2, "b")]
        at += 1
    assert at > 12


@pytest.mark.slow
@given(st.lists(st.sampled_from(["", "", "", "unheard", "refused", "late"]), max_size=40))
@settings(max_examples=40, deadline=None)
def test_a_batch_published_by_two_at_once_is_stored_once(faults):
    store, faults = FlakyObjects(), iter(faults)
    other = StoreJournal(store.client(lambda *_: ""))
    batches = iter(range(40))

    def fault(what, name):
        batch = next(batches, None)
        if batch is not None and batch % 3 == 0:
            other.publish("q", batch // 9, [stage(other, f"{batch // 9}")])
            other.publish("r", batch, [stage(other, "r")])
        kind = next(faults, "")
        return "" if kind == "late" and what != "names" else kind

    journal = StoreJournal(store.client(fault))
    for batch in range(5):
        for _ in range(50):
            with suppress(PublishFailed):
                journal.publish("q", batch, [stage(journal, f"{batch}")])
                break
    found = payloads(store)
    assert [offset for offset, _ in found] == list(range(len(found)))
    mine = [payload for _, payload in found if payload != "r"]
    assert mine == sorted(set(mine))
    assert other.published()["q"] >= 4
    assert mine[-1] == str(other.published()["q"])


def test_small_segments_are_merged_while_they_are_read(store):
    journal = StoreJournal(store)
    journal.publish("q", 0, [stage(journal, 0)])
    reading = iter(reader(store).read(0))
    for batch in range(1, 2 * MANY):
        journal.publish("q", batch, [stage(journal, batch)])
    assert len(Manifests(store).newest().segments) <= MANY + 2
    assert [record.payload for record in reading] == list(range(2 * MANY))
    assert payloads(store) == [(n, n) for n in range(2 * MANY)]
    assert verify(store.url, disk=ObjectDisk(Manifests(store))).damage == []
    listed = {each.object for each in Manifests(store).newest().segments}
    assert {f"segments/{each}" for each in store.names("segments")} == listed


def test_large_results_are_several_segments_with_indexes(store, monkeypatch):
    monkeypatch.setattr(module, "_SEGMENT", 300_000)
    monkeypatch.setattr(module, "_PIECE", 100_000)
    journal = StoreJournal(store)
    journal.publish("q", 0, [stage(journal, *[bytes(50_000)] * 20), stage(journal, "end")])
    newest = Manifests(store).newest()
    assert len(newest.segments) == 4
    assert all(each.index_bytes for each in newest.segments[:3])
    assert [record.offset for record in reader(store).read(13)] == list(range(13, 21))


def test_retention_removes_the_oldest_results(store):
    journal = StoreJournal(store, retain=Retention(records=5))
    for batch in range(10):
        journal.publish("q", batch, [stage(journal, batch)])
    assert payloads(store) == [(n, n) for n in range(5, 10)]


def test_files_of_dead_tasks_are_removed(store, monkeypatch):
    monkeypatch.setattr(module, "_SWEEP", 1)
    journal = StoreJournal(store)
    left = stage(journal, "left")
    journal.publish("q", 0, [stage(journal, "a")])
    assert store.names("staged") == [left.name]
    store.now = ORPHAN_SECONDS + 1
    journal.publish("q", 1, [stage(journal, "b")])
    assert store.names("staged") == []


def test_the_archive_of_a_log_refuses_results(store):
    store.create(Manifest(0, "x", "").name, Manifest(0, "0123", "shop:/cpu").encode())
    journal = StoreJournal(store)
    with pytest.raises(
        PublishFailed, match="holds the archive of shop:/cpu; use another place"
    ):
        journal.publish("q", 0, [stage(journal, "a")])


def test_staged_bytes_that_are_damaged_are_not_published(store):
    journal = StoreJournal(store)
    staged = stage(journal, "a", "b")
    name = f"staged/{staged.name}"
    store.objects[name] = store.objects[name][:-1]
    with pytest.raises(PublishFailed, match="is damaged at byte"):
        journal.publish("q", 0, [staged])
    assert Manifests(store).newest() is None
