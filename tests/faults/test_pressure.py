"""A peer that stops reading, and a node without free descriptors."""

import socket
import statistics
import threading
import time

import pytest

from callboard import Node
from callboard.actors.errors import NodeUnreachable
from callboard.actors.reference import Call
from tests.faults import ROUNDS
from tests.faults.cast import Echo, Worker
from tests.faults.peers import deaf_peer

pytestmark = pytest.mark.alone

RSS_LIMIT = 200 * 1024 * 1024
WAITING = 60 * 1024 * 1024
WINDOW = 0.4
WINDOWS = 4
TRIES = 3
SHARE = 0.9
DEAF = 10.0 * ROUNDS
"""Seconds for which the peer reads nothing while it is sent as much as the link takes."""


def asked(ref, method, *args, timeout=30.0):
    return ref.ask(Call(method, args, None), timeout).result(timeout + 1)


@pytest.mark.timeout(120 + 5 * DEAF)
def test_a_peer_that_stops_reading_takes_bounded_memory_and_slows_nobody(
    processes, figure, eventually
):
    a, b = processes(2)
    a.connect(b.address)
    echo = b.spawn(Echo)

    # The machine may be busy with something else for a while: the best of three counts.
    for number in range(TRIES):
        share, growth = beside_a_deaf_peer(a, echo, number, figure, eventually)
        assert growth < RSS_LIMIT
        if share >= SHARE:
            break
    assert share >= SHARE


def beside_a_deaf_peer(a, echo, number, figure, eventually):
    """Return the share of the rate that is left, and the memory that it took."""
    worker = a.spawn(Worker)

    def rate():
        return statistics.median(asked(worker, "rate", echo, WINDOW) for _ in range(WINDOWS))

    rate()  # warm
    alone = rate()
    before = asked(worker, "rss")
    rates, sizes = [], []
    began = time.monotonic()
    with deaf_peer(a.address, number) as deaf:
        asked(worker, "flood", a.ref(f"basp:///16@{deaf.node_id.hex()}"), 1000)
        eventually(lambda: asked(worker, "waiting") > WAITING, 20)
        while time.monotonic() - began < DEAF:
            rates.append(asked(worker, "rate", echo, WINDOW))
            sizes.append(asked(worker, "rss"))
        waiting = asked(worker, "waiting")
        asked(worker, "rest")
    eventually(lambda: asked(worker, "waiting") < WAITING, 10)
    again = rate()
    beside, growth = statistics.median(rates), max(sizes) - before
    share = beside / min(alone, again)
    figure(
        f"beside a peer that does not read for {DEAF:g} s: {beside:,.0f} asks/s, without it "
        f"{alone:,.0f} and {again:,.0f} ({share:.0%}); "
        f"{waiting >> 20} MiB wait, memory grew {growth >> 20} MiB"
    )
    return share, growth


@pytest.mark.timeout(60)
def test_a_node_without_descriptors_keeps_its_links_and_accepts_again_later(
    processes, figure, eventually
):
    a, b = processes(2)
    b.connect(a.address)
    worker = a.spawn(Worker)
    echo = a.spawn(Echo)
    seen = b.ref(str(echo))
    assert seen.ask("hi").result(10) == "hi"
    host, _, port = a.address.removeprefix("basp://").rpartition(":")
    asked(worker, "leave_descriptors", 8)

    taken = [socket.create_connection((host, int(port)), 5) for _ in range(20)]
    try:
        with Node("late") as late:
            with pytest.raises(NodeUnreachable):
                late.connect(a.address, 1.5)
            assert [seen.ask(f"{number}").result(2) for number in range(50)][-1] == "49"
            assert echo.ask("own").result(2) == "own"
            for sock in taken:
                sock.close()
            freed = time.monotonic()
            eventually(lambda: late.connect(a.address, 1.0), 8)
            after = time.monotonic() - freed
            assert late.ref(str(echo)).ask("in").result(5) == "in"
    finally:
        for sock in taken:
            sock.close()
    figure(f"accepts {after:.2f} s after descriptors are free again")
    assert threading.active_count() < 100
