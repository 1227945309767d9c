"""Messages of a pair that overtake each other on the way, or are missing."""

import pytest

from callboard import Actor, handler
from callboard.basp.frame import pack_frame
from callboard.basp.header import POSITION_MASK, POSITION_SHIFT, Operation
from callboard.basp.routing.path_order import OPEN_PATIENCE
from callboard.proxies.broker import REPORT_INTERVAL
from callboard.proxies.events import MessagesLost
from tests.proxies.cast import Later, recorded


class Sink(Actor):
    def __init__(self) -> None:
        self.seen: list[int] = []

    @handler
    def number(self, msg: int) -> None:
        self.seen.append(msg)

    def everything(self) -> list[int]:
        return self.seen


@pytest.fixture
def pair(cluster):
    """Give two linked nodes, and the ref that the first one has of a sink on the second."""
    a, b = cluster(2)
    there = a.ref(str(b.spawn(Sink)))
    assert there.call(Sink.everything).result(5) == []
    return a, b, there


def send(node, there, numbers, arriving):
    """Send numbers of which some arrive, in another order."""
    broker = node._broker
    account = broker.routes.accounts.account(there.node_id)
    frames = {}
    for number in numbers:
        frames[number] = pack_frame(
            Operation.DISPATCH_MESSAGE,
            (account.offset + account.sent & POSITION_MASK) << POSITION_SHIFT,
            node.node_id,
            there.node_id,
            0,
            there.actor_id,
            broker.outgoing.encode(number),
        )
        account.sent += 1
    for number in arriving:
        broker.routes.send_to(there.node_id, frames[number])


def test_what_is_overtaken_is_waited_for(pair):
    a, b, there = pair
    send(a, there, range(6), [1, 4, 0, 5, 3, 2])

    assert there.call(Sink.everything).result(1) == list(range(6))
    assert b.stats().undeliverable == 0


def test_what_never_comes_is_given_up_and_reported_lost(cluster, pair):
    a, b, there = pair
    with recorded(a) as events:
        send(a, there, range(6), [0, 2, 5])
        cluster.advance(OPEN_PATIENCE + 2.0)

    assert there.call(Sink.everything).result(1) == [0, 2, 5]
    assert events == [MessagesLost(b.node_id, b.name, 3)]
    cluster.advance(2.0)
    account = a.accounts()[b.node_id]
    assert (account.lost, account.in_flight) == (3, 0)
    assert account.sent == account.confirmed + 3


def test_what_comes_after_it_was_given_up_is_dropped_and_counted(cluster, pair):
    a, b, there = pair
    send(a, there, range(2), [1])
    cluster.advance(OPEN_PATIENCE + 0.5)
    account = a._broker.routes.accounts.account(b.node_id)
    account.sent -= 2
    send(a, there, range(2), [0, 1])

    assert there.call(Sink.everything).result(1) == [1]
    assert b.stats().undeliverable == 2


def test_message_ids_skip_those_that_wait_for_an_answer_and_zero(cluster):
    a, b = cluster(2)
    later = a.ref(str(b.spawn(Later)))
    first = later.ask("first")
    outgoing = a._broker.outgoing
    (waiting,) = (one for one, (future, _) in outgoing.asks.by_id.items() if future is first)
    outgoing.asks._ids = iter([1 << 32 | waiting, 1 << 32, waiting, 7 << 32 | 77, 78, 79])

    second = later.ask("second")
    assert second.message_id == 77
    later.tell(0.0)

    assert [first.result(5), second.result(5)] == ["FIRST", "SECOND"]


def test_of_steady_traffic_at_most_a_tenth_of_a_second_is_unconfirmed(cluster, pair):
    """What is unconfirmed counts as lost when the path goes, though it arrived."""
    a, b, there = pair
    unconfirmed = []
    for number in range(300):
        there.tell(number)
        cluster.advance(0.01)
        if number >= 100:  # after a pause the first report may take a second
            unconfirmed.append(a.accounts()[b.node_id].in_flight)

    assert len(there.call(Sink.everything).result(1)) == 300
    assert 0 < max(unconfirmed) <= REPORT_INTERVAL / 0.01 + 1
