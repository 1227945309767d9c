"""Real CAF nodes behind hubs, of ours and of CAF, and connected by themselves."""

import signal
import time

import pytest

from callboard import ExitReason, Node
from callboard.actors.errors import ActorDown
from callboard.caf import Atom
from tests.interop.caf.real_node import real_nodes
from tests.interop.caf.service import WAIT, Linked, Service, behind_hub
from tests.polling import eventually

pytestmark = pytest.mark.slow

AUTOMATIC = "--middleman.enable-automatic-connections"


@pytest.fixture
def node():
    with Node("ours") as node:
        yield node


def caf_peer(node, ref):
    """Return the view of the node of a CAF actor."""
    return node._node_wire("caf").peers[ref.target.caf.node]


def milliseconds_to_down(node, ref, kill):
    """Return how long a monitor takes, once the actor was killed; pending asks fail, too."""
    down, hanging = node.monitor(ref), ref.ask(Atom("hang"))
    assert ref.ask((1, 2)).result(WAIT) == 3
    began = time.monotonic()
    kill()
    assert down.result(WAIT).reason == ExitReason.UNREACHABLE
    took = (time.monotonic() - began) * 1000
    with pytest.raises(ActorDown):
        hanging.result(WAIT)
    with pytest.raises(ActorDown):
        ref.ask((1, 2)).result(WAIT)
    return took


@pytest.mark.quick
def test_an_actor_that_is_killed_behind_a_living_caf_hub_goes_down_at_once(node):
    with behind_hub(node) as (hub, far, ref):
        assert milliseconds_to_down(node, ref, far.process.kill) < 1000
        assert hub.do("hang").startswith("error")  # it lives


def test_an_actor_behind_a_caf_hub_goes_down_with_the_hub(node):
    with behind_hub(node) as (hub, _, ref):
        assert milliseconds_to_down(node, ref, hub.process.kill) < 1000


def test_an_actor_behind_a_hub_of_ours_goes_down_at_once(node):
    with Node("hub") as hub, real_nodes() as (far,):
        hub.register("service", hub.remote_actor(f"caf://127.0.0.1:{far.serve()}"))
        port = hub.listen(wire="caf-0.17", publish=hub.spawn(Service))
        ref = node.remote_actor(f"caf://127.0.0.1:{port}/service")
        linked = node.spawn(Linked)
        linked.ask((ref,)).result(WAIT)
        ended = node.monitor(linked)

        assert milliseconds_to_down(node, ref, far.process.kill) < 1000
        assert ended.result(WAIT).reason == ExitReason.UNREACHABLE


def test_a_node_behind_a_hub_whose_workers_are_busy_is_not_lost(node, monkeypatch):
    monkeypatch.setattr("callboard.caf.peer.SILENCE_LIMIT", 1.0)
    with behind_hub(node, "--scheduler.max-threads=1") as (_, far, ref):
        down = node.monitor(ref)
        ref.tell((Atom("block"), 2500))
        assert far.line() == "blocking"
        assert ref.ask((1, 2)).result(WAIT) == 3  # after the pause
        assert not down.done()


def test_a_node_behind_a_hub_that_is_stopped_is_lost_after_a_while(node, monkeypatch):
    monkeypatch.setattr("callboard.caf.peer.SILENCE_LIMIT", 0.5)
    with behind_hub(node) as (_, far, ref):
        try:
            stop = lambda: far.process.send_signal(signal.SIGSTOP)  # noqa: E731
            assert 400 < milliseconds_to_down(node, ref, stop) < 5000
        finally:
            far.process.send_signal(signal.SIGCONT)


def test_two_caf_nodes_talk_through_ours(node):
    with real_nodes(2) as (left, right):
        port = node.listen(wire="caf-0.17", publish=node.spawn(Service))
        node.register("service", node.remote_actor(f"caf://127.0.0.1:{right.serve()}"))
        left.do(f"remote {port}")
        assert left.do("lookup service") == "remote"
        assert left.do("add 1 2") == "sum 3"
        left.do("monitor")
        left.do("link")
        assert left.do("add 1 2") == "sum 3"
        right.process.kill()
        assert left.line().startswith("exit ")
        assert left.do("await").startswith("down ")


def test_a_caf_node_with_automatic_connections_connects_with_ours(node):
    with behind_hub(node, AUTOMATIC) as (hub, _, ref):
        assert ref.ask((1, 2)).result(WAIT) == 3
        eventually(lambda: caf_peer(node, ref).is_direct)
        down = node.monitor(ref)
        hub.process.kill()
        hub.process.wait()
        assert ref.ask((1, 2)).result(WAIT) == 3
        assert not down.done()


def test_caf_nodes_with_automatic_connections_leave_ours_out():
    with Node("ours") as node, real_nodes(2, AUTOMATIC) as (left, right):
        port = node.listen(wire="caf-0.17", publish=node.spawn(Service))
        ref = node.remote_actor(f"caf://127.0.0.1:{right.serve()}")
        node.register("service", ref)
        left.do(f"remote {port}")
        assert left.do("lookup service") == "remote"

        def is_direct():
            before = forwarded(node)
            assert left.do("add 1 2") == "sum 3"
            return forwarded(node) == before

        eventually(is_direct)
        node.close()
        assert left.do("add 1 2") == "sum 3"


def forwarded(node):
    """Return the number of frames that the node has sent over CAF's wire."""
    return sum(link.frames_sent for link in node.overlay.foreign.links)
