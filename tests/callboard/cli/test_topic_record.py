"""`topic record` in a separate process."""

import json
import signal

import pytest

from callboard import Endpoint, Node
from callboard.cli import main
from callboard.commitlog import CommitLog, LogReader
from tests.callboard.cli.process import start_command


class Recorder:
    """`callboard topic record` that listens."""

    def __init__(self, *arguments):
        command = ["topic", "record", *map(str, arguments), "--listen", "127.0.0.1:0", "--json"]
        self.process = start_command(*command)
        self.address = json.loads(self.process.stderr.readline())["address"]
        self.begin = json.loads(self.process.stderr.readline())

    def end(self, number=signal.SIGTERM):
        """Stop it; return the code and the last line."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=120)
        assert err == ""
        return self.process.returncode, json.loads(out.splitlines()[-1])


@pytest.fixture
def start():
    """Starts recorders, and ends all of them."""
    made = []

    def begin(*arguments):
        made.append(Recorder(*arguments))
        return made[-1]

    yield begin
    for recorder in made:
        recorder.process.kill()
        recorder.process.communicate()


def publish(recorder, *pairs):
    with Node() as node, Endpoint(node=node) as endpoint:
        node.connect(recorder.address)
        assert endpoint.await_filter_entry("/cpu")
        endpoint.publish_batch(*pairs)
        endpoint.hub.flushed(5.0)
        node.drain(5.0)
        return node.node_id.hex()


@pytest.mark.slow
def test_recorded_messages_are_in_the_log_when_the_command_has_ended(tmp_path, start):
    folder = tmp_path / "metrics"
    first = start("/cpu", "/disk", "--log", folder)
    node = publish(first, ("/cpu/1", 0.5), ("/net", 1), ("/disk", [1, 2]))
    code, told = first.end()

    assert first.begin == {"log": str(folder), "start": 0, "resumed": None}
    assert code == 0
    assert told == {"log": str(folder), "start": 0, "end": 2, "recorded": 2, "lost": 0}
    records = list(LogReader(folder))
    assert [(each.topic, each.payload, each.sender) for each in records] == [
        ("/cpu/1", 0.5, node),
        ("/disk", [1, 2], node),
    ]

    second = start("/cpu", folder, "--count", "1", "--sync", "each", "--rate")
    assert second.begin == {"log": str(folder), "start": 2, "resumed": records[-1].time}
    publish(second, ("/cpu/2", "again"))
    second.process.wait(120)
    code, told = second.end()

    assert (code, told["start"], told["end"]) == (0, 2, 3)


@pytest.mark.parametrize("arguments", [[], ["/metrics"]])
def test_a_log_has_to_be_named(capsys, arguments):
    code = main(["topic", "record", *arguments, "--listen", "127.0.0.1:0"])

    assert code == 2
    assert capsys.readouterr().err == (
        "callboard: the log is missing; use --log FOLDER, or TOPIC FOLDER\n"
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--sync", "often"], "--sync 'often' is not a mode; use none, group, each"),
        (["--retain", "days=3"], "--retain 'days=3' cannot be read; use a value like"),
        (["--retain", "bytes=-1"], "--retain 'bytes=-1' cannot be read; use a value like"),
        ([], "is written by this process"),
    ],
)
def test_an_impossible_recording_is_refused_in_one_line(tmp_path, capsys, arguments, why):
    where = ["--log", str(tmp_path), "--listen", "127.0.0.1:0"]
    with CommitLog(tmp_path):
        code = main(["topic", "record", *where, *arguments])

    assert code == (2 if arguments else 1)
    assert why in capsys.readouterr().err.splitlines()[-1]
