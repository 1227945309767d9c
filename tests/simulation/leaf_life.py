"""A life with a hostile leaf, by seed: a peer with limited rights that does all that it can.

A pair of members talk as in :mod:`tests.simulation.traitor_life`, and so does `twin`, an honest
leaf with the same rights. The other leaf, `probe`, is linked with one of the pair, with both,
with the member between them, or may reach the one beyond it. Its actions are in For all other
nodes, everything is exact; the leaf gets everything that it has
"""

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from callboard import Node, Rights, handler
from callboard.actors.reference import ActorRef
from callboard.basp.header import NODE_ACTOR, SPAWN_SERVER
from callboard.errors import NotPermitted
from callboard.proxies.events import LinkDown, NodeUp
from callboard.proxies.messages import LinkActors, Spawn, StopActor
from callboard.simulation import Cluster, cluster_test
from callboard.topics.hub import Hub, HubOptions
from tests.simulation.book import Numbered, Passed, Probe
from tests.simulation.leaf_forger import FORBIDDEN, LeafForger
from tests.simulation.logged import logged_errors
from tests.simulation.rules import Violation
from tests.simulation.topic_book import Taker

#: Links of the members 0 and 1, the pair, and 2; the members that the leaf is linked with, and
#: whether it may reach the second.
WAYS: dict[str, tuple[list[tuple[int, int]], list[int], bool]] = {
    "at one": ([(1, 0)], [0], False),
    "at the middle": ([(0, 2), (1, 2)], [2], False),
    "at both": ([(1, 0)], [0, 1], False),
    "at both ends of a line": ([(0, 2), (1, 2)], [0, 1], False),
    "reaches the other": ([(1, 0)], [0], True),
    "reaches the other from the middle": ([(0, 2), (1, 2)], [2], True),
    "reaches the end of a line": ([(0, 2), (1, 2)], [0], True),
}
SECRETS = {"member": "s2", "probe": "s1", "twin": "s3"}
TWIN, LEAF = 8, 9
"""Sources in what the leaves tell where they may; those of the pair are 0 and 1."""

QUIET = 5.0
"""Virtual seconds after which what a leaf said wrong of itself harms itself no more."""

FORGOTTEN = 15.0
"""Virtual seconds after which nobody waits for anything of a leaf that is gone."""


class Till(Probe):
    """An actor that leaves may look up and send to; it also forwards, as its own messages."""

    @handler
    def send_on(self, said: Passed) -> object:
        """Send to all refs in a message, and answer with the message."""
        for ref in _refs_in(said.to):
            ref.tell(Numbered(FORBIDDEN, 6))
        return said.to


class Pawn(Probe):
    """An actor that leaves may stop and spawn, in some lives."""


class Other(Probe):
    """A class that is offered, and not for leaves."""


def _refs_in(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return [ref for each in value for ref in _refs_in(each)]
    return [value] if isinstance(value, ActorRef) else []


@dataclass
class Talk:
    """A sender of tells and asks to an actor: its messages, and the actor's record of them."""

    source: int
    node: Node
    ref: Any
    actor: Any
    told: int = 0
    asks: list[tuple[int, Any]] = field(default_factory=list)

    def go_on(self, chance: random.Random) -> None:
        """Tell some messages, and ask sometimes."""
        for _ in range(chance.choice((0, 1, 5))):
            self.told += 1
            self.ref.tell(Numbered(self.source, self.told))
        if chance.random() < 0.3:
            self.ask()

    def ask(self) -> Any:
        """Ask; returns what will be the answer."""
        self.told += 1
        ask = self.ref.ask(Numbered(self.source, self.told), timeout=30.0)
        self.asks.append((self.told, ask))
        return ask

    @property
    def arrived(self) -> list[int]:
        """The messages that the actor received from this sender."""
        return [number for source, number in self.actor.arrived if source == self.source]


class Topics:
    """Endpoints of all nodes; leaves publish on permitted topics, and on others.

    Sources are those of messages: the leaves', and 0 for the member that they are linked with.
    """

    def __init__(self, life: "LeafLife") -> None:
        self.life = life
        near, chance = life.members[life.near], life.random
        self.leaves = {TWIN: life.twin, LEAF: life.leaf}
        self.sources = {0: near, **self.leaves}
        self.hubs: dict[Node, Hub] = {}
        self.got: dict[Node, Taker] = {}
        self.published = dict.fromkeys(self.sources, 0)
        for node in (*life.members, life.twin, life.leaf):
            hub = self.hubs[node] = Hub.of(node, HubOptions(endpoint_id=chance.randbytes(16)))
            topics = {""} if node in self.leaves.values() else {"/probe", "/a"}
            taker = self.got[node] = Taker(None, topics, 0.0)  # type: ignore[arg-type]
            hub.add_receiver(taker, sorted(topics), sees_own=False).result(5)

    def go_on(self) -> None:
        """Publish to topics that are permitted, and to others, whoever wants them."""
        near = self.life.members[self.life.near]
        for source, node in self.sources.items():
            if source == LEAF and not self.life.is_tidy:
                continue
            self.published[source] += 1
            topic = "/a/b" if source == 0 else "/probe/it"
            self.hubs[node].publish(topic, [source, self.published[source]])
            if source:
                forbidden = self.life.random.choice(("/a", "/prob", "", "/a/<$>/x"))
                self.hubs[node].publishing.send_to(
                    near.node_id, [(forbidden, [FORBIDDEN, source])]
                )

    def check(self) -> None:
        """Check the receivers: at the member all messages, beyond it none of leaves."""
        life, near = self.life, self.life.members[self.life.near]
        for node, taker in self.got.items():
            values = [value for _, value in taker.got]
            for source, count in self.published.items():
                got = [value[1] for value in values if value[0] == source]
                is_leaf = node in self.leaves.values()
                may = is_leaf and source == 0 and bool(life.rights.subscribe)
                may = may or (not is_leaf and (source == 0 or node is near))
                must = may and node is not self.sources[source]
                must = must and (life.is_tidy or LEAF not in {source, *self._who(node)})
                if must and got != list(range(1, count + 1)):
                    raise Violation(f"{node} got {got} of {count} values of {source}")
                if not may and got and len(life.at) == 1:
                    raise Violation(f"{node} got {got} of {source}")
            if any(value[0] == FORBIDDEN for value in values):
                raise Violation(f"{node} got what nobody may publish")

    def _who(self, node: Node) -> list[int]:
        return [source for source, leaf in self.leaves.items() if leaf is node]


@dataclass
class Used:
    """A request of a leaf, the actor for it, and whether it is permitted."""

    what: str
    may: bool
    future: Any
    host: Node
    pawn: Any
    actor: Any

    def check(self) -> None:
        """Check how it ended, and what became of the actor."""
        future, error = self.future, None
        if self.what != "watch":
            error = future.exception() if future.done() else "nothing"
            is_right = error is None if self.may else isinstance(error, NotPermitted)
        else:
            is_right = future.done() != self.may
        has_got, has_ended = (
            bool(self.actor.arrived),
            self.pawn.target.number not in self.host.runtime.contexts,
        )
        if not is_right or has_got != (self.may and self.what == "send"):
            raise Violation(f"{self.what}, permitted: {self.may}, ended with {future}")
        if has_ended != (self.may and self.what == "stop"):
            raise Violation(f"{self.what}, permitted: {self.may}: the actor ended: {has_ended}")

    def check_end(self) -> None:
        """Check that watchers were notified of the actor's end, if permitted."""
        reason = "killed" if self.may else "unreachable"
        if self.what == "watch" and self.future.result(0).reason != reason:
            raise Violation(f"a monitor, permitted: {self.may}, says {self.future}")


class LeafLife:
    """Lives in a cluster; `run` raises `Violation` for what must not be."""

    def __init__(self, cluster: Cluster) -> None:
        self.random = cluster.random
        self.cluster = cluster
        self.is_tidy = self.random.random() < 0.5
        self.errors: list[str] = []
        self.events: list[tuple[Node, object]] = []

    def run(self) -> None:
        """Live the life of this seed."""
        with logged_errors(self.errors):
            self._begin()
            begun = self.random
            for _, chance in self.cluster.steps(self.random.randint(5, 30), within=0.0):
                self.random = self.forger.chance = chance
                self._note(self.forger.act(is_off=True))
                for talk in self.talks:
                    talk.go_on(chance)
                self._use_rights()
                if self.topics is not None:
                    self.topics.go_on()
                self.cluster.advance(chance.choice((0.0, 0.001, 0.1, 0.6, 2.5)))
            self.random = self.forger.chance = begun
            self._check()

    def _note(self, *what: object) -> None:
        self.cluster.trace.note(self.cluster.now, "life", *what)

    # --- begin ---

    def _begin(self) -> None:
        way = self.random.choice(sorted(WAYS))
        self.links, self.at, self.reaches = WAYS[way]
        self.rights = self._draw_rights()
        self._note(way, self.is_tidy, self.rights)
        permissions = {
            "member": Rights.member(),
            "probe": self.rights,
            "twin": self.rights,
        }
        options: dict[str, Any] = {"secrets": SECRETS, "permissions": permissions}
        options["spawnable"] = {"pawn": Pawn, "other": Other}
        count = 1 + max(max(link) for link in self.links)
        self.members = [self.cluster.node(name, **options) for name in "abc"[:count]]
        for dialer, listener in self.links:
            self.members[dialer].connect(self.members[listener].address)
        self.leaf = self.cluster.node("probe", secret=SECRETS["probe"])
        self.twin = self.cluster.node("twin", secret=SECRETS["twin"])
        for leaf in (self.leaf, self.twin):
            for index in self.at:
                pair = [leaf, self.members[index]]
                self.random.shuffle(pair)
                pair[0].connect(pair[1].address)
        self.cluster.advance(8.0)
        for node in (*self.members, self.twin):
            node.subscribed(
                lambda event, node=node: self.events.append((node, event))
            ).__enter__()
        self._spawn()
        self.topics = Topics(self) if self.rights.publish else None
        self._meet()

    def _draw_rights(self) -> Rights:
        def maybe(*names: str) -> tuple[str, ...]:
            return names if self.random.random() < 0.5 else ()

        return Rights(
            names=["till"],
            send=maybe("Pawn"),
            monitor=maybe("till", "Pawn"),
            spawn=maybe("pawn"),
            stop=maybe("Pawn"),
            link=maybe("Pawn"),
            publish=maybe("/probe"),
            subscribe=maybe("/a"),
            reach=["b"] if self.reaches else [],
        )

    def _spawn(self) -> None:
        self.probes, self.tills, self.safes = (
            [node.spawn(kind) for node in self.members] for kind in (Probe, Till, Probe)
        )
        for index, node in enumerate(self.members):
            node.register("probe", self.probes[index])
            node.register("safe", self.safes[index])
        #: The node of the leaf's till: the one that it reaches, or its own member.
        self.near = self.at[0]
        self.far = 1 if self.reaches else self.near
        self.members[self.far].register("till", self.tills[self.far])

    def _meet(self) -> None:
        a, b = self.members[:2]
        refs = [a.ref(str(self.probes[1])), b.ref(str(self.probes[0]))]
        self.talks = [
            Talk(index, node, ref, self.probes[1 - index].target.actor)
            for index, (node, ref) in enumerate(zip((a, b), refs, strict=True))
        ]
        till = self.tills[self.far].target.actor
        for source, leaf in ((TWIN, self.twin), (LEAF, self.leaf)):
            ref = leaf.find("till", 10.0).result(10.0)
            self.talks.append(Talk(source, leaf, ref, till))
        self.downs = [a.monitor(refs[0]), b.monitor(refs[1]), a.monitor_node(b.node_id)]
        self.leaf_downs = [talk.node.monitor(talk.ref) for talk in self.talks[2:]]
        self.cluster.advance(1.0)
        forger = self.forger = LeafForger(
            self.cluster,
            self.random,
            self.leaf,
            [*self.members, self.leaf],
            is_tidy=self.is_tidy,
        )
        forger.known = {
            node: probe.actor_id for node, probe in zip(self.members, self.probes, strict=True)
        } | {self.twin: self.twin.spawn(Probe).actor_id}
        forger.forbidden = [self._seen(ref) for ref in (*self.probes, *self.safes)]
        forger.open = [self.talks[3].ref]
        forger.own = self.leaf.spawn(Probe)
        forger.listen()
        self.used: list[Used] = []

    def _seen(self, ref: Any) -> Any:
        """Return an actor as the leaf names it, which was never given it."""
        return self.leaf.ref(f"basp:///{ref.actor_id}@{ref.node_id.hex()}")

    def _use_rights(self) -> None:
        """Make a leaf do something that it has a right to, or request it without the right."""
        leaf, source = self.random.choice(((self.leaf, LEAF), (self.twin, TWIN)))
        if self.random.random() < 0.5 or (leaf is self.leaf and not self.is_tidy):
            return
        rights, host = self.rights, self.members[self.near]
        what = self.random.choice(("find", "send", "spawn", "stop", "watch", "link"))
        may = bool(getattr(rights, what, what == "find"))
        if what == "watch":
            may = bool(rights.monitor or rights.link)
        if what in {"find", "spawn"} and self.random.random() < 0.5:
            may = False
        pawn = host.spawn(Pawn)
        ref = leaf.ref(f"basp:///{pawn.actor_id}@{host.node_id.hex()}")
        part = partial(leaf._broker.runtime.ref_of, host.node_id)
        number, own = pawn.actor_id, leaf.spawn(Probe)
        future = {
            "find": lambda: leaf.find("till" if may else "safe", 10.0),
            "send": lambda: ref.ask(Numbered(source, 1), timeout=10.0),
            "spawn": lambda: part(SPAWN_SERVER).ask(Spawn("pawn" if may else "other")),
            "stop": lambda: part(NODE_ACTOR).ask(StopActor(number), timeout=10.0),
            "watch": lambda: leaf.monitor(ref),
            "link": lambda: part(NODE_ACTOR).ask(LinkActors(number, own), timeout=10.0),
        }[what]()
        self.used.append(Used(what, may, future, host, pawn, pawn.target.actor))

    # --- what must be ---

    def _check(self) -> None:
        self.cluster.advance(QUIET)
        last = [talk.ask() for talk in self.talks[: 4 if self.is_tidy else 3]]
        self.cluster.advance(1.0)
        for talk, ask in zip(self.talks, last, strict=False):
            if not ask.done() or ask.exception() is not None:
                raise Violation(f"the last ask of {talk.node.name} ended with {ask}")
        self.cluster.advance(10.0)
        for talk in self.talks[: 4 if self.is_tidy else 3]:
            self._check_exact(talk)
        self._check_rights()
        if self.topics is not None:
            self.topics.check()
        self._check_again()
        self._check_ends()
        for node in (*self.members, self.twin):
            self._check_node(node)
        if self.errors:
            raise Violation(f"an error was logged: {self.errors[0]}")

    def _check_exact(self, talk: Talk) -> None:
        name = talk.node.name
        if talk.arrived != list(range(1, talk.told + 1)):
            raise Violation(f"of {talk.told} messages of {name} arrived {talk.arrived}")
        account = talk.node.accounts()[talk.ref.node_id]
        if account.in_flight or account.lost:
            raise Violation(f"account of {name}: {account}")
        for number, ask in talk.asks:
            if not ask.done() or ask.exception() is not None or ask.result(0) != number:
                raise Violation(f"ask {number} of {name} ended with {ask}")

    def _check_rights(self) -> None:
        """Check that the leaves got everything permitted, and that nothing else happened."""
        for used in self.used:
            used.check()
        for what, ask in self.forger.asked:
            if ask.done() and ask.exception() is None:
                raise Violation(f"{what} was answered with {ask.result(0)!r}")
        for refs, *allowed in ((self.probes, 0, 1), (self.safes,), (self.tills, TWIN, LEAF)):
            for ref in refs:
                sources = {source for source, _ in ref.target.actor.arrived}
                if sources - {*allowed}:
                    raise Violation(f"{ref} was told by {sources}")
        for node in self.members:
            kinds = [
                type(getattr(cell, "actor", None)) for cell in node.runtime.contexts.values()
            ]
            if Other in kinds or kinds.count(Probe) != 2:
                raise Violation(f"{node} runs {kinds}")
        if any(down.done() for down in self.downs):
            raise Violation(f"a monitor fired of what lives: {self.downs}")
        self._check_links()

    def _check_links(self) -> None:
        others = {node.node_id for node in (*self.members, self.twin)}
        known = {node.name for node in (*self.members, self.leaf, self.twin)}
        for node, event in self.events:
            if isinstance(event, LinkDown) and event.node_id in others:
                raise Violation(f"{node} lost a link: {event}")
            if isinstance(event, NodeUp) and event.name not in known:
                raise Violation(f"{node} hears of {event}")

    def _check_again(self) -> None:
        """Check that a leaf that has lied about itself can use its rights again.

        Its links are replaced: it may be in the middle of a large message.
        """
        for index in self.at if not self.is_tidy else ():
            self.cluster.cut(self.leaf, self.members[index])
        self.cluster.advance(QUIET)
        found = self.leaf.find("till", 10.0)
        self.cluster.advance(1.0)
        if not found.done() or found.exception() is not None:
            raise Violation(f"the leaf finds {found} after {QUIET} quiet seconds")
        answered = found.result(0).ask(Numbered(LEAF, 1 << 30))
        self.cluster.advance(1.0)
        if not answered.done() or answered.exception() is not None:
            raise Violation(f"the leaf is answered {answered}")

    def _check_ends(self) -> None:
        """End a watched actor: its watchers are notified once, if permitted."""
        self.probes[1].kill()
        self.tills[self.far].kill()
        for used in self.used:
            used.pawn.kill()
        self.cluster.advance(1.0)
        for used in self.used:
            used.check_end()
        down = self.downs[0]
        if not down.done() or down.result(0).reason != "killed":
            raise Violation(f"a probe was killed, its monitor says {down}")
        reason = "killed" if self.rights.monitor else "unreachable"
        for index, down in enumerate(self.leaf_downs[: 2 if self.is_tidy else 1]):
            if not down.done() or down.result(0).reason != reason:
                raise Violation(f"monitor of leaf {index} says {down}, and not {reason}")
        self.cluster.kill(self.leaf)
        self.cluster.advance(FORGOTTEN)

    def _check_node(self, node: Node) -> None:
        broker = node._broker
        waiting = {
            "held": sum(
                len(order._held) + len(order._ends)
                for source, order in broker.incoming._orders.items()
                if source != self.leaf.node_id
            ),
            "doubted": len(broker.unverified._held) + len(broker.unverified._sizes),
            "asks": broker.outgoing.asks.count,
            "searches": len(broker.paths.sought) + len(broker.routes.router.active),
        }
        known = {about.name for about in node.nodes()} - {node.name}
        others = {member.name for member in self.members} - {node.name}
        if node is self.twin:
            others = {self.members[index].name for index in self.at} | set(self.rights.reach)
        elif self.members.index(node) in self.at or self.reaches:
            others.add("twin")
        if any(waiting.values()) or known != others:
            raise Violation(f"{node} waits for {waiting} and knows {known} of {others}")


@cluster_test
def live_with_a_leaf(cluster: Cluster) -> None:
    """Live a life of nodes beside a hostile leaf."""
    LeafLife(cluster).run()
