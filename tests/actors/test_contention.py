"""While another thread computes, a runner's system calls keep the interpreter's lock."""

import contextlib
import os
import selectors
import socket
import sys
import threading
import time

import pytest

from callboard.actors.runner import contention
from callboard.actors.runner.contention import CALM_CHECKS, CONTENTION, LARGEST_KEPT, Contention
from tests.actors.sample import Echo


@pytest.fixture(params=[True, False], ids=["kept", "given_up"])
def contended(request, monkeypatch):
    """Both ways of making the same calls."""
    monkeypatch.setattr(CONTENTION, "record_delay", lambda _: None)  # the watcher has no say
    monkeypatch.setattr(CONTENTION, "is_seen", request.param)
    return request.param


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        other.setblocking(False)
        yield one, other


@contextlib.contextmanager
def computing():
    """Let a thread compute; gives the list that holds how far it has come."""
    enough, progress = threading.Event(), [0]

    def compute():
        while not enough.is_set():
            progress[0] += 1

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield progress
    finally:
        enough.set()
        thread.join()


def test_sent_data_is_received(contended, pair):
    one, other = pair

    assert contention.send(one, memoryview(b"a\0b" * 100)) == 300
    assert contention.receive(other, 4) == b"a\0ba"
    assert contention.receive(other, 1000) == (b"a\0b" * 100)[4:]


def test_a_part_of_a_message_can_be_sent(contended, pair):
    one, other = pair
    contention.send(one, memoryview(b"abcdef")[2:4])

    assert contention.receive(other, 10) == b"cd"


def test_large_writes_are_python_s_own(contended, pair):
    one, _ = pair
    count = contention.send(one, memoryview(bytes(LARGEST_KEPT + 1)))

    assert 0 < count <= LARGEST_KEPT + 1


def test_nothing_to_read_and_no_room_raise_as_python_s_calls_do(contended, pair):
    one, other = pair
    read, write = os.pipe()
    os.set_blocking(read, False)
    with pytest.raises(BlockingIOError):
        contention.receive(other, 10)
    with pytest.raises(BlockingIOError):
        contention.read(read, 10)
    os.close(read)
    os.close(write)
    with contextlib.suppress(BlockingIOError):
        while one.send(bytes(65536)):
            pass
    with pytest.raises(BlockingIOError):
        contention.send(one, memoryview(b"x"))


def test_the_end_of_a_connection_reads_as_nothing(contended, pair):
    one, other = pair
    one.close()

    assert contention.receive(other, 10) == b""


def test_writing_to_a_closed_connection_raises_and_sends_no_signal(contended, pair):
    one, other = pair
    other.close()

    with pytest.raises(BrokenPipeError):
        contention.send(one, memoryview(b"x"))


def test_ready_events_equal_those_of_the_selector(contended, pair):
    one, other = pair
    both = selectors.EVENT_READ | selectors.EVENT_WRITE
    with selectors.DefaultSelector() as selector:
        selector.register(one, both, "one")
        selector.register(other, selectors.EVENT_READ, "other")
        assert contention.select(selector, 0.0) == selector.select(0.0)
        one.send(b"x")
        found = {key.data: mask for key, mask in contention.select(selector, 5.0)}
        other.close()
        one_closed = contention.select(selector, 5.0)

        assert found == {"one": selectors.EVENT_WRITE, "other": selectors.EVENT_READ}
        assert one_closed == selector.select(0.0)


def test_a_poll_that_finds_nothing_waits(contended):
    with selectors.DefaultSelector() as selector:
        started = time.monotonic()

        assert contention.select(selector, 0.02) == []
        assert time.monotonic() - started >= 0.02


@pytest.mark.slow
def test_kept_calls_let_no_other_thread_run(pair, monkeypatch):
    one, other = pair
    interval = sys.getswitchinterval()
    monkeypatch.setattr(CONTENTION, "record_delay", lambda _: None)

    def is_interrupted(progress):
        before = progress[0]
        contention.send(one, memoryview(b"x"))
        contention.receive(other, 10)
        contention.select(selector, 0.0)
        return progress[0] != before

    with selectors.DefaultSelector() as selector, computing() as progress:
        selector.register(one, selectors.EVENT_READ)
        sys.setswitchinterval(0.5)  # much longer than the calls
        try:
            monkeypatch.setattr(CONTENTION, "is_seen", False)
            while not is_interrupted(progress):
                pass
            monkeypatch.setattr(CONTENTION, "is_seen", True)
            is_interrupted(progress)  # begins an interval of our own
            kept = [is_interrupted(progress) for _ in range(100)]
        finally:
            sys.setswitchinterval(interval)

    assert not any(kept)


def test_the_watcher_sees_that_a_thread_computes_and_that_it_ended(runtime):
    echo = runtime.start_actor(Echo)

    def asked_until(seen):
        deadline = time.monotonic() + 10
        while CONTENTION.is_seen != seen and time.monotonic() < deadline:
            echo.ask("x").result(5)  # an idle node's watcher sleeps
        return CONTENTION.is_seen

    with computing():
        assert asked_until(seen=True)
    assert not asked_until(seen=False)


def test_one_check_without_delay_does_not_end_contention():
    contention_ = Contention()
    interval = sys.getswitchinterval()
    contention_.record_delay(interval / 2)
    assert not contention_.is_seen
    contention_.record_delay(interval)
    assert contention_.is_seen

    for _ in range(CALM_CHECKS - 1):
        contention_.record_delay(0.0)
    assert contention_.is_seen
    contention_.record_delay(0.0)
    assert not contention_.is_seen
