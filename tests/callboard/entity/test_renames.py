"""Names that changed between releases: of fields of a state, messages, events and entities.

An earlier release of the program runs in a process of its own, with its own classes.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from callboard import Actor, Entity, Node, event, handler, message, upcast
from callboard.basp import MessageRegistry, PayloadCodec
from callboard.basp.errors import DuplicateMessageType
from callboard.entity.entity import stored_name
from callboard.errors import StateVersion, WrongArgument, WrongValue
from tests.proxies.cast import ROOT

EARLIER = """
import sys
from dataclasses import dataclass
from callboard import Actor, Entity, Node, event, handler, message

@message("renames.Profile")
@dataclass
class Profile:
    name: str = ""
    visits: int = 0
    mail: str = "a@b"

@message("renames.Added")
@dataclass(frozen=True)
class Added:
    count: int

class User(Entity):
    name = "renames.User"
    def __init__(self): self.state = Profile()
    @handler
    def on_name(self, name: str) -> int:
        self.state.name = name; self.state.visits += 1; self.save()
        return self.state.visits

class Basket(Entity):
    name = "renames.Basket"
    def __init__(self): self.total = 0
    @handler
    def on_count(self, count: int) -> int:
        self.persist(Added(count))
        return self.total
    @event
    def on_added(self, event: Added) -> None: self.total += event.count

class Echo(Actor):
    @handler
    def on_added(self, msg: Added) -> Added: return Added(msg.count + 1)

state, peer = sys.argv[1:]
with Node("earlier") as node:
    if state:
        node.host(User, state=state); node.host(Basket, state=state)
        node.entity(User, "a").ask("Ann").result(10)
        node.entity(User, "b").ask("Bob").result(10)
        node.entity(Basket, "one").ask(3).result(10)
    else:
        node.listen("127.0.0.1", 0)
        node.register("echo", node.spawn(Echo))
        print(node.address, flush=True)
        sys.stdin.read()
"""


@message("renames.Profile")
@dataclass
class Profile:
    title: str = ""
    visits: int = 0


@message("renames.Put", was="renames.Added")
@dataclass(frozen=True)
class Put:
    count: int


class User(Entity):
    name = "renames.User"

    def __init__(self) -> None:
        self.state = Profile()

    @handler
    def on_visit(self, visits: int) -> int:
        self.state.visits += visits
        self.save()
        return self.state.visits

    @handler(read_only=True)
    def on_look(self, msg: str) -> str:
        return self.state.title


class LaterUser(User):
    name = "renames.User"

    @upcast("renames.Profile", 1)
    def titled(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"title": fields["name"], "visits": fields["visits"]}


class Cart(Entity):
    name = "renames.Cart"
    was = "renames.Basket"

    def __init__(self) -> None:
        self.total = 0

    @handler
    def on_count(self, count: int) -> int:
        self.persist(Put(count))
        return self.total

    @event
    def on_put(self, event: Put) -> None:
        self.total += event.count


class Asker(Actor):
    def __init__(self, other: Any) -> None:
        self.other = other

    @handler
    async def on_put(self, msg: Put) -> Put:
        return await self.other.ask(msg)  # type: ignore[no-any-return]


@pytest.fixture
def state(tmp_path: Path) -> str:
    """A state that the earlier release wrote."""
    url = f"sqlite:{tmp_path}/shop.db"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", EARLIER, url, ""], env=environment, check=True)
    return url


@contextmanager
def earlier_node() -> Iterator[str]:
    """The address of a node of the earlier release."""
    with subprocess.Popen(
        [sys.executable, "-c", EARLIER, "", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        yield child.stdout.readline().strip()
        child.stdin.close()
        assert child.wait(120) == 0


def test_a_dropped_field_of_a_state_is_counted_and_named_once(
    state: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), Node() as node:
        node.host(User, state=state)
        for key in ("a", "b"):
            assert node.entity(User, key).ask("look").result(5) == ""
        assert node.stats().dropped_fields == 4
    told = [each.getMessage() for each in caplog.records if "dropped" in each.getMessage()]
    assert len(told) == 2
    assert all("renames.Profile" in each for each in told)


def test_an_upcast_converts_a_saved_state(state: str) -> None:
    with Node() as node:
        node.host(LaterUser, state=state)
        assert node.entity(LaterUser, "a").ask("look").result(5) == "Ann"
        assert node.entity(LaterUser, "a").ask(2).result(5) == 3
        assert node.stats().dropped_fields == 0
    with Node() as node:  # the version that was stored since is not converted again
        node.host(LaterUser, state=state)
        assert node.entity(LaterUser, "a").ask("look").result(5) == "Ann"
    with Node() as node:  # a program without the upcast does not misread it
        node.host(User, state=state)
        with pytest.raises(StateVersion, match="version 2"):
            node.entity(User, "a").ask("look").result(5)


def test_renamed_events_and_entities_go_on_from_what_is_stored(state: str) -> None:
    with Node() as node:
        node.host(Cart, state=state)
        assert node.entity(Cart, "one").ask(4).result(5) == 7
        assert node.entity("renames.Basket", "one") == node.entity("renames.Cart", "one")
        entries = list(node.journal(Cart))
    assert [each.event for each in entries] == [Put(3), Put(4)]


def test_releases_with_another_name_of_a_message_talk_both_ways() -> None:
    with Node() as node, earlier_node() as address:
        echo = node.remote_actor(f"{address}/echo")
        assert node.spawn(Asker, echo).ask(Put(1)).result(10) == Put(2)


def test_a_node_sends_the_former_name_until_it_is_told_to_switch() -> None:
    def codec(name: str, *aliases: str) -> PayloadCodec:
        @dataclass(frozen=True)
        class Order:
            count: int

        registry = MessageRegistry()
        registry.register(name, Order, aliases)
        return PayloadCodec(registry)

    earlier, between, later = codec("old"), codec("old", "new"), codec("new", "old")
    for sender, reader in (
        (earlier, between), (between, earlier), (between, later), (later, between),
        (earlier, later),
    ):  # fmt: skip
        kind = sender.registry.by_name["old" if sender is not later else "new"]
        payload = sender.encode([kind.cls(1), {"x": kind.cls(2)}])
        found: Any = reader.decode_message(payload)
        assert [found[0].count, found[1]["x"].count] == [1, 2]
        flat: Any = reader.decode_message(sender.encode(kind.cls(3)))
        assert flat.count == 3


def test_a_former_name_belongs_to_one_class() -> None:
    registry = MessageRegistry()
    registry.register("a", Profile, ["b"])
    with pytest.raises(DuplicateMessageType):
        registry.register("b", Put)
    with pytest.raises(WrongArgument):
        message("renames.x", was=3)  # type: ignore[arg-type]
    with pytest.raises(WrongValue):
        message("renames.x", was="\n")


def test_the_former_name_of_an_entity_type_is_checked() -> None:
    assert stored_name("renames.Cart") == "renames.Basket"
    with pytest.raises(WrongValue, match="was"):

        class Wrong(Entity):
            was = "a/b"


def test_hosts_say_that_they_read_both_names(tmp_path: Path) -> None:
    with Node() as node:
        node.host(Cart, state=f"sqlite:{tmp_path}/shop.db")
        assert node._entities is not None
        host = node._entities._hosts["renames.Basket"]
        assert dict(host.reads) == {"renames.Put": 1, "renames.Added": 1}
