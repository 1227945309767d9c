"""Logs that are served: read as if they were here, by who may, and nothing else of the disk."""

import json
import threading

import pytest

from callboard.commitlog import CommitLog, LogFailed, LogReader
from callboard.commitlog.verify import verify

pa = pytest.importorskip("pyarrow")
flight = pytest.importorskip("pyarrow.flight")

from callboard.commitlog.remote import disk  # noqa: E402
from callboard.commitlog.remote.server import LogServer, names_of  # noqa: E402

SECRETS = {"reader": ["cpu"], "stranger": []}


@pytest.fixture
def serve():
    servers = []

    def start(logs, readers=lambda token: ["*"], port=0):
        server = LogServer(logs, f"grpc://127.0.0.1:{port}", readers)
        servers.append(server)
        return server

    yield start
    for each in servers:
        each.shutdown()


@pytest.fixture
def log(tmp_path):
    with CommitLog(tmp_path / "cpu", sync="none", segment_bytes=5000) as log:
        for start in range(0, 600, 50):
            log.append_batch(list(range(start, start + 50)), topic=["/a", "/b"] * 25, key="k")
        yield log


def address(server, name="cpu"):
    return f"grpc://127.0.0.1:{server.port}/{name}"


def test_it_reads_as_a_folder_does(serve, log):
    log.append("/big", b"x" * 3_000_000)
    there, here = LogReader(address(serve({"cpu": log.folder}))), LogReader(log.folder)
    assert (there.start, there.end, len(there.segments)) == (0, 601, len(here.segments))
    assert list(there.read(5)) == list(here.read(5))
    assert there.to_arrow(10, 400, topic="/b").equals(here.to_arrow(10, 400, topic="/b"))
    assert there.readv(590, 5) == here.readv(590, 5)
    assert there.offset_at(here.readv(300, 1).records[0].time) <= 300
    assert there.folder.startswith("grpc://")
    assert verify(there.folder).records == 601


def test_who_follows_sees_what_is_appended(serve, log):
    follower = LogReader(address(serve({"cpu": log.folder}))).follow(timeout=20)
    timer = threading.Timer(0.05, log.append, ("/new", "value"))
    timer.start()
    assert next(iter(follower)).payload == "value"
    timer.join()


def test_it_goes_on_behind_a_server_that_was_started_anew(serve, log):
    server = serve({"cpu": log.folder})
    reading = LogReader(address(server))
    assert reading.end == 600
    follower = reading.follow(590, timeout=20)
    assert follower.poll()[-1].offset == 599
    port = server.port
    server.shutdown()
    server.wait()
    log.append("/late", 1)
    timer = threading.Timer(0.1, serve, ({"cpu": log.folder},), {"port": port})
    timer.start()
    assert [each.offset for each in follower.poll()] == [600]
    timer.join()


def test_a_server_that_stays_away_is_told(log, monkeypatch, serve):
    monkeypatch.setattr(disk, "_RETRY_SECONDS", 0.2)
    with pytest.raises(LogFailed, match="no answer; is it served"):
        LogReader("grpc://127.0.0.1:1/cpu")


@pytest.mark.parametrize(
    "text",
    ["grpc://", "grpc://h/x", "grpc://h:1", "http://h:1/x", "grpc://h:x/y", "grpc://:1/x"],
)
def test_an_address_of_another_form_is_refused(text):
    with pytest.raises(
        ValueError, match="is not the address of a log; use grpc://HOST:PORT/NAME"
    ):
        LogReader(text)


def test_who_reads_shows_a_token(serve, log, monkeypatch):
    server = serve({"cpu": log.folder, "orders": log.folder}, SECRETS.get)
    assert LogReader(address(server), token="reader").end == 600
    monkeypatch.setenv("CALLBOARD_SECRET", "reader")
    assert LogReader(address(server)).end == 600
    monkeypatch.delenv("CALLBOARD_SECRET")
    for token in (None, "", "wrong"):
        with pytest.raises(LogFailed, match="token is wrong or missing"):
            LogReader(address(server), token=token)
    with pytest.raises(LogFailed, match="no right to read the log 'cpu'"):
        LogReader(address(server), token="stranger")
    with pytest.raises(LogFailed, match="no right to read the log 'orders'"):
        LogReader(address(server, "orders"), token="reader")


def test_the_names_of_other_logs_are_told_to_nobody(serve, log):
    server = serve({"cpu": log.folder, "payroll": log.folder}, lambda _: ["cpu*"])
    with pytest.raises(LogFailed, match=r"served as .cpu-2.; the names are \[.cpu.\]"):
        LogReader(f"grpc://127.0.0.1:{server.port}/cpu-2")


def test_a_log_that_is_not_served_is_named(serve, log):
    with pytest.raises(LogFailed, match=r"no log is served as 'gpu'; the names are \['cpu'\]"):
        LogReader(address(serve({"cpu": log.folder}), "gpu"))


def test_nothing_can_be_written(serve, log):
    place = address(serve({"cpu": log.folder}))
    with pytest.raises(LogFailed, match="served read-only"):
        CommitLog(place)
    with pytest.raises(LogFailed, match="served read-only"):
        LogReader(place).reader("billing")


def test_other_programs_read_columns(serve, log):
    server = serve({"cpu": log.folder}, SECRETS.get)
    client = flight.FlightClient(f"grpc://127.0.0.1:{server.port}")
    how = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer reader")])
    (found,) = client.list_flights(options=how)
    assert found.descriptor.path == [b"cpu"]
    info = client.get_flight_info(flight.FlightDescriptor.for_path("cpu"), how)
    assert client.do_get(info.endpoints[0].ticket, how).read_all().equals(log.to_arrow())
    ticket = {"log": "cpu", "start": 10, "end": 20, "topic": "/b"}
    table = client.do_get(flight.Ticket(json.dumps(ticket).encode()), how).read_all()
    assert table.column("offset").to_pylist() == [11, 13, 15, 17, 19]
    ticket["columns"] = ["payload", "offset"]
    some = client.do_get(flight.Ticket(json.dumps(ticket).encode()), how).read_all()
    assert some.equals(table.select(["payload", "offset"]))


@pytest.mark.parametrize(
    "asked",
    [
        b"",
        b"[" * 100_000,
        b"{}",
        b'{"log": 5}',
        b'{"log": "cpu", "start": -1}',
        b'{"log": "cpu", "start": 1e30}',
        b'{"log": "cpu", "topic": []}',
        b'{"log": "cpu", "columns": []}',
        b'{"log": "cpu", "columns": "offset"}',
        b'{"log": "cpu", "columns": ["offset", ["offset"]]}',
        b'{"log": "cpu", "columns": ["__import__(\'os\')"]}',
        b'{"log": "cpu", "end": 18446744073709551616}',
        b'{"log": "../cpu"}',
        b'{"log": "cpu", "file": "synced", "at": 9223372036854775808, "size": 9}',
        b'{"log": "cpu", "file": "../x", "at": 0, "size": 9}',
        b'{"log": "cpu", "file": "lock", "at": 0, "size": 9}',
        b'{"log": "cpu", "file": ["a"], "at": 0, "size": 9}',
        b'{"log": "cpu", "file": "synced", "at": 0, "size": -9}',
        b'{"log": "cpu", "file": "synced", "at": true, "size": 9}',
    ],
)
def test_odd_questions_get_an_error(serve, log, asked):
    server = serve({"cpu": log.folder})
    client = flight.FlightClient(f"grpc://127.0.0.1:{server.port}")
    with pytest.raises(
        pa.ArrowException,
        match="ask with JSON|numbers from 0|not a file|is a text|columns are some|no log is",
    ):
        client.do_get(flight.Ticket(asked)).read_all()
    with pytest.raises(pa.ArrowException, match="ask with JSON|there is no action|no log is"):
        list(client.do_action(("other", asked)))
    assert LogReader(address(server)).end == 600


def test_files_beside_the_log_are_not_served(serve, log):
    folder = log.folder
    with open(f"{folder}/secret.txt", "w") as file:  # noqa: PTH123
        file.write("x")
    place = disk.RemoteDisk(disk.parse_address(address(serve({"cpu": folder}))))
    names = place.listdir(str(place._address))
    offered = {"synced", "identity", "epochs"}
    assert all(name.endswith((".log", ".index")) or name in offered for name in names)
    for name in ("secret.txt", "../../etc/passwd", "lock", "readers/a.place"):
        with pytest.raises(FileNotFoundError):
            place.size(name.replace("/", "%2f"))


def test_names_of_folders(tmp_path):
    for name in ("a/cpu", "b/cpu", "a/x y"):
        (tmp_path / name).mkdir(parents=True)
    assert names_of([tmp_path / "a" / "cpu"]) == {"cpu": str(tmp_path / "a" / "cpu")}
    with pytest.raises(ValueError, match="would both be served as cpu"):
        names_of([tmp_path / "a" / "cpu", tmp_path / "b" / "cpu"])
    with pytest.raises(ValueError, match="cannot be served"):
        names_of([tmp_path / "a" / "x y"])


def test_with_tls_the_authority_is_checked(log, tmp_path, monkeypatch):
    trustme = pytest.importorskip("trustme")
    authority, other = trustme.CA(), trustme.CA()
    shown = authority.issue_cert("localhost", "127.0.0.1")
    chain = b"".join(each.bytes() for each in shown.cert_chain_pems)
    server = LogServer(
        {"cpu": log.folder},
        "grpc+tls://127.0.0.1:0",
        SECRETS.get,
        certificates=[(chain, shown.private_key_pem.bytes())],
    )
    place = f"grpc+tls://127.0.0.1:{server.port}/cpu"
    authority.cert_pem.write_to_path(tmp_path / "right.pem")
    other.cert_pem.write_to_path(tmp_path / "wrong.pem")
    monkeypatch.setattr(disk, "_RETRY_SECONDS", 5.0)
    monkeypatch.setenv("CALLBOARD_LOG_AUTHORITY", str(tmp_path / "right.pem"))
    assert LogReader(place, token="reader").end == 600
    monkeypatch.setattr(disk, "_RETRY_SECONDS", 0.5)
    monkeypatch.setenv("CALLBOARD_LOG_AUTHORITY", str(tmp_path / "wrong.pem"))
    with pytest.raises(LogFailed, match="no answer"):
        LogReader(place, token="reader")
    with pytest.raises(LogFailed, match="no answer"):
        LogReader(place.replace("grpc+tls", "grpc"), token="reader")
    monkeypatch.setenv("CALLBOARD_LOG_AUTHORITY", str(tmp_path / "missing.pem"))
    with pytest.raises(LogFailed, match=r"missing\.pem"):
        LogReader(place, token="reader")
    server.shutdown()


@pytest.mark.parametrize("host", ["203.0.113.7", "logs.example", "[2001:db8::1]"])
def test_a_token_is_never_sent_plainly_to_another_machine(host, monkeypatch):
    place = f"grpc://{host}:8815/cpu"
    with pytest.raises(ValueError, match=r"would send the token .*; use grpc\+tls://"):
        LogReader(place, token="reader")
    monkeypatch.setenv("CALLBOARD_SECRET", "that of the cluster")
    with pytest.raises(ValueError, match="would send the token"):
        LogReader(place)
    assert disk.parse_address("grpc://localhost:8815/cpu").token == "that of the cluster"
    assert disk.parse_address(f"grpc+tls://{host}:8815/cpu").token == "that of the cluster"


def test_wrong_tokens_are_a_line_a_second_at_most(serve, log, caplog):
    server = serve({"cpu": log.folder}, SECRETS.get)
    for _ in range(5):
        with pytest.raises(LogFailed, match="token is wrong"):
            LogReader(address(server), token="wrong")
    lines = [each for each in caplog.messages if "no valid token" in each]
    assert 1 <= len(lines) < 5


@pytest.mark.parametrize("package", ["pandas", "duckdb", "polars"])
def test_columns_are_tables_of_other_packages(serve, log, package):
    other = pytest.importorskip(package)
    server = serve({"cpu": log.folder})
    client = flight.FlightClient(f"grpc://127.0.0.1:{server.port}")
    ticket = {"log": "cpu", "columns": ["topic", "offset"], "topic": "/b"}
    rows = client.do_get(flight.Ticket(json.dumps(ticket).encode())).read_all()
    if package == "pandas":
        found = rows.to_pandas()["offset"].sum()
    elif package == "polars":
        found = other.from_arrow(rows)["offset"].sum()
    else:
        found = other.sql('select sum("offset") from rows').fetchall()[0][0]
    assert found == sum(range(1, 600, 2))


def test_sql_is_asked_of_an_address(serve, log, capsys):
    pytest.importorskip("duckdb")
    from callboard.cli import main

    place = address(serve({"cpu": log.folder}))
    assert not main(["log", "sql", "select count(*), max(value) from log", place, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [*told.values()] == [600, 99]


def test_a_process_that_was_forked_too_late_is_told(serve, log, monkeypatch):
    place = address(serve({"cpu": log.folder}))
    monkeypatch.setitem(disk._dialed_in, "process", 1)
    disk._client.cache_clear()
    with pytest.raises(
        LogFailed, match="was forked from one that had already read served logs"
    ):
        LogReader(place)
