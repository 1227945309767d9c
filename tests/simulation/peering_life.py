"""One random life of two endpoints on Broker 2.x's wire, by seed: machines, without sockets.

Each side dials the other, or one alone does, again and again; streams are cut into pieces and
delayed. A swarm draws when they break for both sides or for one of them, when they swallow
everything without a word, and when an endpoint vanishes and comes back under another id: kinds
of faults of this life. Filters change, and each side sends numbered
messages. At last the network heals. Rules:

- an endpoint has at most one peering with another, and no session that ended stands in its way;
- messages of one connection arrive in their order, none twice, none that was not sent;
- an endpoint knows a filter that the other one had while it was connected, the latest at last;
- only a connection beside another one is redundant;
- in the end each pair has one connection, both its ends know it, and messages pass.
"""

import random
from collections import deque
from typing import Any

from callboard.basp.errors import AlreadyLinked, RemoteProtocolError
from callboard.basp.foreign import Admitted, Arrived
from callboard.basp.link import Closed, Transmit
from callboard.simulation import Cluster, Fault, FaultKind, cluster_test, reachable, swarm
from callboard.zeek.peering import (
    SILENCE_LIMIT,
    PeerFilter,
    PeeringSession,
    PeeringState,
)
from tests.simulation.rules import Violation

TICK = 0.05
#: Ticks of trouble, and of calm: until silence is found out, dials, and the way back.
TROUBLE = 1_200
CALM = int((2 * SILENCE_LIMIT + 10) / TICK)
#: Ticks that a handshake may take.
PATIENCE = int(10 / TICK)

#: A connection of a side breaks, or swallows all from here on; a side vanishes.
reset, swallow, restart = (
    FaultKind(name, unit="side", least=1.0, most=2.99)
    for name in ("reset", "swallow", "restart")
)

FAULTS = swarm(reset, swallow, restart, span=TROUBLE * TICK, most=30)


def require(fact: Any, *told: Any) -> None:
    """Raise `Violation` unless `fact`."""
    if not fact:
        raise Violation(" ".join(map(str, told)))


class Side:
    """One endpoint: its id, its filter, its sessions."""

    def __init__(self, world: "PeeringLife", number: int) -> None:
        self.world, self.number = world, number
        self.is_dialing = False
        self.dials_at = 0
        self.begin()

    def begin(self) -> None:
        """Start, or start again under another id."""
        self.id = self.world.rng.randbytes(16)
        self.known: dict[bytes, PeeringSession] = {}
        self.topics = (f"/{self.number}",)
        #: Filters that this endpoint has had, in their order.
        self.had = [self.topics]
        self.ends: list[End] = []

    def peered(self) -> "list[End]":
        """Return the ends whose peer was admitted."""
        return [each for each in self.ends if each.is_admitted]

    def change_filter(self) -> None:
        """Want something else."""
        self.topics = tuple(sorted(f"/{self.world.rng.randrange(9)}" for _ in range(3)))
        self.had.append(self.topics)
        for end in self.peered():
            end.carry_out([Transmit(end.session.send_filter(self.topics))])


class End:
    """One end of a connection."""

    def __init__(self, side: Side, *, is_dialed: bool) -> None:
        self.side, self.world = side, side.world
        self.other: End = self
        #: The filters of this side, in their order, also of later moments.
        self.had = side.had
        self.pipe: deque[tuple[int, bytes]] = deque()  # bytes in flight to this end
        self.is_admitted = self.is_over = False
        self.is_swallowed, self.is_dialed = False, is_dialed
        self.own = side.id
        self.sent = self.taken = 0
        self.last_filter = 0
        self.until = self.world.now + PATIENCE
        self.session = PeeringSession(
            side.id, lambda: side.topics, side.known, self.world.seconds, is_dialed=is_dialed
        )
        side.ends.append(self)

    def begin(self) -> None:
        self.carry_out(self.session.start())

    def carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            require(not self.is_over, "an end did something behind its end:", effect)
            if isinstance(effect, Transmit):
                self.transmit(effect.data)
            elif isinstance(effect, Arrived):
                self.take(effect.messages)
            elif isinstance(effect, Admitted):
                self.admitted(effect)
            elif isinstance(effect, Closed):
                self.ended(effect)

    def transmit(self, data: bytes) -> None:
        if data and not self.is_swallowed and not self.other.is_over:
            delay = 0 if self.world.is_calm else self.world.rng.randrange(6)
            last = self.other.pipe[-1][0] if self.other.pipe else 0
            self.other.pipe.append((max(last, self.world.now + 1 + delay), data))

    def admitted(self, effect: Admitted) -> None:
        self.is_admitted = True
        reachable("admitted")
        require(effect.endpoint == self.other.own, "another id was admitted")
        known = [each for each in self.side.peered() if each.session.peer == effect.endpoint]
        require(len(known) == 1, self.side.number, "has two peerings with one endpoint")
        self.know(self.session.topics)
        self.carry_out([Transmit(self.session.send_filter(self.side.topics))])

    def ended(self, effect: Closed) -> None:
        error = effect.error
        require(error is None or isinstance(error, RemoteProtocolError), "ended with", error)
        if isinstance(error, AlreadyLinked):
            reachable("redundant")
            stands = self.side.known.get(self.session.peer or self.other.own)
            require(stands not in (None, self.session), "redundant, and there is no other")
        require(self.session not in self.side.known.values(), "an ended session stands")
        self.is_over, self.is_admitted = True, False
        if self in self.side.ends:
            self.side.ends.remove(self)
        self.world.break_later(self.other, "closed by the other side")

    def know(self, topics: tuple[str, ...]) -> None:
        """Check a filter that came: one that the other side had, and none before the last."""
        had = self.other.had
        require(topics in had[self.last_filter :], "a filter came that nobody had:", topics)
        self.last_filter = had.index(topics, self.last_filter)

    def take(self, messages: list[Any]) -> None:
        for message in messages:
            if isinstance(message, PeerFilter):
                self.know(message.topics)
                continue
            number = int.from_bytes(message.payload[1:])
            require(number == self.taken, "got", number, "where", self.taken, "was due")
            require(number < self.other.sent, "got what was not sent")
            self.taken += 1
            reachable("messages")

    def say(self) -> None:
        data = self.session.send(b"/t", b"\x03" + self.sent.to_bytes(8), 16)
        if data:
            self.sent += 1
            self.carry_out([Transmit(data)])

    def step(self) -> None:
        """Process arrivals, and check the time."""
        now = self.world.now
        while self.pipe and self.pipe[0][0] <= now and not self.is_over:
            _, data = self.pipe.popleft()
            size = self.world.rng.choice((1, 5, 40, 4_096))
            for at in range(0, len(data), size):
                if not self.is_over:
                    piece = data[at : at + size]
                    found, effects = self.session.take(piece, self.world.seconds)
                    self.take(found)
                    self.carry_out(effects)
        if not self.is_over and self.world.seconds >= self.session.next_tick_at:
            self.carry_out(self.session.tick(self.world.seconds))
        if not (self.is_over or self.is_admitted) and now >= self.until:
            state = self.session.state
            if state is not PeeringState.LEAVING:
                self.carry_out(self.session.close("its handshake took too long"))


class PeeringLife:
    """A life; `run` lives it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.rng = cluster.random
        self.now = 0
        self.is_calm = False
        self.broken: list[tuple[int, End, str]] = []
        #: Faults that begin with the next tick, and not within a call of a session.
        self.faults: list[Fault] = []
        self.sides = [Side(self, number) for number in range(2)]
        for side in self.rng.choice((self.sides, self.sides[:1], self.sides[1:])):
            side.is_dialing = True
        cluster.on_fault = self.disturbed

    @property
    def seconds(self) -> float:
        """The virtual time in seconds."""
        return self.now * TICK

    def note(self, *told: Any) -> None:
        self.cluster.trace.note(self.cluster.now, "life", *told)

    def run(self) -> None:
        """Live; raises a `Violation` where a rule is broken."""
        count = self.rng.choice((2, 8, 30))
        for _, chance in self.cluster.steps(count, within=0.0):
            for _ in range(chance.randrange(2 * TROUBLE // count)):
                self.step()
            self.act(chance)
        while self.now < TROUBLE:
            self.step()
        self.cluster.calm()
        self.is_calm = True
        for side in self.sides:
            side.change_filter()
        for _ in range(CALM):
            self.step()
        self.check_end()

    def step(self) -> None:
        """Advance by a tick."""
        self.now += 1
        self.cluster.advance(TICK)
        while self.faults:
            self.strike(self.faults.pop(0))
        due = [each for each in self.broken if each[0] <= self.now]
        self.broken = [each for each in self.broken if each[0] > self.now]
        for _, end, reason in due:
            if not end.is_over:
                end.step()
            if not end.is_over:
                end.carry_out(end.session.lost(reason))
        for side in self.sides:
            for end in [*side.ends]:
                if not end.is_over:
                    end.step()
            if self.rng.random() < 0.2:
                for end in side.peered():
                    end.say()
            self.dial(side)

    def dial(self, side: Side) -> None:
        """Dial the other side where nothing dialed is there."""
        other = self.sides[1 - side.number]
        is_there = any(each.is_dialed for each in side.ends)
        if not side.is_dialing or is_there or self.now < side.dials_at:
            return
        side.dials_at = self.now + self.rng.randrange(1, 40)
        here, there = End(side, is_dialed=True), End(other, is_dialed=False)
        here.other, there.other = there, here
        self.note("dial", side.number)
        here.begin()
        there.begin()

    def break_later(self, end: End, reason: str) -> None:
        """Report the end of the connection to an end soon, unless it is cut off."""
        if not end.is_over and not end.is_swallowed:
            last = end.pipe[-1][0] if end.pipe else self.now
            self.broken.append((max(last, self.now) + 1, end, reason))

    def disturbed(self, fault: Fault, _nodes: list[Any], begins: bool) -> None:
        """Take a fault."""
        assert begins
        self.faults.append(fault)

    def strike(self, fault: Fault) -> None:
        """Inject a fault into a side, or one of its connections."""
        side = self.sides[int(fault.amount) - 1]
        self.note(fault.kind, side.number)
        if fault.kind == restart:
            for end in [*side.ends]:
                end.is_over = True
                self.break_later(end.other, "reset")
            side.begin()
        elif side.ends:
            end = self.rng.choice(side.ends)
            for each in (end, end.other):
                if fault.kind == reset:
                    self.break_later(each, "reset")
                else:
                    each.is_swallowed = True
                    each.pipe.clear()

    def act(self, chance: random.Random) -> None:
        """Do one thing that a user does."""
        side = chance.choice(self.sides)
        kind = chance.choice(("filter", "leave", "dial"))
        self.note(kind, side.number)
        if kind == "filter":
            side.change_filter()
        elif kind == "dial":  # a program that dials twice
            side.dials_at = 0
        elif side.ends:
            end = chance.choice(side.ends)
            end.carry_out(end.session.close("the user removed it"))

    def check_end(self) -> None:
        """Check that everything has recovered."""
        one, other = self.sides
        for side in self.sides:
            require(len(side.peered()) == 1, side.number, "has", len(side.peered()), "peerings")
            (end,) = side.peered()
            require([*side.known.values()] == [end.session], side.number, "knows others")
            there = self.sides[1 - side.number]
            require(end.session.topics == there.topics, "a filter did not arrive")
        (here,), (there,) = one.peered(), other.peered()
        require(here.other is there, "both ends are of different connections")
        before = here.taken, there.taken
        here.say()
        there.say()
        for _ in range(5):
            self.step()
        require(here.taken > before[0] and there.taken > before[1], "nothing passes")


@cluster_test(faults=FAULTS)
def live_peerings(cluster: Cluster) -> None:
    """Live a life of two endpoints."""
    PeeringLife(cluster).run()
