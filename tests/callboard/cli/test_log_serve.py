"""`callboard log serve` as a process: access, output, and end."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from callboard.cli import main
from callboard.commitlog import CommitLog, LogFailed, LogReader
from tests.polling import eventually

pytest.importorskip("pyarrow.flight")

PEERS = """
[secrets]
billing = "s1"
other = "s2"

[permissions.billing]
logs = ["cp*"]

[permissions."*"]
names = ["x"]
"""


@pytest.fixture
def folder(tmp_path):
    with CommitLog(tmp_path / "cpu", sync="none") as log:
        log.append_batch(list(range(10)), topic="/n")
    return tmp_path / "cpu"


def reads(place, token):
    try:
        return LogReader(place, token=token).end == 10
    except LogFailed as error:
        if "token is wrong" not in str(error):
            raise
        return False


@pytest.mark.quick
@pytest.mark.slow
def test_it_serves_until_a_signal(folder, tmp_path, capsys):
    peers = tmp_path / "peers.toml"
    peers.write_text(PEERS)
    command = ["log", "serve", str(folder), "--permissions", str(peers), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "callboard", *command], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            place = json.loads(process.stdout.readline())["address"]
            assert LogReader(place, token="s1").end == 10
            with pytest.raises(LogFailed, match="no right"):
                LogReader(place, token="s2")
            with pytest.raises(LogFailed, match="token is wrong"):
                LogReader(place, token="s3")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("CALLBOARD_SECRET", "s1")
                assert not main(["log", "tail", place, "-n", "1"])
                assert not main(["log", "stats", place, "--json"])
            out = capsys.readouterr().out.splitlines()
            assert out[0].endswith("/n 9")
            assert json.loads(out[-1])["records"] == 10
            peers.write_text(PEERS.replace('"s1"', '"s4"'))
            eventually(lambda: reads(place, "s4"))
            assert not reads(place, "s1")
            peers.write_text("nonsense")
            assert reads(place, "s4")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["{folder}", "--listen", "0.0.0.0:0"], "can be reached from other machines"),
        (["{folder}", "--listen", "nonsense"], "is not HOST:PORT"),
        (["{folder}/no"], "there is no log in"),
        (["{folder}", "--tls", "{folder}"], "certificate.pem: No such file"),
        (["{folder}", "--permissions", "{folder}/no.toml"], "no.toml"),
        (["{folder}", "--listen", "203.0.113.7:1", "--tls", "x", "--permissions", "x"], "x"),
    ],
)
def test_invalid_arguments_are_refused_with_the_reason(folder, capsys, arguments, why):
    told = main(["log", "serve", *(each.format(folder=folder) for each in arguments)])
    assert told
    assert why in capsys.readouterr().err


def run(*arguments):
    """Run the command to its end; return its exit code and what it wrote to stderr."""
    ran = subprocess.run(
        [sys.executable, "-m", "callboard", "log", "serve", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={each: text for each, text in os.environ.items() if each != "GRPC_VERBOSITY"},
    )
    return ran.returncode, ran.stderr


@pytest.mark.slow
def test_a_port_in_use_is_reported_in_one_line(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        told = f"callboard: cannot serve logs at {place}: Address already in use;"
        assert run(folder, "--listen", place) == (1, f"{told} choose another --listen\n")


def test_an_address_of_another_machine_is_refused_in_one_line(folder, tmp_path, capsys):
    trustme = pytest.importorskip("trustme")
    shown, peers = trustme.CA().issue_cert("localhost"), tmp_path / "peers.toml"
    peers.write_text(PEERS)
    shown.private_key_and_cert_chain_pem.write_to_path(tmp_path / "certificate.pem")
    rights = ["--permissions", str(peers), "--tls", str(tmp_path)]
    assert main(["log", "serve", str(folder), "--listen", "192.0.2.1:0", *rights]) == 1
    assert "192.0.2.1:0: Cannot assign requested address; choose" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["certificate.pem", "key.pem", "other"])
def test_an_unusable_certificate_is_reported_in_one_line(folder, tmp_path, broken):
    trustme = pytest.importorskip("trustme")
    shown, other = (trustme.CA().issue_cert("localhost") for _ in range(2))
    shown.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    key = other if broken == "other" else shown
    key.private_key_pem.write_to_path(tmp_path / "key.pem")
    if broken != "other":
        (tmp_path / broken).write_text("junk")
    code, told = run(folder, "--tls", tmp_path)
    assert code == 2
    assert "both have to be in PEM format and belong together" in told
    assert told.startswith("callboard: certificate ")
    assert told.count("\n") == 1


# --- certificates that are renewed ---


def renew(papers, folder, name="127.0.0.1"):
    """Replace the certificate; return the certificate that a port shows then."""
    issued = papers.issue_cert(name)
    for part, pem in (
        ("key", issued.private_key_pem),
        ("certificate", issued.cert_chain_pems[0]),
    ):
        pem.write_to_path(folder / f"{part}.new")
        (folder / f"{part}.new").replace(folder / f"{part}.pem")
    return issued.cert_chain_pems[0].bytes().decode()


def shown(port):
    """Return the certificate that a port shows; none while the port is closed."""
    import ssl

    try:
        return ssl.get_server_certificate(("127.0.0.1", port), timeout=20)
    except OSError:
        return ""


def test_a_renewed_certificate_is_used_without_interrupting_readers(folder, tmp_path, caplog):
    import trustme

    from callboard.log_service.flight_log_server import FlightLogServer
    from callboard.tls.contexts import Tls

    papers = trustme.CA()
    papers.cert_pem.write_to_path(tmp_path / "authority.pem")
    first = renew(papers, tmp_path)
    tls = Tls(tmp_path / "certificate.pem", tmp_path / "key.pem", mutual=False)
    may = {"s1": ["cpu"]}.get
    door = FlightLogServer({"cpu": str(folder)}, "grpc+tls://127.0.0.1:0", may, tls)
    try:
        assert shown(door.port).strip() == first.strip()
        reader = LogReader(f"grpc+tls://127.0.0.1:{door.port}/cpu", token="s1", tls=tmp_path)
        reading = reader.read()
        assert next(reading).payload == 0
        (tmp_path / "certificate.pem").write_text("junk")
        door.check()
        assert shown(door.port).strip() == first.strip()
        second = renew(papers, tmp_path)
        eventually(lambda: door.check() or shown(door.port).strip() == second.strip())
        assert [each.payload for each in reading] == list(range(1, 10))
        assert reader.end == 10
        door.check()  # what was not changed again costs nobody a connection
        assert reader.end == 10
    finally:
        door.shutdown()
    assert "stays in force" in caplog.text


# --- what is served where ---


@pytest.fixture
def server(folder):
    from callboard.commitlog.remote.server import LogServer

    with CommitLog(folder.parent / "orders", sync="none"):
        logs = {"cpu": str(folder), "orders": str(folder.parent / "orders")}
        may = {None: None, "s1": ["cp*"], "s2": [], "all": ["*"]}.get
        made = LogServer(logs, "grpc://127.0.0.1:0", may)
        yield f"grpc://127.0.0.1:{made.port}"
        made.shutdown()


def told(capsys, *arguments, code=0):
    assert main([*arguments]) == code
    said = capsys.readouterr()
    return said.out + said.err


def test_the_logs_of_a_server_are_listed_that_may_be_read(server, capsys, monkeypatch):
    monkeypatch.setenv("CALLBOARD_SECRET", "s1")
    assert f"{server}/cpu: records 0 to 10" in told(capsys, "log", "ls", server)
    monkeypatch.setenv("CALLBOARD_SECRET", "all")
    listed = told(capsys, "log", "ls", server, "--json").splitlines()
    assert [json.loads(each)["path"] for each in listed] == [
        f"{server}/cpu",
        f"{server}/orders",
    ]
    monkeypatch.setenv("CALLBOARD_SECRET", "s2")
    assert f"no logs at {server} that may be read" in told(capsys, "log", "ls", server)
    monkeypatch.setenv("CALLBOARD_SECRET", "wrong")
    assert "the token is wrong" in told(capsys, "log", "ls", server, code=1)
    assert "is not the address of a log server" in told(
        capsys, "log", "ls", f"{server}/cpu", code=2
    )


@pytest.mark.slow
def test_doctor_lists_served_logs_and_their_problems(server, folder, capsys, monkeypatch):
    monkeypatch.setenv("CALLBOARD_SECRET", "all")
    said = told(capsys, "doctor", server)
    assert f"{server} serves to your secret, plainly: cpu (0 to 10), orders (0 to 0)" in said
    for each in folder.glob("*.log"):
        each.unlink()
    assert "fail  logs" in told(capsys, "doctor", server, code=1)
    monkeypatch.setenv("CALLBOARD_SECRET", "s2")
    assert "grant that secret the right" in told(capsys, "doctor", server)


@pytest.mark.slow
def test_doctor_lists_readers_of_each_log_and_the_expiry_of_certificates(
    tmp_path, capsys, monkeypatch
):
    from datetime import UTC, datetime, timedelta

    import trustme

    peers = tmp_path / "peers.toml"
    peers.write_text(PEERS)
    said = told(capsys, "doctor", "--permissions", str(peers))
    assert "billing may read cp*" in said
    assert "warn  readers  " in said
    assert "other may read no log" in said

    papers = trustme.CA()
    for days, code, word in (
        (300, 0, "is valid for"),
        (5, 0, "renew it"),
        (-1, 1, "has expired"),
    ):
        end = datetime.now(UTC) + timedelta(days=days)
        issued = papers.issue_cert(
            "localhost", not_before=datetime(2020, 1, 1, tzinfo=UTC), not_after=end
        )
        issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "certificate.pem")
        assert word in told(capsys, "doctor", "--certificates", str(tmp_path), code=code)
    (tmp_path / "certificate.pem").write_text("none")
    assert "fail  certificate" in told(
        capsys, "doctor", "--certificates", str(tmp_path), code=1
    )
