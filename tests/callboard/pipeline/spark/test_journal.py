"""Results are published all together, and once, whatever fails."""

import os
from pathlib import Path

import pytest

from callboard.commitlog import CommitLog, LogReader, Retention
from callboard.commitlog.batch import encode_batch
from callboard.commitlog.columns import many_records
from callboard.commitlog.reader import open_folder
from callboard.commitlog.retention import SegmentLimits
from callboard.commitlog.verify import verify
from callboard.pipeline import PublishFailed
from callboard.pipeline.spark import journal as module
from callboard.pipeline.spark.journal import PUBLISHED, PUBLISHING, STAGED, FolderJournal
from callboard.pipeline.spark.segments import MANY, merge_small

NO_LIMITS = SegmentLimits.fitting(Retention(), None)


@pytest.fixture
def journal(folder):
    return FolderJournal(folder)


def stage(journal, *payloads):
    batches = [
        (encode_batch(0, 0, many_records([each], ["/t"], [None], [None], [""], None))[0], 1)
        for each in payloads
    ]
    return journal.stage(batches)


def payloads(folder):
    return [(record.offset, record.payload) for record in LogReader(folder)]


def test_segments_staged_by_tasks_become_one_segment_in_the_order_of_tasks(journal, folder):
    staged = [stage(journal, "a", "b"), stage(journal), stage(journal, "c")]

    assert journal.publish("q", 0, staged)

    assert payloads(folder) == [(0, "a"), (1, "b"), (2, "c")]
    assert len(LogReader(folder).segments) == 1
    assert os.listdir(Path(folder, STAGED)) == []  # noqa: PTH208


def test_a_batch_that_was_published_is_not_published_again(journal, folder):
    journal.publish("q", 0, [stage(journal, "a")])

    assert not journal.publish("q", 0, [stage(journal, "a")])
    assert journal.publish("q", 1, [stage(journal, "b")])

    assert payloads(folder) == [(0, "a"), (1, "b")]


def test_queries_that_share_a_log_do_not_share_their_batches(journal, folder):
    for query in ("one", "two", "one", "two"):
        journal.publish(query, 0, [stage(journal, query)])
    journal.publish("one", 1, [stage(journal, "more")])

    assert payloads(folder) == [(0, "one"), (1, "two"), (2, "more")]
    assert journal.published() == {"two": 0, "one": 1}


def test_a_batch_without_rows_makes_no_segment(journal, folder):
    assert journal.publish("q", 0, [stage(journal)])

    assert list(Path(folder).glob("*.log")) == []


def test_a_program_may_append_to_the_same_log(journal, folder):
    journal.publish("q", 0, [stage(journal, "a")])
    with CommitLog(folder) as log:
        log.append("/t", "b")

    assert not journal.publish("q", 0, [stage(journal, "a")])
    journal.publish("q", 1, [stage(journal, "c")])
    with CommitLog(folder) as log:
        log.append("/t", "d")

    assert payloads(folder) == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert not journal.publish("q", 1, [stage(journal, "c")])


def test_results_can_be_published_into_a_new_log(journal, folder):
    CommitLog(folder).close()

    journal.publish("q", 0, [stage(journal, "a")])

    assert payloads(folder) == [(0, "a")]


def test_discarding_removes_staged_segments_and_keeps_published_ones(journal, folder):
    first, second = stage(journal, "a"), stage(journal, "b")
    journal.publish("q", 0, [first])

    journal.discard([first, second])

    assert payloads(folder) == [(0, "a")]
    assert list(Path(folder, STAGED).iterdir()) == []


class Death(BaseException):
    """The process ends here; no later code runs."""


def steps(monkeypatch, dies_at):
    """Count what changes the disk, and die just before one of these steps."""
    seen = []

    def counted(name, call):
        def step(*args, **kwargs):
            if len(seen) == dies_at:
                raise Death
            seen.append(name)
            return call(*args, **kwargs)

        return step

    for name in ("rename", "unlink"):
        monkeypatch.setattr(Path, name, counted(name, getattr(Path, name)))
    monkeypatch.setattr(module.os, "fsync", counted("fsync", os.fsync))
    return seen


@pytest.mark.parametrize("dies_at", range(12))
def test_a_crash_at_any_step_leaves_each_record_once_after_a_replay(
    journal, folder, monkeypatch, dies_at
):
    journal.publish("q", 0, [stage(journal, "a")])
    staged = [stage(journal, "b"), stage(journal, "c")]
    with monkeypatch.context() as patch:
        seen = steps(patch, dies_at)
        try:
            journal.publish("q", 1, staged)
        except Death:
            pass
        else:
            assert len(seen) <= dies_at
    between = payloads(folder)

    again = FolderJournal(folder)
    again.publish("q", 1, [stage(again, "b"), stage(again, "c")])
    again.publish("q", 2, [stage(again, "d")])

    assert between in ([(0, "a")], [(0, "a"), (1, "b"), (2, "c")])
    assert payloads(folder) == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]


def test_a_commit_record_without_its_segment_is_ignored(journal, folder):
    """It was written, then the process died, then a program appended there."""
    journal.publish("q", 0, [stage(journal, "a")])
    note = Path(folder, f"{0:020}{PUBLISHED}").read_text()
    Path(folder, f"{1:020}{PUBLISHING}").write_text(note.replace('"q": 0', '"q": 1'))
    with CommitLog(folder, segment_bytes=1) as log:
        log.append("/t", "x")

    assert journal.publish("q", 1, [stage(journal, "b")])

    assert payloads(folder) == [(0, "a"), (1, "x"), (2, "b")]


def test_a_locked_log_names_its_holder(journal, folder, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    with CommitLog(folder), pytest.raises(PublishFailed, match=f"this process .{os.getpid()}"):
        journal.publish("q", 0, [stage(journal, "a")])


def test_files_are_synced_before_their_names_and_in_order(journal, monkeypatch):
    journal.publish("q", 0, [stage(journal, "a")])
    seen = steps(monkeypatch, None)

    journal.publish("q", 1, [stage(journal, "b")])

    contents, note = ["fsync"], ["fsync", "fsync"]
    assert seen[:6] == [*contents, *note, "rename", "fsync", "rename"]


def test_without_sync_a_checkpoint_is_not_synced(folder, monkeypatch):
    journal = FolderJournal(folder, is_durable=False)
    journal.publish("q", 0, [stage(journal, "a")])  # the id of a log is always durable
    seen = steps(monkeypatch, None)

    journal.publish("q", 1, [stage(journal, "b")])

    assert "fsync" not in seen


def segments(folder):
    return sorted(path.name for path in Path(folder).glob("*.log"))


def test_merging_small_segments_changes_no_record(folder):
    journal = FolderJournal(folder, is_durable=False)
    for batch in range(MANY + 2):
        journal.publish("q", batch, [stage(journal, batch)])
    follower = LogReader(folder).follow(0)
    first = follower.poll(5)

    for batch in range(MANY + 2, 2 * MANY + 10):
        journal.publish("q", batch, [stage(journal, batch)])

    everything = list(range(2 * MANY + 10))
    assert [value for _, value in payloads(folder)] == everything
    assert [record.payload for record in first + follower.poll(1000)] == everything
    assert len(segments(folder)) < MANY
    assert not journal.publish("q", 2 * MANY + 9, [stage(journal, "again")])


@pytest.mark.parametrize("dies_at", [0, 1, 2, 3, 4, 30, 63])
def test_a_merge_that_dies_at_any_step_keeps_each_record_once_and_the_next_merge_cleans_up(
    folder, monkeypatch, dies_at
):
    journal = FolderJournal(folder, is_durable=False)
    count, log = MANY + 1, open_folder(folder, None)
    for batch in range(count):
        journal.publish("q", batch, [stage(journal, batch)])
    with monkeypatch.context() as patch:
        steps(patch, dies_at)
        with pytest.raises(Death):
            merge_small(log, Path(folder, STAGED, "m"), NO_LIMITS, is_durable=True)
    assert [value for _, value in payloads(folder)] == list(range(count))

    for batch in range(count, count + MANY):
        journal.publish("q", batch, [stage(journal, batch)])

    assert payloads(folder) == [(n, n) for n in range(count + MANY)]
    assert len(segments(folder)) <= MANY + 1


# --- retention ---


def test_old_results_are_removed_by_batches_except_the_newest(folder):
    journal = FolderJournal(folder, is_durable=False, retain=Retention(records=10))
    for batch in range(20):
        journal.publish("q", batch, [stage(journal, batch, batch)])
    assert [value for _, value in payloads(folder)] == [15, 15, 16, 16, 17, 17, 18, 18, 19, 19]

    journal.publish("q", 20, [stage(journal, *range(99))])

    assert payloads(folder) == [(40 + n, n) for n in range(99)]
    assert sorted(path.suffix for path in Path(folder).iterdir() if path.suffix) == [
        ".log",
        PUBLISHED,
    ]


def test_merged_results_are_removed_in_small_steps(folder):
    journal = FolderJournal(folder, is_durable=False, retain=Retention(records=1000))

    kept = []
    for batch in range(250):
        journal.publish("q", batch, [stage(journal, *range(10))])
        log = LogReader(folder)
        kept.append(log.end - log.start)

    assert max(kept) == 1000
    assert min(kept[100:]) >= 900
    assert len(segments(folder)) < MANY + 20


def test_the_age_of_results_is_that_of_their_publishing(folder):
    journal = FolderJournal(folder, is_durable=False, retain=Retention(seconds=3600))
    for batch in range(3):
        journal.publish("q", batch, [stage(journal, batch)])
    for path in list(Path(folder).glob("*.log"))[:2]:
        os.utime(path, (0, 0))
    old = {int(path.stem) for path in Path(folder).glob("*.log") if not path.stat().st_mtime}

    journal.publish("q", 3, [stage(journal, 3)])

    first = min({0, 1, 2} - old)
    assert [value for _, value in payloads(folder)] == list(range(first, 4))


@pytest.mark.parametrize("limit", [Retention(records=1), Retention(bytes=1)])
def test_a_batch_whose_results_were_removed_is_not_published_again(journal, folder, limit):
    """Another query, and a program with other limits, have published since."""
    journal.publish("q", 7, [stage(journal, "a")])
    other = FolderJournal(folder, retain=limit)
    other.publish("other", 0, [stage(other, "b")])
    assert payloads(folder) == [(1, "b")]
    assert not journal.publish("q", 7, [stage(journal, "a")])

    with CommitLog(folder, segment_bytes=1, retain=limit) as log:
        log.append("/t", "c")
        log.append("/t", "d")

    assert not journal.publish("q", 7, [stage(journal, "a")])
    assert not other.publish("other", 0, [stage(other, "b")])
    assert {value for _, value in payloads(folder)} <= {"c", "d"}


@pytest.mark.parametrize("dies_at", range(14))
def test_removed_results_are_not_published_again_after_a_crash_at_any_step(
    folder, monkeypatch, dies_at
):
    journal = FolderJournal(folder, retain=Retention(records=2))
    for batch in range(3):
        journal.publish("q", batch, [stage(journal, batch)])
    with monkeypatch.context() as patch:
        steps(patch, dies_at)
        try:
            journal.publish("q", 3, [stage(journal, 3, "3")])
        except Death:
            pass

    again = FolderJournal(folder, retain=Retention(records=2))
    again.publish("q", 3, [stage(again, 3, "3")])

    assert payloads(folder)[-2:] == [(3, 3), (4, "3")]
    assert again.publish("q", 4, [stage(again, 4)])
    assert payloads(folder)[-3:] in ([(5, 4)], [(3, 3), (4, "3"), (5, 4)])


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "unlink"])
def test_damage_of_the_last_published_segment_is_reported(tmp_path, damage):
    journal = FolderJournal(str(tmp_path / "log"))
    for batch in range(3):
        journal.publish("q", batch, [stage(journal, 1, 2, 3)])
    last = max((tmp_path / "log").glob("*.log"))
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    if damage == "unlink":
        last.unlink()
    else:
        last.write_bytes({"flip": data, "cut": data[:40], "empty": b""}[damage])

    report = verify(tmp_path / "log")
    lost = 1 if damage == "flip" else 3
    assert (report.records, report.lost, len(report.damage)) == (9 - lost, lost, 1)
    assert LogReader(tmp_path / "log").end == 9
    journal.publish("q", 3, [stage(journal, 4)])
    assert verify(tmp_path / "log").records == 10 - lost
    assert LogReader(tmp_path / "log").end == 10
