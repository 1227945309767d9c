"""Proxies come and go."""

from callboard import ActorRef
from tests.proxies.cast import (
    Echo,
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
