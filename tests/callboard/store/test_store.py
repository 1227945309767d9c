"""Stores on nodes: what users see."""

import asyncio
import datetime
import inspect
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callboard import Node
from callboard.actors.errors import WouldBlock
from callboard.simulation import Cluster
from callboard.store import (
    Backend,
    BackendFailure,
    CloneOptions,
    CommandsRefused,
    MasterExists,
    NoSuchKey,
    NoSuchMaster,
    StaleData,
    Store,
    StoreClosed,
    StoreEvent,
    TypeClash,
    aattach_master,
    attach_clone,
    attach_master,
)
from callboard.store.backend.interface import MemoryBackend
from callboard.topics.hub import Hub
from callboard.topics.machine.topic import STORE_EVENTS
from tests.polling import eventually


@pytest.fixture
def pair() -> Iterator[tuple[Store, Store]]:
    with Node() as a, Node() as b:
        a.listen("127.0.0.1", 0)
        master = attach_master(Hub.of(a), "things")
        clone = attach_clone(Hub.of(b), "things")
        b.connect(a.address)
        assert clone.await_idle()
        yield master, clone


def settle(*stores: Store) -> None:
    for store in stores:
        assert store.await_idle()


@pytest.mark.slow
def test_a_master_reads_what_it_wrote(pair: tuple[Store, Store]) -> None:
    master, clone = pair
    for i in range(1000):
        master.put("k", i)
        master.put(i, [i])
        assert master.get("k") == i
    assert master.get(999) == (999,)
    assert len(master) == 1001
    settle(master)
    assert clone.keys() == master.keys()
    assert (clone.get("missing"), clone.exists("missing")) == (None, False)


def test_all_changes_by_name(pair: tuple[Store, Store]) -> None:
    master, clone = pair
    for store in pair:
        store.increment("n", 5)
        store.decrement("n")
        store.append("text", "ab")
        store.push("vector", 1)
        store.push("vector", 2)
        store.pop("vector")
        store.insert_into("set", "x")
        store.insert_into("set", "y")
        store.remove_from("set", "x")
        store.insert_into("table", "k", 5)
        store.put("gone", 1)
        store.erase("gone")
        settle(clone, master)
    assert [clone.get(key) for key in ("n", "text", "vector", "set", "table", "gone")] == [
        8,
        "abab",
        (1, 1),
        {"y"},
        {"k": 5},
        None,
    ]
    assert clone.get_index_from_value("table", "k") == 5
    assert master.get_index_from_value("vector", 9) is None
    with pytest.raises(TypeClash):
        master.get_index_from_value("n", 1)
    clone.clear()
    settle(clone, master)
    assert master.keys() == clone.keys() == set()


def test_put_unique_has_one_winner(pair: tuple[Store, Store]) -> None:
    master, clone = pair
    won: list[bool] = []
    threads = [
        threading.Thread(target=lambda s=store: won.append(s.put_unique("k", s.is_master)))
        for store in pair * 3
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(won) == [False] * 5 + [True]


def test_what_does_not_fit_is_an_event(pair: tuple[Store, Store]) -> None:
    master, clone = pair
    heard: list[Any] = []
    with master._actor.hub.node.subscribed(heard.append):
        master.put("k", "text")
        clone.increment("k")
        settle(clone, master)
        eventually(lambda: any(isinstance(event, CommandsRefused) for event in heard))
    assert [(e.store, e.count) for e in heard if isinstance(e, CommandsRefused)] == [
        ("things", 1)
    ]


def test_there_is_one_master_for_each_name(pair: tuple[Store, Store]) -> None:
    _, clone = pair
    with pytest.raises(MasterExists, match="things"):
        attach_master(clone._actor.hub, "things")
    with attach_master(clone._actor.hub, "others") as other:
        other.put("k", 1)
        assert other.get("k") == 1
    with attach_master(clone._actor.hub, "others"):
        pass


def test_a_master_that_was_closed_is_replaced(pair: tuple[Store, Store]) -> None:
    master, clone = pair
    hub = clone._actor.hub
    master.put("old", 1)
    settle(master)
    master.close()
    with pytest.raises(StoreClosed):
        master.put("k", 1)
    with pytest.raises(StoreClosed):
        master.get("k")
    with attach_master(hub, "things") as other:
        other.put("k", 1)
        deadline = time.monotonic() + 30
        while clone.get("k") is None and time.monotonic() < deadline:
            clone.await_idle(0.1)
        assert clone.keys() == {"k"}


@pytest.mark.parametrize("expiry", [0.05, datetime.timedelta(milliseconds=50)])
def test_keys_expire(pair: tuple[Store, Store], expiry: Any) -> None:
    master, clone = pair
    clone.put("k", 1, expiry)
    clone.put("stays", 1, 100)
    settle(clone, master)
    deadline = time.monotonic() + 30
    while clone.exists("k") and time.monotonic() < deadline:
        clone.await_idle(0.01)

    assert clone.keys() == {"stays"}


def test_events_on_the_local_topic(pair: tuple[Store, Store]) -> None:
    master, clone = pair
    heard: list[Any] = []
    done = threading.Event()

    class Receiver:
        def take(self, items: list[Any], /) -> None:
            heard.extend(item[1] for item in items)
            if len(heard) == 4:
                done.set()

    clone._actor.hub.add_receiver(Receiver(), [f"{STORE_EVENTS}/things"]).result(5)
    master.put("k", 1)
    master.put("k", 2)
    master.erase("k")
    clone.put("k", 3, 0.01)
    assert done.wait(30) or heard
    settle(clone, master)

    who = (master.node_id(), master._actor.machine.entity.object)
    assert heard[:3] == [
        ("insert", "things", "k", 1, None, *who),
        ("update", "things", "k", 1, 2, None, *who),
        ("erase", "things", "k", *who),
    ]
    assert heard[3][:4] == ("insert", "things", "k", 3)


def test_the_mapping_and_the_proxy(pair: tuple[Store, Store]) -> None:
    master, _ = pair
    things = master.mapping()
    things["a"] = None
    things.update(b=2)
    del things["b"]

    assert dict(things) == {"a": None}
    assert "b" not in things
    for wrong in (lambda: things["b"], lambda: things.pop("b")):
        with pytest.raises(NoSuchKey):
            wrong()

    proxy = master.proxy()
    requests = [
        proxy.get("a"),
        proxy.exists("b"),
        proxy.put_unique("b", 1),
        proxy.keys(),
        proxy.get_index_from_value("a", 1),
    ]
    answers = {}
    for _ in requests:
        response = proxy.receive(10)
        assert response is not None
        answers[response.id] = response
    assert [answers[number].answer for number in requests[:3]] == [None, False, True]
    assert isinstance(answers[requests[4]].error, TypeClash)


def test_twins_are_awaited_and_the_others_would_block(pair: tuple[Store, Store]) -> None:
    master, clone = pair

    async def program() -> list[Any]:
        await clone.aput("k", [1])
        assert await clone.aput_unique("u", 1)
        assert await clone.aawait_idle()
        assert await master.aawait_idle()
        with pytest.raises(WouldBlock, match="aget"):
            clone.get("k")
        with pytest.raises(MasterExists):
            await aattach_master(clone._actor.hub, "things")
        return [await clone.aget("k"), await clone.aexists("x"), await clone.akeys()]

    assert asyncio.run(program()) == [(1,), False, {"k", "u"}]


def test_changes_are_watched(pair: tuple[Store, Store]) -> None:
    master, clone = pair

    async def program() -> list[StoreEvent]:
        found = []
        watching = clone.watch("a")
        first = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)
        await master.aput("b", 1)
        await master.aput("a", 1, 100.0)
        await master.aput("a", 2)
        await master.aerase("a")
        found.append(await first)
        async for event in watching:
            found.append(event)
            if event.kind == "erase":
                return found
        return found

    assert asyncio.run(program()) == [
        StoreEvent("insert", "things", "a", 1, None, 100.0),
        StoreEvent("update", "things", "a", 2, 1),
        StoreEvent("erase", "things", "a"),
    ]


def test_await_idle_with_a_callback(pair: tuple[Store, Store]) -> None:
    _, clone = pair
    told: list[bool] = []
    done = threading.Event()
    assert clone.await_idle(callback=lambda idle: (told.append(idle), done.set())) is None
    assert done.wait(30)
    assert told == [True]


def test_a_clone_that_finds_no_master_says_so() -> None:
    with (
        Node() as a,
        attach_clone(
            Hub.of(a), "things", store_options=CloneOptions(max_get_delay=0.05)
        ) as clone,
    ):
        with pytest.raises(NoSuchMaster, match="things"):
            clone.get("k")
        assert clone.await_idle(0.05) is False


def test_a_node_that_closes_ends_its_stores() -> None:
    with Node() as a:
        master = attach_master(Hub.of(a), "things")
    with pytest.raises(StoreClosed):
        master.get("k")
    assert master.await_idle() is False
    master.close()


@pytest.mark.slow
def test_a_clone_reads_its_copy_until_it_is_stale() -> None:
    cluster = Cluster(1)
    try:
        a, b = cluster(2)
        master = attach_master(Hub.of(a), "things")
        clone = attach_clone(Hub.of(b), "things")
        master.put("k", 1)
        settle(clone, master)
        cluster.partition(a, b)
        cluster.advance(290.0)
        assert clone.get("k") == 1
        cluster.advance(30.0)
        with pytest.raises(StaleData, match="without its master"):
            clone.get("k")
        cluster.heal()
        assert clone.await_idle(60)
        assert clone.get("k") == 1
    finally:
        cluster.close()


def test_of_two_masters_that_meet_one_ends() -> None:
    cluster = Cluster(1)
    try:
        a, b = cluster(2, topology="none")
        masters = [attach_master(Hub.of(node), "things") for node in (a, b)]
        b.connect(a.address)
        cluster.advance(5.0)
        ended = [master for master in masters if master._actor.error is not None]
        assert [type(master._actor.error) for master in ended] == [MasterExists]
    finally:
        cluster.close()


def test_clones_any_number_of_hops_away_and_before_the_master() -> None:
    cluster = Cluster(1)
    try:
        nodes = cluster(5)
        clones = [attach_clone(Hub.of(node), "things") for node in nodes[1:]]
        cluster.advance(3.0)
        with attach_master(Hub.of(nodes[0]), "things") as master:
            for clone in clones:
                assert clone.await_idle(5)
            clones[-1].put("k", 1)
            settle(clones[-1], master)
            assert [clone.get("k") for clone in clones] == [1] * 4
    finally:
        cluster.close()


class SlowToClose(MemoryBackend):
    """A backend whose file takes a moment to close."""

    def close(self) -> None:
        self.is_closing.set()
        self.is_called_again.wait(0.2)  # nothing tells that the second call waits
        super().close()


def test_a_name_is_free_for_another_master_once_any_close_has_returned() -> None:
    backend = SlowToClose()
    backend.is_closing, backend.is_called_again = threading.Event(), threading.Event()
    with Node() as node:
        master = attach_master(Hub.of(node), "things", backend)
        closing = threading.Thread(target=master.close)
        closing.start()
        assert backend.is_closing.wait(10)

        master.close()

        attach_master(Hub.of(node), "things").close()
        closing.join()
        master.close()


def test_a_sqlite_master_comes_back(tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "things.db")}
    with Node() as a:
        with attach_master(Hub.of(a), "things", Backend.SQLite, options) as master:
            for i in range(3000):
                master.put(i, {"n": i})
            master.put("soon", 1, 0.05)
            assert master.put_unique("u", 1)
            with pytest.raises(BackendFailure):
                attach_master(Hub.of(a), "others", Backend.SQLite, options)
        with attach_master(Hub.of(a), "things", Backend.SQLite, options) as master:
            assert master.get(2999) == {"n": 2999}
            assert not master.put_unique("u", 2)
            deadline = time.monotonic() + 30
            while master.exists("soon") and time.monotonic() < deadline:
                master.await_idle(0.01)
            assert len(master) == 3001


@pytest.mark.parametrize(
    "name", ["put", "erase", "insert_into", "keys", "get_index_from_value"]
)
def test_methods_and_their_twins_have_the_same_parameters_and_one_text(name):
    blocking, awaitable = getattr(Store, name), getattr(Store, f"a{name}")

    parameters = [
        list(inspect.signature(method).parameters) for method in (blocking, awaitable)
    ]
    assert parameters[0] == parameters[1]
    assert parameters[0][0] == "self"
    assert blocking.__qualname__ == f"Store.{name}"
    assert awaitable.__doc__ == f"Awaitable twin of `{name}`."
    assert len(blocking.__doc__) > 20
