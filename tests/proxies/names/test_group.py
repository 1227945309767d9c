"""Groups: who is in, who gets a message, and what happens when members come and go."""

import asyncio
from collections import Counter

import pytest

from callboard import Actor, Node, handler
from callboard.actors.errors import InvalidAddress
from callboard.proxies.errors import NoMembers
from tests.proxies.cast import Echo, Parcel, Sink


class Slow(Actor):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.owed = []

    @handler
    def ask(self, msg: str) -> None:
        self.owed.append(self.promise())

    @handler
    def release(self, msg: int) -> None:
        for promise in self.owed:
            promise.set_result("done")
        self.owed.clear()


class Doubler(Actor):
    @handler
    async def number(self, msg: int) -> int:
        await self.sleep(0.001)
        return 2 * msg


@pytest.fixture
def local():
    with Node() as node:
        yield node


@pytest.fixture
def nodes(cluster):
    return cluster(3)


def grow(group, nodes, actor_class=Echo, count=1):
    """Let `count` actors of each node join, there, and wait until `group` has them."""
    refs = []
    for node in nodes:
        for _ in range(count):
            ref = node.spawn(actor_class)
            node.group(group.name).join(ref)
            refs.append(ref)
    assert sorted(refs) == group.ready(len(refs)).result(5)
    return sorted(refs)


def who_got(refs, home):
    return {ref: len(home.ref(str(ref)).ask("all").result(5)) for ref in refs}


class Keeper(Sink):
    @handler
    def all(self, msg: str) -> list:
        return self.seen


def test_members_of_all_nodes_are_found_by_name(nodes):
    a, b, c = nodes
    refs = grow(c.group("echoes"), nodes)

    for node in nodes:
        group = node.group("echoes")
        assert group.ready(3).result(5) == refs
        assert (len(group), list(group), refs[0] in group) == (3, refs, True)
    assert a.group("others").members() == []


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_member_that_ends_leaves_every_view(nodes, cluster, how):
    group = nodes[0].group("echoes")
    refs = grow(group, nodes)

    getattr(refs[1], how)()
    cluster.advance(0.1)

    assert group.members() == [refs[0], refs[2]]


def test_members_of_a_lost_node_leave(nodes, cluster):
    a, _, c = nodes
    group = a.group("echoes")
    grow(group, nodes)

    cluster.kill(c)
    cluster.advance(0.5)

    assert {ref.node_id for ref in group} == {node.node_id for node in nodes[:2]}


def test_a_member_can_leave_where_it_joined(nodes, cluster):
    a, b, _ = nodes
    group, echo = a.group("echoes"), b.spawn(Echo)
    here = a.ref(str(echo))
    group.join(here)
    assert group.members() == [here]
    assert b.group("echoes").ready().result(5) == [echo]

    assert not b.group("echoes").leave(echo)
    assert group.leave(here)
    cluster.advance(0.1)

    assert group.members() == b.group("echoes").members() == []


def test_round_robin_gives_each_member_the_same_share(nodes):
    group = nodes[0].group("sinks")
    refs = grow(group, nodes, Keeper)

    for number in range(12):
        group.tell(number)

    assert set(who_got(refs, nodes[0]).values()) == {4}


def test_random_is_by_the_seed_and_reaches_all(nodes):
    group = nodes[0].group("sinks", routing="random")
    refs = grow(group, nodes, Keeper)

    for number in range(60):
        group.tell(number)

    got = who_got(refs, nodes[0])
    assert sum(got.values()) == 60
    assert min(got.values()) > 5


def test_the_least_busy_member_is_asked(nodes, cluster):
    group = nodes[0].group("slow", routing="least_busy")
    refs = grow(group, nodes, Slow)

    first = [group.ask("x") for _ in range(6)]
    assert Counter(future.asked for future in first) == dict.fromkeys(refs, 2)
    nodes[0].ref(str(refs[1])).tell(1)
    cluster.advance(0.1)
    assert [future.asked for future in first if future.done()] == [refs[1]] * 2
    more = [group.ask("x") for _ in range(2)]

    assert {future.asked for future in more} == {refs[1]}
    assert group.pick() in refs


def test_equally_busy_members_take_turns(nodes):
    group = nodes[0].group("sinks", routing="least_busy")
    refs = grow(group, nodes, Keeper)

    for number in range(30):
        group.tell(number)

    assert set(who_got(refs, nodes[0]).values()) == {10}


@pytest.mark.parametrize("key", ["content", lambda parcel: parcel.content])
def test_a_key_stays_with_its_member_on_every_node(nodes, cluster, key):
    groups = [node.group("sinks", routing="hash", key=key) for node in nodes]
    refs = grow(groups[0], nodes, Keeper)
    for group in groups:
        group.ready(3).result(5)

    for number in range(30):
        assert len({group.pick(Parcel(f"customer {number}")) for group in groups}) == 1
        groups[number % 3].tell(Parcel(f"customer {number}"))
        assert groups[0].at(f"customer {number}") == groups[1].pick(
            Parcel(f"customer {number}")
        )

    cluster.advance(0.1)
    assert sum(who_got(refs, nodes[0]).values()) == 30


def test_few_keys_move_when_a_member_ends_and_none_between_the_others(nodes, cluster):
    group = nodes[0].group("echoes")
    refs = grow(group, nodes, count=2)
    before = {number: group.at(number) for number in range(300)}

    refs[0].stop()
    cluster.advance(0.1)

    after = {number: group.at(number) for number in before}
    moved = {number for number in before if before[number] != after[number]}
    assert moved == {number for number, ref in before.items() if ref == refs[0]}


def test_a_broadcast_reaches_all(nodes, cluster):
    group = nodes[0].group("echoes")
    refs = grow(group, nodes)

    assert [future.result(5) for future in group.ask_all("x")] == ["x"] * 3
    assert group.broadcast("y") == len(refs)


def test_calls_go_to_one_member(nodes):
    group = nodes[0].group("echoes")
    grow(group, nodes)

    assert group.call(Echo.double, 21).result(5) == 42
    assert group.at("k").call(Echo.double, 2, plus=1).result(5) == 5


def test_without_members_asks_fail_and_tells_are_dead_letters(nodes):
    node = nodes[0]
    group = node.group("nobody")

    group.tell("x")

    assert node.stats().dead_letters == 1
    with pytest.raises(NoMembers, match="'nobody' has no members in reach of a"):
        group.ask("x").result(5)
    with pytest.raises(NoMembers):
        group.at("x")
    assert group.broadcast("x") == 0
    assert not group.ready().done()


def test_in_a_handler_the_actor_is_the_sender(cluster):
    [node] = cluster(1)

    class Teller(Actor):
        @handler
        def go(self, msg: str) -> None:
            self.node.group("g").tell(msg)

    class Hearer(Actor):
        def __init__(self) -> None:
            self.heard: list = []

        @handler
        def hear(self, msg: str) -> None:
            self.heard.append(self.sender)

        def heard_from(self) -> list:
            return self.heard

    hearer, teller = node.spawn(Hearer), node.spawn(Teller)
    node.group("g").join(hearer)

    teller.tell("x")
    cluster.advance(0.1)

    assert hearer.call(Hearer.heard_from).result(5) == [teller]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"routing": "best"}, "routing='best' is not known"),
        ({"routing": "hash"}, "needs key="),
        ({"key": "content"}, "needs routing='hash'"),
    ],
)
def test_options_that_do_not_fit_are_refused(nodes, options, text):
    with pytest.raises(ValueError, match=text):
        nodes[0].group("g", **options)


def test_a_message_without_a_key_is_the_callers_mistake(nodes):
    group = nodes[0].group("g", routing="hash", key="content")
    group.join(nodes[0].spawn(Echo))

    with pytest.raises(TypeError, match="group.at"):
        group.call(Echo.double, 1)
    with pytest.raises(TypeError, match="cannot be hashed alike"):
        group.tell(Parcel([1]))
    with pytest.raises(AttributeError):
        group.tell("no parcel")


def test_a_name_that_could_not_be_one_is_refused():
    with Node() as node, pytest.raises(InvalidAddress):
        node.group("no name")


def test_a_dead_actor_does_not_stay(nodes, cluster):
    node = nodes[0]
    echo = node.spawn(Echo)
    echo.stop()
    cluster.advance(0.1)

    node.group("g").join(echo)
    cluster.advance(0.1)

    assert node.group("g").members() == []


def test_map_asks_the_members_in_turn_and_answers_in_order(local):
    node = local
    group = node.group("doublers")
    for _ in range(3):
        group.join(node.spawn(Doubler))

    assert group.map(range(100), limit=4).result(20) == [2 * n for n in range(100)]
    assert list(group.map(iter([1, 2]))) == [2, 4]

    async def walk():
        return (
            await group.map([3]),
            [each async for each in group.map([4])],
            await group.aask(5),
        )

    assert asyncio.run(walk()) == ([6], [8], 10)


def test_a_map_without_members_fails(local):
    with pytest.raises(NoMembers):
        local.group("nobody").map([1]).result(5)
