"""A member writes names of others into its frames: in vain, unless it is on their path."""

import pytest

from callboard import Actor, handler
from callboard.basp.accounting import Account
from callboard.basp.control import pack_announce, pack_down, pack_release
from callboard.basp.frame import pack_frame
from callboard.basp.header import FIRST_ACTOR, POSITION_SHIFT, SEQUENCE_BITS, Operation
from callboard.basp.node_id import make_node_id
from callboard.basp.routing.path_order import (
    FAR_EPOCHS,
    OPEN_PATIENCE,
    PathOrder,
    pack_path_end,
)
from callboard.basp.routing.update import Cut, Statement
from callboard.cbor.plain import write_plain
from callboard.proxies.events import FramesRefused, MessagesLost, NodeDown
from callboard.proxies.route_table import OLD_PATH_LIMIT
from tests.basp.routing.test_path_order import at, end, positions
from tests.basp.wire import write_update
from tests.proxies.cast import recorded


class Listed(Actor):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    @handler
    def number(self, msg: int) -> int:
        self.told.append(msg)
        return msg


def linked(cluster, *pairs):
    """Return nodes that are linked as the pairs of their letters say."""
    nodes = {letter: cluster.node(letter) for letter in sorted({*"".join(pairs)})}
    for one, other in pairs:
        nodes[one].connect(nodes[other].address)
    cluster.advance(10.0)
    return nodes.values()


def forge(traitor, via, frame):
    traitor._broker.routes.wires[via.node_id].write(frame)


def dispatch(source, ref, epoch, sequence):
    data = (epoch << SEQUENCE_BITS | sequence) << POSITION_SHIFT
    operation, payload = Operation.DISPATCH_MESSAGE, b"\x81\x18\x63"
    return pack_frame(operation, data, source.node_id, ref.node_id, 0, ref.actor_id, payload)


def report(source, node, *line):
    payload = write_plain([list(line)])
    operation = Operation.DELIVERY_REPORT
    return pack_frame(operation, 0, source.node_id, node.node_id, 0, 0, payload)


def listed(ref):
    return ref.target.actor.told


@pytest.mark.parametrize("pairs", [("ba", "tb"), ("ba", "ta", "tb"), ("ma", "bm", "tm")])
def test_off_the_path_nothing_in_the_name_of_another_is_believed(cluster, pairs):
    nodes = {node.name: node for node in linked(cluster, *pairs)}
    a, b, t = (nodes[name] for name in "abt")
    there, held = b.spawn(Listed), a.spawn(Listed)
    to_b, to_a = a.ref(str(there)), b.ref(str(held))
    to_b.tell(0)
    to_a.tell(0)
    downs = b.monitor(to_a)
    cluster.advance(1.0)
    via = nodes.get("m", b)

    with recorded(via) as events:
        for frame in (
            dispatch(a, there, 0, 1),
            dispatch(a, there, 0, 5),
            dispatch(a, there, 3, 0),
            pack_path_end(a.node_id, b.node_id, 0, 1, is_open=False),
            pack_down(a.node_id, held.actor_id, b.node_id, 0),
            pack_announce(a.node_id, b.node_id, FIRST_ACTOR, 1000),
            pack_release(a.node_id, b.node_id, 0, 1000),
            report(a, b, 0, 1, 0, 5),
        ):
            forge(t, via, frame)
        for number in range(1, 20):
            to_b.tell(number)
            to_a.tell(number)
            cluster.advance(0.5)

    assert listed(there) == listed(held) == list(range(20))
    assert not downs.done()
    assert to_a.ask(20).result(5) == 20
    assert b._broker.lifetimes.holders.holds(a.node_id, there.actor_id)
    assert [(one.lost, one.in_flight) for one in b.accounts().values() if one.lost] == []
    assert via.stats().refused_frames == 8
    assert events.count(FramesRefused(a.node_id, t.node_id, 8)) == 1


@pytest.mark.slow
def test_a_forger_cannot_make_a_node_hold_without_bound(cluster):
    a, b, t = linked(cluster, "ba", "tb")
    there = b.spawn(Listed)

    for number in range(20_000):
        forge(t, b, dispatch(a, there, 0, number))
    cluster.advance(0.1)

    assert len(b._broker.unverified._held[a.node_id][b._broker.routes.wires[t.node_id]]) <= 4096
    cluster.advance(OLD_PATH_LIMIT + 1.0)
    assert b.stats().refused_frames == 20_000
    assert b._broker.unverified._held == b._broker.unverified._sizes == {}


FORGERIES = {
    "a little ahead": lambda a, b, there: [dispatch(a, there, 0, 50)],
    "some epochs ahead": lambda a, b, there: [dispatch(a, there, 5, 7)],
    "far ahead": lambda a, b, there: [dispatch(a, there, 30, 7)],
    "half way round": lambda a, b, there: [
        dispatch(a, there, epoch, 0) for epoch in (10, 20, 30, 32, 40)
    ],
    "an end": lambda a, b, there: [pack_path_end(a.node_id, b.node_id, 0, 1, is_open=False)],
    "an end ahead": lambda a, b, there: [
        pack_path_end(a.node_id, b.node_id, 0, 4, is_open=False)
    ],
    "behind, from ahead": lambda a, b, there: [
        dispatch(a, there, epoch, 7) for epoch in (20, 43) for _ in range(6)
    ],
    "ends": lambda a, b, there: [
        pack_path_end(a.node_id, b.node_id, epoch, 0, is_open=False) for epoch in range(31)
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("what", FORGERIES)
def test_a_pair_heals_after_a_forgery_on_its_path(cluster, what, stays):
    a, b, t = linked(cluster, "at", "bt")
    there = b.spawn(Listed)
    to_b = a.ref(str(there))
    to_b.ask(0).result(5)
    for frame in FORGERIES[what](a, b, there):
        forge(t, b, frame)
        cluster.advance(0.5)
    to_b.tell(1)
    cluster.advance(3.0)
    if not stays:
        cluster.kill(t)
        b.connect(a.address)

    for number in range(2, 12):
        to_b.tell(number)
        cluster.advance(0.5)  # 5 s together
    sent = [to_b.ask(number) for number in range(12, 20)]
    assert [ask.result(1) for ask in sent] == list(range(12, 20))
    cluster.advance(3.0)

    told = [number for number in listed(there) if number != 99]
    assert told == sorted(set(told))
    account = a.accounts()[b.node_id]
    assert account.in_flight == 0
    assert account.lost >= len(set(range(20)) - set(told))


@pytest.mark.parametrize("what", [*FORGERIES, "reports"])
def test_a_quiet_pair_heals_too(cluster, what):
    """Nobody says anything for five seconds, then each asks: at once it has its answer."""
    a, b, t = linked(cluster, "at", "bt")
    there = b.spawn(Listed)
    to_b = a.ref(str(there))
    to_b.ask(0).result(5)
    for frame in FORGERIES.get(what, lambda *_: [])(a, b, there):
        forge(t, b, frame)
        cluster.advance(0.5)
    for epoch in (20, 40) if what == "reports" else ():
        forge(t, a, report(b, a, epoch, 9, 9, 9))
    cluster.advance(3.0)
    cluster.kill(t)
    b.connect(a.address)

    cluster.advance(5.0)

    assert to_b.ask(1).result(0.1) == 1


def test_an_end_forged_on_the_path_has_no_effect_five_seconds_later(cluster):
    a, b, t = linked(cluster, "at", "bt")
    there = b.spawn(Listed)
    to_b = a.ref(str(there))
    to_b.ask(0).result(5)
    forge(t, b, pack_path_end(a.node_id, b.node_id, 1, 4, is_open=False))  # the next epoch's
    cluster.advance(0.1)
    b.connect(a.address)
    cluster.kill(t)
    cluster.advance(5.1)

    for number in range(1, 9):
        to_b.tell(number)
        cluster.advance(0.01)
        b._broker.incoming._orders[a.node_id].tick(0.0)  # as what overtakes does

    assert listed(there) == list(range(9))


@pytest.mark.parametrize("sightings", [1000, 1 << 40, (1 << 64) - 1])
def test_monitors_heal_after_a_forged_release_of_everything(cluster, sightings):
    a, b, t = linked(cluster, "at", "bt")
    there = b.spawn(Listed)
    to_b = a.ref(str(there))
    down = a.monitor(to_b)
    cluster.advance(1.0)
    forge(t, b, pack_release(a.node_id, b.node_id, 0, sightings))
    b.connect(a.address)
    cluster.advance(0.1)
    cluster.kill(t)

    cluster.advance(5.0)
    there.kill()

    assert down.result(0.1).reason == "killed"


def test_whom_a_path_has_left_gives_nothing_back_but_messages(cluster):
    a, b, m, t = linked(cluster, "ma", "bt", "tm")
    there = b.spawn(Listed)
    to_b = a.ref(str(there))
    down = a.monitor(to_b)
    to_b.ask(0).result(5)
    b.connect(a.address)
    cluster.advance(1.0)

    forge(t, m, pack_release(a.node_id, b.node_id, there.actor_id, 1 << 40))
    forge(t, b, pack_release(a.node_id, b.node_id, there.actor_id, 1 << 40))
    forge(t, b, pack_path_end(a.node_id, b.node_id, 1, 0, is_open=False))
    cluster.advance(0.1)
    assert to_b.ask(1).result(0.1) == 1
    there.kill()

    assert down.result(0.1).reason == "killed"
    assert [account.lost for account in a.accounts().values()] == [0] * len(a.accounts())


def test_a_forged_report_on_the_path_does_no_lasting_harm(cluster):
    a, b, t = linked(cluster, "at", "bt")
    there = b.spawn(Listed)
    to_b = a.ref(str(there))
    to_b.ask(0).result(5)

    for epoch in (20, 40, 60, 63, 10):
        forge(t, a, report(b, a, epoch, 9, 9, 9))
        to_b.tell(epoch)
        cluster.advance(0.3)
    for number in range(100, 110):
        to_b.tell(number)
        cluster.advance(0.5)

    assert [to_b.ask(number).result(1) for number in (110, 111)] == [110, 111]
    cluster.advance(3.0)
    assert a.accounts()[b.node_id].in_flight == 0


@pytest.mark.slow
def test_what_a_member_on_the_path_swallows_is_lost_when_it_is_gone(cluster):
    a, b, t = linked(cluster, "at", "bt")
    there = b.spawn(Listed)
    to_b = a.ref(str(there))
    to_b.ask(0).result(5)
    t._broker.forwarding.forward = lambda frames: None
    for number in range(1, 6):
        to_b.tell(number)
    cluster.advance(1.0)

    with recorded(a) as events:
        cluster.kill(t)
        b.connect(a.address)
        cluster.advance(OLD_PATH_LIMIT)

    assert to_b.ask(6).result(1) == 6
    cluster.advance(1.0)
    assert listed(there) == [0, 6]
    account = a.accounts()[b.node_id]
    assert (account.lost, account.in_flight) == (6, 0)  # the report of the first one as well
    told = [event for event in events if isinstance(event, MessagesLost | NodeDown)]
    assert (
        sum(event.lost if isinstance(event, NodeDown) else event.count for event in told) == 6
    )


@pytest.mark.parametrize("stamp", [50, 2**31, 2**32, 2**63, 2**64 - 1])
@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("dead", ["c", "bc"])
def test_what_is_stated_in_the_name_of_others_hides_no_dead_node(cluster, stamp, stays, dead):
    """A line a-b-c-d and a traitor at its beginning; its statements lead to nobody."""
    nodes = {one.name: one for one in linked(cluster, "ba", "cb", "dc", "ta")}
    a, t = nodes["a"], nodes["t"]
    downs = [a.monitor(a.ref(str(nodes[name].spawn(Listed)))) for name in "cd"]
    cluster.advance(1.0)
    ghost = make_node_id(b"ghost", 0, 0, 0)
    said = [Statement(nodes[name].node_id, stamp, frozenset({ghost})) for name in "abcd"]
    forge(t, a, routing_update(t, a, statements=said))
    cluster.advance(1.0)
    if not stays:
        cluster.kill(t)
        cluster.advance(5.0)

    for name in dead:
        cluster.kill(nodes[name])
    cluster.advance(1.0 if stamp <= 2**32 else OLD_PATH_LIMIT)

    assert [down.result(0).reason for down in downs] == ["unreachable"] * 2


def routing_update(source, node, **parts):
    payload = write_update([], [], **parts)
    return pack_frame(Operation.ROUTING_UPDATE, 0, source.node_id, node.node_id, 0, 0, payload)


@pytest.mark.parametrize("stamp", [3, 50, 2**32, 2**63])
def test_a_forged_cut_is_denied_by_the_node_that_has_the_link(cluster, stamp):
    a, b, c, t = linked(cluster, "ba", "cb", "ta")
    there = c.spawn(Listed)
    to_c = a.ref(str(there))
    to_c.ask(0).result(5)

    for number in range(1, 6):
        forge(t, a, routing_update(t, a, cuts=[Cut(b.node_id, c.node_id, stamp + number)]))
        cluster.advance(0.1)
        to_c.tell(number)
    cluster.advance(0.5)
    assert to_c.ask(6).result(1) == 6

    assert listed(there) == list(range(7))
    b.disconnect(c.node_id, 60.0)
    cluster.advance(0.5)
    assert c.node_id not in [node.node_id for node in a.nodes()]


@pytest.mark.parametrize("stamp", [3, 50, 2**31, 2**32])
def test_a_forged_cut_that_its_node_never_hears_of_holds_for_five_seconds(cluster, stamp):
    a, b, d, t = linked(cluster, "da", "td", "bt")
    forge(t, b, routing_update(t, b, cuts=[Cut(a.node_id, d.node_id, stamp)]))
    b.connect(a.address)
    cluster.kill(t)

    cluster.advance(OLD_PATH_LIMIT + 0.1)

    assert sorted(node.name for node in b.nodes()) == ["a", "d"]
    assert b.ref(str(d.spawn(Listed))).ask(1).result(1) == 1


def test_a_position_far_away_is_dropped_and_taken_when_nothing_else_comes():
    order = PathOrder()
    order.take(at(0, 0), 0.0)

    for epoch in (FAR_EPOCHS + 1, 32, 63 - FAR_EPOCHS):
        assert order.take(at(epoch, 3), 1.0) == []
    order.end(end(FAR_EPOCHS + 1, 3), 1.0)
    assert (order.deadline, order.late, order.epoch) == (None, 3, 0)
    assert positions(order.take(at(0, 1), 1.0)) == [(0, 1)]

    assert order.take(at(30, 3), 2.0) == []
    assert positions(order.take(at(30, 4), 2.0 + OPEN_PATIENCE)) == [(30, 4)]
    assert order.given_up == [(30, 4)]


def test_a_source_begins_behind_what_a_deceived_destination_reports():
    account = Account()
    account.sent += 5

    assert account.confirm(3, 0, 0, 0) == 5
    assert (account.epoch, account.in_flight, account.lost) == (4, 0, 5)

    account.sent += 5
    assert account.confirm(4, 2, 0, 9) == 3
    assert (account.epoch, account.in_flight, account.lost) == (5, 0, 8)
    assert account.confirm(4, 2, 0, 9) == 0
