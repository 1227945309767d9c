"""Watching names: who has them now, who comes and goes, and what a lost node takes along."""

import asyncio
import contextlib

import pytest

from callboard import Actor, NameAdded, NameRemoved, Node, handler
from callboard.actors.errors import InvalidAddress
from callboard.proxies.messages import HoldersChanged, WatchName
from callboard.proxies.names.watch import watch_name
from tests.proxies.cast import Echo, eventually


def watching(node, name, *, is_group=False):
    seen = []
    watch_name(node.runtime, name, is_group=is_group, on_change=seen.append)
    return seen


def register(node, name):
    ref = node.spawn(Echo)
    node.register(name, ref)
    return ref


def test_who_comes_late_is_told_the_current_holders_first(cluster):
    a, b = cluster(2)
    old = register(a, "echo")

    seen = watching(b, "echo")
    cluster.advance(0.1)
    register(a, "other")
    young = register(a, "echo")
    cluster.advance(0.1)

    assert seen == [
        NameAdded("echo", old),
        NameAdded("echo", young),
        NameRemoved("echo", old, "unregistered"),
    ] or seen == [
        NameAdded("echo", old),
        NameRemoved("echo", old, "unregistered"),
        NameAdded("echo", young),
    ]


@pytest.mark.parametrize(
    ("how", "reason"), [("stop", "normal"), ("kill", "killed"), ("unregister", "unregistered")]
)
def test_a_removal_says_why(cluster, how, reason):
    a, _, c = cluster(3)
    echo = register(a, "echo")
    seen = watching(c, "echo")
    cluster.advance(0.1)

    a.unregister("echo") if how == "unregister" else getattr(echo, how)()
    cluster.advance(0.1)

    assert seen == [NameAdded("echo", echo), NameRemoved("echo", echo, reason)]


def test_a_lost_node_takes_its_names_along_and_brings_them_back(cluster):
    a, b = cluster(2)
    echo = register(a, "echo")
    seen = watching(b, "echo")
    cluster.advance(0.1)

    cluster.partition(a, b)
    cluster.advance(10.0)
    assert seen == [NameAdded("echo", echo), NameRemoved("echo", echo, "unreachable")]
    cluster.heal()
    cluster.advance(10.0)

    assert seen[2:] == [NameAdded("echo", echo)]


def test_a_node_that_comes_later_is_watched_too(cluster):
    a, b = cluster(2)
    seen = watching(a, "echo")
    late = cluster.node("late")
    echo = register(late, "echo")

    late.connect(b.address)
    cluster.advance(0.5)

    assert seen == [NameAdded("echo", echo)]


def test_one_actor_that_two_nodes_registered_is_added_and_removed_once(cluster):
    a, b, c = cluster(3)
    echo = register(a, "echo")
    b.register("echo", b.ref(str(echo)))
    seen = watching(c, "echo")
    cluster.advance(0.1)

    a.unregister("echo")
    cluster.advance(0.1)
    assert seen == [NameAdded("echo", echo)]
    b.unregister("echo")
    cluster.advance(0.1)

    assert seen[1:] == [NameRemoved("echo", echo, "unregistered")]


def test_names_of_a_node_that_drains_are_gone_for_others_only(cluster):
    a, b = cluster(2)
    echo = register(a, "echo")
    here, there = watching(a, "echo"), watching(b, "echo")
    cluster.advance(0.1)

    a._names.withdraw_all()
    late = watching(b, "echo")
    cluster.advance(20.0)

    assert here == [NameAdded("echo", echo)]
    assert there == [NameAdded("echo", echo), NameRemoved("echo", echo, "draining")]
    assert late == []


def test_a_directory_that_lost_sight_of_a_watcher_tells_it_again_what_it_missed(cluster):
    a, b = cluster(2)
    seen = watching(b, "echo")
    cluster.advance(0.1)
    directory = a.runtime.contexts[3].actor
    directory._watchers.clear()
    echo = register(a, "echo")
    cluster.advance(0.1)
    assert seen == []

    cluster.advance(6.0)

    assert seen == [NameAdded("echo", echo)]


def test_a_watcher_that_ended_is_forgotten_everywhere(cluster):
    a, b = cluster(2)
    subscribers = list(b.runtime._subscribers)
    watcher = watch_name(b.runtime, "echo", is_group=False, on_change=print)
    cluster.advance(0.1)
    assert b.runtime._subscribers != subscribers
    assert a.runtime.contexts[3].actor._watchers

    watcher.kill()
    cluster.advance(0.1)

    assert not a.runtime.contexts[3].actor._watchers
    assert not b.runtime.contexts[3].actor._watchers
    assert b.runtime._subscribers == subscribers


def test_only_a_directory_is_believed(cluster):
    a, b = cluster(2)
    seen = []
    watcher = watch_name(b.runtime, "echo", is_group=False, on_change=seen.append)
    cluster.advance(0.1)

    class Liar(Actor):
        @handler
        def lie(self, msg: str) -> None:
            there = self.node.ref(msg)
            there.tell(HoldersChanged(99, added=(self.me,)))

    a.spawn(Liar).tell(str(watcher))
    a.ref(str(watcher)).tell(HoldersChanged(99, added=(watcher,)))
    cluster.advance(0.1)

    assert seen == []


def test_a_question_of_another_form_harms_no_directory(cluster):
    a, b = cluster(2)
    directory = b.runtime.ref_of(a.node_id, 3)

    class Asker(Actor):
        @handler
        def ask_oddly(self, msg: str) -> None:
            directory.tell(WatchName(["echo"], is_group="x", version=None))  # type: ignore[arg-type]

        @handler
        def take(self, msg: HoldersChanged) -> None:
            pass

    b.spawn(Asker).tell("go")
    directory.tell(WatchName("echo"))
    register(a, "echo")
    cluster.advance(0.1)

    assert b.find("echo").result(5).node_id == a.node_id


def test_iterating_over_a_watch_ends_with_the_node(make_node):
    a, b = make_node("a"), make_node("b")
    a.listen()
    b.connect(a.address)
    echo = register(a, "echo")

    async def program():
        seen = []
        async for change in b.watch("echo"):
            seen.append(change)
            if isinstance(change, NameAdded):
                a.unregister("echo")
            else:
                await b.aclose()
        return seen

    assert asyncio.run(asyncio.wait_for(program(), 10)) == [
        NameAdded("echo", echo),
        NameRemoved("echo", echo, "unregistered"),
    ]


def test_a_watch_that_is_left_leaves_no_watcher_behind(make_node):
    node = make_node()
    register(node, "echo")

    async def program():
        async with contextlib.aclosing(node.watch("echo")) as changes:
            async for _ in changes:
                return node.stats().actors
            return None

    assert asyncio.run(program()) == 2
    eventually(lambda: node.stats().actors == 1)


def test_a_handler_can_iterate_over_a_watch(cluster):
    a, b = cluster(2)

    class Follower(Actor):
        @handler
        async def follow(self, msg: str) -> object:
            async with contextlib.aclosing(self.node.watch(msg)) as changes:
                async for change in changes:
                    return change.ref
                return None

    answer = b.spawn(Follower).ask("echo")
    cluster.advance(1.0)
    echo = register(a, "echo")

    assert answer.result(5) == echo


def test_a_name_that_nobody_could_have_is_refused():
    async def program(node):
        async for _ in node.watch("no name"):
            pass

    with Node() as node, pytest.raises(InvalidAddress):
        asyncio.run(program(node))
