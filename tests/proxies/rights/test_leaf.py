"""Rights of linked nodes: each one granted and refused, whichever side dials, on each door."""

import asyncio
import logging
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import pytest

from callboard import Actor, errors, handler, message
from callboard.basp.header import INSPECTOR, NODE_ACTOR, SPAWN_SERVER
from callboard.basp.payload import StandIn
from callboard.proxies.events import NodeUp, PermissionRefused
from callboard.proxies.inspection import Inspect
from callboard.proxies.messages import DrainNode, LinkActors, Spawn, StopActor
from callboard.proxies.rights import audit
from callboard.proxies.rights.rights import Rights
from tests.polling import eventually

SECRETS = {"sensor": "s1", "member": "s2"}


class Till(Actor):
    def __init__(self):
        self.seen = []

    @handler
    def text(self, message: str) -> str:
        self.seen.append(message)
        return message.upper()

    @handler
    def number(self, _: int) -> list[str]:
        return self.seen

    @handler
    def anything(self, message: list) -> object:
        """Answer with what came: with refs, if there were any."""
        return message[0]

    @handler
    async def tell_on(self, message: dict) -> None:
        message["to"].tell("in its own name")


class Guest(Actor):
    """An actor of the leaf that keeps what it gets."""

    def __init__(self):
        self.got = []

    @handler
    def all(self, message: object) -> list:
        self.got.append((message, self.sender))
        return [str(got) for got, _ in self.got]


@pytest.fixture(params=["tcp", "unix", "tls"])
def door(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["leaf dials", "member dials"])
def shop_dials(request):
    return request.param


@pytest.fixture
def meet(make_node, papers, tmp_path):
    """Return a member with permissions and a leaf that is linked with it."""

    def meet(rights, door="tcp", shop_dials=False, **options):
        permissions = {"sensor": rights, "member": Rights.member()}
        if door == "tls":
            permissions = {"sensor.example": rights, "*": Rights.member()}
            shop = make_node("shop", tls=papers.tls(), permissions=permissions, **options)
            names = ("127.0.0.1", "localhost", "sensor.example")
            leaf = make_node("probe", tls=papers.tls(*names))
        else:
            shop = make_node("shop", secrets=SECRETS, permissions=permissions, **options)
            leaf = make_node("probe", secret="s1")
        dialer, acceptor = (shop, leaf) if shop_dials else (leaf, shop)
        acceptor.listen(f"unix:{tmp_path}/socket" if door == "unix" else "127.0.0.1")
        dialer.connect(acceptor.address)
        eventually(lambda: leaf.node_id in shop._routes.wires)
        eventually(lambda: shop.node_id in leaf._routes.wires)
        for one, there in ((leaf, shop), (shop, leaf)):
            eventually(
                lambda one=one, there=there: one.runtime.remote.is_reachable(there.node_id)
            )
        return shop, leaf

    return meet


def found(leaf, shop, name):
    """Look a name up at one node."""
    return leaf.find(name, 5).result(5)


def refusals(shop):
    return shop.stats().not_permitted


def test_a_leaf_looks_up_and_asks_what_it_may_and_nothing_else(meet, door, shop_dials):
    shop, leaf = meet(Rights(names=["till"]), door, shop_dials)
    till, safe = shop.spawn(Till), shop.spawn(Till)
    shop.register("till", till)
    shop.register("safe", safe)

    assert found(leaf, shop, "till").ask("hi").result(5) == "HI"
    with pytest.raises(errors.NotPermitted, match="names.*safe"):
        found(leaf, shop, "safe")
    with pytest.raises(errors.NotPermitted, match="send"):
        leaf.ref(f"basp:///{safe.actor_id}@{shop.node_id.hex()}").ask("hi").result(5)
    assert safe.ask(1).result(5) == []
    assert refusals(shop) == 3  # the ref was announced, too


def test_the_right_to_send_goes_by_the_name_or_else_the_class(meet):
    shop, leaf = meet(Rights(send=["safe", "Guest"]))
    named, till, guest = shop.spawn(Till), shop.spawn(Till), shop.spawn(Guest)
    shop.register("safe", named)

    def ask(ref):
        return leaf.ref(f"basp:///{ref.actor_id}@{shop.node_id.hex()}").ask("hi").result(5)

    assert ask(named) == "HI"
    assert ask(guest) == ["hi"]
    with pytest.raises(errors.NotPermitted):
        ask(till)
    shop.register("other", guest)
    with pytest.raises(errors.NotPermitted):  # it has a name now, which is another one
        ask(guest)


def test_a_refused_tell_is_a_dead_letter_and_the_order_goes_on(meet):
    shop, leaf = meet(Rights(names=["till"]))
    till, safe = shop.spawn(Till), shop.spawn(Till)
    shop.register("till", till)
    good = found(leaf, shop, "till")
    bad = leaf.ref(f"basp:///{safe.actor_id}@{shop.node_id.hex()}")
    for n in range(50):
        good.tell(str(n))
        bad.tell("no")

    assert good.ask(1).result(5) == [str(n) for n in range(50)]
    leaf.report_now()
    shop.report_now()
    eventually(lambda: leaf.accounts()[shop.node_id].in_flight == 0)
    account = leaf.accounts()[shop.node_id]
    assert (account.dead_letters, account.lost) == (50, 0)
    assert safe.ask(1).result(5) == []


def test_a_leaf_may_answer_and_send_to_who_sent_to_it(meet, door, shop_dials):
    shop, leaf = meet(Rights(), door, shop_dials)
    guest = leaf.spawn(Guest)
    leaf.register("guest", guest)
    seen = shop.find("guest", 5).result(5)

    class Caller(Actor):
        def __init__(self):
            self.got = []

        @handler
        async def text(self, _: str) -> None:
            self.got.append(await seen.ask("question"))
            seen.tell("tell")

        @handler
        def number(self, _: int) -> list:
            return self.got

        @handler
        def back(self, message: bytes) -> None:
            self.got.append(message)

    caller = shop.spawn(Caller)
    caller.ask("go").result(5)
    assert caller.ask(1).result(5) == [["question"]]
    sender = eventually(lambda: leaf.runtime.contexts[guest.actor_id].actor.got[1:])[0][1]
    sender.tell(b"back")
    eventually(lambda: caller.ask(1).result(5)[1:] == [b"back"])
    assert refusals(shop) == 0


def test_refs_in_messages_to_the_leaf_are_given_and_no_others_travel_back(meet):
    shop, leaf = meet(Rights(names=["till"]))
    till, safe, other = shop.spawn(Till), shop.spawn(Till), shop.spawn(Till)
    shop.register("till", till)
    good = found(leaf, shop, "till")
    stolen = leaf.ref(f"basp:///{safe.actor_id}@{shop.node_id.hex()}")

    with pytest.raises(errors.NotPermitted):
        good.ask([stolen]).result(5)  # it would come back, and be given
    with pytest.raises(errors.NotPermitted):
        good.ask({"to": stolen}).result(5)  # the till would send in its own name
    as_bytes = leaf._broker.outgoing.codec.encode([stolen])
    assert good.ask([as_bytes]).result(5) == as_bytes  # nothing is given by bytes alone
    with pytest.raises(errors.NotPermitted):
        stolen.ask("hi").result(5)
    assert safe.ask(1).result(5) == []

    guest = leaf.spawn(Guest)
    leaf.register("guest", guest)
    shop.find("guest", 5).result(5).ask([other]).result(5)
    given = eventually(lambda: leaf.runtime.contexts[guest.actor_id].actor.got)[0][0][0]
    assert given.ask("hi").result(5) == "HI"
    assert good.ask([given]).result(5) == given
    assert good.ask([guest]).result(5) == guest


def test_what_was_given_is_gone_with_the_link(meet):
    shop, leaf = meet(Rights(names=["till"]))
    till = shop.spawn(Till)
    shop.register("till", till)
    good = found(leaf, shop, "till")
    assert good.ask("a").result(5) == "A"
    leaf.disconnect(shop.node_id, 0.0)
    eventually(lambda: not leaf.links())
    eventually(lambda: leaf.node_id in shop._routes.wires and leaf.links())

    with pytest.raises(errors.NotPermitted):
        good.ask("b").result(5)
    assert found(leaf, shop, "till").ask("c").result(5) == "C"
    assert good.ask("d").result(5) == "D"


def test_spawning_goes_by_the_offered_name(meet, shop_dials):
    offered = {"till": Till, "guest": Guest}
    shop, leaf = meet(Rights(spawn=["till"]), shop_dials=shop_dials, spawnable=offered)

    spawned = leaf.remote_spawn(shop.node_id, "till")
    assert spawned.ask("hi").result(5) == "HI"
    assert leaf.spawn(Till, on=shop.node_id).ask("hi").result(5) == "HI"
    with pytest.raises(errors.NotPermitted, match="spawn.*guest"):
        leaf.remote_spawn(shop.node_id, "guest")
    with pytest.raises(errors.NotPermitted, match="spawn"):
        leaf.spawn(Guest, on=shop.node_id)
    with pytest.raises(errors.NotPermitted):
        asyncio.run(leaf.aremote_spawn(shop.node_id, "guest"))
    with pytest.raises(errors.NotPermitted, match="spawn"):
        leaf.remote_spawn(shop.node_id, "nothing")
    assert shop.stats().refused_spawns == 0


def test_monitors_fire_where_they_are_permitted_and_at_once_where_not(meet, shop_dials):
    rights = Rights(names=["*"], monitor=["till"])
    shop, leaf = meet(rights, shop_dials=shop_dials)
    till, safe = shop.spawn(Till), shop.spawn(Till)
    shop.register("till", till)
    shop.register("safe", safe)
    watched = leaf.monitor(found(leaf, shop, "till"))
    hidden = found(leaf, shop, "safe")

    refused = leaf.monitor(hidden).result(5)
    assert (refused.reason, "monitor" in refused.detail) == ("unreachable", True)
    assert leaf.monitor(hidden).result(5).reason == "unreachable"
    assert hidden.ask("hi").result(5) == "HI"
    assert refusals(shop) == 0  # it was given the ref, and asked for no more
    till.kill()
    assert watched.result(5).reason == "killed"
    safe.kill()
    with pytest.raises(errors.ActorDown):
        hidden.ask("hi").result(5)


def test_nobody_learns_by_announces_who_lives(meet):
    shop, leaf = meet(Rights())
    safe = shop.spawn(Till)
    stolen = leaf.ref(f"basp:///{safe.actor_id}@{shop.node_id.hex()}")
    absent = leaf.ref(f"basp:///{safe.actor_id + 1000}@{shop.node_id.hex()}")

    said = [leaf.monitor(ref).result(5) for ref in (stolen, absent)]

    assert {down.reason for down in said} == {"unreachable"}
    assert refusals(shop) == 2
    assert not shop._broker.lifetimes.holders._holders


def test_only_who_may_stop_stops(meet, shop_dials):
    shop, leaf = meet(Rights(names=["*"], stop=["till"]), shop_dials=shop_dials)
    till, other, safe = shop.spawn(Till), shop.spawn(Till), shop.spawn(Till)
    shop.register("till", till)
    shop.register("safe", safe)
    ended = shop.monitor(till)

    found(leaf, shop, "safe").kill()
    found(leaf, shop, "safe").stop()
    leaf.runtime.ref_of(shop.node_id, NODE_ACTOR).tell(StopActor(other.actor_id))
    with pytest.raises(errors.NotPermitted, match="stop"):
        leaf.runtime.ref_of(shop.node_id, NODE_ACTOR).ask(StopActor(SPAWN_SERVER)).result(5)
    found(leaf, shop, "till").kill()

    assert ended.result(5).reason == "killed"
    assert [ref.ask("hi").result(5) for ref in (safe, other)] == ["HI", "HI"]
    assert refusals(shop) == 4


def test_only_who_may_link_links_and_only_its_own_actors(meet):
    shop, leaf = meet(Rights(names=["*"], link=["till"]))
    till, safe = shop.spawn(Till), shop.spawn(Till)
    shop.register("till", till)
    shop.register("safe", safe)
    refs = [found(leaf, shop, name) for name in ("till", "safe")]
    ended = shop.monitor(till)

    class Partner(Actor):
        @handler
        def begin(self, message: list) -> None:
            self.link(message[0])

    partners = [leaf.spawn(Partner) for _ in refs]
    ends = [leaf.monitor(partner) for partner in partners]
    node_ref = leaf.runtime.ref_of(shop.node_id, NODE_ACTOR)
    with pytest.raises(errors.NotPermitted, match="link"):
        node_ref.ask(LinkActors(till.actor_id, refs[1])).result(5)
    for partner, ref in zip(partners, refs, strict=True):
        partner.ask([ref]).result(5)
    assert ends[1].result(5).reason == "unreachable"  # it may not know of the other's end
    partners[0].kill()

    assert ended.result(5).reason in {"killed", "not_found"}  # it may have been first
    assert safe.ask("hi").result(5) == "HI"


def test_figures_and_drains_are_for_who_may(meet, shop_dials):
    shop, leaf = meet(Rights(inspect=True), shop_dials=shop_dials)
    inspector = leaf.runtime.ref_of(shop.node_id, INSPECTOR)
    assert inspector.ask(Inspect()).result(5).name == "shop"
    with pytest.raises(errors.NotPermitted, match="drain"):
        inspector.ask(DrainNode(0.1)).result(5)
    with pytest.raises(errors.NotPermitted):
        inspector.ask("unknown").result(5)


def test_who_may_drain_need_not_see_figures(meet):
    shop, leaf = meet(Rights(drain=True))
    inspector = leaf.runtime.ref_of(shop.node_id, INSPECTOR)
    with pytest.raises(errors.NotPermitted, match="inspect"):
        inspector.ask(Inspect(system=True)).result(5)
    assert inspector.ask(DrainNode(0.1)).result(10).is_clean


def test_names_are_watched_by_who_may_look_them_up(meet):
    shop, leaf = meet(Rights(names=["till", "pool"]))
    told = {"till": [], "safe": []}

    async def watch(name):
        async for change in leaf.watch(name):
            told[name].append(change)

    async def main():
        tasks = [asyncio.create_task(watch(name)) for name in told]
        await asyncio.sleep(0)
        refs = [shop.spawn(Till), shop.spawn(Till)]
        for name, ref in zip(told, refs, strict=True):
            shop.register(name, ref)
        await asyncio.to_thread(eventually, lambda: told["till"] and refusals(shop))
        for task in tasks:
            task.cancel()

    asyncio.run(asyncio.wait_for(main(), 20))
    assert not told["safe"]


def test_a_leaf_sees_nobody_else_and_nobody_sees_it(meet, make_node):
    shop, leaf = meet(Rights())
    events = []
    office = make_node("office", secret="s2")
    with office.subscribed(events.append):
        office.connect(shop.address if shop.links() and shop._routes.endpoint else "")
        shop.disconnect(leaf.node_id, 0.0)
        eventually(lambda: leaf.links() and len(shop.links()) == 2)
        eventually(lambda: sorted(node.name for node in shop.nodes()) == ["office", "probe"])
        eventually(lambda: leaf.nodes() and office.nodes())
        eventually(lambda: any(isinstance(event, NodeUp) for event in events))
        assert [node.name for node in leaf.nodes()] == ["shop"]
        assert [node.name for node in office.nodes()] == ["shop"]
    assert {event.name for event in events if isinstance(event, NodeUp)} == {"shop"}


def test_a_monitor_of_a_leafs_actor_fires_when_its_link_is_lost(meet):
    shop, leaf = meet(Rights())
    guest = leaf.spawn(Guest)
    leaf.register("guest", guest)
    down = shop.monitor(shop.find("guest", 5).result(5))
    gone = shop.monitor_node(leaf.node_id)
    shop.disconnect(leaf.node_id, 60.0)

    assert down.result(10).reason == "unreachable"
    assert gone.result(10).name == "probe"
    assert shop.overlay.rights(leaf.node_id) == Rights()  # its messages may wait in mailboxes


def test_refusals_are_told_once_a_second_and_written_for_auditors(meet, caplog):
    shop, leaf = meet(Rights(names=["till"]))
    events, began = [], time.monotonic()
    with shop.subscribed(events.append), caplog.at_level(logging.WARNING, "callboard.audit"):
        for name in ("a\x1b[2J", *("b" * 500 for _ in range(300))):
            with pytest.raises((errors.NotPermitted, errors.InvalidAddress)):
                leaf.runtime.ref_of(shop.node_id, 3).ask(lookup_of(name)).result(5)
        eventually(lambda: sum(told.count for told in refused(events)) == 301)

    lines = [r.getMessage() for r in caplog.records if r.name == "callboard.audit"]
    assert lines[0] == (
        f"refused: sensor of node {leaf.node_id.hex()} has no right names for a\\x1b[2J"
    )
    assert len(lines) < 300
    assert all(len(line) < 400 for line in lines)
    assert len(refused(events)) <= 2 + (time.monotonic() - began) / audit.INTERVAL
    first = refused(events)[0]
    assert (first.identity, first.node_id, first.right) == ("sensor", leaf.node_id, "names")
    assert refusals(shop) == 301


def refused(events):
    return [event for event in events if isinstance(event, PermissionRefused)]


def lookup_of(name):
    from callboard.proxies.messages import Lookup

    return Lookup(name)


@pytest.fixture
def behind(meet, make_node):
    """A leaf that may reach the office behind its member, and the bank that it may not."""

    def behind(**rights):
        shop, leaf = meet(Rights(reach=["off*"], **rights), shop_dials=True)
        office, bank = make_node("office", secret="s2"), make_node("bank", secret="s2")
        shop.listen()
        for node in (office, bank):
            node.register("till", node.spawn(Till))
            node.register("safe", node.spawn(Till))
            node.connect(shop.address)
        eventually(lambda: len(leaf.nodes()) == 2)
        return shop, leaf, office, bank

    return behind


def at(leaf, node, ref):
    return leaf.ref(f"basp:///{ref.actor_id}@{node.node_id.hex()}")


def test_a_leaf_talks_with_the_nodes_that_it_may_reach_under_the_same_rights(behind):
    shop, leaf, office, bank = behind(names=["till"], monitor=["till"], stop=["till"])
    assert sorted(node.name for node in leaf.nodes()) == ["office", "shop"]

    till = leaf.find("till", 5).result(5)
    assert till.node_id == office.node_id
    assert till.ask("hi").result(5) == "HI"
    with pytest.raises(errors.NotPermitted):
        leaf.find("safe", 5).result(5)
    safe = at(leaf, office, office.find("safe", 5).result(5))
    with pytest.raises(errors.NotPermitted):
        safe.ask("hi").result(5)
    safe.kill()
    down = leaf.monitor(till)
    till.kill()
    assert down.result(5).reason == "killed"
    assert office.find("safe", 5).result(5).ask("hi").result(5) == "HI"
    with pytest.raises(errors.NodeUnreachable):
        at(leaf, bank, bank.find("till", 5).result(5)).ask("hi").result(5)

    guest = at(bank, leaf, leaf.spawn(Guest))
    for _ in range(3):
        with pytest.raises((errors.NotPermitted, errors.ActorDown)):
            guest.ask("hi").result(5)
    assert bank.monitor(guest).result(5).reason in {"unreachable", "not_found"}
    with pytest.raises(errors.NotRegistered):
        bank.find("nobody", 60).result(20)
    eventually(lambda: not bank.accounts()[leaf.node_id].in_flight)


def test_a_node_in_reach_asks_the_leaf_and_is_answered(behind):
    _, leaf, office, _ = behind()
    guest = leaf.spawn(Guest)
    leaf.register("guest", guest)

    assert office.find("guest", 5).result(5).ask("hi").result(5) == ["hi"]
    office.find("guest", 5).result(5).ask([office.find("till", 5).result(5)]).result(5)
    given = leaf.runtime.contexts[guest.actor_id].actor.got[1][0][0]
    assert given.ask("hi").result(5) == "HI"


def test_what_is_refused_for_a_node_in_reach_keeps_its_place(behind):
    _, leaf, office, _ = behind(names=["till"])
    till = leaf.find("till", 5).result(5)
    safe = at(leaf, office, office.find("safe", 5).result(5))
    for n in range(20):
        till.tell(str(n))
        safe.tell("no")
    assert till.ask(1).result(5) == [str(n) for n in range(20)]
    office.report_now()
    eventually(lambda: leaf.accounts()[office.node_id].in_flight == 0)
    assert leaf.accounts()[office.node_id].lost == 0


def test_a_leaf_of_two_members_leads_nobody_from_one_to_the_other(make_node):
    permissions = {"sensor": Rights(names=["*"]), "member": Rights.member()}
    shops = [
        make_node(name, secrets=SECRETS, permissions=permissions) for name in ("one", "two")
    ]
    leaf = make_node("probe", secret="s1")
    for shop in shops:
        shop.listen()
        shop.register(shop.name, shop.spawn(Till))
        leaf.connect(shop.address)
    eventually(lambda: all(shop.nodes() for shop in shops))

    for shop in shops:
        assert leaf.find(shop.name, 5).result(5).ask("hi").result(5) == "HI"
    # What a neighbor told of paths came before these answers.
    assert [[node.name for node in shop.nodes()] for shop in shops] == [["probe"]] * 2
    gone = leaf.monitor_node(shops[0].node_id)
    shops[0].disconnect(leaf.node_id, 60.0)
    assert gone.result(4).name == "one"  # the other member says at once that it knows no path
    assert leaf.find("two", 5).result(5).ask("hi").result(5) == "HI"


def test_a_leaf_takes_no_names_and_no_work_of_others(meet, make_node):
    shop, leaf = meet(Rights(names=["pool"]), shop_dials=True)
    office = make_node("office", secret="s2")
    shop.listen()
    office.connect(shop.address)
    eventually(lambda: len(shop.nodes()) == 2)
    till, guest = office.spawn(Till), leaf.spawn(Guest)
    office.register("till", till)
    for name in ("till", "guest"):
        leaf.register(name, guest)
    for name in ("pool", "tills"):
        leaf.group(name).join(guest)
        office.group(name).join(till)

    assert shop.find("till", 5).result(5) == shop.ref(str(till))
    assert shop.find("guest", 5).result(5).node_id == leaf.node_id  # nobody else has it
    pool, tills = shop.group("pool"), shop.group("tills")
    for group in (pool, tills):
        assert [ref.node_id for ref in group.ready().result(20)] == [office.node_id]


@message("tests.leaf.Checked")
@dataclass(frozen=True)
class Checked:
    """Its code runs where it is decoded, and shall not where a gate looks at it."""

    made: ClassVar[list[str]] = []
    text: str = ""

    def __post_init__(self):
        Checked.made.append(threading.current_thread().name)

    def __hash__(self):
        Checked.made.append("hashed")
        return 1


def test_a_gate_reads_what_a_leaf_asks_of_a_node_without_code_of_users(make_node):
    shop = make_node("shop")
    codec, gates = shop._broker.outgoing.codec, shop._broker.authorizer
    order = Spawn("Till", (Checked("a"), [Checked("b")]), {"key": Checked("c")})
    sent = [codec.encode(each) for each in (order, Checked("d"), [Checked("e")], {"f": 1})]
    Checked.made.clear()

    read, alone, inside, plain = map(gates.read, sent)

    assert Checked.made == []
    assert (read.name, plain) == ("Till", {"f": 1})
    assert [type(alone), type(inside[0])] == [StandIn, StandIn]
    assert alone.name == "tests.leaf.Checked"
