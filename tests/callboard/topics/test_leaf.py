"""Leaves at the core: values outside their rights neither come nor leave."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.model.errors import MalformedMessage
from callboard.proxies.rights.rights import Rights
from callboard.topics.machine.core import Core
from callboard.topics.machine.effect import (
    DeliverItems,
    PeerEvent,
    RefusedHere,
    RefusedThere,
    TransmitRun,
)
from callboard.topics.machine.filter_exchange import FilterUpdate
from callboard.topics.machine.leaf import LEAF_FILTER_LIMIT
from callboard.topics.machine.run import (
    PackedType,
    decode_run,
    encode_pair,
    encode_plain_pair,
    pack_runs,
)
from callboard.topics.machine.status import SC
from callboard.topics.machine.topic import RESERVED, clone_topic, is_reserved, master_topic

DATA, COMMAND = PackedType.DATA, PackedType.COMMAND
OURS, LEAF, MEMBER = b"o" * 16, b"leaf", b"member"
LEAFS, MEMBERS = b"l" * 16, b"m" * 16
STORES = ("prices", "stock", "")


class Shop:
    """A core with a leaf and a full member, and everything that goes in and out noted."""

    def __init__(self, rights: Rights) -> None:
        self.rights = rights
        self.core = Core(OURS, lambda node: (node,), rights={LEAF: rights})
        self.got: list[tuple[bytes, str]] = []
        self.sent: list[tuple[bytes, PackedType, list[Any]]] = []
        self.refused: list[tuple[str, str]] = []
        self.events: list[PeerEvent] = []
        for node in (LEAF, MEMBER):
            self.carry_out(self.core.endpoint_found(node, 1.0))

    def carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case TransmitRun(node, payload):
                    self.sent.append((node, *decode_run(payload)))
                case DeliverItems(_, items, sender):
                    self.got += [(sender, topic) for topic, _ in items]
                case RefusedHere(node, right, name):
                    assert node == LEAF
                    self.refused.append((right, name))
                case PeerEvent():
                    self.events.append(effect)

    def subscribe(self, *topics: str, kind: PackedType = DATA) -> None:
        self.carry_out(self.core.subscribe(object(), topics, 1.0, kind=kind))

    def receive(self, node: bytes, payload: bytes, now: float = 2.0) -> None:
        self.carry_out(self.core.receive(node, payload, now))

    def publish(self, *topics: str) -> None:
        pairs = [(topic, encode_pair(topic, 1)) for topic in topics]
        self.carry_out(self.core.data_inputs(pairs))

    def command(self, topic: str) -> None:
        pairs = [(topic, encode_plain_pair(topic, 1))]
        self.carry_out(self.core.command_inputs(pairs))

    def to_leaf(self, *kinds: PackedType) -> list[Any]:
        return [
            item
            for node, kind, items in self.sent
            if node == LEAF and kind in kinds
            for item in items
        ]


def a_run(kind: PackedType, *topics: str) -> bytes:
    encode = encode_pair if kind is DATA else encode_plain_pair
    ((payload, _),) = pack_runs(kind, 16, [encode(topic, 1) for topic in topics])
    return payload


def an_update(endpoint: bytes, *topics: str, version: int = 2, base: int = 0) -> bytes:
    update = FilterUpdate(endpoint, True, version, base, 1, topics)
    pair = encode_plain_pair("", tuple(update))
    return next(iter(pack_runs(PackedType.ROUTING_UPDATE, 16, [pair])))[0]


def test_a_leaf_publishes_what_begins_as_its_topics_do_and_nothing_else() -> None:
    shop = Shop(Rights(publish=["/sensors"]))
    shop.subscribe("")

    shop.receive(LEAF, a_run(DATA, "/sensors/cpu", "/other", "/sensor", "/sensors"))
    shop.receive(MEMBER, a_run(DATA, "/other"))

    assert shop.got == [(LEAF, "/sensors/cpu"), (LEAF, "/sensors"), (MEMBER, "/other")]
    assert shop.refused == [("publish", "/other"), ("publish", "/sensor")]
    assert shop.core.counters.refused == 2
    assert shop.to_leaf(PackedType.REFUSED) == [
        ("", (("publish", "/other"), ("publish", "/sensor")))
    ]


def test_a_leaf_that_subscribes_to_all_gets_what_begins_as_its_topics_do() -> None:
    shop = Shop(Rights(subscribe=["/news", "/weather/north"]))
    shop.receive(LEAF, an_update(LEAFS, ""))
    shop.receive(MEMBER, an_update(MEMBERS, ""))

    shop.publish("/news/1", "/weather/south", "/weather/north/2", "/new")
    pair = [("/secret", encode_pair("/secret", 1))]
    shop.carry_out(shop.core.send_to(LEAF, DATA, pair))

    assert [topic for topic, _ in shop.to_leaf(DATA)] == ["/news/1", "/weather/north/2"]
    assert (
        sum(len(items) for node, kind, items in shop.sent if node == MEMBER and kind is DATA)
        == 4
    )


def test_a_subscription_without_a_right_is_refused_and_told() -> None:
    shop = Shop(Rights(subscribe=["/news"], stores={"prices": "read"}))

    shop.receive(
        LEAF, an_update(LEAFS, "/secret", "/n", clone_topic("prices"), clone_topic("stock"))
    )
    shop.publish("/secret/1")

    assert shop.refused == [("subscribe", "/secret"), ("read", "stock")]
    assert shop.core.peer_topics() == ["/n", clone_topic("prices")]
    assert not shop.to_leaf(DATA)


def test_a_leaf_is_told_of_no_filter_but_of_topics_that_it_may_publish() -> None:
    shop = Shop(Rights(publish=["/sensors"], stores={"prices": "read"}))

    shop.subscribe("/sensors/cpu", "/sens", "/secret", "<$>/x")
    shop.subscribe(*map(master_topic, STORES), kind=COMMAND)
    shop.subscribe(*map(clone_topic, STORES), kind=COMMAND)

    updates = [content for _, content in shop.to_leaf(PackedType.ROUTING_UPDATE)]
    assert {topic for update in updates for topic in update[5]} == {
        "/sensors/cpu",
        "/sens",
        master_topic("prices"),
    }


def test_stores_are_not_reached_by_the_topics_that_they_use() -> None:
    shop = Shop(Rights(publish=[""], subscribe=[""], stores={"*/mine": "write"}))
    shop.subscribe(*map(master_topic, STORES), kind=COMMAND)
    shop.subscribe(*map(clone_topic, STORES), kind=COMMAND)
    shop.subscribe("", f"{RESERVED}/local/data/store-events")
    shop.receive(LEAF, an_update(LEAFS, "", *map(clone_topic, STORES), "prices/<$"))
    through = f"{master_topic('prices')}/mine"  # which the store prices would take

    for kind in (DATA, COMMAND):
        shop.receive(LEAF, a_run(kind, *map(master_topic, STORES), *map(clone_topic, STORES)))
        shop.receive(LEAF, a_run(kind, master_topic(through), through))
        shop.receive(LEAF, a_run(kind, f"{RESERVED}/local/data/store-events/prices"))
    for store in STORES:
        shop.command(clone_topic(store))
        shop.command(master_topic(store))

    assert not shop.got
    assert not shop.to_leaf(DATA, COMMAND)


def test_commands_go_to_masters_and_come_from_them_only() -> None:
    shop = Shop(Rights(stores={"prices": "read"}))
    shop.subscribe(master_topic("prices"), clone_topic("prices"), kind=COMMAND)
    shop.receive(LEAF, an_update(LEAFS, clone_topic("prices")))

    shop.receive(LEAF, a_run(COMMAND, master_topic("prices"), clone_topic("prices")))
    shop.command(clone_topic("prices"))

    assert shop.got == [(LEAF, master_topic("prices"))]
    assert [topic for topic, _ in shop.to_leaf(COMMAND)] == [clone_topic("prices")]


def test_a_leaf_has_no_endpoint_of_a_member() -> None:
    shop = Shop(Rights(subscribe=[""]))
    shop.receive(MEMBER, an_update(MEMBERS, "/a"))

    for stolen in (MEMBERS, OURS):
        shop.receive(LEAF, an_update(stolen, "/a"))
        assert shop.core.endpoint_of(LEAF) is None
    shop.carry_out(shop.core.endpoint_lost(MEMBER, "gone"))
    shop.receive(LEAF, an_update(MEMBERS, "/a"))

    assert shop.core.node_of(MEMBERS) is None
    assert shop.refused == [("endpoint", one.hex()) for one in (MEMBERS, OURS, MEMBERS)]


def test_a_leaf_that_has_taken_the_endpoint_of_a_member_to_come_loses_it() -> None:
    shop = Shop(Rights(subscribe=[""]))
    shop.receive(LEAF, an_update(MEMBERS, "/a"))
    assert shop.core.node_of(MEMBERS) == LEAF

    shop.receive(MEMBER, an_update(MEMBERS, "/a"))
    shop.events.clear()
    shop.carry_out(shop.core.endpoint_lost(LEAF, "gone"))

    assert shop.core.node_of(MEMBERS) == MEMBER
    assert [(event.kind, event.endpoint) for event in shop.events] == [
        (SC.EndpointUnreachable, None)
    ]


def test_a_leaf_keeps_its_endpoint() -> None:
    shop = Shop(Rights(subscribe=[""]))
    shop.receive(LEAF, an_update(LEAFS, "/a"))

    shop.receive(LEAF, an_update(b"x" * 16, "/b"))

    assert shop.core.endpoint_of(LEAF) == LEAFS
    assert shop.refused == [("endpoint", (b"x" * 16).hex())]


def test_the_filter_of_a_leaf_is_bounded() -> None:
    shop = Shop(Rights(subscribe=[""]))
    names = [f"/{number}" for number in range(LEAF_FILTER_LIMIT + 1)]
    shop.receive(LEAF, an_update(LEAFS, *names[:-1]))

    with pytest.raises(MalformedMessage, match=f"{LEAF_FILTER_LIMIT:,} topics"):
        shop.receive(LEAF, an_update(LEAFS, names[-1], version=3, base=2))

    assert len(shop.core.peer_topics()) == LEAF_FILTER_LIMIT


def test_rights_that_change_with_a_link_count_at_once() -> None:
    rights: dict[bytes, Rights] = {}
    core = Core(OURS, lambda node: (node,), rights=rights)
    core.endpoint_found(LEAF, 1.0)
    core.receive(LEAF, an_update(LEAFS, ""), 2.0)
    assert core.receivers_of("/a") == (LEAF,)

    rights[LEAF] = Rights(subscribe=["/b"])
    core.link_established(LEAF)

    assert core.receivers_of("/a") == ()
    assert core.receivers_of("/b") == (LEAF,)


def test_what_an_endpoint_is_refused_is_told_there() -> None:
    core = Core(OURS, lambda node: (node,))
    pair = encode_plain_pair("", (("write", "prices"), ("publish", "/x")))
    ((payload, _),) = pack_runs(PackedType.REFUSED, 16, [pair])

    assert core.receive(MEMBER, payload, 1.0) == [
        RefusedThere(MEMBER, "write", "prices"),
        RefusedThere(MEMBER, "publish", "/x"),
    ]


# --- whatever a leaf does ---

_PREFIXES = ("", "/", "/a", "/a/b", "/ab", RESERVED, f"{RESERVED}/local", "prices", "x/<$")
_TOPICS = st.sampled_from(
    [
        *_PREFIXES,
        "/a/b/c",
        "/b",
        *(way(name) for name in (*STORES, "x<$>") for way in (master_topic, clone_topic)),
        master_topic(f"{master_topic('prices')}/prices"),
        clone_topic(f"{clone_topic('stock')}/prices"),
        f"{master_topic('prices')}/prices",
        f"{RESERVED}/local/data/store-events/prices",
    ]
) | st.text("/ab<$>", max_size=8)
_RIGHTS = st.builds(
    Rights,
    publish=st.lists(st.sampled_from(_PREFIXES), max_size=3),
    subscribe=st.lists(st.sampled_from(_PREFIXES), max_size=3),
    stores=st.dictionaries(
        st.sampled_from(("prices", "*", "*prices", "stock")), st.sampled_from(("read", "write"))
    ),
)
_MANY = st.lists(_TOPICS, max_size=4)
_STEPS = st.one_of(
    st.tuples(st.sampled_from((DATA, COMMAND)), _MANY.filter(bool)),
    st.tuples(
        st.just(PackedType.ROUTING_UPDATE),
        st.builds(
            FilterUpdate,
            st.sampled_from((LEAFS, MEMBERS, OURS)),
            st.booleans(),
            *(st.integers(0, 4) for _ in range(3)),
            _MANY,
            _MANY,
            st.booleans(),
            st.integers(0, 2),
        ),
    ),
    st.tuples(st.sampled_from((PackedType.PING, PackedType.PONG, PackedType.REFUSED)), _MANY),
    st.tuples(st.sampled_from(("publish", "command", "subscribe", "send")), _TOPICS),
    st.tuples(st.sampled_from(("tick", "lost", "found", "member")), st.none()),
    st.tuples(st.just("garbage"), st.binary(max_size=20)),
)


@pytest.mark.slow
@settings(max_examples=400)
@given(_RIGHTS, st.lists(_STEPS, max_size=20))
def test_values_outside_its_rights_never_come_from_a_leaf_or_go_to_it(
    rights: Rights, steps: list[Any]
) -> None:
    shop = Shop(rights)
    shop.subscribe("")
    shop.subscribe(*map(master_topic, STORES), *map(clone_topic, STORES), "", kind=COMMAND)
    shop.receive(MEMBER, an_update(MEMBERS, ""))
    for now, (what, given_) in enumerate(steps, 2):
        _do(shop, what, given_, float(now))

    for sender, topic in shop.got:
        assert sender != LEAF or _may_send(rights, topic), topic
    for topic, _ in shop.to_leaf(DATA, COMMAND):
        assert _may_get(rights, topic), topic
    for _, content in shop.to_leaf(PackedType.ROUTING_UPDATE):
        for topic in (*content[5], *content[6]):
            overlaps = [
                topic.startswith(one) or one.startswith(topic) for one in rights.publish
            ]
            known = any(overlaps) and not is_reserved(topic)
            assert known or _is_store(rights, topic, master_topic), topic
    assert shop.core.endpoint_of(LEAF) in (None, LEAFS)
    assert shop.core.node_of(MEMBERS) in (None, MEMBER)


def _do(shop: Shop, what: Any, given_: Any, now: float) -> None:  # noqa: C901  # a table
    match what:
        case PackedType.ROUTING_UPDATE:
            pair = encode_plain_pair("", tuple(given_))
            run = next(iter(pack_runs(what, 16, [pair])))[0]
        case PackedType():
            run = a_run(what, *given_)
        case "garbage":
            run = given_
        case "publish":
            return shop.publish(given_)
        case "command":
            return shop.command(given_)
        case "subscribe":
            return shop.subscribe(given_)
        case "send":
            pairs = [(given_, encode_plain_pair(given_, 1))]
            return shop.carry_out(shop.core.send_to(LEAF, COMMAND, pairs))
        case "tick":
            return shop.carry_out(shop.core.tick(now))
        case "lost":
            return shop.carry_out(shop.core.endpoint_lost(LEAF, ""))
        case "found":
            return shop.carry_out(shop.core.endpoint_found(LEAF, now))
        case "member":
            return shop.receive(MEMBER, an_update(MEMBERS, "/a", version=9), now)
    with suppress(MalformedMessage):
        shop.receive(LEAF, run, now)
    return None


def _may_send(rights: Rights, topic: str) -> bool:
    if is_reserved(topic):
        return _is_store(rights, topic, master_topic)
    return topic.startswith(tuple(rights.publish)) or _is_store(rights, topic, master_topic)


def _may_get(rights: Rights, topic: str) -> bool:
    if is_reserved(topic):
        return _is_store(rights, topic, clone_topic)
    return topic.startswith(tuple(rights.subscribe))


def _is_store(rights: Rights, topic: str, way: Any) -> bool:
    names = [name for name in (*STORES, "x<$>") if way(name) == topic and RESERVED not in name]
    return bool(names) and rights.permit_store(names[0], "read")
