from callboard.proxies.ledger import tombstones
from callboard.proxies.ledger.tombstones import ACCOUNTS_KEPT, ARRIVALS_KEPT, NodeTombstones

A, B = (bytes([number]) * 18 for number in range(2))


def test_a_lost_node_is_forgotten_in_two_steps():
    nodes = NodeTombstones()
    nodes.lost(A, 0.0)
    nodes.lost(B, 1.0)

    assert nodes.due(ARRIVALS_KEPT - 0.1) == ([], [])
    assert nodes.due(ARRIVALS_KEPT) == ([A], [])
    assert nodes.due(ACCOUNTS_KEPT) == ([B], [A])
    assert nodes.due(ACCOUNTS_KEPT + 1.0) == ([], [B])
    assert len(nodes) == 0


def test_a_sender_forgets_long_after_its_receiver():
    """Both notice a loss within seconds, or within the search for another path."""
    assert ACCOUNTS_KEPT - ARRIVALS_KEPT > 60.0


def test_a_node_that_comes_back_is_not_forgotten_and_one_lost_again_begins_anew():
    nodes = NodeTombstones()
    nodes.lost(A, 0.0)
    nodes.lost(B, 0.0)
    nodes.returned(A)
    nodes.lost(B, 500.0)

    assert nodes.due(ARRIVALS_KEPT) == ([], [])
    assert nodes.due(ARRIVALS_KEPT + 500.0) == ([B], [])


def test_nodes_that_nothing_came_of_are_forgotten_at_once():
    nodes = NodeTombstones()
    nodes.lost(A, 0.0, is_strange=True)
    nodes.lost(B, 0.0, is_strange=True)
    nodes.returned(B)

    assert nodes.due(0.0) == ([A], [A])
    assert len(nodes) == 0


def test_so_many_nodes_are_remembered_and_the_oldest_are_forgotten_first(monkeypatch):
    monkeypatch.setattr(tombstones, "DEPARTED_LIMIT", 1)
    nodes = NodeTombstones()
    nodes.lost(A, 0.0)
    nodes.lost(B, 1.0)

    assert nodes.due(1.0) == ([A], [A])
    assert len(nodes) == 1
