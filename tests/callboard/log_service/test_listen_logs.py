"""A node's logs by Arrow Flight, from a process of its own that lives as long as the node."""

import json
import os
import signal
import subprocess
import sys

import pytest

from callboard import Node, Rights, errors
from callboard.commitlog import CommitLog, LogFailed, LogReader
from tests.polling import eventually

pytest.importorskip("pyarrow.flight")


@pytest.fixture
def log(tmp_path):
    with CommitLog(tmp_path / "cpu") as log:
        log.append_batch(list(range(10)), topic="/n")
        yield log


def child_of(pid):
    """Return the one child process."""
    (child,) = subprocess.run(
        ["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True
    ).stdout.split()
    return int(child)


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
def test_rights_hold_there_it_is_started_again_and_ends_with_the_node(log):
    rights = {"billing": Rights(logs=["cpu"]), "nobody": Rights(), "member": Rights.member()}
    secrets = {"billing": "s1", "nobody": "s2", "member": "s3"}
    with Node(
        "shop", secrets=secrets, permissions=rights, serve_logs={"cpu": log, "safe": log.folder}
    ) as shop:
        with pytest.raises(ValueError, match="call node.listen_logs"):
            shop.logs_address  # noqa: B018
        place = shop.listen_logs()
        assert place == shop.logs_address
        with pytest.raises(ValueError, match="already"):
            shop.listen_logs()
        reader = LogReader(place + "/cpu", token="s1")
        assert reader.end == LogReader(place + "/safe", token="s3").end == 10
        for token, name, why in (
            ("s1", "safe", "no right to read"),
            ("s2", "cpu", "no right to read"),
            ("x", "cpu", "token is wrong"),
        ):
            with pytest.raises(LogFailed, match=why):
                LogReader(f"{place}/{name}", token=token)

        child = shop._flight._child.pid
        os.kill(child, signal.SIGKILL)
        log.append("/n", 10)
        assert reader.end == 11
        child = eventually(lambda: shop._flight._child.pid != child and shop._flight._child.pid)
    eventually(lambda: is_gone(child))


@pytest.mark.slow
def test_no_orphan_is_left_by_a_node_that_is_killed(log):
    code = (
        "import sys\nfrom callboard import Node\n"
        "node = Node('shop', serve_logs={'cpu': sys.argv[1]})\n"
        "print(node.listen_logs(), node._flight._child.pid, flush=True)\nsys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, log.folder], text=True, **pipes) as node:
        place, child = node.stdout.readline().split()
        assert LogReader(place + "/cpu").end == 10
        node.kill()
    eventually(lambda: is_gone(int(child)))


def test_what_cannot_be_served_is_told(log):
    with Node("shop", serve_logs={"cpu": log}) as shop:
        for listen, kind in (
            ("0.0.0.0:0", errors.PublicAddress),
            ("nowhere", ValueError),
            ("192.0.2.1:0", errors.PublicAddress),
        ):
            with pytest.raises(kind):
                shop.listen_logs(listen)
    with Node("none") as none, pytest.raises(ValueError, match="there are no logs to serve"):
        none.listen_logs()
    with (
        CommitLog() as memory,
        Node("shop", serve_logs={"cpu": memory}) as shop,
        pytest.raises(ValueError, match="'cpu' is in memory"),
    ):
        shop.listen_logs()


@pytest.mark.slow
def test_a_configured_node_serves_its_logs_both_ways(log, tmp_path):
    config = tmp_path / "node.toml"
    config.write_text('serve_logs = { cpu = "cpu" }\nserve_logs_at = "127.0.0.1:0"\n')
    command = [
        sys.executable,
        "-m",
        "callboard",
        "node",
        "run",
        "--config",
        str(config),
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        try:
            told = json.loads(node.stdout.readline())
            assert LogReader(told["address"] + "/cpu").end == 10
            assert LogReader(told["logs"] + "/cpu").end == 10
        finally:
            node.terminate()
            rest = node.stdout.read()
    assert (node.returncode, rest) == (0, rest)
