"""Messages between nodes, over any number of hops and in order."""

import pytest

from tests.proxies.cast import (
    Echo,
    Forward,
    Parcel,
    Postman,
    Sink,
    Size,
    Unregistered,
    eventually,
    line,
    settled,
)


@pytest.mark.parametrize("hops", [0, 1, 2, 3])
def test_everything_works_over_any_number_of_hops(four, hops):
    near, far = four[0], four[hops]
    echo, sink = far.spawn(Echo), far.spawn(Sink)
    there, sink_there = near.ref(str(echo)), near.ref(str(sink))

    assert there == echo
    assert there.is_local == (hops == 0)
    assert there.ask("hi").result(5) == "hi"
    assert there.call(Echo.double, 4, plus=1).result(5) == 9
    assert there.proxy().slow_double(4).result(5) == 8
    for number in range(100):
        sink_there.tell(number)
    assert sink_there.ask(Size()).result(5) == 100
    assert near.monitor(there).done() is False
    down = near.monitor(there)
    there.stop()
    assert down.result(5).reason == "normal"
    settled(*four)


def test_nodes_tell_how_far_others_are_and_through_whom(four):
    a, b, c, d = four
    eventually(lambda: all(n.name for n in a.nodes()))

    assert [(n.name, n.hops, n.via) for n in a.nodes()] == [
        ("b", 1, b.node_id),
        ("c", 2, b.node_id),
        ("d", 3, b.node_id),
    ]
    eventually(lambda: [(n.name, n.hops) for n in d.nodes()] == [("c", 1), ("b", 2), ("a", 3)])
    assert len(a.links()) == len(d.links()) == 1
    assert len(b.links()) == len(c.links()) == 2


def test_a_ref_deep_inside_a_message_works_where_no_direct_connection_exists(four):
    a, b, _, d = four
    echo = a.spawn(Echo)
    postman = a.ref(str(d.spawn(Postman)))

    parcel = Parcel(None, {"list": [{"ref": echo}]})

    assert postman.ask(parcel).result(5) == "by a ref from deep inside"
    sink = a.ref(str(b.spawn(Sink)))
    postman.tell(Forward(sink, 7))
    eventually(lambda: sink.ask(Size()).result(5) == 1)


def test_refs_are_equal_hash_and_order_alike_on_every_node(four):
    refs = [node.spawn(Echo) for node in four for _ in range(3)]

    seen = [[node.ref(str(ref)) for ref in refs] for node in four]

    assert all(each == refs for each in seen)
    assert all([hash(ref) for ref in each] == [hash(ref) for ref in refs] for each in seen)
    assert all(sorted(each) == sorted(refs) for each in seen)
    assert len({ref for each in seen for ref in each}) == len(refs)


def test_forwarding_nodes_see_the_asks_that_pass(four):
    a, b, c, d = four
    echo = a.ref(str(d.spawn(Echo)))

    echo.ask("x").result(5)

    for node in (b, c):
        passed = [  # what `a` asked and `d` answered; `d` may be asking for names meanwhile
            passage
            for passage in node.passages()
            if {passage.source, passage.destination} == {a.node_id, d.node_id}
            and (passage.source == a.node_id) != passage.is_response
        ]
        latest = max(passage.message_id for passage in passed)
        way = [
            (passage.source, passage.is_response)
            for passage in passed
            if passage.message_id == latest
        ]
        assert way == [(a.node_id, False), (d.node_id, True)]
        assert node.stats().forwarded >= 2
    assert a.passages() == []


def test_20_000_messages_keep_their_order_over_two_hops_with_asks_between(make_node):
    a, b, c = make_node("a"), make_node("b"), make_node("c")
    line(a, b, c)
    sink = a.ref(str(c.spawn(Sink)))
    counts = []

    for number in range(20_000):
        sink.tell(number)
        if number % 1000 == 999:
            counts.append(sink.ask(Size()))

    assert [count.result(20) for count in counts] == list(range(1000, 21_000, 1000))
    assert sink.call(Sink.everything).result(20) == list(range(20_000))
    settled(a, c)


def test_first_use_of_a_text_dials_and_keeps_the_order_of_what_waited(make_node):
    a, b = make_node("a"), make_node("b")
    b.listen()
    sink = a.ref(str(b.spawn(Sink)))
    assert a.links() == []

    for number in range(5000):
        sink.tell(number)

    assert sink.call(Sink.everything).result(10) == list(range(5000))
    assert len(a.links()) == 1


def test_what_waits_for_a_dial_is_sent_as_it_was_when_it_was_told(make_node):
    a, b = make_node("a"), make_node("b")
    b.listen()
    sink = a.ref(str(b.spawn(Sink)))
    items = [1]

    sink.tell(items)
    items.append(Unregistered())

    assert sink.call(Sink.everything).result(5) == [[1]]
