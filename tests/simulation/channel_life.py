"""One random life of a channel, by seed: a bad network, and both sides start again.

One producer, three consumers, 200 events. Each seed has its own rates of loss (to 70 %), of
doubles and of delay, and sometimes little room at the producer or the consumers. A swarm draws
when nothing passes in one or both directions, and who vanishes: kinds of faults of this life.
Consumers vanish and come back under another handle, as whoever was dropped or closed does; a
producer that vanishes is followed by one that continues with the At last the network heals.
Rules:

- a consumer gets each event once, in order, or is told in its turn that it is lost;
- only events that the producer gave up are reported lost, and every request is answered in the
end;
- what lies between two lives of a consumer shows in the numbers, and nothing comes again;
- in the end all consumers exist and have all events, and no event is buffered.
"""

from typing import Any

from callboard.channel import Consumer, Event, Producer
from callboard.channel.message import EndOfChannel
from callboard.simulation import Cluster, Fault, FaultKind, cluster_test, reachable, swarm
from tests.simulation.rules import Violation

EVENTS = 200
CONSUMERS = 3
TIMEOUT = 30
#: Ticks after the network healed until everything must be there: timeouts, and the way back.
CALM = 3 * TIMEOUT
TICK = 0.1
"""Virtual seconds of a tick, as stores have it."""

SPAN = 8.0
"""Virtual seconds in which faults begin; most lives have healed by then."""


def passing(name: str) -> FaultKind:
    """Return a kind of fault that lets nothing pass for a while, of the numbered consumer."""
    end = lambda *_: None  # noqa: E731 - its action is chosen by the life
    kind = FaultKind(name, end=end, unit="number", least=1.0, most=CONSUMERS + 0.99)
    return kind.lasting(0.3, 8.0)


#: Nothing passes to a consumer, from it, or both; it vanishes; the producer vanishes.
deaf, mute, cut_off = passing("deaf"), passing("mute"), passing("cut_off")
consumer_gone = FaultKind("consumer_gone", unit="number", least=1.0, most=CONSUMERS + 0.99)
producer_gone = FaultKind("producer_gone")

FAULTS = swarm(deaf, mute, cut_off, consumer_gone, producer_gone, span=SPAN, most=16)

WAYS = {deaf: ("down",), mute: ("up",), cut_off: ("up", "down")}


def require(fact: Any, *told: Any) -> None:
    """Raise `Violation` unless `fact`."""
    if not fact:
        raise Violation(" ".join(map(str, told)))


class Receiver:
    """One life of a consumer: checks every call that it gets."""

    def __init__(self, world, hdl):
        self.world, self.hdl = world, hdl
        self.producer = world.producer
        self.is_dead = False
        self.consumer = Consumer(self, timeout=TIMEOUT, window=world.window)
        self.first = 0
        self.next = 0
        self.lost = 0
        self.ended = None

    def take(self):
        require(self.ended is None, self.hdl, "was called after its end:", self.ended)
        if not self.first:
            self.first = self.next = self.world.first[self.hdl]
        self.next += 1
        return self.next - 1

    def consume(self, consumer, payload):
        seq = self.take()
        require(consumer is self.consumer, "a backend was called with another consumer")
        require(payload == seq * 7, self.hdl, "got", payload, "where", seq * 7, "was due")

    def consume_nil(self, _consumer):
        seq = self.take()
        require(seq in self.world.gone, self.hdl, "was told that", seq, "is lost; it is not")
        self.lost += 1
        reachable("nil")
        return "too many" if self.lost > self.world.bearable else None

    def send(self, _consumer, msg):
        require(self.ended is None, self.hdl, "sent after its end")
        reachable(type(msg).__name__)
        self.world.transmit((self.hdl, "up"), msg)

    def close(self, _consumer, error):
        require(self.ended is None, self.hdl, "was closed twice")
        is_served = self.producer is self.world.producer and self.hdl in self.producer.consumers
        require(
            error != EndOfChannel.RETRANSMISSION_TIMEOUT
            or not is_served
            or not self.world.is_healed,
            self.hdl,
            "asked in vain, though nothing is lost any more",
        )
        self.ended = error
        reachable(f"closed: {error}")


class ChannelLife:
    """Everything of one seed. Messages wait in one list for each tick of their arrival."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.rng = rng = cluster.random
        cluster.on_fault = self.disturbed
        self.loss, self.double = rng.uniform(0, 0.7), rng.uniform(0, 0.2)
        self.delay = rng.choice((1, 2, 4, 8))
        self.bearable = rng.choice((0, 3, EVENTS))
        self.rate = rng.randint(2, 12)
        self.window = rng.choice((16, 64, EVENTS))
        small = rng.random() < 0.3
        self.buffer_limit = rng.randint(5, 40) if small else EVENTS
        self.producer = Producer(self, timeout=TIMEOUT, buffer_limit=self.buffer_limit)
        self.now = 0
        self.calm = False
        self.calm_since = 0
        self.due = [[] for _ in range(16)]
        self.receivers, self.past = {}, {}
        self.first, self.gone, self.completed, self.dropped = {}, set(), set(), set()
        #: Ways on which nothing passes: number of the consumer and direction.
        self.cuts: list[tuple[int, str]] = []
        self.lives = 0
        #: Faults that begin or end with the next tick, and not within a call of a channel.
        self.faults: list[tuple[Fault, bool]] = []

    @property
    def is_healed(self) -> bool:
        """Whether the network has been whole for long enough to answer every request."""
        return self.calm and self.now - self.calm_since >= 10

    def note(self, *told: Any) -> None:
        """Note in the trace what happens."""
        self.cluster.trace.note(self.cluster.now, "life", *told)

    # ----------------------------------------------------------- backend of the producer

    def send(self, producer, hdl, msg):
        require(producer is self.producer, "a backend was called with another producer")
        if type(msg).__name__ == "RetransmitFailed":
            self.gone.add(msg.seq)
        self.transmit((hdl, "down"), msg)

    def broadcast(self, _producer, msg):
        for hdl, receiver in self.receivers.items():
            if receiver.producer is self.producer:  # others listen to an earlier one
                self.transmit((hdl, "down"), msg)

    def drop(self, _producer, hdl, reason):
        require(reason == EndOfChannel.CONNECTION_TIMEOUT, "dropped because of", reason)
        require(hdl not in self.producer.consumers, hdl, "was dropped and is still there")
        self.dropped.add(hdl)
        reachable("dropped")

    def handshake_completed(self, _producer, hdl):
        require(hdl not in self.completed, hdl, "completed its handshake twice")
        require(
            (self.receivers.get(hdl) or self.past[hdl]).consumer.next_seq,
            hdl,
            "has seen no handshake",
        )
        self.completed.add(hdl)

    # ---------------------------------------------------------------------- the network

    def transmit(self, way, msg):
        rng = self.rng.random
        self.note("send", *way, msg)
        if self.calm:
            self.due[(self.now + 1) & 15].append((way, msg))
            return
        if rng() < self.loss or (self.cuts and self.is_cut(way)):
            return
        span = self.delay
        self.due[(self.now + 1 + int(rng() * span)) & 15].append((way, msg))
        if rng() < self.double:
            self.due[(self.now + 1 + int(rng() * span)) & 15].append((way, msg))

    def life(self, hdl):
        return self.receivers.get(hdl) or self.past[hdl]

    def is_cut(self, way):
        return (way[0] % CONSUMERS, way[1]) in self.cuts

    def deliver(self):
        arrived, self.due[self.now & 15] = self.due[self.now & 15], []
        if not self.calm and self.delay > 1:
            self.rng.shuffle(arrived)
        for (hdl, way), msg in arrived:
            self.note("arrived", hdl, way, msg)
            if way == "up":
                self.producer.handle(hdl, msg)
                continue
            receiver = self.life(hdl)
            if receiver.is_dead:
                continue
            if type(msg) is Event:
                receiver.consumer.handle_event(msg.seq, msg.payload)
            else:
                receiver.consumer.handle(msg)

    # ------------------------------------------------------------------------- the course

    def enter(self, number):
        """A consumer starts a new life under a new handle."""
        hdl = self.lives * CONSUMERS + number
        self.lives += 1
        self.receivers[hdl] = Receiver(self, hdl)
        self.first[hdl] = self.producer.seq + 1
        before = [each.next for old, each in self.past.items() if old % CONSUMERS == number]
        require(self.first[hdl] >= max(before, default=0), hdl, "gets events again")
        self.note("consumer", hdl, "begins at", self.first[hdl])
        require(self.producer.add(hdl), "a new handle was refused")

    def come_back(self):
        """A consumer that has ended on either side ends on both, and starts again."""
        for hdl, receiver in tuple(self.receivers.items()):
            if receiver.ended is not None or hdl in self.dropped:
                self.producer.remove(hdl)
                self.dropped.discard(hdl)
                # Messages in flight reach the earlier life, where they must do no harm.
                self.past[hdl] = self.receivers.pop(hdl)
                self.enter(hdl % CONSUMERS)

    # ------------------------------------------------------------------------- the faults

    def disturbed(self, fault: Fault, _nodes: list[Any], begins: bool) -> None:
        """Take a fault, or its end."""
        self.faults.append((fault, begins))

    def strike(self, fault: Fault, begins: bool) -> None:
        """Start a fault, or end one."""
        if fault.kind == producer_gone:
            self.producer_vanishes()
            return
        number = int(fault.amount) - 1
        if fault.kind == consumer_gone:
            self.consumer_vanishes(number)
            return
        for direction in WAYS[fault.kind]:
            (self.cuts.append if begins else self.cuts.remove)((number, direction))

    def consumer_vanishes(self, number: int) -> None:
        """End a consumer silently, and start a new one."""
        hdl = next(hdl for hdl in self.receivers if hdl % CONSUMERS == number)
        self.note("consumer", hdl, "vanishes")
        reachable("consumer vanished")
        self.past[hdl] = self.receivers.pop(hdl)
        self.past[hdl].is_dead = True
        self.dropped.discard(hdl)
        self.enter(number)

    def producer_vanishes(self) -> None:
        """End the producer silently, and start a new one."""
        self.note("the producer vanishes")
        reachable("producer vanished")
        self.producer = Producer(
            self, timeout=TIMEOUT, buffer_limit=self.buffer_limit, seq=self.producer.seq
        )

    def step(self):
        self.now += 1
        self.cluster.advance(TICK)
        while self.faults:
            self.strike(*self.faults.pop(0))
        self.deliver()
        self.producer.tick()
        for receiver in tuple(self.receivers.values()):
            receiver.consumer.tick()
        if self.now % 8 == 0:
            self.come_back()

    def run(self) -> None:
        """Live through it; `Violation` when a rule breaks."""
        for number in range(CONSUMERS):
            self.enter(number)
        while self.producer.seq < EVENTS:
            for _ in range(min(self.rate, EVENTS - self.producer.seq)):
                self.producer.produce((self.producer.seq + 1) * 7)
            self.step()
        for _ in range(self.rng.choice((1, 10, 40))):
            self.step()
        self.cluster.calm()
        self.calm, self.calm_since = True, self.now
        for _ in range(CALM):
            self.step()
            if self.is_settled():
                break
        self.verify()

    def is_settled(self):
        return self.producer.is_idle and all(
            r.producer is self.producer
            and r.ended is None
            and r.consumer.is_idle
            and hdl not in self.dropped
            for hdl, r in self.receivers.items()
        )

    def verify(self):
        require(self.producer.is_idle, "the producer waits for", self.producer.consumers)
        require(self.producer.buffered == 0, self.producer.buffered, "events are still kept")
        require(len(self.receivers) == CONSUMERS, "consumers are missing")
        for hdl, receiver in self.receivers.items():
            require(receiver.ended is None, hdl, "ended and did not come back")
            require(receiver.producer is self.producer, hdl, "waits for one that vanished")
            require(receiver.consumer.is_idle, hdl, "still misses something")
            if receiver.first:
                require(receiver.next == EVENTS + 1, hdl, "stopped before", receiver.next)
            else:
                require(self.first[hdl] == EVENTS + 1, hdl, "has received nothing")
            if not receiver.producer.given_up:
                require(receiver.lost == 0, hdl, "lost", receiver.lost, "without cause")


@cluster_test(faults=FAULTS)
def live_channels(cluster: Cluster) -> None:
    """Live a life of a channel."""
    ChannelLife(cluster).run()
