"""Topics and stores of a leaf, on real nodes: what its rights include, and nothing else."""

import uuid

import pytest

from callboard import Actor, errors, handler
from callboard.basp.header import CORE_ACTOR
from callboard.channel import Heartbeat, Nack, RetransmitFailed
from callboard.proxies.events import PermissionRefused
from callboard.proxies.rights.rights import Rights
from callboard.store.machine.command import NIL, Command, CommandRun, EntityId, encode_run
from callboard.store.machine.snapshot import SnapshotChunk
from callboard.store.store_actor import CommandsRefused
from callboard.topics.machine.filter_exchange import FilterUpdate
from callboard.topics.machine.run import PackedType, encode_pair, encode_plain_pair, pack_runs
from callboard.topics.machine.topic import STORE_EVENTS, clone_topic, master_topic
from tests.polling import eventually

SECRETS = {"sensor": "s1", "member": "s2"}


@pytest.fixture(params=[False, True], ids=["leaf dials", "member dials"])
def meet(request, make_endpoint):
    """Return an endpoint that gives rights, a leaf of it, and a full member."""

    def meet(rights):
        permissions = {"sensor": rights, "member": Rights.member()}
        shop = make_endpoint(secrets=SECRETS, permissions=permissions)
        leaf, office = make_endpoint(secret="s1"), make_endpoint(secret="s2")
        port = shop.listen("127.0.0.1", 0)
        assert office.peer("127.0.0.1", port)
        if request.param:
            assert shop.peer("127.0.0.1", leaf.listen("127.0.0.1", 0))
        else:
            assert leaf.peer("127.0.0.1", port)
        assert leaf.await_peer(shop.node_id())
        assert shop.await_peer(leaf.node_id())
        return shop, leaf, office

    return meet


def wants(endpoint, topic):
    """Wait until an endpoint knows that another one wants a topic."""
    eventually(lambda: endpoint.hub.receivers_of(topic).result(5))


def test_a_leaf_publishes_and_hears_its_topics(meet):
    shop, leaf, office = meet(Rights(publish=["/sensors"], subscribe=["/news"]))
    refused = []
    with shop.node.subscribed(refused.append):
        here, there = shop.make_subscriber("/"), leaf.make_subscriber("")
        far = office.make_subscriber("/")
        wants(leaf, "/sensors/cpu")
        wants(shop, "/news/1")

        for topic in ("/other", "/sensors/cpu", "/sensor", "/sensors/end"):
            leaf.publish(topic, topic)
        for topic in ("/new", "/news/1", "/other", "/news/end"):
            shop.publish(topic, topic)

        assert [here.get(10.0)[0] for _ in range(2)] == ["/sensors/cpu", "/sensors/end"]
        assert [there.get(10.0)[0] for _ in range(2)] == ["/news/1", "/news/end"]
        assert len([far.get(10.0) for _ in range(4)]) == 4
        eventually(lambda: any(isinstance(event, PermissionRefused) for event in refused))
    assert there.poll() == []
    (first, *_) = [event for event in refused if isinstance(event, PermissionRefused)]
    assert (first.identity, first.right) == ("sensor", "publish")
    assert shop.node.stats().not_permitted == 2
    assert shop.hub.counters.refused == 2


def test_directed_values_are_looked_at_as_well(meet):
    shop, leaf, _ = meet(Rights(subscribe=["/news"]))
    there = leaf.make_subscriber("")
    wants(shop, "/news/1")
    (to,) = [peer.peer for peer in shop.peers() if peer.peer.node_id() == leaf.node_id()]

    shop.publish(to, "/secret", 1)
    shop.publish(to, "/news", 2)

    assert there.get(10.0) == ("/news", 2)


def test_a_store_is_read_by_who_may_read_it_and_written_by_nobody_else(meet):
    shop, leaf, office = meet(Rights(stores={"prices": "read"}))
    prices = shop.attach_master("prices")
    prices.put("bread", 3)
    mine, members = leaf.attach_clone("prices"), office.attach_clone("prices")
    events = []
    assert mine.get("bread") == 3

    with leaf.node.subscribed(events.append):
        mine.put("bread", 1)
        with pytest.raises(errors.NotPermitted, match="write the store 'prices'"):
            mine.await_idle(10)
        with pytest.raises(errors.NotPermitted):
            mine.put_unique("cake", 1)
        eventually(lambda: any(isinstance(event, CommandsRefused) for event in events))
    members.put("bread", 4)
    assert members.await_idle(10)

    assert prices.get("bread") == 4
    assert not prices.exists("cake")
    eventually(lambda: mine.get("bread") == 4)


def test_a_store_is_written_by_who_may_write_it(meet):
    shop, leaf, _ = meet(Rights(stores={"stock-*": "write"}))
    stock = shop.attach_master("stock-1")
    mine = leaf.attach_clone("stock-1")

    mine.put("bread", 3)
    mine.insert_into("kinds", "rye")

    assert mine.put_unique("cake", 1)
    assert not mine.put_unique("bread", 1)
    assert mine.await_idle(10)
    assert stock.get("bread") == 3
    assert stock.get("kinds") == {"rye"}
    mine.clear()
    assert mine.await_idle(10)
    assert not stock.keys()


def test_a_store_that_may_not_be_read_is_told_to_who_waits(meet):
    shop, leaf, _ = meet(Rights(publish=[""], subscribe=[""], stores={"prices": "read"}))
    safe = shop.attach_master("safe")
    safe.put("key", "secret")
    everything = leaf.make_subscriber("")
    mine = leaf.attach_clone("safe")

    with pytest.raises(errors.NotPermitted, match="read the store 'safe'"):
        mine.get("key")
    with pytest.raises(errors.NotPermitted):  # though nothing new is wanted of others
        leaf.attach_clone("safe").get("key")
    mine.put("key", "mine")
    with pytest.raises(errors.NotPermitted):
        mine.await_idle(10)
    with pytest.raises(errors.NotPermitted):
        mine.put_unique("other", 1)
    safe.put("key", "changed")
    shop.publish("/end", 1)
    assert everything.get(10.0) == ("/end", 1)
    assert safe.get("key") == "changed"
    assert not safe.exists("other")


def test_a_leaf_keeps_a_store_of_its_own_and_takes_no_members_place(meet):
    shop, leaf, _ = meet(Rights(stores={"prices": "write"}))
    prices, clone = shop.attach_master("prices"), shop.attach_clone("notes")
    prices.put("bread", 3)

    own, notes = leaf.attach_master("prices"), leaf.attach_master("notes")
    own.put("bread", 1)
    notes.put("a", 1)

    mine = shop.attach_master("notes")  # nobody in the cluster has it
    mine.put("a", 2)
    eventually(lambda: clone._actor.machine.has_copy)
    assert clone.get("a") == 2
    assert prices.get("bread") == 3
    assert not prices.is_closed


def test_topics_without_any_right_are_closed(meet, make_endpoint):
    permissions = {"sensor": Rights(names=["*"])}
    shop = make_endpoint(secrets=SECRETS, permissions=permissions)
    leaf = make_endpoint(secret="s1")
    here = shop.make_subscriber("")
    leaf.node.connect(f"basp+tls://127.0.0.1:{shop.listen('127.0.0.1', 0)}".replace("+tls", ""))

    core = leaf.node.runtime.ref_of(shop.node.node_id, CORE_ACTOR)
    with pytest.raises(errors.NotPermitted):
        core.ask(a_run(PackedType.DATA, "/a")).result(10)
    shop.hub.publishing.deliver_here("/end", 1)

    assert here.get(10.0) == ("/end", 1)
    assert not leaf.hub.core.peer_topics()


# --- a leaf that says what no endpoint of ours would ---


def a_run(kind, *topics, content=1):
    encode = encode_pair if kind is PackedType.DATA else encode_plain_pair
    return next(iter(pack_runs(kind, 16, [encode(topic, content) for topic in topics])))[0]


class Hostile:
    """Sends runs to the core of another node as if they were its hub's."""

    def __init__(self, leaf, shop):
        self.core = leaf.node.runtime.ref_of(shop.node.node_id, CORE_ACTOR)
        self.own = EntityId(uuid.UUID(leaf.node_id()), 77)

    def command(self, topic, run):
        for content in encode_run(run):
            pair = encode_plain_pair(topic, None)[:-1] + content
            self.core.tell(next(iter(pack_runs(PackedType.COMMAND, 16, [pair])))[0])

    def update(self, endpoint, *topics):
        update = FilterUpdate(endpoint, True, 99, 0, 1, topics)
        self.core.tell(a_run(PackedType.ROUTING_UPDATE, "", content=tuple(update)))


@pytest.mark.parametrize("level", ["read", "write"])
def test_a_leaf_speaks_to_a_store_in_no_other_name(meet, level):
    shop, leaf, office = meet(Rights(publish=[""], subscribe=[""], stores={"prices": level}))
    master = shop.attach_master("prices")
    clone = shop.attach_clone("notes")
    members = office.attach_clone("prices")
    members.put("bread", 3)
    assert members.await_idle(10)
    its = members._actor.machine
    hostile, topic = Hostile(leaf, shop), master_topic("prices")
    who = master._actor.machine.entity
    rival = EntityId(hostile.own.endpoint, 0)
    put = (Command.PUT, "bread", 1, None)

    for sender in (its.entity, its.reader, who):  # in the names of others
        hostile.command(topic, CommandRun(sender, first=its._seq + 1, actions=[put]))
        hostile.command(topic, CommandRun(sender, who, first=its._seq + 1, actions=[put]))
        hostile.command(topic, CommandRun(sender, control=Nack(())))
        hostile.command(topic, CommandRun(sender, control=RetransmitFailed(0)))
        hostile.command(topic, CommandRun(sender, control=Heartbeat(7)))
    hostile.command(topic, CommandRun(rival, NIL, control=Heartbeat(7)))  # a rival master's
    chunk = SnapshotChunk(0, 1, 0, True, ("a", "forged"))
    for name in ("notes", "prices"):
        hostile.command(clone_topic(name), CommandRun(hostile.own, control=chunk))
        hostile.command(master_topic(name), CommandRun(hostile.own, control=chunk))
    unique = (Command.PUT_UNIQUE, "cake", 1, None, who.plain, 1)
    hostile.command(topic, CommandRun(hostile.own, who, first=1, actions=[unique]))
    hostile.core.tell(a_run(PackedType.DATA, f"{STORE_EVENTS}/prices", topic))
    hostile.update(who.endpoint.bytes, "", clone_topic("safe"))
    hostile.update(its.entity.endpoint.bytes, "")
    sentinel = shop.make_subscriber("/end")
    wants(leaf, "/end")
    leaf.publish("/end", 1)
    assert sentinel.get(10.0) == ("/end", 1)

    members.put("butter", 5)
    assert members.await_idle(10)
    assert not master.is_closed
    assert {key: master.get(key) for key in sorted(master.keys())} == {"bread": 3, "butter": 5}
    assert not clone._actor.machine.has_copy
    assert shop.hub.core.node_of(its.entity.endpoint.bytes) == office.node.node_id
    assert leaf.node_id() in {str(peer.peer.node_id()) for peer in shop.peers()}


def test_what_a_leaf_sent_before_it_left_counts_as_a_leafs(meet):
    shop, leaf, _ = meet(Rights(publish=["/sensors"]))
    here = shop.make_subscriber(["/"])
    hostile = Hostile(leaf, shop)
    blocked = shop.hub.core_lock

    with blocked:  # its runs wait in the mailbox until it has gone
        for number in range(50):
            hostile.core.tell(a_run(PackedType.DATA, f"/secret/{number}"))
        leaf.node.close()
    shop.hub.publishing.deliver_here("/end", 1)

    eventually(lambda: not shop.node.links() or len(shop.node.links()) == 1)
    assert here.get(10.0) == ("/end", 1)
    assert here.poll() == []


class Sink(Actor):
    @handler
    def text(self, message: str) -> str:
        return message


def test_a_leaf_joins_no_group_of_members(meet):
    shop, leaf, office = meet(Rights(names=["*"], publish=["/a"]))
    for endpoint in (shop, leaf, office):
        endpoint.node.group("sinks").join(endpoint.node.spawn(Sink))

    groups = [endpoint.node.group("sinks") for endpoint in (shop, office)]

    for group in groups:
        eventually(lambda group=group: len(group) == 2)
        assert leaf.node.node_id not in {ref.node_id for ref in group}


def test_a_leaf_takes_no_name_of_a_member(meet):
    shop, leaf, office = meet(Rights(publish=["/a"]))
    for endpoint in (leaf, office):
        for name in ("till", "callboard.secret"):
            endpoint.node.register(name, endpoint.node.spawn(Sink))
    leaf.node.register("guest", leaf.node.spawn(Sink))
    leaf.node.register("callboard.guest", leaf.node.spawn(Sink))

    for _ in range(20):
        assert shop.node.find("till").result(10).node_id == office.node.node_id
    assert shop.node.find("guest").result(10).node_id == leaf.node.node_id
    with pytest.raises(errors.NotRegistered):
        shop.node.find("callboard.guest").result(10)


def test_topics_and_groups_of_nodes_behind_the_member_are_closed_to_a_leaf(meet):
    rights = Rights(
        publish=[""], subscribe=[""], stores={"*": "write"}, names=["*"], reach=["*"]
    )
    shop, leaf, office = meet(rights)
    far, near = office.make_subscriber("/far"), shop.make_subscriber("/end")
    mine = leaf.make_subscriber("")
    office.attach_master("prices")
    office.node.group("sinks").join(office.node.spawn(Sink))
    leaf.node.group("sinks").join(leaf.node.spawn(Sink))
    guest = leaf.node.spawn(Sink)
    leaf.node.register("guest", guest)
    eventually(lambda: any(node.node_id == leaf.node.node_id for node in office.node.nodes()))
    assert office.node.find("guest", 10).result(10).ask("hi").result(10) == "hi"
    core = leaf.node.runtime.ref_of(office.node.node_id, CORE_ACTOR)

    with pytest.raises(errors.NotPermitted):
        core.ask(a_run(PackedType.DATA, "/far")).result(10)
    leaf.publish("/far", 1)
    office.publish("/far", 2)
    shop.publish("/far", 3)
    wants(leaf, "/end")
    leaf.publish("/end", 1)

    assert near.get(10.0) == ("/end", 1)
    assert mine.get(10.0) == ("/far", 3)
    assert far.get(10.0) == ("/far", 3)
    assert leaf.hub.core.peer_topics() == ["/end"]
    assert office.node.node_id not in leaf.hub.core.filters.remotes
    assert leaf.node.node_id not in office.hub.core.filters.remotes
    group = office.node.group("sinks")
    eventually(lambda: len(group) == 1)
    assert leaf.node.node_id not in {ref.node_id for ref in group}
    assert office.node.find("guest", 10).result(10).ask("again").result(10) == "again"
