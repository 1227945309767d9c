"""Thespian systems in conventions: found by what they can do, joined over BASP."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from thespian.actors import (
    Actor,
    ActorExitRequest,
    ActorSystem,
    ActorSystemConventionUpdate,
    ActorSystemStartupFailure,
    ChildActorExited,
    NoCompatibleSystemForActor,
    PoisonMessage,
    requireCapability,
)
from thespian.runcommand import RunCommand
from thespian.system.messages.status import Thespian_ActorStatus, Thespian_StatusReq

import callboard
from callboard import ActorRef, handler
from callboard.actors import SystemBase
from callboard.actors.errors import NotSpawnable
from callboard.actors.thespian.cell import Creation
from callboard.convention.membership import Membership
from callboard.convention.messages import Create
from callboard.proxies.errors import NotSerializable
from callboard.proxies.node import Node
from tests.polling import eventually


class Order:
    """A class that says nothing about how it travels, and forbids what must not be called."""

    def __init__(self, item):
        self.item = item

    def __reduce__(self):
        raise AssertionError("nothing is pickled")

    def __setstate__(self, state):
        raise AssertionError("nothing is unpickled")


@requireCapability("oven")
class Baker(Actor):
    def __init__(self, requirements=None):
        self.requirements = requirements

    def receiveMessage(self, msg, sender):
        if isinstance(msg, Order):
            msg.baked = True
            self.send(sender, msg)
        elif msg == "twice":
            self.send(sender, "one")
            self.send(sender, "two")
        elif msg == "requirements":
            self.send(sender, self.requirements)
        elif isinstance(msg, type):
            self.send(sender, msg.__name__)
        elif msg == "fail":
            raise ValueError(msg)


class Shop(Actor):
    """Has a baker for a child, wherever one can work."""

    def __init__(self):
        self.seen = []

    def receiveMessage(self, msg, sender):
        if msg == "hire":
            self.send(sender, self.createActor(Baker))
        elif msg == "seen":
            self.send(sender, list(self.seen))
        elif isinstance(msg, ChildActorExited):
            self.seen.append(msg.childAddress)


class Foreman(callboard.Actor):
    """Not a plain actor, but one that uses Thespian's `createActor`."""

    @handler
    def hire(self, _: str) -> ActorRef:
        return self.createActor(Baker)


class Observer(Actor):
    def __init__(self):
        self.seen = []

    def receiveMessage(self, msg, sender):
        if isinstance(msg, ActorSystemConventionUpdate):
            self.seen.append((msg.remoteAdded, msg.remoteCapabilities.get("name")))
        elif msg == "watch":
            self.notifyOnSystemRegistrationChanges()
            self.send(sender, "watching")
        elif isinstance(msg, tuple) and msg[0] == "join":
            self.preRegisterRemoteSystem(msg[1], {"oven": "so it says"})
        elif isinstance(msg, tuple) and msg[0] == "drop":
            self.deRegisterRemoteSystem(msg[1])
        elif msg == "seen":
            self.send(sender, list(self.seen))


class Town:
    """Some systems and the convention that they are in."""

    def __init__(self):
        self.systems = []
        self.leader_port = None

    def system(self, name, *, joins=True, messages=(__name__,), **capabilities):
        capabilities = {"Admin Port": 0, "name": name, **capabilities}
        if joins and self.leader_port:
            capabilities["Convention Address.IPv4"] = ("", self.leader_port)
        base = SystemBase(capabilities, messages=messages)
        system = ActorSystem(systemBase=base, transientUnique=True)
        system.base = base
        system.port = base.capabilities["Admin Port"]
        self.leader_port = self.leader_port or system.port
        self.systems.append(system)
        return system

    def joined(self, system, count):
        """Wait until a system can create actors on so many others."""
        convention = system.base.neighbors.convention
        eventually(lambda: len(convention.known) == count)

    def end(self, system):
        self.systems.remove(system)
        system.shutdown()


@pytest.fixture
def town():
    town = Town()
    yield town
    for system in reversed(town.systems):
        system.shutdown()


@pytest.fixture
def pair(town):
    here, there = town.system("here"), town.system("there", oven=True)
    town.joined(here, 1)
    town.joined(there, 1)
    return here, there


# --- creating ---


def test_an_actor_is_created_where_its_class_can_work(pair):
    here, there = pair

    baker = here.createActor(Baker, {"size": 3})

    assert baker.node_id == there.base.runtime.node_id
    assert here.ask(baker, "requirements", 5) == {"size": 3}


def test_an_actor_of_another_system_may_answer_more_than_once(pair):
    here, _ = pair
    baker = here.createActor(Baker)

    assert [here.ask(baker, "twice", 5), here.listen(5)] == ["one", "two"]


def test_members_create_on_each_other(town):
    leader, shop, bakery = (
        town.system("leader"),
        town.system("shop"),
        town.system("b", oven=True),
    )
    for system in (leader, shop, bakery):
        town.joined(system, 2)

    baker = shop.createActor(Baker)

    assert baker.node_id == bakery.base.runtime.node_id
    assert shop.ask(baker, "twice", 5) == "one"


def test_nobody_can_do_it(pair):
    class Dreamer(Actor):
        @staticmethod
        def actorSystemCapabilityCheck(capabilities, requirements):  # noqa: N802
            return False

    with pytest.raises(NoCompatibleSystemForActor):
        pair[0].createActor(Dreamer)


def test_a_parent_is_told_once_that_its_child_on_another_system_ended(pair):
    here, _ = pair
    shop = here.createActor(Shop)
    baker = here.ask(shop, "hire", 5)

    here.tell(baker, ActorExitRequest())

    assert eventually(lambda: here.ask(shop, "seen", 5)) == [baker]
    assert here.ask(shop, "seen", 5) == [baker]


def test_a_child_on_another_system_ends_with_its_parent(pair):
    here, there = pair
    shop = here.createActor(Shop)
    baker = here.ask(shop, "hire", 5)
    down = there.base.runtime.monitor(there.base.ref_of(baker))

    here.tell(shop, ActorExitRequest())

    assert down.result(5).reason == "normal"


def test_a_child_on_another_system_ends_with_a_parent_of_ours(pair):
    here, there = pair
    foreman = here.createActor(Foreman)
    baker = here.ask(foreman, "hire", 5)
    down = there.base.runtime.monitor(there.base.ref_of(baker))

    here.tell(foreman, ActorExitRequest())

    assert down.result(5).reason == "normal"


def test_a_parent_is_told_when_the_system_of_its_child_ends(pair, town):
    here, there = pair
    shop = here.createActor(Shop)
    baker = here.ask(shop, "hire", 5)

    town.end(there)

    assert eventually(lambda: here.ask(shop, "seen", 5)) == [baker]


def test_a_child_exits_when_its_parents_system_is_lost(pair):
    here, there = pair
    baker = here.ask(here.createActor(Shop), "hire", 5)
    down = there.base.runtime.monitor(there.base.ref_of(baker))

    node = there.base.runtime.node
    node.disconnect(here.base.runtime.node_id, 60.0)

    assert down.result(10).reason == "normal"


def test_a_global_name_is_found_on_the_system_that_has_it(pair):
    here, there = pair
    held = there.createActor(Baker, globalName="the baker")

    assert here.createActor(Baker, globalName="the baker") == held


# --- what travels ---


def test_plain_classes_of_listed_modules_travel_with_their_attributes(pair):
    here, _ = pair
    order = Order({"bread": 2})
    order.note = "soon"

    answer = here.ask(here.createActor(Baker), order, 5)

    assert type(answer) is Order
    assert vars(answer) == {"item": {"bread": 2}, "note": "soon", "baked": True}
    assert not hasattr(order, "baked")


def test_a_class_that_is_not_listed_names_the_line_to_add(town):
    here = town.system("here", messages=())
    town.system("there", oven=True)
    town.joined(here, 1)
    baker = here.createActor(Baker)

    with pytest.raises(NotSerializable, match=rf"SystemBase\(messages=\['{__name__}'\]\)"):
        here.tell(baker, Order("bread"))


def test_a_class_that_the_other_side_has_not_listed_is_not_built(town):
    here = town.system("here")
    there = town.system("there", oven=True, messages=())
    town.joined(here, 1)
    baker = here.createActor(Baker)

    assert here.ask(baker, Order("bread"), 0) is None

    eventually(lambda: there.base.runtime.counters.dead_letters)
    assert here.ask(baker, "twice", 5) == "one"


def test_classes_travel_as_their_names(pair):
    here, _ = pair

    assert here.ask(here.createActor(Baker), Shop, 5) == "Shop"
    with pytest.raises(NotSerializable, match="Thread"):
        here.tell(here.createActor(Baker), threading.Thread)


def test_poison_and_status_come_back_from_another_system(pair):
    here, _ = pair
    baker = here.createActor(Baker)

    poison = here.ask(baker, "fail", 5)
    status = here.ask(baker, Thespian_StatusReq(), 5)

    assert isinstance(poison, PoisonMessage)
    assert poison.poisonMessage == "fail"
    assert isinstance(status, Thespian_ActorStatus)
    assert status.actorClass == "Baker"


# --- what is refused ---


def test_loaded_sources_do_not_serve_other_systems(pair):
    here, there = pair
    convention = here.base.neighbors.convention

    with pytest.raises(NotSpawnable, match="sources"):
        convention.create(Baker, Creation(source_hash="abc"), None)
    assert there.base.runtime.node.stats().refused_spawns == 1


@pytest.mark.parametrize(
    "name",
    ["os.path.join", "thespian.runcommand.RunCommand", "no.such.Thing", "threading.Thread"],
)
def test_only_actor_classes_of_programs_are_created_for_others(pair, name):
    here, there = pair
    assert RunCommand  # imported, and yet not for others
    admin = next(iter(here.base.neighbors.convention.known))

    with pytest.raises(NotSpawnable):
        admin.ask(Create(name)).result(5)
    assert there.base.runtime.counters.refused_spawns == 1


def test_a_port_that_is_taken_is_a_startup_failure(town):
    port = town.system("first").port

    with pytest.raises(ActorSystemStartupFailure, match=str(port)):
        SystemBase({"Admin Port": port})


def test_a_public_address_needs_a_secret(monkeypatch):
    monkeypatch.delenv("CALLBOARD_SECRET", raising=False)

    with pytest.raises(ActorSystemStartupFailure, match="secret"):
        SystemBase({"Admin Port": 0, "Admin Address": "0.0.0.0"})


def test_a_stranger_with_malformed_introductions_is_ignored(pair):
    here, _ = pair
    (other,) = here.base.neighbors.known
    with Node() as stranger:
        admin = stranger.remote_actor(f"basp://127.0.0.1:{here.port}/thespian.administrator")
        from callboard.convention.messages import Introduce, Join, Leave

        for message in (
            Join("me", {}),
            Introduce("us"),
            Introduce([7]),
            Leave(3),
            Leave(other),
            Join(admin, 1),
        ):
            admin.tell(message)
        assert admin.ask(Join("me", {})).result(5) is None

    assert list(here.base.neighbors.known) == [other]


# --- coming and going ---


def test_actors_are_told_of_systems_that_join_and_leave(town):
    here = town.system("here")
    observer = here.createActor(Observer)
    here.ask(observer, "watch", 5)
    there = town.system("there")
    eventually(lambda: here.ask(observer, "seen", 5) == [(True, "there")])
    late = here.createActor(Observer)
    here.ask(late, "watch", 5)

    town.end(there)

    both = [(True, "there"), (False, "there")]
    eventually(lambda: here.ask(observer, "seen", 5) == both)
    eventually(lambda: here.ask(late, "seen", 5) == both)


def test_what_a_system_can_do_since_then_is_known_to_the_others(pair):
    here, there = pair
    there.updateCapability("oven", None)

    def refused():
        try:
            here.createActor(Baker)
        except NoCompatibleSystemForActor:
            return True
        return False

    eventually(refused)
    there.updateCapability("oven", True)
    eventually(lambda: not refused())


def test_a_system_can_be_invited_and_dropped(town):
    here = town.system("here")
    there = town.system("there", joins=False, oven=True)
    observer = here.createActor(Observer)
    here.ask(observer, "watch", 5)
    address = f"127.0.0.1:{there.port}"

    here.tell(observer, ("join", address))
    eventually(lambda: here.ask(observer, "seen", 5) == [(True, "there")])
    assert here.createActor(Baker).node_id == there.base.runtime.node_id

    here.tell(observer, ("drop", address))
    eventually(lambda: (False, "there") in here.ask(observer, "seen", 5))
    with pytest.raises(NoCompatibleSystemForActor):
        here.createActor(Baker)


def test_a_member_waits_for_its_leader(town):
    first = town.system("first")
    port = first.port
    member = town.system("member", oven=True)
    town.joined(member, 1)
    town.end(first)
    eventually(lambda: not member.base.neighbors.known)

    again = town.system("again", joins=False, **{"Admin Port": port})

    eventually(lambda: again.base.neighbors.known)
    assert again.createActor(Baker).node_id == member.base.runtime.node_id


def test_a_program_that_imports_only_actors_opens_its_port():
    program = """
from callboard.actors import SystemBase
base = SystemBase({"Admin Port": 0})
print(base.capabilities["Admin Port"])
base.shutdown()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(done.stdout) > 0, done.stderr


def test_a_leader_is_forgotten_when_it_leaves_and_not_when_others_do():
    neighbors = SimpleNamespace(leader="leader", left=lambda _: None)
    membership = SimpleNamespace(known={"leader": 1, "other": 2}, neighbors=neighbors)

    Membership.left(membership, "other")
    assert (neighbors.leader, membership.known) == ("leader", {"leader": 1})
    Membership.left(membership, "leader")
    assert (neighbors.leader, membership.known) == (None, {})
