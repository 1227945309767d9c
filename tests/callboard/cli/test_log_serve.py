"""`callboard log serve` as a process: who is let in, what it prints, how it ends."""

import json
import signal
import subprocess
import sys

import pytest

from callboard.cli import main
from callboard.commitlog import CommitLog, LogFailed, LogReader

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
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["{folder}", "--listen", "0.0.0.0:0"], "can be reached from other machines"),
        (["{folder}", "--listen", "nonsense"], "is no HOST:PORT"),
        (["{folder}/no"], "there is no log in"),
        (["{folder}", "--tls", "{folder}"], "certificate.pem cannot be read"),
        (["{folder}", "--permissions", "{folder}/no.toml"], "no.toml"),
        (["{folder}", "--listen", "203.0.113.7:1", "--tls", "x", "--permissions", "x"], "x"),
    ],
)
def test_mistakes(folder, capsys, arguments, why):
    told = main(["log", "serve", *(each.format(folder=folder) for each in arguments)])
    assert told
    assert why in capsys.readouterr().err
