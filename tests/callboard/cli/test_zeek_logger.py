"""`callboard zeek logger`: a process with real sockets, ended by a signal; usage errors."""

import json
import signal
import socket
import urllib.request

import zmq

from callboard.cli import main
from callboard.commitlog import LogReader
from callboard.zeek.doors.zeek_logger import ZeekLogger
from callboard.zeek.log_write import LogField, LogType, encode_log_write
from tests.callboard.cli.process import start_command
from tests.polling import eventually

FIELDS = [LogField("id.orig_h", LogType.ADDR), LogField("orig_bytes", LogType.COUNT)]


def write(push, count):
    payload = encode_log_write("conn", FIELDS, [("10.0.0.1", n) for n in range(count)])
    push.send_multipart([b"log-write", b"worker", b"zeek-bin-v1", payload])


def test_a_signal_ends_it_with_all_written_and_sql_finds_the_columns(tmp_path, capsys):
    folder = tmp_path / "logs"
    process = start_command(
        *("zeek", "logger", folder, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"),
        *("--interval", "0.05", "--retain", "seconds=3600", "--json"),
    )
    with process, zmq.Context() as context, context.socket(zmq.PUSH) as push:
        page = json.loads(process.stderr.readline())["metrics"] + "/metrics"
        told = json.loads(process.stderr.readline())
        push.connect(told["address"])
        write(push, 100)
        push.send(b"hello")
        rows = (json.loads(line) for line in process.stdout)
        row = next(row for row in rows if row["records"] and row["malformed"])
        with urllib.request.urlopen(page) as answer:
            text = answer.read().decode()
        write(push, 11)
        eventually(lambda: LogReader(folder / "conn").end == 111)
        process.send_signal(signal.SIGTERM)
        last = [json.loads(line) for line in process.stdout][-1]
        assert process.wait() == 0, process.stderr.read()
        push.linger = 0

    assert row["logs"] == {"conn": 100}
    assert "rate" in row
    assert f'callboard_zeek_logger_records_total{{folder="{folder}",log="conn"}} 100' in text
    assert (last["records"], last["nodes"]) == (111, {"worker": 111})
    assert "rate" not in last
    query = 'select "id.orig_h", sum(orig_bytes)::int as bytes from log group by 1'
    assert main(["log", "sql", query, str(folder / "conn"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"id.orig_h": "10.0.0.1", "bytes": 5005}


def test_it_ends_after_a_number_of_records(tmp_path, capsys):
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        push.linger = 0
        push.connect(f"tcp://127.0.0.1:{port}")
        write(push, 3)
        listen = ["--listen", f"127.0.0.1:{port}"]
        assert main(["zeek", "logger", str(tmp_path), *listen, "--count", "3"]) == 0

    said = capsys.readouterr()
    assert said.out == "3 records in 1 logs, from 1 nodes\n"
    assert f"connect_log_endpoints: tcp://127.0.0.1:{port}" in said.err


def test_an_impossible_configuration_is_refused_in_one_line(tmp_path, capsys):
    folder = str(tmp_path / "logs")
    (tmp_path / "keys.toml").write_text("secret = 'short'")
    (tmp_path / "file").write_text("")
    with ZeekLogger(tmp_path / "taken", "127.0.0.1:0") as taken:
        cases = [
            ([folder, "--listen", "0.0.0.0:0"], 2, "list its nodes with --curve FILE, or use"),
            ([folder, "--listen", "nowhere"], 2, "tcp://HOST:PORT"),
            ([folder, "--listen", taken.address], 1, "cannot listen at"),
            ([str(taken.folder)], 1, "another logger writes to"),
            ([str(tmp_path / "file")], 2, "cannot be used"),
            ([folder, "--curve", str(tmp_path / "none")], 2, "no CURVE keys in"),
            ([folder, "--curve", str(tmp_path / "keys.toml")], 2, "not a CURVE key"),
            ([folder, "--retain", "much"], 2, "--retain 'much' cannot be read"),
            ([folder, "--compression", "rar"], 2, "compression='rar'"),
            ([folder, "--listen", "127.0.0.1:0", "--metrics", "x"], 2, "is not HOST:PORT"),
        ]
        for arguments, code, _ in cases:
            assert main(["zeek", "logger", *arguments, "--count", "1"]) == code, arguments

    lines = [
        line for line in capsys.readouterr().err.splitlines() if "logs of Zeek" not in line
    ]
    for line, (arguments, _, says) in zip(lines, cases, strict=True):
        assert line.startswith("callboard: "), line
        assert says in line, arguments
