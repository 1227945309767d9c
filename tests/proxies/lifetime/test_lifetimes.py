"""Proxies come and go."""

import gc

import pytest

from callboard import ActorRef
from callboard.basp.control import pack_release
from tests.proxies.cast import (
    Echo,
    Guard,
    Sink,
    Watch,
    eventually,
    line,
)


def test_a_proxy_that_nobody_holds_is_released_and_announced_again_when_used(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = b.spawn(Echo)
    holders = b._broker.lifetimes.holders
    there: ActorRef | None = a.ref(str(echo))
    eventually(lambda: holders.is_held(echo.actor_id))

    del there
    eventually(lambda: not holders.is_held(echo.actor_id))
    again = a.ref(str(echo))

    eventually(lambda: holders.is_held(echo.actor_id))
    assert again.ask("x").result(5) == "x"


def test_a_monitor_keeps_its_proxy(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = b.spawn(Echo)
    down = a.monitor(a.ref(str(echo)))
    down.asked = None
    eventually(lambda: b._broker.lifetimes.holders.is_held(echo.actor_id))
    a._broker.lifetimes.release_unused()

    echo.stop()

    assert down.result(5).reason == "normal"


def test_nobody_is_told_what_a_gone_ref_was_while_messages_of_it_wait(make_node):
    """The proxy is kept until the dial is over, and found again by whoever asks for it."""
    a, b = make_node("a"), make_node("b")
    b.listen()
    sink = b.spawn(Sink)
    for number in range(100):
        a.ref(str(sink)).tell(number)
        if number % 10 == 0:
            a._broker.runtime.runner.post(a._broker.lifetimes.release_unused)

    there = a.ref(str(sink))

    assert there.call(Sink.everything).result(5) == list(range(100))


@pytest.mark.slow
def test_a_ref_that_is_got_hold_of_again_before_it_was_released_keeps_its_proxy(
    make_node, monkeypatch
):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    release_unused = a._broker.lifetimes.release_unused
    # The node does so by itself once a second, which may be just between the two refs.
    monkeypatch.setattr(a._broker.lifetimes, "release_unused", lambda: None)
    echo = b.spawn(Echo)
    proxy = a.ref(str(echo)).target
    gc.collect()

    again = a.ref(str(echo))
    release_unused()

    assert again.target is proxy
    assert again.ask("x").result(5) == "x"
    assert b._broker.lifetimes.holders.is_held(echo.actor_id)


@pytest.mark.slow
def test_the_number_of_a_dead_actor_is_not_given_away_while_another_node_knows_it(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = b.spawn(Echo)
    number = echo.actor_id
    there: ActorRef | None = a.ref(str(echo))
    down = a.monitor(there)
    eventually(lambda: b._broker.lifetimes.holders.is_held(number))
    echo.stop()
    assert down.result(5).reason == "normal"

    b.runtime._number = number - 1  # as if the numbers had wrapped
    assert b.spawn(Echo).actor_id == number + 1
    del there, down, echo
    gc.collect()
    eventually(lambda: not b._broker.lifetimes.holders.is_held(number))
    b.runtime._number = number - 1

    assert b.spawn(Echo).actor_id == number


def test_a_release_that_came_late_leaves_the_proxy_known(make_node):
    """As if it had come over an old path, behind the next announce."""
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = b.spawn(Echo)
    there = a.ref(str(echo))
    eventually(lambda: b._broker.lifetimes.holders.is_held(echo.actor_id))
    a._broker.lifetimes.renew(b.node_id)
    late = pack_release(a.node_id, b.node_id, echo.actor_id, 1)
    a._broker.routes.send_to(b.node_id, late)
    down = a.monitor(there)
    assert there.ask("behind it").result(5) == "behind it"

    echo.stop()

    assert down.result(5).reason == "normal"


@pytest.mark.slow
def test_a_third_nodes_ref_outlives_the_release_of_who_passed_it_on(make_node):
    a, b, c = make_node("a"), make_node("b"), make_node("c")
    line(a, b, c)
    echo, guard = a.spawn(Echo), c.spawn(Guard)
    number = echo.actor_id
    b.ref(str(guard)).ask(Watch(b.ref(str(echo)))).result(5)
    gc.collect()
    b.runtime.runner.post(b._broker.lifetimes.release_unused)
    holders = a._broker.lifetimes.holders
    eventually(lambda: holders.holds(c.node_id, number))

    echo.stop()

    eventually(lambda: c.ref(str(guard)).call(Guard.told).result(5)[0] == [("normal", "")])
