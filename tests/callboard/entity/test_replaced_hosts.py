"""Nodes that ask find the hosts of a type, whatever they knew of former ones."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from callboard import Entity, Node, handler
from callboard.basp.header import ENTITIES
from callboard.entity.machine.table import Table, TableMember
from callboard.entity.messages import EntityTable
from callboard.simulation import Cluster


class Guest(Entity):
    name = "replaced-hosts.Guest"

    @handler
    def on_text(self, text: str) -> str:
        return text


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with closing(Cluster(3)) as made:
        yield made


@pytest.mark.parametrize("is_clean", [True, False])
def test_the_only_host_of_a_type_is_replaced_by_another_one(
    cluster: Cluster, is_clean: bool
) -> None:
    """Without leases each of them is at the same version of its table."""
    first, second, asker = cluster(3, "mesh")
    first.host(Guest)
    guest = asker.entity(Guest, "k")
    assert guest.ask("a").result(5) == "a"
    if is_clean:
        first.close()
    else:
        cluster.crash(first)
    cluster.advance(5.0)
    waits = guest.ask("b", timeout=10.0)
    cluster.advance(1.0)
    second.host(Guest)
    assert waits.result(10) == "b"
    assert guest.ask("c").result(5) == "c"


def test_a_host_that_ends_and_another_one_at_once(cluster: Cluster) -> None:
    """What is asked meanwhile goes to the one or the other, in its order."""
    first, second, asker = cluster(3, "mesh")
    first.host(Guest)
    guest = asker.entity(Guest, "k")
    assert guest.ask("a").result(5) == "a"
    first.close()
    second.host(Guest)
    assert guest.ask("b", timeout=10.0).result(10) == "b"


@pytest.mark.parametrize("named", ["itself", "a node without hosts", "who is told"])
def test_a_false_table_of_a_member_is_forgotten_when_that_is_gone(
    cluster: Cluster, named: str
) -> None:
    host, other, asker, mad = cluster(4, "mesh")
    host.host(Guest, leases="postgresql://simulated/x")
    guest = asker.entity(Guest, "k")
    assert guest.ask("a").result(5) == "a"
    nodes: dict[str, Node] = {
        "itself": mad,
        "a node without hosts": other,
        "who is told": asker,
    }
    members = {
        "mad": TableMember(mad.node_id.hex()),
        "x": TableMember(nodes[named].node_id.hex()),
    }
    false = Table(2**61, members=members).filled()
    told = EntityTable(Guest.name, false.version, false.text())
    mad.runtime.ref_of(asker.node_id, ENTITIES).tell(told)
    cluster.advance(1.0)
    cluster.crash(mad)
    cluster.advance(5.0)
    assert guest.ask("b", timeout=10.0).result(10) == "b"
    assert [asker.entity(Guest, f"k-{n}").ask("c").result(5) for n in range(30)] == ["c"] * 30
