"""Shared rules of commands that open a port."""

import http.client
import itertools
import sys
import threading

import pytest

from callboard.cli.own_node import SignalEvent, open_metrics
from callboard.cli.pipeline import StreamOptions, _serve_metrics
from callboard.cli.work.zeek_logger import LoggerOptions, _metrics
from callboard.pages import text_page
from callboard.pipeline.progress import StatusFile


def status_of(server_url, host):
    place = server_url.removeprefix("http://")
    connection = http.client.HTTPConnection(place, timeout=20)
    try:
        connection.putrequest("GET", "/metrics", skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("hosts", "expected"), [(None, 403), (["shop.example"], 200), (["other.example"], 403)]
)
def test_metrics_answer_under_the_given_names(hosts, expected):
    server = open_metrics("127.0.0.1:0", hosts, lambda: text_page("figures"))
    with server:
        status, text = status_of(server.url, "shop.example")
        assert status == expected
        assert ("--metrics-host" in text) is (expected == 403)
        assert status_of(server.url, "localhost") == (200, "figures\n")


def test_the_pipeline_and_zeeks_logger_pass_their_names_on(tmp_path, capsys):
    options = StreamOptions(
        log="log", to=tmp_path, metrics="127.0.0.1:0", metrics_host=["shop.example"]
    )
    with _serve_metrics(options, StatusFile(tmp_path, "rates", "log")) as server:
        assert status_of(server.url, "evil.example")[0] == 403
        assert status_of(server.url, "shop.example")[0] == 200

    capsys.readouterr()
    with _metrics(LoggerOptions(metrics="127.0.0.1:0", metrics_host=["shop.example"])):
        url = capsys.readouterr().err.split()[-1].removesuffix("/metrics")
        assert status_of(url, "evil.example")[0] == 403
        assert status_of(url, "shop.example")[0] == 200


def set_before_opcode(event, number):
    """Set an event before an opcode of its `wait`; return whether `wait` has this opcode."""
    opcodes, is_set = itertools.count(), []

    def trace(frame, kind, _):
        frame.f_trace_opcodes = True
        if kind == "opcode" and next(opcodes) == number:
            is_set.append(True)
            event.set()
        return trace

    sys.settrace(trace)
    try:
        assert event.wait(0.01) in (True, False)
    finally:
        sys.settrace(None)
    return bool(is_set)


def test_a_signal_at_any_moment_of_the_wait_for_it_ends_the_wait():
    def look():
        for number in itertools.count():
            event = SignalEvent()
            if not set_before_opcode(event, number):
                numbers.append(number)
                return
            assert event.is_set()
            assert event.wait(0)

    numbers = []
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(30)

    assert numbers, "an event that is set in its own wait waits for ever"
    assert numbers[0] > 10


def test_the_wait_for_a_signal_ends_when_another_thread_sets_it_and_after_its_time():
    event = SignalEvent()
    assert not event.wait(0.01)
    assert not event.wait(-1)
    threading.Timer(0.05, event.set).start()
    assert event.wait(30)
    event.set()
    assert event.wait()
