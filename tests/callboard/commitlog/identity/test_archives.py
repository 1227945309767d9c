"""An archive knows its log: its manifest has the id and the epochs, and its tail is checked."""

import json
import shutil

import pytest

from callboard.backoff import is_reached
from callboard.commitlog import CommitLog, LogReader, OtherEpoch, OtherLog
from callboard.commitlog.objects.manifest import Manifests
from callboard.commitlog.objects.store import FileSystemObjects, object_address

pytest.importorskip("fsspec")


def is_copied(log):
    return bool(log.archives) and log.archives[0].end == log.segments[-1].base


def trouble_of(log):
    return log.archives[0].trouble if log.archives else ""


def recorded(folder, name, archive=None, records=200):
    with CommitLog(folder / name, segment_bytes=1000, archive=archive) as log:
        for number in range(records):
            log.append("/n", {"from": name, "n": number})
        if archive:
            assert is_reached(lambda: is_copied(log), 0.01, 20)
    return folder / name


@pytest.fixture
def archive(tmp_path):
    return f"file://{tmp_path}/archive"


def test_an_archive_and_its_folder_have_the_same_positions(tmp_path, archive):
    folder = recorded(tmp_path, "one", archive)
    recorded(tmp_path, "one", archive)  # a second epoch
    there, here = LogReader(archive), LogReader(folder)
    assert there.identity == here.identity
    for offset in (0, 1, 100, 200, 201, there.end):
        assert there.resume(here.position(offset)) == there.position(offset)
    whole = LogReader(archive, tail=folder)
    assert len(list(whole.read(here.position(150)))) == 250


def test_the_tail_of_another_log_is_refused(tmp_path, archive):
    folder = recorded(tmp_path, "one", archive)
    other = recorded(tmp_path, "other", records=400)
    for use in (lambda log: log.end, list, lambda log: log.identity):
        with pytest.raises(OtherLog) as refused:
            use(LogReader(archive, tail=other))
        for log in (folder, other):
            assert LogReader(log).identity.log in str(refused.value)
    position = LogReader(other).position(300)
    with pytest.raises(OtherLog):
        LogReader(archive).read(position)


def test_a_tail_that_was_restored_and_continued_is_refused(tmp_path, archive):
    folder = recorded(tmp_path, "one", records=50)
    shutil.copytree(folder, tmp_path / "backup")
    recorded(tmp_path, "one", archive)
    shutil.rmtree(folder)
    (tmp_path / "backup").rename(folder)
    recorded(tmp_path, "one")
    with pytest.raises(OtherEpoch):
        list(LogReader(archive, tail=folder))
    with CommitLog(folder, archive=archive) as log:  # nor is it copied into the archive
        assert is_reached(lambda: "copied or set back" in trouble_of(log), 0.01, 20)


def test_an_archive_of_the_first_release_is_read_without_epochs(tmp_path, archive):
    folder = recorded(tmp_path, "one", archive)
    manifests = Manifests(FileSystemObjects(object_address(archive, None)))
    manifests.change(lambda newest: newest._replace(epochs=()))
    newest = manifests.newest()
    assert b"epochs" not in newest.encode()
    assert json.loads(newest.encode()[9:])["log"] == LogReader(folder).identity.log
    log = LogReader(archive, tail=folder)
    assert len(list(log.read(log.position(150)))) == 50
    assert LogReader(archive).position(150).epoch == 0
    other = recorded(tmp_path, "other")
    with pytest.raises(OtherLog):
        LogReader(archive, tail=other).position(150)
