"""A logger for Zeek's nodes, fed by real PUSH sockets."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
import zmq

from callboard.commitlog import CommitLog, LogError, LogFailed, LogLocked, LogReader, Retention
from callboard.figures import process_metrics
from callboard.model.errors import InvalidOption
from callboard.proxies.errors import PortUnavailable, PublicAddress
from callboard.zeek.doors import zeek_logger
from callboard.zeek.doors.zeek_logger import ZeekLogger
from callboard.zeek.doors.zeromq_socket import Curve, CurveServer
from callboard.zeek.log_write import LogField, LogType, encode_log_write
from tests.polling import eventually

CONN = [
    LogField("ts", LogType.TIME),
    LogField("uid", LogType.STRING),
    LogField("id.orig_h", LogType.ADDR),
    LogField("orig_bytes", LogType.COUNT, is_optional=True),
    LogField("tags", LogType.SET, LogType.STRING, is_optional=True),
]
ADDRESS = "127.0.0.1:0"


def rows(count, first=0):
    return [
        (1.7e9 + n, f"C{n}", f"10.0.0.{n % 250}", None if n % 3 else n, [] if n % 2 else ["a"])
        for n in range(first, first + count)
    ]


class Node:
    """A node of Zeek, as far as its logs go."""

    def __init__(self, context, name="zeromq_worker-1_host_1_N"):
        self.name = name.encode()
        self.socket = context.socket(zmq.PUSH)
        self.socket.linger = 0

    def connect(self, logger):
        self.socket.connect(logger.address)
        return self

    def write(self, path="conn", fields=CONN, written=None):
        payload = encode_log_write(path, fields, rows(2) if written is None else written)
        self.send(b"log-write", self.name, b"zeek-bin-v1", payload)

    def send(self, *parts):
        self.socket.send_multipart(parts)


@pytest.fixture
def nodes():
    made = []
    with zmq.Context() as context:

        def make(*args):
            made.append(Node(context, *args))
            return made[-1]

        yield make
        for each in made:
            each.socket.close(0)


@pytest.fixture
def logger(tmp_path):
    with ZeekLogger(tmp_path / "logs", ADDRESS) as made:
        yield made


def wait_for(logger, records):
    eventually(lambda: logger.stats().records == records)


def test_logs_of_several_nodes_go_into_a_log_for_each_path(logger, nodes):
    one, two = nodes("one").connect(logger), nodes("two").connect(logger)
    one.write()
    two.write(written=rows(3, 10))
    two.write("dns", [LogField("query", LogType.STRING)], [("ü",), (b"\xff",)])
    wait_for(logger, 7)
    eventually(lambda: logger.stats().connections == 2)

    stats = logger.stats()
    assert (stats.messages, stats.malformed) == (3, {})
    assert (stats.logs, stats.nodes) == ({"conn": 5, "dns": 2}, {"one": 2, "two": 5})
    assert {name: path.name for name, path in logger.logs.items()} == {
        "conn": "conn",
        "dns": "dns",
    }
    logger.flush()
    found = list(LogReader(logger.folder / "conn"))
    assert {(record.topic, record.sender) for record in found} == {
        ("/zeek/log/conn", "one"),
        ("/zeek/log/conn", "two"),
    }
    assert found[0].headers == {
        "stream": "Conn::LOG",
        "writer": "Log::WRITER_ASCII",
        "filter": "default",
    }
    (first,) = [record for record in found if record.payload["uid"] == "C1"]
    assert first.payload == {
        "ts": datetime.fromtimestamp(1.7e9 + 1, UTC),
        "uid": "C1",
        "id.orig_h": "10.0.0.1",
        "orig_bytes": None,
        "tags": [],
    }
    assert [r.payload["query"] for r in LogReader(logger.folder / "dns")] == ["ü", "\\xff"]


def test_sql_and_pandas_have_what_was_written(logger, nodes):
    pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    from callboard.commitlog.sql import open_sql

    node = nodes().connect(logger)
    written = rows(500)
    for start in range(0, 500, 100):
        node.write(written=written[start : start + 100])
    wait_for(logger, 500)

    names = '"ts", "uid", "id.orig_h", "orig_bytes", "tags"'
    with open_sql({"conn": logger.folder / "conn"}) as connection:
        found = connection.sql(f'SELECT {names} FROM conn ORDER BY "offset"').fetchall()
        ((total,),) = connection.sql("SELECT sum(orig_bytes)::INT FROM conn").fetchall()
    assert found == [(datetime.fromtimestamp(ts, UTC), *rest) for ts, *rest in written]
    assert total == sum(row[3] or 0 for row in written)
    pytest.importorskip("pandas")
    frame = LogReader(logger.folder / "conn").to_arrow(fields=True).to_pandas()
    assert frame["uid"].tolist() == [row[1] for row in written]
    assert str(frame["ts"].dtype) == "datetime64[us, UTC]"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("../../etc/passwd", "=2E.=2F..=2Fetc=2Fpasswd"),
        ("..", "=2E."),
        (".lock", "=2Elock"),
        ("/etc", "=2Fetc"),
        ("a+2", "a=2B2"),
        ("a=2F", "a=3D2F"),
        ("ü", "=C3=BC"),
        ("http-2026_01.x", "http-2026_01.x"),
    ],
)
def test_a_path_stays_within_the_folder_and_tells_logs_apart(logger, nodes, path, name):
    nodes().connect(logger).write(path)
    wait_for(logger, 2)

    assert list(logger.logs) == [name]
    assert sorted(each.name for each in logger.folder.iterdir()) == sorted([".lock", name])
    assert next(iter(LogReader(logger.folder / name))).topic == f"/zeek/log/{path}"


def test_a_long_path_has_a_short_name_of_its_own(logger, nodes):
    node = nodes().connect(logger)
    for end in "ab":
        node.write("/" * 100 + end)
    wait_for(logger, 4)

    assert len(logger.logs) == 2
    assert all(len(name) < 230 for name in logger.logs)


def test_garbage_is_counted_and_the_rest_goes_on(logger, nodes, caplog):
    node = nodes().connect(logger)
    payload = encode_log_write("conn", CONN, rows(1))
    for parts in (
        [b"hello"],
        [b"log-write", b"n", b"zeek-bin-v1", payload, b""],
        [b"log-write", b"n", b"zeek-bin-v2", payload],
        [b"event", b"n", b"zeek-bin-v1", payload],
        [b"log-write", b"n" * 257, b"zeek-bin-v1", payload],
        [b"log-write", b"n", b"zeek-bin-v1", b""],
        [b"log-write", b"n", b"zeek-bin-v1", payload[:-1]],
        [b"log-write", b"n\xff", b"zeek-bin-v1", payload],
    ):
        node.send(*parts)
    wait_for(logger, 1)

    stats = logger.stats()
    assert sum(stats.malformed.values()) == 7
    assert stats.messages == 1
    assert list(stats.nodes) == ["n\\xff"]
    assert set(stats.malformed) == {  # by kinds, each told once
        "a message has … parts instead of …",
        "a message of another kind…",
        "the name of a node has … bytes, more than …",
        "a log-write is cut off after … bytes",
    }
    assert len([r for r in caplog.messages if "not a log-write" in r]) == len(stats.malformed)


def test_kinds_of_garbage_are_bounded(logger, nodes, monkeypatch, caplog):
    monkeypatch.setattr(zeek_logger, "_KINDS", 2)
    node = nodes().connect(logger)
    too_long = [b"log-write", b"n" * 100_000, b"zeek-bin-v1", b""]
    for parts in ([b"a"], [b"a"] * 4, [b"log-write", b"", b"zeek-bin-v1", b""], too_long):
        node.send(*parts)

    eventually(lambda: sum(logger.stats().malformed.values()) == 4)
    assert logger.stats().malformed["other"] == 2
    assert len([text for text in caplog.messages if "not a log-write" in text]) == 3


def test_a_field_that_is_added_is_a_column_more(logger, nodes):
    pytest.importorskip("pyarrow")
    node = nodes().connect(logger)
    node.write(fields=CONN[:2], written=[(1.0, "a")])
    node.write(fields=[*CONN[:2], LogField("vlan", LogType.INT)], written=[(2.0, "b", 7)])
    node.write(fields=CONN[1:2], written=[("c",)])
    wait_for(logger, 3)

    log = LogReader(logger.folder / "conn")
    assert [field.name for field in log.fields] == ["ts", "uid", "vlan"]
    assert log.to_arrow(fields=True).column("vlan").to_pylist() == [None, 7, None]


def test_a_field_of_another_type_goes_on_in_a_log_of_its_own(tmp_path, nodes):
    other = [LogField("ts", LogType.STRING)]
    for total in (3, 6):  # also after a restart
        with ZeekLogger(tmp_path, ADDRESS) as logger:
            node = nodes().connect(logger)
            node.write(fields=CONN[:1], written=[(1.0,)])
            node.write(fields=other, written=[("now",)])
            node.write(fields=[LogField("TS", LogType.TIME)], written=[(1.0,)])
            wait_for(logger, 3)
        ends = {name: LogReader(tmp_path / name).end for name in logger.logs}
        assert ends == dict.fromkeys(["conn", "conn+2", "conn+3"], total // 3)


def test_too_many_logs_are_refused_and_counted(tmp_path, nodes, monkeypatch):
    monkeypatch.setattr(zeek_logger, "LOGS_LIMIT", 2)
    with ZeekLogger(tmp_path, ADDRESS) as logger:
        node = nodes().connect(logger)
        for path in ("a", "b", "c", "a"):
            node.write(path)
        wait_for(logger, 6)
        eventually(lambda: logger.stats().refused == 2)
        assert list(logger.logs) == ["a", "b"]


def test_fields_beyond_the_limit_are_refused_and_counted(logger, nodes):
    node = nodes().connect(logger)
    for start in (0, 600):
        wide = [LogField(f"f{start + n}", LogType.COUNT) for n in range(600)]
        node.write(fields=wide, written=[[None] * 600])
    node.write(fields=[LogField("f1", LogType.COUNT)], written=[(1,)])
    wait_for(logger, 2)

    assert logger.stats().refused == 1


# --- the disk ---


def test_a_full_disk_holds_nodes_back_and_loses_nothing(logger, nodes, monkeypatch, caplog):
    monkeypatch.setattr(zeek_logger, "RETRY_INTERVAL", 0.01)
    append, is_full = CommitLog.append_batch, [True]

    def refuse(log, *args, **options):
        if is_full[0]:
            raise LogFailed("nothing was appended to x: No space left on device; make room")
        return append(log, *args, **options)

    monkeypatch.setattr(CommitLog, "append_batch", refuse)
    node = nodes().connect(logger)
    node.write()
    eventually(lambda: logger.stats().stalled)
    for number in range(50):
        node.write(written=rows(1, 100 + number))
    stats = logger.stats()
    assert "No space left" in stats.stalled
    assert (stats.stalls, stats.records) == (1, 0)
    assert stats.messages < 51  # what waits, waits in ZeroMQ

    is_full[0] = False
    wait_for(logger, 52)
    assert logger.stats().stalled == ""
    uids = [record.payload["uid"] for record in LogReader(logger.folder / "conn")]
    assert uids == ["C0", "C1", *(f"C{100 + number}" for number in range(50))]
    assert "reading from Zeek nodes stops" in caplog.text


def test_what_could_not_be_written_until_the_end_is_told(tmp_path, nodes, monkeypatch):
    def refuse(*_, **__):
        raise LogFailed("No space left on device; make room")

    logger = ZeekLogger(tmp_path, ADDRESS)
    monkeypatch.setattr(CommitLog, "append_batch", refuse)
    nodes().connect(logger).write()
    eventually(lambda: logger.stats().stalled)

    with pytest.raises(LogError, match="2 records were not written: No space left"):
        logger.close()
    assert logger.stats().lost == 2
    logger.close()


def test_a_log_whose_sync_failed_is_opened_again(logger, nodes):
    node = nodes().connect(logger)
    node.write()
    wait_for(logger, 2)
    logger._logs["conn"]._writer._trouble = OSError(5, "Input/output error")
    node.write()

    wait_for(logger, 4)
    assert LogReader(logger.folder / "conn").end == 4


def test_a_folder_has_one_logger_and_a_log_that_another_writes_is_waited_for(tmp_path, nodes):
    with ZeekLogger(tmp_path, ADDRESS) as logger:
        with pytest.raises(LogLocked, match="another logger writes to .* by this process"):
            ZeekLogger(tmp_path, ADDRESS)
        with CommitLog(tmp_path / "conn"):
            nodes().connect(logger).write()
            eventually(lambda: "is written by this process" in logger.stats().stalled)
        wait_for(logger, 2)
    with ZeekLogger(tmp_path, ADDRESS):
        pass


def test_what_has_come_is_written_at_the_end(tmp_path, nodes):
    with ZeekLogger(tmp_path, ADDRESS) as logger:
        node = nodes().connect(logger)
        for _ in range(300):
            node.write()
        eventually(lambda: logger.stats().messages)
    assert LogReader(tmp_path / "conn").end == 600


def test_options_of_logs_are_those_of_each(tmp_path, nodes):
    pytest.importorskip("pyarrow")
    kept = Retention(records=40)
    with ZeekLogger(
        tmp_path, ADDRESS, retain=kept, columns=True, compression="zlib", archive="memory://z"
    ) as logger:
        node = nodes().connect(logger)
        for number in range(30):
            node.write(written=rows(4, number))
            wait_for(logger, 4 * (number + 1))
        log = logger._logs["conn"]
        eventually(lambda: list((tmp_path / "conn").glob("*.parquet")))
        assert [place.place for place in log.archives] == ["memory://z/conn"]
        assert log.start > 0


# --- the port ---


def test_keys_say_who_may_write(tmp_path, nodes):
    server, client, stranger = (
        tuple(key.decode() for key in zmq.curve_keypair()) for _ in range(3)
    )
    keys = CurveServer(server[1], (client[0],))
    with ZeekLogger(tmp_path, "tcp://0.0.0.0:0", curve=keys) as logger:
        address = logger.address.replace("0.0.0.0", "127.0.0.1")
        for name, (_, secret) in (("stranger", stranger), ("node", client)):
            node = nodes(name)
            for option, value in Curve(server[0], secret).options().items():
                node.socket.setsockopt(option, value)
            node.socket.connect(address)
            node.write()
        wait_for(logger, 2)
        eventually(lambda: logger.stats().rejected)
        assert list(logger.stats().nodes) == ["node"]


def test_a_public_address_needs_keys_or_a_word(tmp_path):
    server = zmq.curve_keypair()[1].decode()
    for keys in (None, CurveServer(server)):  # of nobody in particular
        with pytest.raises(PublicAddress, match=r"0\.0\.0\.0:0 can be reached"):
            ZeekLogger(tmp_path, "0.0.0.0:0", curve=keys)
    with ZeekLogger(tmp_path, "0.0.0.0:0", insecure=True):
        pass


def test_a_port_that_is_taken_and_options_without_sense_are_told(tmp_path):
    with ZeekLogger(tmp_path / "a", ADDRESS) as logger:
        with pytest.raises(PortUnavailable):
            ZeekLogger(tmp_path / "b", logger.address)
        with pytest.raises(InvalidOption):
            ZeekLogger(tmp_path / "b", "nowhere")
        for options in (
            {"high_water_mark": 0},
            {"sync_interval": 0},
            {"segment_seconds": -1},
            {"compression": "rar"},
        ):
            with pytest.raises(ValueError, match=r"must be|give|compression"):
                ZeekLogger(tmp_path / "b", ADDRESS, **options)
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="cannot be used"):
        ZeekLogger(tmp_path / "file", ADDRESS)
    with ZeekLogger(tmp_path / "b", ADDRESS):  # nothing is left of what failed
        pass


def test_figures_are_among_those_of_the_process(logger, nodes):
    nodes().connect(logger).write()
    wait_for(logger, 2)
    eventually(lambda: logger.stats().connections == 1)

    prefix = "callboard_zeek_logger_"
    found = {metric.name.removeprefix(prefix): metric for metric in process_metrics()}
    folder = ("folder", str(logger.folder))
    assert found["records_total"].samples == [((folder, ("log", "conn")), 2)]
    assert found["connections"].samples == [((folder,), 1)]
    assert found["stalled"].samples == [((folder,), 0)]
    assert Path(logger.folder).is_dir()
