"""A server of logs under readers that are many, hostile, or do not read."""

import errno
import json
import resource
import socket
import time
from contextlib import suppress

import pytest

from callboard.commitlog import CommitLog, LogFailed, LogReader

flight = pytest.importorskip("pyarrow.flight")

from callboard.commitlog.remote import disk, guard  # noqa: E402
from callboard.commitlog.remote.server import LogServer, _disk_error  # noqa: E402
from tests.polling import eventually  # noqa: E402

SECRETS = {"reader": ["cpu"], "other": []}
HOW = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer reader")])
WHOLE = flight.Ticket(
    json.dumps({"log": "cpu", "file": f"{0:020}.log", "at": 0, "size": 1 << 40}).encode()
)


@pytest.fixture
def log(tmp_path):
    """Write 24 MiB, more than the network takes from a server whose client does not read."""
    with CommitLog(tmp_path / "cpu", sync="none") as log:
        for _ in range(24):
            log.append("/a", bytes(1 << 20))
        yield log


@pytest.fixture
def serve(log):
    servers = []

    def start(readers=SECRETS.get):
        server = LogServer({"cpu": log.folder}, "grpc://127.0.0.1:0", readers)
        servers.append(server)
        return server

    yield start
    for each in servers:
        each.shutdown()


def dial(server):
    return flight.FlightClient(f"grpc://127.0.0.1:{server.port}")


def is_readable(stream):
    try:
        return stream.read_all().num_rows > 0
    except flight.FlightUnavailableError:
        return False


def waiting(server, count):
    """Wait until so many streams wait for their readers."""
    calls = server._guard._calls
    eventually(lambda: sum(each.since is not None for each in list(calls)) == count)


def test_who_never_reads_makes_room_when_others_come(serve, monkeypatch):
    monkeypatch.setattr(guard, "CALL_LIMIT", 2)
    monkeypatch.setattr(guard, "_STALL_SECONDS", 0.0)
    server = serve()
    idle = [dial(server) for _ in range(2)]
    streams = [client.do_get(WHOLE, HOW) for client in idle]
    waiting(server, 2)
    there = LogReader(f"grpc://127.0.0.1:{server.port}/cpu", token="reader")
    assert [len(each.payload) for each in there.read()] == [1 << 20] * 24
    assert sum(map(is_readable, streams)) < 2


def test_calls_beyond_the_bound_are_told(serve, monkeypatch):
    monkeypatch.setattr(guard, "CALL_LIMIT", 1)
    monkeypatch.setattr(disk, "_RETRY_SECONDS", 0.3)
    server = serve()
    client = dial(server)
    stream = client.do_get(WHOLE, HOW)
    waiting(server, 1)
    place = f"grpc://127.0.0.1:{server.port}/cpu"
    with pytest.raises(LogFailed, match="is busy: 1 calls run, which is the limit"):
        LogReader(place, token="reader")
    stream.cancel()
    eventually(lambda: not server._guard._calls)
    assert LogReader(place, token="reader").end == 24


def test_columns_have_a_bound_of_their_own(serve, monkeypatch):
    monkeypatch.setattr(guard, "COLUMNS_LIMIT", 0)
    server = serve()
    client = dial(server)
    with pytest.raises(flight.FlightUnavailableError, match="0 calls for columns run"):
        client.do_get(flight.Ticket(b'{"log": "cpu"}'), HOW).read_all()
    assert client.do_get(WHOLE, HOW).read_all().num_rows > 20
    eventually(lambda: not server._guard._calls)


def test_a_server_ends_though_a_reader_does_not_read(serve):
    server = serve()
    client = dial(server)
    stream = client.do_get(WHOLE, HOW)
    waiting(server, 1)
    started = time.monotonic()
    server.shutdown()
    assert time.monotonic() - started < 60
    # What was on its way may be all of it: the reader has the whole, or is told.
    with suppress(flight.FlightUnavailableError):
        assert stream.read_all().equals(dial(serve()).do_get(WHOLE, HOW).read_all())


def hello(port):
    """Return a connection that says what HTTP/2 begins with, and no more."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
    connection.settimeout(30)
    return connection


def is_cut(connection):
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    connection.close()
    return True


def test_connections_that_show_nothing_are_cut(serve, monkeypatch, caplog):
    monkeypatch.setattr(guard, "_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(guard, "_TICK_SECONDS", 0.05)
    server = serve()
    there = LogReader(f"grpc://127.0.0.1:{server.port}/cpu", token="reader")
    assert there.end == 24
    assert all(is_cut(each) for each in [hello(server.port) for _ in range(20)])
    with pytest.raises(LogFailed, match="token is wrong"):
        LogReader(f"grpc://127.0.0.1:{server.port}/cpu", token="wrong")
    assert len(list(there.read())) == 24
    assert "no token was presented" in caplog.text


@pytest.mark.slow
def test_a_thousand_connections_leave_room_for_readers(serve, monkeypatch):
    most = 60
    monkeypatch.setattr(guard, "CONNECTION_LIMIT", most)
    monkeypatch.setattr(guard, "_TICK_SECONDS", 0.05)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 4096:
        pytest.skip("needs 4,096 descriptors (ulimit -n)")
    server = serve()
    there = LogReader(f"grpc://127.0.0.1:{server.port}/cpu", token="reader")
    flood = [hello(server.port) for _ in range(1000)]
    assert len(list(there.read())) == 24
    ours = server.port
    eventually(lambda: len(list(guard._connections(ours))) <= most)
    late = LogReader(f"grpc://127.0.0.1:{server.port}/cpu", token="reader")
    assert late.end == 24
    for each in flood:
        each.close()


def test_rights_that_are_taken_away_end_a_stream(serve):
    rights = dict(SECRETS)
    server = serve(rights.get)
    stream = dial(server).do_get(WHOLE, HOW)
    assert stream.read_chunk().data.num_rows == 1
    del rights["reader"]
    with pytest.raises(flight.FlightUnauthenticatedError, match="token is wrong or missing"):
        stream.read_all()


def admitted(watched, token, *, is_open=False, columns=False):
    """Let a call of a token begin; whether it may run."""
    call = watched.start_call(None, {"authorization": [f"Bearer {token}"]})
    try:
        watched.admit(call, "ipv4:10.0.0.1:1", is_open=is_open)
        if columns:
            watched.decode(call)
    except flight.FlightUnavailableError as error:
        watched.end(call)
        return str(error)
    return call


def test_one_token_leaves_room_for_others():
    watched = guard.LogGuard()
    hog = [admitted(watched, "hog") for _ in range(guard.CALL_LIMIT - guard.CALL_LIMIT // 4)]
    assert "96 calls of this token run" in admitted(watched, "hog")
    assert not any(isinstance(each, str) for each in hog)
    few = [admitted(watched, "few") for _ in range(9)]
    assert [isinstance(each, str) for each in few] == [False] * 8 + [True]
    assert not isinstance(admitted(watched, "third"), str)
    for each in [*hog[:40]]:
        watched.end(each)
    assert not isinstance(admitted(watched, "hog"), str)


def test_columns_are_shared_as_well():
    watched = guard.LogGuard()
    hog = [admitted(watched, "hog", columns=True) for _ in range(guard.COLUMNS_LIMIT)]
    assert sum(isinstance(each, str) for each in hog) == guard.COLUMNS_LIMIT // 4
    assert not isinstance(admitted(watched, "few", columns=True), str)
    assert "1 calls for columns of this token run" in admitted(watched, "few", columns=True)


def test_a_server_for_all_of_a_machine_has_no_bound_for_each():
    watched = guard.LogGuard()
    made = [admitted(watched, "", is_open=True) for _ in range(guard.CALL_LIMIT + 1)]
    assert [isinstance(each, str) for each in made] == [False] * guard.CALL_LIMIT + [True]


def test_a_busy_token_is_refused_by_the_server_and_others_are_not(serve, monkeypatch):
    monkeypatch.setattr(guard, "CALL_LIMIT", 4)
    monkeypatch.setattr(guard, "_RESERVED", (0, 0))
    monkeypatch.setattr(disk, "_RETRY_SECONDS", 0.3)
    server = serve({"reader": ["cpu"], "second": ["cpu"]}.get)
    for _ in range(3):
        admitted(server._guard, "reader")
    place = f"grpc://127.0.0.1:{server.port}/cpu"
    with pytest.raises(LogFailed, match="busy: 3 calls of this token run"):
        LogReader(place, token="reader")
    monkeypatch.setattr(guard, "_RESERVED", (1, 1))
    assert LogReader(place, token="second").end == 24


def test_of_too_many_connections_those_go_whose_token_has_most(monkeypatch):
    cut, watched = [], guard.LogGuard()
    peers = {("10.0.0.1", port): "reader" for port in range(9)} | {("10.0.0.2", 1): "second"}
    connections = [(peer, None) for peer in peers]
    monkeypatch.setattr(guard, "_connections", lambda _: iter(connections))
    monkeypatch.setattr(watched, "_cut", lambda found, _: cut.extend(found))
    for age, (peer, token) in enumerate(peers.items()):
        call = watched.start_call(None, {"authorization": [f"Bearer {token}"]})
        watched.admit(call, f"ipv4:{peer[0]}:{peer[1]}", is_open=False)
        if token == "second":
            watched.end(call)  # it asks nothing just now, which those of the other do
        watched._readers[peer] = float(age)
    watched._limit = 2
    watched.check()
    assert len(cut) == 8
    assert ("10.0.0.2", 1) not in cut


@pytest.mark.parametrize(
    ("peer", "found"),
    [
        ("ipv4:127.0.0.1:80", ("127.0.0.1", 80)),
        ("ipv6:%5B::1%5D:80", ("::1", 80)),
        ("ipv6:[fe80::1%25eth0]:80", ("fe80::1", 80)),
        ("ipv6:[::ffff:10.0.0.1]:80", ("10.0.0.1", 80)),
        ("unix:/x", ("", 0)),
    ],
)
def test_peers_are_known_by_their_addresses(peer, found):
    assert guard._peer(peer.partition(":")[2]) == found


@pytest.mark.parametrize(
    ("error", "kind", "number"),
    [
        (OSError(errno.EIO, "the disk is damaged"), flight.FlightServerError, b"5"),
        (OSError("without a number"), flight.FlightServerError, b""),
        (OSError(errno.EMFILE, "too many files"), flight.FlightUnavailableError, b""),
    ],
)
def test_a_client_gets_the_number_of_what_the_disk_refused(error, kind, number):
    answer = _disk_error(error)

    assert type(answer) is kind
    assert answer.extra_info == number
