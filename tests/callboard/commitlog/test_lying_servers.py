"""A server of logs that lies: who reads is told, in one line, soon."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from callboard.commitlog import CommitLog, LogFailed, LogReader

pa = pytest.importorskip("pyarrow")
flight = pytest.importorskip("pyarrow.flight")

SCHEMA = pa.schema({"data": pa.binary()})
FILE = f"{0:020}.log"


class Liar(flight.FlightServerBase):
    """Answers as it is told: to actions by their names, and to tickets with batches."""

    def __init__(self, data, said=None, rows=None, schema=SCHEMA):
        self.data, self.said, self.rows, self.schema = data, said or {}, rows, schema
        super().__init__("grpc://127.0.0.1:0")
        self.close = self.shutdown

    def do_action(self, _, action):
        truth = {"names": [FILE], "size": len(self.data)}[action.type]
        said = self.said.get(action.type, [json.dumps(truth).encode()])
        return iter(said)

    def do_get(self, _, ticket):
        asked = json.loads(ticket.ticket)
        end = asked["at"] + min(asked["size"], 1 << 20)
        rows = self.rows or (lambda piece: [pa.record_batch([[piece]], schema=SCHEMA)])
        return flight.GeneratorStream(self.schema, iter(rows(self.data[asked["at"] : end])))


@pytest.fixture
def data(tmp_path):
    with CommitLog(tmp_path / "log") as log:
        log.append_batch([bytes(100)] * 100, topic="/a")
    return Path(tmp_path, "log", FILE).read_bytes()


def read(server):
    with closing(server):
        return len(list(LogReader(f"grpc://127.0.0.1:{server.port}/cpu")))


@pytest.mark.parametrize("what", ["names", "size"])
@pytest.mark.parametrize(
    "answer",
    [[], [b"1", b"2"], [b"hello"], [b"[" * 100_000], [b"9" * 10_000], [b'{"a": 1}'], [b"-5"]]
    + [[b"1.5"], [b'[1, null, "x"]'], [b'"abc"'], [b"9" * 30]],
    ids=range(11),
)
def test_an_answer_of_another_form_is_told(data, what, answer):
    with pytest.raises(LogFailed, match="not callboard log serve, or has another version"):
        read(Liar(data, {what: answer}))


@pytest.mark.parametrize(
    "rows",
    [
        pa.record_batch([[1]], names=["data"]),
        pa.record_batch([["text"]], names=["data"]),
        pa.record_batch([[b"a"], [b"b"]], names=["data", "more"]),
        pa.record_batch([pa.array([None], pa.binary())], names=["data"]),
        pa.record_batch([pa.array([], pa.binary())], names=["data"]),
        pa.record_batch([[b""]], names=["data"]),
        pa.record_batch([[b"a", b"b"]], names=["data"]),
        pa.record_batch([[bytes(2 << 20)]], names=["data"]),
    ],
    ids=range(8),
)
def test_a_row_that_is_none_is_told(data, rows):
    with pytest.raises(LogFailed, match="not callboard log serve, or has another version"):
        read(Liar(data, rows=lambda _: [rows], schema=rows.schema))


def test_a_file_that_is_listed_and_never_there_is_no_endless_search(data):
    def gone(_):
        raise flight.FlightServerError("it is gone", extra_info=b"2")

    assert read(Liar(data, rows=gone)) == 0
    assert read(Liar(data, {"size": [b"null"]})) == 0


def test_the_truth_is_read(data):
    assert read(Liar(data)) == 100
