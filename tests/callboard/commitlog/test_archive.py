"""Sealed segments on an object store: whole, in order, once, whatever fails or dies."""

import json
import shutil
from contextlib import suppress
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.commitlog import (
    CommitLog,
    LogCorrupt,
    LogFailed,
    LogLocked,
    LogReader,
    Retention,
)
from callboard.commitlog.disk import MemoryDisk
from callboard.commitlog.folder import Folder
from callboard.commitlog.objects.archive import Copier, archives_of
from callboard.commitlog.objects.disk import ObjectDisk
from callboard.commitlog.objects.manifest import (
    MANIFEST_LIMIT,
    ORPHAN_SECONDS,
    Manifest,
    Manifests,
    decode_manifest,
)
from callboard.commitlog.verify import verify
from tests.callboard.commitlog.stores import FlakyObjects, Killed

SECOND = 10**9


def make_log(disk, batches=12, path="/cpu", **options):
    log = CommitLog(path, disk=disk, sync="none", segment_bytes=400, **options)
    for batch in range(batches):
        log.append_batch([f"value {batch}-{i}" for i in range(10)], topic="/a")
    return log


@pytest.fixture
def log():
    disk = MemoryDisk()
    with make_log(disk) as log:
        log.disk = disk
        yield log


def copier(log, store, **options):
    return Copier(Folder(log.disk, "/cpu"), store, **options)


def archive_of(store, tail=None):
    return LogReader(store.url, disk=ObjectDisk(Manifests(store), tail))


def check(store):
    """Whatever a reader may see now is whole, and in order without gaps or doubles."""
    newest = Manifests(FlakyObjects(store=store.store)).newest()
    behind = 0
    for each in () if newest is None else newest.segments:
        data = store.store.objects[each.object]
        assert (len(data), crc32(data)) == (each.bytes, each.crc)
        assert len(store.store.objects.get(each.index_object, b"")) == each.index_bytes
        assert each.base == behind
        behind = each.end
    return behind


def test_an_archive_reads_as_its_log_does(log):
    store = FlakyObjects()
    copied = list(copier(log, store).copy())
    there = archive_of(store)
    assert [each.base for each in copied] == [each.base for each in log.segments[:-1]]
    assert (there.start, there.end) == (0, log.segments[-1].base)
    assert list(there.read(35)) == [each for each in log.read(35) if each.offset < there.end]
    assert there.readv(40, 30) == log.readv(40, 30)
    assert there.offset_at(0) == 0
    assert list(copier(log, store).copy()) == []


def test_the_rest_comes_from_where_the_log_is_written(log):
    store = FlakyObjects()
    list(copier(log, store).copy())
    there = archive_of(store, Folder(log.disk, "/cpu"))
    assert list(there) == list(log)
    follower = there.follow()
    log.append_batch(list(range(200)), topic="/new")
    log.append("/last", "value")  # begins a segment that is not copied
    assert [each.offset for each in follower.poll(1000)] == list(range(120, log.end))
    log.trim(before=log.segments[-1].base)
    with pytest.raises(LogCorrupt, match="records 100 to 319 are lost"):
        list(archive_of(store, Folder(log.disk, "/cpu")))


def test_it_is_read_on_when_the_tail_became_a_copy(log):
    store = FlakyObjects()
    there = (
        archive_of(store, Folder(log.disk, "/cpu")) if list(copier(log, store).copy()) else None
    )
    follower = there.follow(0)
    assert len(follower.poll(1000)) == 120
    log.append_batch(list(range(200)), topic="/new")
    log.append("/last", "value")
    list(copier(log, store).copy())
    log.trim(before=log.segments[-1].base)
    assert [each.offset for each in follower.poll(1000)] == list(range(120, log.end))


@pytest.mark.parametrize("kind", ["killed before", "killed behind", "unheard", "refused"])
def test_a_copier_that_ends_at_any_request_leaves_what_another_goes_on_with(log, kind):
    at, done = 0, False
    while not done:
        store = FlakyObjects()
        count = iter(range(10**6))
        failing = store.client(lambda *_, at=at, count=count: kind if next(count) == at else "")
        with suppress(Killed, LogFailed):
            list(copier(log, failing).copy())
        done = len(failing.requests) <= at
        check(store)
        list(copier(log, store.client(lambda *_: "")).copy())
        assert check(store) == log.segments[-1].base
        assert [each.payload for each in archive_of(store)][:3] == [
            "value 0-0",
            "value 0-1",
            "value 0-2",
        ]
        at += 1
    assert at > 20


FAULTS = st.sampled_from(
    ["", "", "", "", "refused", "unheard", "killed before", "killed behind", "late"]
)


@given(st.lists(FAULTS, max_size=60), st.lists(st.integers(0, 3), max_size=60))
@settings(max_examples=60, deadline=None)
def test_two_copiers_at_once_lose_nothing_and_double_nothing(faults, turns):
    disk = MemoryDisk()
    with make_log(disk, batches=9) as log:
        log.disk = disk
        store, faults, turns = FlakyObjects(), iter(faults), iter(turns)
        other = copier(log, store.client(lambda what, name: "")).copy()

        def fault(what, name):
            for _ in range(next(turns, 0)):
                next(other, None)
            check(store)
            kind = next(faults, "")
            return "" if kind == "late" and what != "names" else kind

        for _ in range(30):
            try:
                list(copier(log, store.client(fault)).copy())
            except (LogFailed, Killed):
                continue
            break
        assert check(store) == log.segments[-1].base
        assert [each.offset for each in archive_of(store)] == list(range(log.segments[-1].base))


def test_a_publisher_that_slept_while_its_number_was_removed_begins_anew(log):
    store, slept = FlakyObjects(), []

    def fault(what, name):
        if what == "create" and not slept:
            slept.append(name)
            others = Manifests(store.client(lambda *_: ""))
            for number in range(MANIFEST_LIMIT + 5):
                others.change(lambda before, n=number: _with_query(before, n))
        return ""

    manifests = Manifests(store.client(fault))
    store.create(Manifest(0, "log", "here").name, Manifest(0, "log", "here").encode())
    manifests.change(lambda before: before._replace(published={**before.published, "mine": 1}))
    newest = Manifests(store).newest()
    assert newest.published == {"others": MANIFEST_LIMIT + 4, "mine": 1}
    assert len(store.names("manifests")) <= MANIFEST_LIMIT + 1


def _with_query(before, number):
    return before._replace(published={"others": number})


def test_retention_there_removes_the_oldest_and_readers_are_told(log):
    store = FlakyObjects()
    first = copier(log, store)
    list(first.copy())
    reading = iter(archive_of(store).read(0))
    next(reading)
    reading = archive_of(store)
    reading.read(0)
    log.append_batch(list(range(200)), topic="/new")
    log.append("/last", "value")
    list(copier(log, store, retain=Retention(records=230)).copy())
    assert check_start(store) > 0
    late = reading.read(0)
    assert [each.offset for each in late] == list(range(check_start(store), 320))
    assert late.lost == check_start(store)
    listed = {each.object for each in Manifests(store).newest().segments}
    assert {
        f"segments/{name}" for name in store.names("segments") if name.endswith(".log")
    } == listed


def check_start(store):
    return Manifests(store).newest().segments[0].base


def test_a_reader_within_a_segment_that_is_removed_goes_on_behind_it(monkeypatch):
    monkeypatch.setattr("callboard.commitlog.objects.disk.FRESH_SECONDS", 0.0)
    disk, store = MemoryDisk(), FlakyObjects()
    with CommitLog("/cpu", disk=disk, sync="none", segment_bytes=3_000_000) as log:
        log.disk = disk
        for _ in range(3):
            log.append_batch([bytes(100_000)] * 10, topic="/big")
        log.append_batch([bytes(100_000)] * 10, topic="/last")
        list(copier(log, store).copy())
        reading = archive_of(store).read(0)
        records = iter(reading)
        assert next(records).offset == 0
        log.append_batch([bytes(3_000_000)], topic="/last")
        log.append_batch([bytes(3_000_000)], topic="/last")
        list(copier(log, store, retain=Retention(bytes=1)).copy())
        found = [each.offset for each in records]
        assert found[-1] == Manifests(store).newest().end - 1
        assert len(found) + reading.lost == found[-1]
        assert reading.lost > 0


def test_orphans_are_swept_after_a_time_and_listed_objects_never(log):
    store = FlakyObjects()
    store.write("segments/00000000000000000000-dead.log", [b"half"])
    store.write("staged/0123", [b"rows"])
    list(copier(log, store).copy())
    assert store.objects["staged/0123"] == b"rows"
    before = set(store.objects) - {"segments/00000000000000000000-dead.log", "staged/0123"}
    store.now = ORPHAN_SECONDS + 1
    log.append_batch(["x"] * 100, topic="/a")
    log.append("/last", "value")
    list(copier(log, store).copy())
    assert before <= set(store.objects)
    assert not {"staged/0123", "segments/00000000000000000000-dead.log"} & set(store.objects)


def test_another_log_is_refused_at_the_place_of_one(log):
    store = FlakyObjects()
    list(copier(log, store).copy())
    other = MemoryDisk()
    with make_log(other), pytest.raises(LogLocked, match="has the log of .*cpu, not that of"):
        list(Copier(Folder(other, "/cpu"), store).copy())


def test_a_folder_that_went_on_elsewhere_is_refused(tmp_path):
    with CommitLog(tmp_path / "a", sync="none", segment_bytes=300) as log:
        log.append_batch(["x"] * 30, topic="/a")
        log.append_batch(["x"] * 30, topic="/a")
        store = FlakyObjects()
        folder = Folder(log._table.folder.disk, str(tmp_path / "a"))
        list(Copier(folder, store).copy())
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in ("a", "b"):
        with CommitLog(tmp_path / name, sync="none", segment_bytes=300) as log:
            for part in range(3):
                log.append_batch([f"{name}{part}"] * 40, topic="/a")
            copy = Copier(Folder(log._table.folder.disk, str(tmp_path / name)), store).copy()
            if name == "a":
                list(copy)
            else:
                with pytest.raises(LogLocked, match="has other records up to"):
                    list(copy)


def test_a_merged_segment_is_copied_from_where_the_copies_end(log):
    store = FlakyObjects()
    first = copier(log, store).copy()
    bases = [each.base for each in log.segments]
    while next(first).end < bases[2]:
        pass
    files = log.disk._files
    merged = b"".join(files[f"/cpu/{base:020}.log"] for base in bases[:4])
    for base in bases[:4]:
        files.pop(f"/cpu/{base:020}.index", None)
        files.pop(f"/cpu/{base:020}.log")
    files[f"/cpu/{0:020}.log"] = bytearray(merged)
    list(copier(log, store).copy())
    assert check(store) == log.segments[-1].base
    assert [each.offset for each in archive_of(store)] == list(range(log.segments[-1].base))


@pytest.mark.parametrize("at", [0, 3, 20, 47, 48, 100, -1])
def test_verify_finds_a_flipped_bit(log, at):
    store = FlakyObjects()
    list(copier(log, store).copy())
    name = Manifests(store).newest().segments[1].object
    damaged = bytearray(store.objects[name])
    damaged[at] ^= 4
    store.objects[name] = bytes(damaged)
    report = verify(store.url, disk=ObjectDisk(Manifests(store)))
    assert report.damage
    assert report.records + report.lost == log.segments[-1].base


def test_verify_finds_a_lost_object_and_a_damaged_manifest(log):
    store = FlakyObjects()
    list(copier(log, store).copy())
    newest = Manifests(store).newest()
    lost = newest.segments[1]
    del store.objects[lost.object]
    report = verify(store.url, disk=ObjectDisk(Manifests(store)))
    assert (report.lost, len(report.damage)) == (lost.end - lost.base, 1)
    data = bytearray(store.objects[newest.name])
    data[50] ^= 1
    store.objects[newest.name] = bytes(data)
    with pytest.raises(LogCorrupt, match="is damaged; put it back"):
        archive_of(store)


@pytest.mark.parametrize(
    "told",
    [
        '{"published": {"q": Infinity}}',
        '{"segments": [[0, 1, 1, "late", 0, "a"]]}',
        '{"segments": [[0, 1, 1, 0, "x", "a"]]}',
        '{"segments": [[0, 1, 1, 0, 0, "../../a"]]}',
        '{"segments": {"a": 1}}',
        '{"format": "1"}',
        "[" * 10_000,
        "null",
    ],
    ids=range(8),
)
def test_a_manifest_that_somebody_forged_is_one_error(told):
    whole = {"format": 1, "log": "a", "origin": "b", "published": {}, "segments": []}
    data = told.encode()
    if told.startswith("{"):
        data = json.dumps(whole | json.loads(told)).encode()
    with pytest.raises((LogCorrupt, LogFailed), match="is damaged|newer callboard"):
        decode_manifest(b"%08x " % crc32(data) + data, 0, "memory://a")


def test_what_lags_is_told(log):
    store = FlakyObjects()
    copy = copier(log, store)
    list(copy.copy())
    (told,) = archives_of(Folder(log.disk, "/cpu"))
    assert (told.place, told.end, told.trouble) == (store.url, log.segments[-1].base, "")
    copy.report_failure(LogFailed("no way there"))
    (told,) = log.archives
    assert (told.end, told.trouble) == (log.segments[-1].base, "no way there")


def test_manifests_that_name_other_places_are_refused():
    store = FlakyObjects()
    row = [0, 10, 5, 0, 0, "../../etc/passwd", 0]
    whole = Manifest(0, "log", "here").encode()
    evil = whole[9:].replace(
        b'"segments":[]', b'"segments":[%s]' % str(row).replace("'", '"').encode()
    )
    store.create("manifests/00000000000000000000.json", b"%08x " % crc32(evil) + evil)
    with pytest.raises(LogCorrupt):
        Manifests(store).newest()


def test_nothing_is_read_where_nothing_was_archived():
    with pytest.raises(LogFailed, match="there is no log at sim://bucket/cpu; copy one to it"):
        archive_of(FlakyObjects())
