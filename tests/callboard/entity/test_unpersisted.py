"""A change of the state that nothing stores is found in simulations and in development mode."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from callboard import Entity, event, handler, message
from callboard.errors import RemoteError
from callboard.simulation import Cluster
from tests.proxies.cast import ROOT


@message("unpersisted-tests.Added")
@dataclass(frozen=True)
class Added:
    item: str


@message("unpersisted-tests.Page")
@dataclass
class Page:
    views: int = 0


class Cart(Entity):
    name = "unpersisted-tests.Cart"

    def __init__(self) -> None:
        self.items: list[str] = []
        self._seen = 0
        self.lock: Any = object()  # cannot be stored, so it is no state

    @handler
    async def on_text(self, how: str) -> int:
        self._seen += 1
        if how == "persists":
            self.persist(Added(how))
        elif how == "changes":
            self.items.append(how)
        elif how == "awaits":
            await self.sleep(0.1)
            self.items.append(how)
        elif how == "raises":
            self.items.append(how)
            raise ValueError(how)
        return len(self.items)

    @handler
    def on_number(self, number: int) -> int:
        self.count = number
        return number

    @handler(read_only=True)
    def on_bytes(self, msg: bytes) -> int:
        if msg:
            self.items.append("read")
        return len(self.items)

    @event
    def on_added(self, event: Added) -> None:
        self.items.append(event.item)


class Counter(Entity):
    name = "unpersisted-tests.Counter"

    def __init__(self) -> None:
        self.state = Page()
        self.cached = 0

    @handler
    def on_text(self, how: str) -> int:
        self.cached += 1
        self.state.views += 1
        if how == "saves":
            self.save()
        return self.state.views


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with closing(Cluster(7)) as made:
        yield made


@pytest.mark.parametrize(
    "message", ["changes", "awaits", 3, b"x"], ids=["at once", "after an await", "new", "read"]
)
def test_a_change_that_nothing_stores_fails_and_is_undone(
    cluster: Cluster, message: Any
) -> None:
    (node,) = cluster(1)
    node.host(Cart, state="sqlite:carts.db")
    cart = node.entity(Cart, "a")
    assert cart.ask("persists").result(5) == 1
    with pytest.raises(RemoteError, match="persisted nothing") as found:
        cart.ask(message).result(5)
    assert found.value.type_name.endswith("StateNotPersisted")
    assert cart.ask(b"").result(5) == 1
    assert cart.ask("persists").result(5) == 2
    with pytest.raises(RemoteError, match="ValueError"):
        cart.ask("raises").result(5)


def test_a_state_that_is_not_saved_is_found(cluster: Cluster) -> None:
    (node,) = cluster(1)
    node.host(Counter, state="sqlite:counters.db")
    counter = node.entity(Counter, "a")
    assert counter.ask("saves").result(5) == 1
    with pytest.raises(RemoteError, match=r"changed state .*save\(\)"):
        counter.ask("forgets").result(5)
    assert counter.ask("saves").result(5) == 2


def test_an_entity_without_state_is_not_checked(cluster: Cluster) -> None:
    (node,) = cluster(1)
    node.host(Cart)
    assert node.entity(Cart, "a").ask("changes").result(5) == 1


PROGRAM = """
import sys
from tests.callboard.entity.test_unpersisted import Cart
from callboard import Node
with Node() as node:
    node.host(Cart, state=sys.argv[1])
    try:
        print(node.entity(Cart, "a").ask("changes").result(10))
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "told"), [((), "1"), (("-X", "dev"), "RemoteError")])
def test_real_nodes_check_in_development_mode_only(
    tmp_path: Path, flags: tuple[str, ...], told: str
) -> None:
    command = [sys.executable, *flags, "-c", PROGRAM, f"sqlite:{tmp_path}/carts.db"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=120
    )
    assert done.stdout.startswith(told)
    assert ("StateNotPersisted" in done.stdout) == bool(flags)
