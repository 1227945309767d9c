"""Frames that come over a link of no path to their source: true, late and forged ones."""

import pytest

from callboard.basp.frame import pack_frame
from callboard.basp.header import NODE_ACTOR, Operation
from callboard.basp.routing.path_order import pack_path_end
from callboard.proxies.events import MessagesLost
from callboard.proxies.messages import UnverifiedFrame
from callboard.proxies.route_table import OLD_PATH_LIMIT
from callboard.proxies.traffic.unverified import REVIEW_SECONDS
from tests.proxies.cast import recorded
from tests.proxies.test_forgery import Listed, dispatch, forge, linked, listed


@pytest.fixture
def overtaken(cluster):
    """Give the ends of a line, and what links both ends and a node between them.

    What the first one says is a while under way to the second, and then goes over the new hub,
    which hears it in the name of a neighbor that it would hear directly.
    """
    s, a, *_, d, hub = (*linked(cluster, "ba", "cb", "dc", "ed"), cluster.node("f"))
    cluster.delay(s, a, 0.05)

    def link() -> None:
        for node in (d, s, a):
            hub.connect(node.address)
            cluster.advance(0.01)

    return s, d, hub, link


def test_what_is_under_way_while_a_link_comes_up_arrives(cluster, overtaken):
    s, d, hub, link = overtaken
    there = d.spawn(Listed)
    to_d = s.ref(str(there))
    to_d.ask(0).result(5)

    with recorded(s) as events:
        asked = to_d.ask(1)
        to_d.tell(2)
        link()
        to_d.tell(3)  # on the new path
        cluster.advance(2.0)

    assert asked.result(0.01) == 1
    assert listed(there) == [0, 1, 2, 3]
    assert [event for event in events if isinstance(event, MessagesLost)] == []
    cluster.advance(OLD_PATH_LIMIT + 1.0)
    assert [node.stats().refused_frames for node in (s, d, hub)] == [0, 0, 0]
    assert hub._broker.unverified._held == d._broker.unverified._held == {}


def test_an_answer_that_is_under_way_while_a_link_comes_up_arrives(cluster, overtaken):
    s, d, _, link = overtaken
    to_s = d.ref(str(s.spawn(Listed)))
    to_s.ask(0).result(5)

    asked = to_s.ask(1)
    cluster.advance(0.052)  # it has come to the first node, its answer is on its way back
    link()
    cluster.advance(2.0)

    assert asked.result(0.01) == 1


def test_for_a_node_of_a_release_before_nothing_is_handed_over(cluster, overtaken):
    s, d, hub, link = overtaken
    to_d = s.ref(str(d.spawn(Listed)))
    to_d.ask(0).result(5)
    to_d.tell(1)
    link()
    hub._broker.routes.abilities[d.node_id] = frozenset({"keys", "cancel", "credit"})

    cluster.advance(OLD_PATH_LIMIT + 2.0)

    assert d.stats().refused_frames == 0
    assert hub._broker.unverified.dispatches == 1


def test_each_doubtful_frame_waits_for_as_long(cluster):
    a, b, t = linked(cluster, "ba", "tb")
    there = b.spawn(Listed)
    cluster.advance(OLD_PATH_LIMIT)

    forge(t, b, dispatch(a, there, 0, 7))
    cluster.advance(3.0)
    forge(t, b, dispatch(a, there, 0, 8))

    for waited, refused in ((1.9, 0), (0.5, 1), (2.5, 1), (0.5, 2)):
        cluster.advance(waited)
        assert b.stats().refused_frames == refused


def test_what_is_handed_over_and_nobody_has_sent_is_refused(cluster):
    a, b, t = linked(cluster, "ba", "tb")
    there = b.spawn(Listed)
    to_b = a.ref(str(there))
    to_b.tell(0)
    cluster.advance(1.0)

    node_of_b = t.runtime.ref_of(b.node_id, NODE_ACTOR)
    for frame in (
        dispatch(a, there, 0, 0),  # it has come
        dispatch(a, there, 0, 1),
        dispatch(a, there, 1, 0),
        pack_path_end(a.node_id, b.node_id, 0, 9, is_open=False),
        dispatch(a, there, 0, 1)[:-1],
        pack_frame(Operation.DISPATCH_MESSAGE, 0, a.node_id, t.node_id, 0, 17, b"\x81\x01"),
        b"",
        5,
    ):
        node_of_b.tell(UnverifiedFrame(frame))
    cluster.advance(1.0)
    to_b.tell(1)
    cluster.advance(OLD_PATH_LIMIT + 1.0)

    assert listed(there) == [0, 1]
    assert b.runtime.counters.unexpected == 5
    assert b.stats().refused_frames == 1  # the other one has come meanwhile
    assert b._broker.unverified._held == b._broker.unverified._sizes == {}


def test_what_is_handed_over_waits_for_what_is_under_way(cluster):
    """A member that knows which messages are under way does not get its own before them."""
    a, b, t = linked(cluster, "ba", "tb")
    there = b.spawn(Listed)
    to_b = a.ref(str(there))
    to_b.tell(0)
    cluster.advance(1.0)
    sent = dispatch(a, there, 0, 1)
    forge(a, b, pack_path_end(a.node_id, b.node_id, 0, 2, is_open=True))
    t.runtime.ref_of(b.node_id, NODE_ACTOR).tell(UnverifiedFrame(sent))
    cluster.advance(REVIEW_SECONDS / 2)

    to_b.tell(1)
    cluster.advance(2.0)

    assert listed(there) == [0, 1]
