"""A node that is killed, frozen, or behind a network that swallows everything."""

import time

import pytest

from tests.faults.cast import Echo
from tests.faults.peers import relay

pytestmark = pytest.mark.alone

KILL_LIMIT = 1.0
SILENCE_LIMIT = 4.0
"""Three heartbeats and a second."""


def line_of(processes, count):
    nodes = processes(count)
    for left, right in zip(nodes, nodes[1:], strict=False):
        left.connect(right.address)
    return nodes


def far_ref(node, ref, eventually):
    """Return the same actor as seen from another process, once a path leads there."""
    seen = node.ref(str(ref).replace(str(ref).split("/")[2], ""))
    eventually(lambda: seen.ask("hi", 1.0).result(2) == "hi", 10)
    return seen


def watched_end(processes, eventually):
    """Return the last of four nodes in a line, refs to it from one and three hops, monitors."""
    first, _, third, end = line_of(processes, 4)
    echo = end.spawn(Echo)
    refs = [far_ref(node, echo, eventually) for node in (third, first)]
    downs = [node.monitor(ref) for node, ref in zip((third, first), refs, strict=True)]
    assert [ref.ask("hi").result(5) for ref in refs] == ["hi", "hi"]
    return end, *refs, downs


def timed(down, began):
    result = down.result(20)
    return result, time.monotonic() - began


@pytest.mark.timeout(60)
def test_a_killed_node_is_told_within_a_second_one_and_three_hops_away(
    processes, figure, eventually
):
    end, _, _, downs = watched_end(processes, eventually)

    began = time.monotonic()
    end.kill()
    (one, after_one), (three, after_three) = (timed(down, began) for down in downs)

    figure(f"Down after SIGKILL: {after_one * 1e3:.1f} ms, 3 hops {after_three * 1e3:.1f} ms")
    assert one.reason == three.reason == "unreachable"
    assert max(after_one, after_three) < KILL_LIMIT


@pytest.mark.timeout(60)
def test_a_frozen_node_is_told_and_comes_back_by_itself(processes, figure, eventually):
    end, near, far, downs = watched_end(processes, eventually)

    began = time.monotonic()
    end.pause()
    (one, after_one), (three, after_three) = (timed(down, began) for down in downs)
    end.resume()
    resumed = time.monotonic()
    for ref in (near, far):
        eventually(lambda ref=ref: ref.ask("again", 1.0).result(2) == "again", 10)
    back = time.monotonic() - resumed

    figure(
        f"Down after SIGSTOP: {after_one:.2f} s, 3 hops {after_three:.2f} s; "
        f"back {back:.2f} s after SIGCONT"
    )
    assert one.reason == three.reason == "unreachable"
    assert min(after_one, after_three) > 1.5
    assert max(after_one, after_three) < SILENCE_LIMIT


@pytest.mark.timeout(60)
def test_a_black_hole_is_told_at_both_ends_and_the_link_comes_back(
    processes, figure, eventually
):
    a, b = processes(2)
    with relay(b.address) as between:
        a.connect(between.address)
        one, other = a.spawn(Echo), b.spawn(Echo)
        seen, seen_back = far_ref(a, other, eventually), far_ref(b, one, eventually)
        downs = [a.monitor(seen), b.monitor(seen_back)]
        assert [ref.ask("hi").result(5) for ref in (seen, seen_back)] == ["hi", "hi"]

        began = time.monotonic()
        between.swallow()
        (left, after_left), (right, after_right) = (timed(down, began) for down in downs)
        between.forward()
        healed = time.monotonic()
        for ref in (seen, seen_back):
            eventually(lambda ref=ref: ref.ask("again", 1.0).result(2) == "again", 15)
        back = time.monotonic() - healed

    figure(
        f"Down after a black hole: {after_left:.2f} s and {after_right:.2f} s; "
        f"back after {back:.2f} s"
    )
    assert left.reason == right.reason == "unreachable"
    assert max(after_left, after_right) < SILENCE_LIMIT
