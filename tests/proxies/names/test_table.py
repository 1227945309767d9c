import pytest

from callboard import Node
from callboard.actors.errors import ActorDown, InvalidAddress, NotRegistered
from callboard.basp.header import DIRECTORY
from callboard.proxies.messages import Lookup
from callboard.proxies.names.directory import Names
from tests.proxies.cast import Echo, eventually


def test_a_name_leads_to_its_actor_until_it_is_withdrawn():
    with Node() as node:
        names, echo = Names(), node.spawn(Echo)

        names.register("echo", echo)
        assert names.get("echo") == echo
        assert list(names) == ["echo"]

        assert names.withdraw("echo")
        assert not names.withdraw("echo")
        assert names.get("echo") is None


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_name_is_free_when_its_actor_ends(end):
    with Node() as node:
        names, echo = Names(), node.spawn(Echo)
        names.register("echo", echo)

        getattr(echo, end)()

        eventually(lambda: names.get("echo") is None)


def test_a_dead_actor_gets_no_name():
    with Node() as node:
        names, echo = Names(), node.spawn(Echo)
        echo.stop()
        node.monitor(echo).result(5)

        names.register("echo", echo)

        assert names.get("echo") is None


def test_the_last_registration_wins_and_outlives_the_first():
    with Node() as node:
        names, first, second = Names(), node.spawn(Echo), node.spawn(Echo)
        names.register("echo", first)
        names.register("echo", second)

        first.stop()
        node.monitor(first).result(5)

        assert names.get("echo") == second
        assert not names.withdraw("echo", first)


def test_a_name_that_could_not_stand_in_an_address_is_refused():
    with Node() as node, pytest.raises(InvalidAddress):
        node.register("no name", node.spawn(Echo))


def test_others_find_a_name_only_while_its_actor_lives(make_node):
    a, b = make_node("a"), make_node("b")
    a.listen()
    echo = a.spawn(Echo)
    a.register("echo", echo)
    b.connect(a.address)
    assert b.find("echo").result(5) == echo

    echo.stop()
    a.monitor(echo).result(5)

    with pytest.raises(NotRegistered, match="echo"):
        b.find("echo").result(5)
    with pytest.raises(NotRegistered, match="echo"):
        b.remote_actor(a.address + "/echo")


def test_find_all_finds_every_holder_in_reach_with_its_own_first(make_node):
    nodes = [make_node(name) for name in "abc"]
    nodes[1].listen()
    for node in (nodes[0], nodes[2]):
        node.connect(nodes[1].address)
    eventually(lambda: all(len(node.nodes()) == 2 for node in nodes))
    refs = []
    for node in nodes:
        refs.append(node.spawn(Echo))
        node.register("echo", refs[-1])

    found = nodes[2].find_all("echo").result(5)

    assert found[0] == refs[2]
    assert sorted(found) == sorted(refs)
    assert nodes[0].find_all("nobody").result(5) == []


def test_find_all_passes_over_a_node_that_is_closing(make_node):
    one, other = make_node(), make_node()
    one.listen()
    other.connect(one.address)
    echo = other.spawn(Echo)
    other.register("echo", echo)
    assert other.find_all("echo").result(10) == [echo]
    one.runtime.ref_of(one.node_id, DIRECTORY).kill()  # as the end of a node does

    with pytest.raises(ActorDown):
        other.runtime.ref_of(one.node_id, DIRECTORY).ask(Lookup("echo")).result(10)
    assert other.find_all("echo").result(10) == [echo]


def test_unregister_tells_whether_anybody_had_the_name(make_node):
    node = make_node()
    node.register("echo", node.spawn(Echo))

    assert node.unregister("echo")
    assert not node.unregister("echo")


def test_several_actors_can_be_under_one_name_until_they_end():
    with Node() as node:
        names, (first, second) = Names(), (node.spawn(Echo), node.spawn(Echo))
        names.join("echo", first)
        names.join("echo", second)
        names.join("echo", first)
        assert names.state("echo")[1] == (first, second)

        first.stop()
        node.monitor(first).result(5)

        assert names.state("echo")[1] == (second,)
        assert names.withdraw("echo", second)
        assert list(names) == []


def test_every_change_is_told_once_in_order():
    with Node() as node:
        names, (first, second) = Names(), (node.spawn(Echo), node.spawn(Echo))
        told = []
        names.on_change = told.append

        names.register("echo", first)
        names.register("echo", first)
        names.register("echo", second)
        names.withdraw("echo")
        names.withdraw("echo")

        assert [(change.version, change.added, change.removed) for change in told] == [
            (1, (first,), ()),
            (2, (second,), (first,)),
            (3, (), (second,)),
        ]
