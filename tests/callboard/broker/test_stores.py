# ruff: noqa: PT009  (the recipe is in the words of the guide)
"""Stores on endpoints, as programs for Broker's Python package use them."""

import asyncio
import unittest

import pytest

from callboard import broker
from callboard.broker import Backend, Endpoint
from callboard.model.errors import InvalidData
from callboard.store import MasterExists, StoreClosed


class Recipe(unittest.TestCase):
    """Developer guide, section 7.6."""

    def run_tri_setup(self, f):
        with (
            broker.Endpoint() as ep0,
            broker.Endpoint() as ep1,
            broker.Endpoint() as ep2,
            ep0.attach_master("test", broker.Backend.Memory) as m,
            ep1.attach_clone("test") as c1,
            ep2.attach_clone("test") as c2,
        ):
            # connect the nodes
            port = ep0.listen("127.0.0.1", 0)
            self.assertTrue(ep1.peer("127.0.0.1", port))
            self.assertTrue(ep2.peer("127.0.0.1", port))

            # wait until the nodes are fully connected
            self.assertTrue(ep0.await_peer(ep1.node_id()))
            self.assertTrue(ep0.await_peer(ep2.node_id()))
            self.assertTrue(ep1.await_peer(ep0.node_id()))
            self.assertTrue(ep2.await_peer(ep0.node_id()))

            # wait until the clones have connected to the master
            self.assertTrue(c1.await_idle())
            self.assertTrue(c2.await_idle())

            f(m, c1, c2)

    def test_7_6_the_recipe_runs(self):
        def use(m, c1, c2):
            c1.put("foo", "bar")
            self.assertTrue(c1.await_idle())
            self.assertTrue(m.await_idle())
            self.assertEqual([store.get("foo") for store in (m, c1, c2)], ["bar"] * 3)
            self.assertEqual([c1.put_unique("u", 1), c2.put_unique("u", 2)], [True, False])

        self.run_tri_setup(use)


def test_a_program_of_the_api_page() -> None:
    with (
        Endpoint() as ep0,
        Endpoint() as ep1,
        ep0.make_subscriber("/test") as sub,
        ep0.attach_master("test", Backend.Memory) as m,
        ep1.attach_clone("test") as c,
    ):
        port = ep0.listen("127.0.0.1", 0)
        assert ep1.peer("127.0.0.1", port)
        assert ep0.await_peer(ep1.node_id())
        assert ep1.await_peer(ep0.node_id())
        ep1.publish("/test/metrics", ["cpu", 0.5])
        assert sub.get() == ("/test/metrics", ("cpu", 0.5))
        c.put("k", 1)
        assert c.await_idle()
        assert m.await_idle()
        assert m.get("k") == 1


def test_stores_end_with_their_endpoint(make_endpoint, tmp_path) -> None:
    endpoint = make_endpoint()
    options = {"path": str(tmp_path / "things.db")}
    master = endpoint.attach_master("things", Backend.SQLite, options)
    master.put("k", 1)
    with pytest.raises(MasterExists):
        endpoint.attach_master("things")
    endpoint.shutdown()

    with pytest.raises(StoreClosed):
        master.get("k")
    again = make_endpoint().attach_master("things", Backend.SQLite, options)
    assert again.get("k") == 1


def test_a_backend_that_is_not_there_is_refused(make_endpoint) -> None:
    with pytest.raises(InvalidData, match="RocksDB"):
        make_endpoint().attach_master("things", Backend.RocksDB)


def test_the_twin_of_attach_master() -> None:
    async def program() -> int:
        async with Endpoint() as endpoint, await endpoint.aattach_master("things") as master:
            await master.aput("k", 1)
            found: int = await master.aget("k")
            return found

    assert asyncio.run(program()) == 1
