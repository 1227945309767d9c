"""`topic sub` in a separate process, and `topic pub` against it."""

import io
import json
import queue
import signal
import threading

import pytest

from callboard.cli import main
from tests.callboard.cli.process import start_command


class Subscriber:
    """A listening `callboard topic sub` in a separate process."""

    def __init__(self, *arguments):
        command = ["topic", "sub", *arguments, "--listen", "127.0.0.1:0", "--json"]
        self.process = start_command(*command)
        self.address = json.loads(self.process.stderr.readline())["address"]
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(json.loads(line))

    def line(self):
        return self._lines.get(timeout=120)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(120)
        self._reader.join()
        with self.process.stdout, self.process.stderr as errors:
            return errors.read(), code


@pytest.fixture(scope="module")
def subscriber():
    started = Subscriber("/news", "--ping")
    yield started
    assert started.end() == ("", 0)


def publish(capsys, *arguments):
    code = main(["topic", "pub", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_values_are_json_or_text_and_arrive_in_order(capsys, subscriber):
    values = ["1.5", '{"a": [1, null]}', "hello world"]
    done = publish(capsys, "/news/x", *values, "--peer", subscriber.address, "--json")

    assert (done[0], done[2]) == (0, "")
    assert json.loads(done[1]) == {"topic": "/news/x", "published": 3, "nodes": 1}
    got = [subscriber.line() for _ in range(3)]
    assert got == [
        {"topic": "/news/x", "data": data} for data in (1.5, {"a": [1, None]}, "hello world")
    ]


def test_without_values_the_lines_of_the_standard_input_are_published(
    capsys, subscriber, monkeypatch
):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n2\n\n"))

    done = publish(capsys, "/news", "--peer", subscriber.address, "--rate", "200")

    assert done == (0, "", "")
    assert [subscriber.line()["data"] for _ in range(3)] == ["one", 2, ""]


def test_ping_measures_round_trips(capsys, subscriber):
    options = ["--ping", "--count", 3, "--peer", subscriber.address, "--json"]
    code, out, err = publish(capsys, "/news", *options)

    assert (code, err) == (0, "")
    *answers, total = map(json.loads, out.splitlines())
    assert [answer["number"] for answer in answers] == [0, 1, 2]
    assert total["sent"] == total["answered"] == 3
    assert 0 < total["min_ms"] <= total["median_ms"] <= total["max_ms"]
    assert [subscriber.line()["data"][2] for _ in range(3)] == [0, 1, 2]


@pytest.mark.slow
def test_unanswered_pings_are_reported(capsys, monkeypatch):
    monkeypatch.setattr("callboard.cli.topic.ANSWER_LIMIT", 0.1)
    silent = Subscriber("/quiet", "--count", "1")

    code, _, err = publish(capsys, "/quiet", "--ping", "--count", 1, "--peer", silent.address)

    assert code == 1
    assert err.endswith("start a subscriber that answers: callboard topic sub /quiet --ping\n")
    assert silent.line()["topic"] == "/quiet"
    assert silent.process.wait(120) == 0  # its --count was reached
    silent.end()


@pytest.mark.slow
def test_rate_prints_the_number_of_received_messages(capsys):
    counting = Subscriber("--rate")
    assert publish(capsys, "/x", *range(50), "--peer", counting.address)[0] == 0

    while (told := counting.line())["messages"] < 50:
        pass

    assert told["messages"] == 50
    assert counting.end(signal.SIGINT) == ("", 0)


def test_a_publish_without_subscribers_is_reported_with_the_next_step(capsys, subscriber):
    code, out, err = publish(
        capsys, "/old", "x", "--peer", subscriber.address, "--timeout", "0.2"
    )

    assert (code, out) == (1, "")
    assert err == (
        "callboard: no node subscribed to /old within 0.2 s; "
        "start a subscriber: callboard topic sub /old --peer ADDRESS\n"
    )


def test_an_invalid_topic_is_reported(capsys, subscriber):
    code, out, err = publish(capsys, "a" * 70_000, "x", "--peer", subscriber.address)

    assert (code, out) == (2, "")
    assert "exceeds the limit of 65,535" in err
