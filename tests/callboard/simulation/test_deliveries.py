"""Lost, doubled and overtaken messages are found, and nothing else is."""

import pytest

from callboard.broker import Endpoint
from callboard.simulation import (
    ExactlyOnce,
    History,
    MessageDoubled,
    MessageLost,
    NothingLost,
    OutOfOrder,
    at_most_once,
    in_order,
)


def told(*script):
    """Return a history: `+1` sends and acknowledges 1, `?1` only sends, `b1` lets b get it."""
    history = History(lambda: 0.0)
    for word in script:
        number = int(word[1:])
        if word[0] in "+?!":
            sent = history.sent(number, key="/t", client="a")
            if word[0] != "?":
                (history.answered if word[0] == "+" else history.failed)(sent)
        else:
            history.received(number, key="/t", client=word[0])
    return history


ALL = (NothingLost(), ExactlyOnce(), at_most_once, in_order)


@pytest.mark.parametrize(
    "script",
    [
        (),
        ("?1",),
        ("!1",),
        ("+1", "b1"),
        ("b1", "+1")[::-1],
        ("+1", "+2", "b1", "c1", "b2", "c2"),
        ("?1", "+2", "b2"),
        ("?1", "b1"),
    ],
)
def test_what_is_right(script):
    told(*script).check(*ALL)


@pytest.mark.parametrize(
    ("script", "checker", "error", "text"),
    [
        (
            ("+1",),
            NothingLost(),
            MessageLost,
            "1 sent by a on '/t' did not arrive at any client",
        ),
        (("+1", "+2", "b1"), NothingLost(), MessageLost, "2 sent by a .* did not arrive at b"),
        (("+1", "b1"), NothingLost(["b", "c"]), MessageLost, "did not arrive at c:"),
        (("?1",), NothingLost(every=True), MessageLost, "did not arrive at any client"),
        (("+1", "b1", "b1"), ExactlyOnce(), MessageDoubled, "reached b twice"),
        (
            ("+1", "b1", "b2"),
            ExactlyOnce(),
            MessageDoubled,
            "b received a message that was never sent",
        ),
        (("!1", "b1"), at_most_once, MessageDoubled, "that was refused"),
        (("+1",), ExactlyOnce(), MessageLost, "did not arrive"),
        (("?1", "?2", "b2", "b1"), in_order, OutOfOrder, "1 sent .* after a later one"),
    ],
)
def test_what_is_wrong(script, checker, error, text):
    with pytest.raises(error, match=text):
        told(*script).check(checker)


def test_what_comes_again_is_not_out_of_order():
    told("+1", "+2", "b1", "b2", "b1", "b2").check(in_order)


def test_senders_topics_and_receivers_have_orders_of_their_own():
    history = History(lambda: 0.0)
    for client, key in (("a", "/t"), ("b", "/t"), ("a", "/u")):
        for number in (1, 2):
            history.sent((client, number), key=key, client=client)
    for client, key, number in (
        ("a", "/t", 1),
        ("b", "/t", 1),
        ("a", "/u", 1),
        ("b", "/t", 2),
        ("a", "/t", 2),
        ("a", "/u", 2),
    ):
        history.received((client, number), key=key, client="z")

    history.check(*ALL)


def test_values_that_are_the_same_twice_are_refused():
    with pytest.raises(ValueError, match="sent twice; number the messages"):
        told("+1", "+1").check(in_order)


def test_topics_over_a_cluster(cluster):
    a, b = cluster(2)
    publisher, reader = Endpoint(node=a), Endpoint(node=b)
    subscriber = reader.make_subscriber("/t")
    cluster.advance(1.0)
    history = cluster.history()

    for number in range(50):
        history.publish(publisher, "/t", number, client="a")
    cluster.advance(1.0)

    assert history.take(subscriber, client="b") == 50
    history.check(NothingLost(every=True), at_most_once, in_order)
