"""A stream continues only in the log of its checkpoint."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from callboard.commitlog import CommitLog, LogReader, OtherEpoch, OtherLog
from callboard.pipeline import InvalidSetting
from callboard.pipeline.failure import reason_of
from callboard.pipeline.spark.journal import FolderJournal
from callboard.pipeline.spark.options import SourceOptions, find_offset
from callboard.pipeline.spark.positions import StreamPositions, check_task

SCHEMA = "topic string, offset long, v long"


def filled(folder, records=100, first=0):
    with CommitLog(folder) as log:
        log.append_batch([{"v": first + n} for n in range(records)], topic="/t")
    return str(folder)


def positions_of(folder, **options):
    return StreamPositions(LogReader(folder), SourceOptions.parse({"path": folder, **options}))


def test_a_position_of_another_log_names_the_option_that_accepts_it(tmp_path):
    one, other = filled(tmp_path / "one"), filled(tmp_path / "other", 300)
    stored = positions_of(one).fields_at(100)
    assert positions_of(one).resume(stored).offset == 100
    with pytest.raises(OtherLog, match=r'the checkpoint is at 100 .*option\("acceptLog", "'):
        positions_of(other).resume(stored)
    state = str(LogReader(other).identity)
    accepting = positions_of(other, acceptLog=state)
    assert accepting.resume(stored) == LogReader(other).position(100)


def test_a_position_of_the_first_release_adopts_its_log_once(tmp_path, caplog):
    positions = positions_of(filled(tmp_path / "log"))
    for _ in range(3):
        assert positions.resume({"offset": 40}) == LogReader(tmp_path / "log").position(40)
    assert len(caplog.records) == 1


def test_what_is_no_position_is_refused(tmp_path):
    positions = positions_of(filled(tmp_path / "log"))
    for stored in ({}, {"offset": -1}, {"offset": "4"}, {"files": []}):
        with pytest.raises(InvalidSetting, match="use a new checkpoint"):
            positions.resume(stored)


def test_a_starting_position_of_another_log_is_refused(tmp_path):
    one, other = filled(tmp_path / "one"), filled(tmp_path / "other")
    position = str(LogReader(one).position(70))
    for log in (one, other):
        assert SourceOptions.parse({"path": log, "startingOffsets": position}).start == position
    assert find_offset(LogReader(one), position) == 70
    with pytest.raises(OtherLog, match="startingOffsets"):
        find_offset(LogReader(other), position)


def test_a_task_on_a_host_with_another_folder_at_the_path_is_refused(tmp_path):
    one = filled(tmp_path / "one")
    position = LogReader(one).position(100)
    check_task(SourceOptions.parse({"path": one}), position)
    shutil.rmtree(one)
    filled(one, 300)
    with pytest.raises(OtherLog, match="the query's driver"):
        check_task(SourceOptions.parse({"path": one}), position)


def test_results_have_a_new_epoch_with_each_run_of_a_query(tmp_path):
    folder = str(tmp_path / "results")
    batch = (Path(filled(tmp_path / "rows", 3)) / f"{0:020}.log").read_bytes()

    def publish(number, run):
        journal = FolderJournal(folder)
        staged = [journal.stage([(batch, 3)])]
        assert journal.publish("q", number, staged, run)
        return LogReader(folder).identity.epochs

    first = publish(0, "a")
    assert [epoch.first for epoch in first] == [0]
    assert publish(1, "a") == first
    shutil.copytree(folder, tmp_path / "backup")
    assert [epoch.first for epoch in publish(2, "b")] == [0, 6]
    lost = LogReader(folder).position(9)
    shutil.rmtree(folder)
    (tmp_path / "backup").rename(folder)
    publish(2, "c")
    with pytest.raises(OtherEpoch):
        LogReader(folder).resume(lost)


def run(spark, folder, to, **options):
    rows = spark.readStream.format("callboard").schema(SCHEMA).options(**options).load(folder)
    writer = rows.writeStream.format("callboard").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{to}-checkpoint")
    writer.start(str(to)).awaitTermination()
    return [record.payload["v"] for record in LogReader(to)]


@pytest.mark.slow
def test_a_checkpoint_is_refused_by_another_log_and_read_on_when_it_is_accepted(
    spark, tmp_path
):
    from pyspark.errors import StreamingQueryException

    one, other = filled(tmp_path / "one"), filled(tmp_path / "other", 300, 1000)
    assert run(spark, one, tmp_path / "to") == list(range(100))
    with pytest.raises(StreamingQueryException) as refused:
        run(spark, other, tmp_path / "to")
    state = str(LogReader(other).identity)
    for part in (LogReader(one).identity.log, state, "acceptLog"):
        assert part in reason_of(refused.value)
    values = run(spark, other, tmp_path / "to", acceptLog=state)
    assert values == [*range(100), *range(1100, 1300)]
    filled(other, 5, 7)
    assert run(spark, other, tmp_path / "to")[-5:] == list(range(7, 12))


@pytest.mark.slow
def test_a_checkpoint_of_the_first_release_continues_and_adopts_its_log(spark, tmp_path):
    one = filled(tmp_path / "one")
    run(spark, one, tmp_path / "to")
    offsets = tmp_path / "to-checkpoint/offsets"
    newest = max(offsets.glob("[0-9]*"), key=lambda path: int(path.name))
    *head, last = newest.read_text().splitlines()
    newest.write_text("\n".join([*head, json.dumps({"offset": json.loads(last)["offset"]})]))
    for name in offsets.glob(".*.crc"):
        name.unlink()
    filled(one, 50, 100)
    assert run(spark, one, tmp_path / "to") == list(range(150))
    newest = max(offsets.glob("[0-9]*"), key=lambda path: int(path.name))
    assert json.loads(newest.read_text().splitlines()[-1])["log"] == LogReader(one).identity.log
