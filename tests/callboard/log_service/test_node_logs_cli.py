"""Commands that read the log of a node: with secrets and TLS, and without Arrow."""

import json
import subprocess
import sys

import pytest

from callboard import Node, Rights
from callboard.cli import main
from callboard.commitlog import CommitLog
from tests.proxies.papers import Papers


@pytest.fixture
def place(tmp_path):
    rights = {"billing": Rights(logs=["cpu"])}
    with (
        CommitLog() as log,
        Node(
            "shop", secrets={"billing": "s1"}, permissions=rights, serve_logs={"cpu": log}
        ) as shop,
    ):
        log.append_batch(list(range(10)), topic="/n")
        shop.listen("127.0.0.1", 0)
        (tmp_path / "secret").write_text("s1\n")
        yield shop.address + "/cpu"


def test_commands_read_it(place, tmp_path, capsys):
    secret = ["--secret-file", str(tmp_path / "secret"), "--json"]
    assert main(["log", "cat", place, "--from", "7", *secret]) == 0
    assert [json.loads(line)["payload"] for line in capsys.readouterr().out.splitlines()] == [
        7,
        8,
        9,
    ]
    assert main(["log", "tail", "-n", "1", place, *secret]) == 0
    assert json.loads(capsys.readouterr().out)["offset"] == 9
    assert main(["log", "verify", place, *secret]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 10
    assert main(["log", "stats", place, *secret]) == 0
    assert json.loads(capsys.readouterr().out)["topics"] == {"/n": 10}


def test_sql_reads_it(place, tmp_path, capsys):
    pytest.importorskip("duckdb")
    query = "select sum(value::int) as n from log"
    assert (
        main(["log", "sql", query, place, "--json", "--secret-file", str(tmp_path / "secret")])
        == 0
    )
    assert json.loads(capsys.readouterr().out) == {"n": 45}


def test_mistakes_are_one_line_each(place, tmp_path, capsys):
    (tmp_path / "wrong").write_text("wrong")
    secret = ["--secret-file", str(tmp_path / "secret")]
    for arguments, why in (
        ([place], "secret"),
        ([place, "--secret-file", str(tmp_path / "wrong")], "secret"),
        ([place.replace("/cpu", "/gpu"), *secret], "no right 'logs' for 'gpu'"),
        ([place.rpartition("/")[0], *secret], "write basp://HOST:PORT/NAME"),
        ([place, *secret, "--tls", str(tmp_path)], "authority.pem"),
    ):
        assert main(["log", "cat", *arguments]) != 0
        told = capsys.readouterr().err
        assert why in told
        assert told.count("\n") == 1


@pytest.mark.slow
def test_a_process_without_arrow_reads_it_over_tls(tmp_path):
    papers = Papers(tmp_path / "tls")
    with (
        CommitLog() as log,
        Node("shop", tls=papers.tls(mutual=False), serve_logs={"cpu": log}) as shop,
    ):
        log.append("/n", 5)
        shop.listen("127.0.0.1", 0)
        code = (
            "import sys; sys.modules['pyarrow'] = None\n"
            "from callboard.cli import main\n"
            f"sys.exit(main(['log', 'cat', '{shop.address}/cpu', '--tls', '{tmp_path}/tls']))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "/n 5" in done.stdout


@pytest.mark.slow
def test_the_logs_of_a_node_are_listed_and_doctor_tells_of_them(place, tmp_path, capsys):
    secret = ["--secret-file", str(tmp_path / "secret")]
    node = place.rpartition("/")[0]
    assert main(["log", "ls", node, *secret]) == 0
    assert capsys.readouterr().out.startswith(f"{place}: records 0 to 10, ")
    assert main(["log", "ls", place, *secret]) == 2
    assert "does not name a node" in capsys.readouterr().err
    assert main(["log", "tail", node, *secret]) == 2
    assert "does not name a log" in capsys.readouterr().err
    assert main(["doctor", node, *secret]) == 0
    assert f"{node} serves to your secret, plainly: cpu (0 to 10)" in capsys.readouterr().out


@pytest.mark.slow
def test_a_node_that_serves_no_logs_says_so(tmp_path, capsys):
    with Node("plain") as node:
        node.listen("127.0.0.1", 0)
        assert main(["log", "ls", node.address]) == 1
        assert "does not serve logs" in capsys.readouterr().err
        assert main(["doctor", node.address]) == 0
        assert "does not serve logs" not in capsys.readouterr().out
