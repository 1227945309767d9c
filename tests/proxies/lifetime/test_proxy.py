"""Monitors and links across nodes: how each kind of end is told."""

import pytest

from callboard import Down
from callboard.actors.errors import ActorDown
from tests.proxies.cast import (
    Echo,
    Fragile,
    Guard,
    LinkTo,
    Parcel,
    Sink,
    Watch,
    eventually,
    line,
    recorded,
    settled,
)


@pytest.fixture(params=[1, 3], ids=["neighbours", "three hops"])
def ends(make_node, request):
    """Two nodes that far from each other."""
    nodes = [make_node(name) for name in "abcd"[: request.param + 1]]
    line(*nodes)
    return nodes[0], nodes[-1]


def announced(node, ref) -> None:
    eventually(lambda: node._broker.lifetimes.holders.is_held(ref.actor_id))


def test_stop_ends_normally_behind_earlier_messages(ends):
    a, b = ends
    sink = b.spawn(Sink)
    there = a.ref(str(sink))
    down = a.monitor(there)
    announced(b, sink)

    for number in range(1000):
        there.tell(number)
    there.stop()

    assert down.result(5) == Down(sink, "normal")
    assert a.stats().dead_letters == b.stats().dead_letters == 0


def test_stop_is_behind_what_waits_though_it_needs_no_credit_any_more(ends, monkeypatch):
    a, b = ends
    monkeypatch.setattr(b._broker.credit_issuer, "announced", lambda *_: None)  # it has bounds?
    sink = b.spawn(Sink)
    there = a.ref(str(sink))
    down = a.monitor(there)
    for number in range(100):
        there.tell(number)
    assert there.target.waiting
    send, stopping = a._broker.unrouted.send_waiting, [there.stop]

    def stop_and_send(proxy):
        if proxy is there.target and stopping:
            stopping.pop()()
        send(proxy)

    monkeypatch.setattr(a._broker.unrouted, "send_waiting", stop_and_send)
    a.runtime.post(a._broker.credit_window.serve_without, there.target)  # it has none

    assert down.result(30) == Down(sink, "normal")
    assert b.stats().dead_letters == 0


def test_kill_is_told_as_killed(ends):
    a, b = ends
    echo = b.spawn(Echo)
    there = a.ref(str(echo))
    down = a.monitor(there)
    announced(b, echo)

    there.kill()

    assert down.result(5).reason == "killed"


def test_an_error_is_told_with_its_text(ends):
    a, b = ends
    echo = b.spawn(Echo)
    there = a.ref(str(echo))
    down = a.monitor(there)
    announced(b, echo)

    there.call(Echo.fail, "out of paper")

    assert down.result(5) == Down(echo, "error", "ValueError: out of paper")


def test_a_closing_node_tells_shutdown(ends):
    a, b = ends
    echo = b.spawn(Echo)
    down = a.monitor(a.ref(str(echo)))
    announced(b, echo)

    b.close()

    assert down.result(5).reason == "shutdown"


def test_a_monitor_of_a_dead_actor_fires_at_once(ends):
    a, b = ends
    echo = b.spawn(Echo)
    echo.stop()
    b.monitor(echo).result(5)

    there = a.ref(str(echo))

    assert a.monitor(there).result(5).reason == "not_found"
    assert a.monitor(there).result(5).reason == "not_found"


def test_an_ask_to_a_dead_actor_fails_at_once(ends):
    a, b = ends
    echo = b.spawn(Echo)
    echo.stop()
    b.monitor(echo).result(5)
    there = a.ref(str(echo))

    for _ in range(2):  # over the wire, and from what the proxy remembers
        with pytest.raises(ActorDown):
            there.ask("x").result(5)


def test_a_tell_to_a_dead_actor_is_a_dead_letter_and_raises_nothing(ends):
    a, b = ends
    echo = b.spawn(Echo)
    there = a.ref(str(echo))
    down = a.monitor(there)
    announced(b, echo)
    there.stop()
    down.result(5)

    with recorded(a) as events:
        there.tell("late")
        eventually(lambda: events)

    assert [(event.ref, event.message) for event in events] == [(echo, "late")]
    settled(a, b)


def test_each_monitor_is_told_exactly_once(ends):
    a, b = ends
    guard, echo = a.spawn(Guard), b.spawn(Echo)
    there = a.ref(str(echo))
    downs = [a.monitor(there) for _ in range(20)]
    for _ in range(3):
        guard.ask(Watch(there)).result(5)
    announced(b, echo)

    there.stop()

    assert {down.result(5).reason for down in downs} == {"normal"}
    eventually(lambda: len(guard.call(Guard.told).result(5)[0]) == 3)
    assert guard.call(Guard.told).result(5) == [[("normal", "")] * 3, []]


def test_a_cancelled_monitor_is_silent(ends):
    a, b = ends
    echo = b.spawn(Echo)
    there = a.ref(str(echo))
    heard: list[object] = []
    there.target.monitor("key", heard.append)
    there.target.demonitor("key")
    down = a.monitor(there)
    announced(b, echo)

    echo.stop()

    down.result(5)
    assert heard == []


@pytest.mark.parametrize("victim", ["linker", "linked"])
def test_linked_actors_end_together_whichever_side_fails(ends, victim):
    a, b = ends
    linker, linked = a.spawn(Fragile), b.spawn(Fragile)
    linker.ask(LinkTo(a.ref(str(linked)))).result(5)
    a.ref(str(linked)).ask("ordered behind the link").result(5)
    announced(a, linker)
    announced(b, linked)
    downs = [a.monitor(linker), b.monitor(linked)]

    {"linker": linker, "linked": linked}[victim].kill()

    assert [str(down.result(5).reason) for down in downs] == ["killed", "killed"]


def test_a_normal_end_leaves_linked_actors_alone(ends):
    a, b = ends
    linker, linked = a.spawn(Fragile), b.spawn(Fragile)
    linker.ask(LinkTo(a.ref(str(linked)))).result(5)
    announced(b, linked)
    down = a.monitor(a.ref(str(linked)))

    linked.stop()

    assert down.result(5).reason == "normal"
    assert linker.ask("alive").result(5) == "alive"


def test_an_actor_that_traps_exits_gets_a_message(ends):
    a, b = ends
    guard, echo = a.spawn(Guard), b.spawn(Echo)
    guard.ask(LinkTo(a.ref(str(echo)))).result(5)
    announced(b, echo)

    b.ref(str(echo)).kill()

    eventually(lambda: guard.call(Guard.told).result(5) == [[], ["killed"]])


def test_a_trapping_actor_elsewhere_gets_the_message_too(ends):
    a, b = ends
    fragile, guard = a.spawn(Fragile), b.spawn(Guard)
    fragile.ask(LinkTo(a.ref(str(guard)))).result(5)
    announced(a, fragile)

    fragile.kill()

    eventually(lambda: guard.call(Guard.told).result(5) == [[], ["killed"]])


def test_unlink_undoes_both_sides(ends):
    a, b = ends
    linker, linked = a.spawn(Fragile), b.spawn(Fragile)
    there = a.ref(str(linked))
    linker.ask(LinkTo(there)).result(5)
    linker.ask(LinkTo(there, undo=True)).result(5)
    assert there.ask("ordered behind the unlink").result(5)
    down = a.monitor(there)
    announced(b, linked)

    there.kill()

    assert down.result(5).reason == "killed"
    assert linker.ask("alive").result(5) == "alive"


def test_a_link_to_a_dead_actor_ends_the_linker(ends):
    a, b = ends
    echo = b.spawn(Echo)
    echo.stop()
    b.monitor(echo).result(5)
    linker = a.spawn(Fragile)
    down = a.monitor(linker)

    linker.tell(LinkTo(a.ref(str(echo))))

    assert down.result(5).reason == "not_found"


def test_a_lost_node_ends_those_linked_to_its_actors_on_both_sides(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    linker, linked = a.spawn(Fragile), b.spawn(Fragile)
    linker.ask(LinkTo(a.ref(str(linked)))).result(5)
    a.ref(str(linked)).ask("ordered behind the link").result(5)
    downs = [a.monitor(linker), b.monitor(linked)]

    a.disconnect(b.node_id, 60.0)

    assert [str(down.result(5).reason) for down in downs] == ["unreachable"] * 2


def test_an_actor_that_watches_and_links_travels_in_a_message(ends):
    """The other side learns of the ref by the message alone."""
    a, b = ends
    echo, guard = a.spawn(Echo), b.spawn(Guard)
    there = a.ref(str(guard))
    there.ask(Watch(echo)).result(5)
    there.tell(Parcel("unexpected"))
    announced(a, echo)

    echo.stop()

    eventually(lambda: there.call(Guard.told).result(5)[0] == [("normal", "")])
