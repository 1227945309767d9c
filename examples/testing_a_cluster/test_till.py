"""Tests of your own cluster: run `pytest` in this folder.

`cluster` gives nodes in one process, on a simulated network and in virtual time. A test that
fails prints its seed; `callboard replay SEED` runs it again with the same events.
"""

import pytest
from till import Office, Till, Total

from callboard.simulation import Cluster


def open_office(cluster, node):
    """Start the office on a node, with the journal on the node's own simulated disk."""
    disk = cluster.disk(node)
    journal = disk.open("journal", append=True)
    disk.sync_folder("/")
    office = node.spawn(Office, journal)
    node.register("office", office)
    return office


@pytest.fixture
def shop(cluster):
    """An office and two tills, each on its own node."""
    office_node, *till_nodes = cluster(3, topology="star")
    office = open_office(cluster, office_node)
    address = f"{office_node.address}/office"
    tills = [node.spawn(Till, node.name, address) for node in till_nodes]
    return office_node, till_nodes, office, tills


def test_sales_arrive(shop):
    _, _, office, tills = shop

    assert [till.ask(100).result(5) for till in tills] == [1, 1]
    assert office.ask(Total()).result(5) == 200


def test_a_till_that_is_cut_off_tells_its_sales_later(cluster, shop):
    office_node, till_nodes, office, tills = shop
    cluster.partition(office_node, till_nodes[0])

    sold = tills[0].ask(100)
    cluster.advance(30.0)
    assert not sold.done()

    cluster.heal()
    assert sold.result(20) == 1
    assert office.ask(Total()).result(5) == 100


def test_a_power_failure_loses_no_confirmed_sale(cluster, shop):
    office_node, _, _, tills = shop
    assert tills[0].ask(100).result(5) == 1
    sold = tills[1].ask(250)  # may be written, torn or not there when the power fails

    cluster.crash(office_node)
    cluster.advance(10.0)
    office = open_office(cluster, cluster.restart(office_node))

    assert sold.result(30) == 1
    assert office.ask(Total()).result(5) == 350


def test_a_frozen_office_is_waited_for(cluster, shop):
    office_node, _, office, tills = shop
    cluster.pause(office_node)

    sold = tills[0].ask(100)
    cluster.advance(20.0)
    cluster.resume(office_node)

    assert sold.result(20) == 1
    assert office.ask(Total()).result(5) == 100


def test_nothing_is_lost_or_doubled_in_fifty_stormy_days():
    for seed in range(50):  # clusters of your own: one for each seed
        cluster = Cluster(seed)
        try:
            storm(cluster)
        finally:
            cluster.close()


def storm(cluster):
    """Sell while bytes come late, links break and the power fails."""
    office_node, till_node = cluster(2)
    office = open_office(cluster, office_node)
    till = till_node.spawn(Till, "till", f"{office_node.address}/office")
    cluster.loss(office_node, till_node, 0.2)
    sold = []
    for _ in range(10):
        sold.append(till.ask(1, timeout=300.0))
        cluster.advance(cluster.random.uniform(0.0, 1.0))
        if cluster.random.random() < 0.2:
            cluster.cut(office_node, till_node)
        if cluster.random.random() < 0.1:
            cluster.crash(office_node)
            office_node = cluster.restart(office_node)
            office = open_office(cluster, office_node)

    assert sorted(sale.result(120) for sale in sold) == list(range(1, 11))
    assert office.ask(Total()).result(5) == 10
