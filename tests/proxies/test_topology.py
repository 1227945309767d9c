"""What rooms above may ask of links: dials on wish, and their end."""

import pytest

from callboard.actors.errors import NodeUnreachable
from callboard.proxies.topology import DialState
from callboard.simulation.cluster import PORT


@pytest.fixture
def two(cluster):
    a, b = cluster(2, topology="none")
    return a, b, (host_of(b), PORT)


def host_of(node):
    return node.address.removeprefix("basp://").rpartition(":")[0]


def dial(node, address, retry, failures=None):
    heard = [] if failures is None else failures
    return node.overlay.dial(address, retry=retry, on_failure=heard.append)


def test_a_dial_links_and_tells_the_peer(two):
    a, b, address = two

    assert dial(a, address, 0.0).result(5).peer == b.node_id
    assert a.overlay.address(b.node_id) == address
    assert a.overlay.is_dialed_here(b.node_id)
    assert not b.overlay.is_dialed_here(a.node_id)


def test_one_attempt_fails_with_the_reason(two):
    a, _, _ = two
    failures = []

    with pytest.raises(NodeUnreachable, match=r"10\.9\.9\.9"):
        dial(a, ("10.9.9.9", PORT), 0.0, failures).result(30)

    assert len(failures) == 1
    assert a.overlay.dials() == []


def test_a_patient_dial_outlasts_failures(cluster, two):
    a, b, address = two
    failures = []
    cluster.partition(a, b)
    waiting = dial(a, address, 1.0, failures)
    cluster.advance(30.0)
    assert failures
    assert not waiting.done()
    assert a.overlay.dials() == [DialState(address, None, 1.0)]

    cluster.heal()

    assert waiting.result(30).peer == b.node_id
    assert a.overlay.dials() == [DialState(address, b.node_id, 1.0)]


def test_unlink_ends_the_dial_and_its_link_for_good(cluster, two):
    a, b, address = two
    dial(a, address, 1.0).result(5)

    assert a.overlay.unlink(address) == b.node_id
    cluster.advance(60.0)

    assert a.links() == b.links() == a.overlay.dials() == []


def test_unlink_by_another_address_ends_every_dial_to_the_node(cluster, two):
    a, b, address = two
    dial(a, address, 1.0).result(5)
    a.connect(b.address)
    b.overlay.dial((host_of(a), PORT), retry=1.0, on_failure=print).result(5)

    assert b.overlay.unlink((host_of(a), PORT)) == a.node_id
    assert b.overlay.dials() == []
    cluster.advance(10.0)

    assert len(a.links()) == 1  # the other side keeps dialing: it was not asked


def test_unlink_fails_whoever_waits(cluster, two):
    a, b, address = two
    cluster.partition(a, b)
    waiting = dial(a, address, 1.0)
    cluster.advance(3.0)

    assert a.overlay.unlink(address) is None

    with pytest.raises(NodeUnreachable, match="was stopped"):
        waiting.result(1)


def test_unlink_takes_the_address_that_a_peer_dialed_from(two):
    a, b, address = two
    dial(a, address, 0.0).result(5)
    came_from = b.overlay.address(a.node_id)
    assert came_from is not None

    assert b.overlay.unlink(came_from) == a.node_id
    assert b.links() == []


def test_an_address_of_no_link_cannot_be_unlinked(two):
    a, _, address = two

    with pytest.raises(LookupError, match="no link has the address"):
        a.overlay.unlink(address)


def test_the_end_of_the_node_fails_patient_dials(cluster, two):
    a, b, address = two
    cluster.partition(a, b)
    waiting = dial(a, address, 1.0)
    cluster.advance(2.0)

    a.close()

    with pytest.raises(NodeUnreachable, match="closed"):
        waiting.result(1)
