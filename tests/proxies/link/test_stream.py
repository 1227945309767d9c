"""A stream over a socket pair whose other end the test holds."""

import random
import socket
import threading

import pytest

from callboard.actors.runner.runner import Runner
from callboard.actors.runner.spinning import AdaptivePoll
from callboard.basp.handshake import LinkConfig
from callboard.basp.link import Closed, Link, LinkPairs, Transmit
from callboard.basp.node_id import NodeId
from callboard.proxies.errors import LinkFull
from callboard.proxies.link import stream as stream_module
from callboard.proxies.link.stream import Stream, Turns
from tests.proxies.cast import eventually

A = NodeId(b"a" * 18)


class Bench:
    """A runner, one stream of it, and the other end."""

    def __init__(self) -> None:
        self.runner = Runner("bench")
        self.closed: list[str] = []
        ours, self.far = socket.socketpair()
        for sock in (ours, self.far):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.far.settimeout(10)
        link = Link(LinkConfig(A), dialer=True, nonce=bytes(16), now=0.0, pairs=LinkPairs())
        self.plain = _Plain(ours)
        self.stream = Stream(
            Turns(self.runner), self.plain, link, lambda frames: None, self.carry_out
        )
        self.runner.start()

    def carry_out(self, effects):
        for effect in effects:
            if isinstance(effect, Transmit):
                self.stream.write(effect.data)
            elif isinstance(effect, Closed):
                self.closed.append(effect.reason)
                self.stream.shut()

    def read(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            got += self.far.recv(min(65536, size - len(got)))
        return bytes(got)

    def close(self) -> None:
        self.runner.post(self.stream.end, "done")
        eventually(lambda: not self.stream.is_open)
        self.runner.stop()
        self.runner.stopped.wait(5)
        self.far.close()


class _Plain:
    """A socket of a pair, which knows no TCP options."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.take = sock.send

    def send(self, data: bytes | memoryview) -> int:
        return self.take(data)

    def setsockopt(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.close()


def test_frames_arrive_whole_and_in_order_through_a_socket_that_takes_little_at_once(bench):
    source = random.Random(5)
    frames = [source.randbytes(source.randrange(1, 50_000)) for _ in range(100)]

    for frame in frames:
        bench.stream.write(frame)

    assert bench.read(sum(map(len, frames))) == b"".join(frames)
    eventually(lambda: bench.stream.waiting == 0)
    assert bench.stream.frames_sent == 100
    assert bench.stream.bytes_sent == sum(map(len, frames))


def test_frames_of_one_thread_keep_their_order_while_others_write(bench):
    def write(mark: int) -> None:
        for number in range(2000):
            bench.stream.write(bytes([mark]) + number.to_bytes(3), at_once=number % 7 == 0)

    writers = [threading.Thread(target=write, args=(mark,)) for mark in range(4)]
    for writer in writers:
        writer.start()
    got = bench.read(4 * 2000 * 4)
    for writer in writers:
        writer.join()

    frames = [got[at : at + 4] for at in range(0, len(got), 4)]
    for mark in range(4):
        numbers = [int.from_bytes(frame[1:]) for frame in frames if frame[0] == mark]
        assert numbers == list(range(2000))


def test_a_thread_waits_for_a_peer_that_does_not_read_and_goes_on_when_it_does(
    bench, monkeypatch
):
    monkeypatch.setattr(stream_module, "WAITING_LIMIT", 100_000)
    bench.stream.write(bytes(400_000))
    done = threading.Event()
    waiter = threading.Thread(target=lambda: (bench.stream.make_room(), done.set()))
    waiter.start()

    assert not done.wait(0.05)
    bench.read(400_000)

    assert done.wait(5)
    waiter.join()


def test_a_thread_that_waits_for_room_is_refused_in_the_end(bench, monkeypatch):
    monkeypatch.setattr(stream_module, "WAITING_LIMIT", 100_000)
    monkeypatch.setattr(stream_module, "WAIT_FOR_ROOM", 0.01)
    bench.stream.write(bytes(400_000))

    with pytest.raises(LinkFull, match="reads too slowly"):
        bench.stream.make_room()


def test_a_thread_that_waits_for_room_goes_on_when_the_link_ends(bench, monkeypatch):
    monkeypatch.setattr(stream_module, "WAITING_LIMIT", 100_000)
    bench.stream.write(bytes(400_000))
    done = threading.Event()
    waiter = threading.Thread(target=lambda: (bench.stream.make_room(), done.set()))
    waiter.start()

    bench.runner.post(bench.stream.end, "over")

    assert done.wait(5)
    waiter.join()


def test_what_cannot_be_refused_is_bounded_by_cutting_the_link(bench, monkeypatch):
    monkeypatch.setattr(stream_module, "WAITING_LIMIT", 100_000)
    peak = 0

    for _ in range(1000):
        bench.stream.write(bytes(5000))
        peak = max(peak, bench.stream.waiting)

    assert peak <= 300_000 + 5000
    eventually(lambda: bench.closed)
    assert "does not read" in bench.closed[0]


def test_the_end_of_the_stream_closes_it(bench):
    bench.far.close()

    eventually(lambda: bench.closed)

    assert "closed by the other side" in bench.closed[0]
    assert not bench.stream.is_open


def test_writing_to_a_closed_stream_has_no_effect(bench):
    bench.runner.post(bench.stream.end, "over")
    eventually(lambda: not bench.stream.is_open)

    bench.stream.write(b"late", at_once=True)
    bench.stream.flush()

    assert bench.far.recv(10) == b""


def test_a_turn_writes_early_and_then_in_ever_larger_portions(bench):
    sent: list[int] = []

    def send(data):
        sent.append(len(data))
        return len(data)

    def turn(frames: int, done: threading.Event) -> None:
        for _ in range(frames):
            bench.stream.write(bytes(128))
        bench.runner.post(done.set)  # behind the end of this turn

    bench.plain.take = send
    ends = [threading.Event(), threading.Event()]
    for frames, end in zip((1000, 20), ends, strict=True):
        bench.runner.post(turn, frames, end)
        assert end.wait(5)

    assert sent == [2048, 4096, 8192, 16384, 32768, 1000 * 128 - 63488, 2048, 512]


@pytest.mark.parametrize(
    "send", [lambda to: to.write(b"x", at_once=True), lambda to: to.write_run([b"x"])]
)
def test_who_sends_waits_longer_for_what_comes_next(bench, send):
    bench.stream._patience = patience = AdaptivePoll(bench.runner.now)  # which no poll uses up

    send(bench.stream)

    assert patience.has_sent


def test_a_callback_that_raises_ends_its_connection_and_no_other(bench, caplog):
    other = Bench()

    def fail(data, now):
        raise MemoryError

    bench.stream._take = fail
    bench.far.sendall(b"x" * 10)

    eventually(lambda: bench.closed)
    assert "MemoryError" in bench.closed[0]
    assert not bench.stream.is_open
    assert other.stream.is_open
    other.close()


def test_a_connection_that_cannot_be_closed_at_once_is_closed_later(bench, monkeypatch):
    monkeypatch.setattr(stream_module, "CLOSE_AGAIN", 0.01)
    calls = []
    carry_out = bench.stream._carry_out

    def fail_twice(effects):
        calls.append(effects)
        if len(calls) < 3:
            raise MemoryError
        carry_out(effects)

    def fail(data, now):
        raise MemoryError

    bench.stream._carry_out, bench.stream._take = fail_twice, fail
    bench.far.sendall(b"x" * 10)

    eventually(lambda: not bench.stream.is_open)
