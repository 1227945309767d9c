"""Writers on a disk without room: what was acknowledged stays, errors are typed, they go on."""

import json
import resource
import threading
from contextlib import contextmanager, suppress

import pytest

from callboard.commitlog import CommitLog, LogFailed, LogReader
from callboard.flow.errors import RecordError
from callboard.flow.protocol.message import Message as FlowMessage
from callboard.flow.record_file import RecordFile, read_records
from callboard.gateway.modules.file import FileModule
from callboard.gateway.modules.record import RecordModule
from callboard.gateway.wire.message import Message
from callboard.pipeline.errors import PublishFailed
from callboard.pipeline.progress import StatusFile, read_status
from callboard.store.backend.interface import Backend
from callboard.store.backend.registry import make_backend
from callboard.store.errors import BackendFailure
from callboard.store.machine.step import Persist

ROOM = 40_000
TEXT = "x" * 700


@contextmanager
def no_room(size=ROOM):
    """Let no file of this process grow beyond a size; Python ignores the signal of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Log:
    """A log with one way to sync."""

    error = LogFailed
    sync = "none"

    def __init__(self, folder):
        self.folder = folder
        self.log = CommitLog(folder / "log", sync=self.sync)

    def write(self, number):
        self.log.append("/t", [number, TEXT])

    def close(self):
        self.log.close()

    def read(self):
        return [record.payload[0] for record in LogReader(self.folder / "log")]


class SyncedLog(Log):
    sync = "each"


class Records(Log):
    """A flow's file of records."""

    error = OSError

    def __init__(self, folder):
        self.path = folder / "file.zio"
        self.log = RecordFile(self.path)

    def write(self, number):
        message = FlowMessage(label="{}", seqno=number, payload=(TEXT.encode(),))
        self.log.append([message, message])

    def read(self):
        found = [message.seqno for message in read_records(self.path)]
        assert found[::2] == found[1::2]
        return found[::2]


class Lines(Log):
    """The gateway's module `file`."""

    error = OSError

    def __init__(self, folder):
        self.path = folder / "lines"
        self.log = FileModule()
        self.log.create({"path": str(self.path), "format": "text"})

    def write(self, number):
        self.log.receive(Message(json.dumps([number, TEXT]).encode()))

    def close(self):
        self.log.destroy()

    def read(self):
        return [json.loads(line)[0] for line in self.path.read_text().splitlines()]


class Recorded(Lines):
    """The gateway's module `record`."""

    error = LogFailed

    def __init__(self, folder):
        self.path = folder / "recorded"
        self.log = RecordModule()
        self.log.create({"path": str(self.path)})

    def read(self):
        return [record.payload[0] for record in LogReader(self.path)]


class Stored:
    """A store's SQLite file, whose master ends with the first error and is attached again."""

    error = BackendFailure
    journal_mode = "WAL"

    def __init__(self, folder):
        self.path = str(folder / "a.db")
        self._open()

    def _open(self):
        options = {"path": self.path, "journal_mode": self.journal_mode}
        self.backend = make_backend(Backend.SQLite, options)
        return self.backend.open(0.0)

    def write(self, number):
        done, answers = threading.Event(), []
        changes = Persist(rows={f"k{number:04}": ((number, TEXT), None)})
        self.backend.write(changes, lambda failure: (answers.append(failure), done.set()))
        assert done.wait(30)
        if answers[0] is not None:
            self.backend.close()
            with suppress(BackendFailure):  # there may be no room to open it either
                self._open()
            raise answers[0]

    def close(self):
        self.backend.close()

    def read(self):
        rows = self._open().rows
        self.backend.close()
        return [rows[key][0][0] for key in sorted(rows)]


class StoredPlainly(Stored):
    journal_mode = "DELETE"


WRITERS = [Log, SyncedLog, Records, Lines, Recorded, Stored, StoredPlainly]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("writer_class", WRITERS)
def test_what_was_acknowledged_stays_and_writing_goes_on(tmp_path, writer_class):
    writer, acknowledged, refused = writer_class(tmp_path), [], 0
    with no_room():
        for number in range(150):
            try:
                writer.write(number)
                acknowledged.append(number)
            except writer_class.error:
                refused += 1
            if refused > 5:
                break
    assert refused > 5
    assert acknowledged
    with suppress(BackendFailure):
        if isinstance(writer, Stored):
            writer.close()
            writer._open()
    for number in range(1000, 1020):
        writer.write(number)
        acknowledged.append(number)
    writer.close()

    assert writer.read() == acknowledged


@pytest.mark.parametrize("size", [0, 3, 8])
def test_a_file_of_records_without_room_for_its_head_is_begun_later(tmp_path, size):
    path = tmp_path / "file.zio"
    with no_room(size), suppress(OSError):
        RecordFile(path).close()
    assert path.stat().st_size <= size

    file = RecordFile(path)
    file.append([FlowMessage(seqno=1)])
    file.close()
    assert [each.seqno for each in read_records(path)] == [1]


def test_half_a_line_of_a_process_that_ended_spoils_no_other(tmp_path):
    (tmp_path / "lines").write_bytes(b"[1]\n[2")

    lines = Lines(tmp_path)
    lines.write(3)
    lines.close()

    first, torn, last = (tmp_path / "lines").read_text().splitlines()
    assert (first, torn, json.loads(last)[0]) == ("[1]", "[2", 3)


def test_results_are_published_whole_or_not_at_all(tmp_path):
    pytest.importorskip("pyarrow")
    from callboard.commitlog.batch import encode_batch
    from callboard.commitlog.columns import one_record
    from callboard.pipeline.spark.journal import FolderJournal

    def batches(count):
        for number in range(count):
            data, _ = encode_batch(number, 1, one_record("/t", TEXT, None, None, ""))
            yield data, 1

    journal = FolderJournal(str(tmp_path / "results"))
    assert journal.publish("q", 0, [journal.stage(batches(5))])
    with no_room(), pytest.raises(PublishFailed):
        journal.publish("q", 1, [journal.stage(batches(100))])
    with no_room():
        parts = [journal.stage(batches(40)), journal.stage(batches(40))]
        with pytest.raises(PublishFailed):
            journal.publish("q", 1, parts)
    assert len(list(LogReader(tmp_path / "results"))) == 5
    again = [journal.stage(batches(40)), journal.stage(batches(40))]
    assert journal.publish("q", 1, again)

    assert [each.offset for each in LogReader(tmp_path / "results")] == [*range(85)]
    assert len(list((tmp_path / "results" / "staged").iterdir())) <= 2  # of the one that failed


def test_a_status_without_room_is_the_one_before(tmp_path):
    folder = tmp_path / "queries" / "q"
    status = StatusFile(folder, "q", "log")
    with no_room(10), pytest.raises(OSError):  # noqa: PT011  (the system's own)
        status.end("done")

    assert [each.ended for each in read_status(tmp_path)] == [""]
    with pytest.raises(RecordError):
        list(read_records(folder / "status.json"))
