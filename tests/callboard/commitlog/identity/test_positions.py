"""A position belongs to one log and to one state of it."""

import json
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.commitlog import (
    CommitLog,
    LogCorrupt,
    LogIdentity,
    LogReader,
    OtherEpoch,
    OtherLog,
    Position,
    PositionAhead,
    PositionRefused,
    parse_position,
)
from callboard.commitlog.identity.identity import decode_epochs, encode_epochs
from callboard.commitlog.identity.position import (
    LAST_EPOCH,
    Epoch,
    decode_position,
    position_of,
)
from callboard.commitlog.remote.disk import RemoteDisk
from callboard.figures import process_metrics


def filled(folder, records=100, first=0):
    with CommitLog(folder) as log:
        log.append_batch([{"n": first + n} for n in range(records)], topic="/n")
    return folder


def lose_tail(folder: Path, size: int) -> None:
    """Cut a log, as a crash of the machine does that loses records without a sync."""
    (segment,) = folder.glob("*.log")
    with segment.open("r+b") as file:
        file.truncate(size)
    (folder / "synced").unlink()


def size_of(folder):
    (segment,) = folder.glob("*.log")
    return segment.stat().st_size


ids = st.text("0123456789abcdef-", min_size=1, max_size=64)
positions = st.builds(
    Position, ids, st.integers(0, LAST_EPOCH), st.integers(0, 2**63 - 1)
) | st.builds(Position, st.just(""), st.just(0), st.integers(0, 2**63 - 1))


@given(positions)
def test_every_form_of_a_position_is_read_as_the_same_position(position):
    assert parse_position(str(position)) == position
    assert decode_position(position.encode()) == position
    assert position_of(json.loads(json.dumps(position.as_fields()))) == position


@given(positions, st.data())
def test_a_damaged_position_is_refused(position, data):
    encoded = position.encode()
    cut = data.draw(st.integers(0, len(encoded) - 2))
    with pytest.raises(ValueError, match="empty|damaged|not a position"):
        decode_position(encoded[:cut])
    at = data.draw(st.integers(0, len(encoded) - 2))
    flipped = bytes([*encoded[:at], encoded[at] ^ 1 << data.draw(st.integers(0, 6))])
    try:
        assert decode_position(flipped + encoded[at + 1 :]) == position  # a space, for example
    except ValueError:
        pass


@given(st.lists(st.tuples(st.integers(1, 2**40), st.integers(1, 2**40)), max_size=9), st.data())
def test_epochs_on_disk_are_read_as_they_were_and_any_damage_is_noticed(steps, data):
    number, first, epochs = 1, 0, [Epoch(1, 0)]
    for more, records in steps:
        number, first = number + more, first + records
        epochs.append(Epoch(number, first))
    identity = LogIdentity("ab" * 16, tuple(epochs))
    encoded = encode_epochs(identity)
    assert decode_epochs(encoded) == identity
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    flipped = bytearray(encoded)
    flipped[bit // 8] ^= 1 << bit % 8
    assert decode_epochs(bytes(flipped)) is None


def test_a_log_has_its_id_before_its_first_record_and_keeps_it(tmp_path):
    with CommitLog(tmp_path / "log") as log:
        identity = LogReader(tmp_path / "log").identity
        assert identity == log.identity
        assert len(identity.log) == 32
    shutil.move(tmp_path / "log", tmp_path / "moved")
    filled(tmp_path / "moved")
    assert LogReader(tmp_path / "moved").identity.log == identity.log
    with CommitLog() as one, CommitLog() as other:
        assert len({identity.log, one.identity.log, other.identity.log}) == 3


def test_the_epoch_rises_with_the_first_record_after_each_opening(tmp_path):
    folder = filled(tmp_path / "log")
    with CommitLog(folder) as log:
        assert log.identity.epochs == (Epoch(1, 0),)  # nothing is appended yet
        log.append("/n", 1)
        first, second = log.identity.epochs
        assert (first, second.first) == (Epoch(1, 0), 100)
        assert second.number > 1
    with CommitLog(folder):
        pass
    assert LogReader(folder).identity.epochs == (first, second)


def test_the_epoch_rises_when_the_first_record_starts_a_new_segment(tmp_path):
    for number in range(3):
        with CommitLog(tmp_path / "log", segment_bytes=1) as log:
            log.append("/n", 1)
            assert [epoch.first for epoch in log.identity.epochs] == [*range(number + 1)]


def test_a_position_is_valid_after_restarts_and_appends(tmp_path):
    folder, taken = tmp_path / "log", []
    for _ in range(5):
        filled(folder, 10)
        log = LogReader(folder)
        taken += [log.position(offset) for offset in range(log.end + 1)]
    for position in taken:
        assert log.resume(position) == log.resume(str(position)) == position
        assert [r.offset for r in log.read(position)] == [*range(position.offset, 50)]
        assert log.follow(position).position == position


def test_a_position_of_another_log_is_refused_with_both_names_and_the_way_to_accept(tmp_path):
    one, other = filled(tmp_path / "one"), filled(tmp_path / "other", 300)
    position, log = LogReader(one).position(), LogReader(other)
    for use in (log.resume, log.read, log.follow, log.readv):
        with pytest.raises(OtherLog) as refused:
            use(position)
        text = str(refused.value)
        for part in (position.log, str(log.identity), str(other), "accept="):
            assert part in text
    with pytest.raises(OtherLog):
        log.resume(position, accept=str(LogReader(one).identity))  # accepts another state
    accepted = log.resume(position, accept=str(log.identity))
    assert accepted == log.position(100) == log.resume(accepted)


def test_a_log_that_was_removed_and_made_anew_is_another_log(tmp_path):
    position = LogReader(filled(tmp_path / "log")).position(50)
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(OtherLog):
        LogReader(filled(tmp_path / "log", 150)).read(position)


def test_a_lost_tail_is_noticed_before_and_after_the_writer_continues(tmp_path):
    folder = filled(tmp_path / "log")
    size = size_of(folder)
    kept = LogReader(folder).position(100)
    filled(folder)
    lost = LogReader(folder).position(200)
    lose_tail(folder, size)
    with pytest.raises(PositionAhead, match="ends at 100"):
        LogReader(folder).resume(lost)
    filled(folder, 150)
    log = LogReader(folder)
    with pytest.raises(OtherEpoch, match="other records follow at 100"):
        log.resume(lost)
    assert log.resume(kept) == kept
    assert log.resume(lost, accept=str(log.identity)).offset == 100  # nothing is skipped


@pytest.mark.parametrize("is_hot", [True, False])
def test_a_backup_that_is_continued_refuses_positions_of_what_it_lacks(tmp_path, is_hot):
    folder, backup = filled(tmp_path / "log"), tmp_path / "backup"
    if not is_hot:
        shutil.copytree(folder, backup)
    with CommitLog(folder) as log:
        log.append_batch(list(range(100)), topic="/n")
        log.flush()
        if is_hot:
            shutil.copytree(folder, backup)
        shared = LogReader(backup).position()
        log.append_batch(list(range(100)), topic="/n")
        after = log.position()
    shutil.rmtree(folder)
    backup.rename(folder)
    for _ in range(3):
        filled(folder)
        log = LogReader(folder)
        assert log.resume(shared) == shared
        with pytest.raises(OtherEpoch):
            log.resume(after)


def test_a_position_of_the_first_release_adopts_its_log_once(tmp_path, caplog):
    log = LogReader(filled(tmp_path / "log"))

    def adopted():
        samples = {metric.name: metric.samples for metric in process_metrics()}
        return dict(samples.get("callboard_log_positions_adopted_total", [])).get((), 0)

    before = adopted()
    position = log.resume("40", name="the bridge rates")
    assert position == log.position(40)
    assert log.resume(position) == position
    assert adopted() == before + 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert "the bridge rates" in line
    assert str(log.identity) in line


def of_first_release(folder):
    """Make a log as callboard 0.1 left it."""
    for name in ("identity", "epochs"):
        (folder / name).unlink()
    return folder


def test_a_log_of_the_first_release_gets_its_id_from_its_next_writer_only(tmp_path):
    folder = of_first_release(filled(tmp_path / "log"))
    files = sorted(path.name for path in folder.iterdir())
    reader = LogReader(folder)
    assert str(reader.identity) == "unknown identity"
    assert reader.resume("40") == reader.position(40) == Position("", 0, 40)
    assert [r.offset for r in reader.read(reader.position(98))] == [98, 99]
    assert sorted(path.name for path in folder.iterdir()) == files
    filled(folder, 10)
    assert LogReader(folder).identity.epochs[0] == Epoch(1, 0)
    position = LogReader(folder).position(60)
    assert position.epoch == 1
    of_first_release(folder)
    with pytest.raises(OtherLog, match="unknown identity"):
        LogReader(folder).resume(position)


@pytest.mark.parametrize("content", [b"", b"\xff", b"no id!\n"])
def test_a_damaged_id_is_restored(tmp_path, content):
    folder = filled(tmp_path / "log")
    identity = LogReader(folder).identity
    (folder / "identity").write_bytes(content)
    assert LogReader(folder).identity == identity
    filled(folder, 1)
    assert (folder / "identity").read_text() == f"{identity.log}\n"


@pytest.mark.parametrize("content", [b"", b"\xff"])
def test_after_damage_to_the_epochs_no_stored_position_is_trusted(tmp_path, content, caplog):
    folder = filled(tmp_path / "log")
    position = LogReader(folder).position(50)
    (folder / "epochs").write_bytes(content)
    with pytest.raises(OtherEpoch):
        LogReader(folder).resume(position)
    filled(folder, 1)
    with pytest.raises(OtherEpoch):
        LogReader(folder).resume(position)
    assert "epochs is damaged" in caplog.text


def test_the_files_of_another_log_are_not_mistaken_for_its_own(tmp_path):
    one, other = filled(tmp_path / "one"), filled(tmp_path / "other")
    position = LogReader(one).position(50)
    shutil.copy(other / "epochs", one / "epochs")
    with pytest.raises(PositionRefused):
        LogReader(one).resume(position)


def test_a_follower_notices_that_its_log_was_replaced(tmp_path):
    follower = LogReader(filled(tmp_path / "log")).follow(0)
    assert len(follower.read(1000)) == 100
    shutil.rmtree(tmp_path / "log")
    filled(tmp_path / "log", 150)
    with pytest.raises(OtherLog, match="the follower is at 100"):
        follower.read(timeout=1)


def test_a_follower_notices_that_records_it_has_read_were_replaced(tmp_path):
    folder = filled(tmp_path / "log")
    size = size_of(folder)
    filled(folder)
    follower = LogReader(folder).follow(0)
    assert len(follower.read(1000)) == 200
    lose_tail(folder, size)
    filled(folder, 200)
    with pytest.raises(OtherEpoch):
        follower.poll()


def test_a_follower_goes_on_when_the_writer_is_restarted(tmp_path):
    folder, ended = filled(tmp_path / "log", 1), threading.Event()

    def write():
        for number in range(1, 30):
            filled(folder, 1, number)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    follower, numbers = LogReader(folder).follow(0), []
    while len(numbers) < 30:
        numbers += [record.payload["n"] for record in follower.read(timeout=10)]
        assert LogReader(folder).resume(follower.position) == follower.position
    writer.join()
    assert numbers == list(range(30))


# --- named readers ---


def commit(folder, offset=None):
    with LogReader(folder).reader("billing") as reader:
        reader.read(1000)
        return reader.commit(offset)


def test_the_place_of_a_named_reader_is_refused_by_another_log(tmp_path):
    one, other = filled(tmp_path / "one"), filled(tmp_path / "other", 300)
    commit(one)
    shutil.copytree(one / "readers", other / "readers")
    with pytest.raises(OtherLog, match="the reader billing is at 100"):
        LogReader(other).reader("billing")
    state = str(LogReader(other).identity)
    with LogReader(other).reader("billing", accept=state) as reader:
        assert [record.offset for record in reader.poll(1)] == [100]
    with LogReader(other).reader("billing") as reader:  # it belongs to this log from now on
        assert reader.committed == 100


def test_a_named_reader_ahead_of_its_log_is_refused(tmp_path):
    folder = filled(tmp_path / "log")
    size = size_of(folder)
    filled(folder)
    commit(folder)
    lose_tail(folder, size)
    with pytest.raises(PositionAhead, match=r"the reader billing is at 200.* ends at 100"):
        LogReader(folder).reader("billing")
    filled(folder, 150)
    with pytest.raises(OtherEpoch):
        LogReader(folder).reader("billing")
    state = str(LogReader(folder).identity)
    with LogReader(folder).reader("billing", accept=state) as reader:
        assert [record.offset for record in reader.read(1000)] == list(range(100, 250))


@pytest.mark.parametrize("is_writer", [True, False])
def test_a_commit_makes_the_records_before_it_durable(tmp_path, is_writer, monkeypatch):
    synced = []
    with CommitLog(tmp_path / "log", sync="none") as log:
        log.append_batch(list(range(100)), topic="/n")
        reading = log if is_writer else LogReader(tmp_path / "log")
        with reading.reader("billing") as reader:
            reader.read(1000)
            replace = type(reader._places).replace
            fsync = type(reading.place.disk.open(reading.segments[-1].path)).fsync

            def note_sync(file):
                synced.append("records")
                fsync(file)

            def note_place(folder, path, data):
                if not synced:
                    synced.append("place first")
                replace(folder, path, data)

            monkeypatch.setattr("callboard.commitlog.disk.RealFile.fsync", note_sync)
            monkeypatch.setattr("callboard.commitlog.folder.Folder.replace", note_place)
            reader.commit()
        assert synced[0] == "records"
        if is_writer:
            assert log.durable == 100


def test_an_emptied_place_is_damage(tmp_path):
    folder = filled(tmp_path / "log")
    commit(folder, 50)
    (folder / "readers/billing.place").write_bytes(b"")
    with pytest.raises(LogCorrupt, match="billing.place is empty"):
        LogReader(folder).reader("billing")


def test_a_place_of_the_first_release_adopts_its_log_when_it_is_opened(tmp_path):
    folder = filled(tmp_path / "log")
    commit(folder, 50)
    path = folder / "readers/billing.place"
    entry = json.loads(path.read_text())
    old = {name: entry[name] for name in ("offset", "time", "sum")}
    path.write_text(json.dumps(old))
    LogReader(folder).reader("billing").close()
    (place,) = LogReader(folder).readers
    assert place.position == LogReader(folder).position(50)
    assert json.loads(path.read_text())["offset"] == 50


def test_a_named_reader_does_not_commit_for_a_log_that_replaced_its_own(tmp_path):
    folder = filled(tmp_path / "log")
    with LogReader(folder).reader("billing") as reader:
        reader.read(1000)
        shutil.copy(filled(tmp_path / "other", 300) / "epochs", folder / "epochs")
        shutil.copy(tmp_path / "other/identity", folder / "identity")
        with pytest.raises(OtherLog):
            reader.commit()


# --- servers ---


def test_an_older_server_has_logs_of_unknown_identity(tmp_path):
    class OldServer(RemoteDisk):
        def _names(self):
            return ["00000000000000000000.log", "synced"]

    disk = OldServer.__new__(OldServer)
    assert disk.identity() == LogIdentity()
