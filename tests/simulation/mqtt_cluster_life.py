"""One random life of a cluster of MQTT routers, by seed: clients that move between them.

Clients with lasting sessions connect now here, now there, publish and read on; what routers say
to one another is late or lost, they are cut off from each other for a while, and those with a
journal crash at any point of a hand-over. Messages do not go from router to router, so a client
is owed what its router took while it had the session. Then all that ends, and these must hold:

- at no time two routers have the session of a client, and at the end one has;
- no session is lost, with all of its subscriptions;
- a message with QoS 2 is taken once by all routers together, and delivered once;
- one with QoS 1 is delivered at least once;
- all routers retain the same: of each topic the last acknowledged write, in the order of
stamps, or a later one that was in flight in a crash; no router writes with an older stamp than
it has.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from callboard.mqtt.access.admission import Admission
from callboard.mqtt.service.claims import Answer, Order, SettleSession, Steps
from callboard.mqtt.service.cluster import RetainedDigests, RetainedQuestion
from callboard.mqtt.wire.packet import V4, V5
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.mqtt.wire.topic import matches
from callboard.simulation import Cluster, cluster_test, reachable
from tests.simulation.mqtt_client import Message, SimulatedClient, Wish
from tests.simulation.mqtt_cluster_router import ClusterRouter, Crash
from tests.simulation.rules import Violation

TOPICS = ("a", "a/b", "b/b", "c")
FILTERS = ("a", "a/#", "+/b", "#", "c")

ROUND = 0.05
"""Seconds."""

ANSWER_ROUNDS = 12
"""Rounds after which an order counts as not answered."""

PATIENCE = 4_000
"""Rounds within which all is delivered when nothing disturbs it."""


class MqttClusterLife:
    """Lives in the time of a cluster; `run` raises `Violation` for what must not be."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.random = cluster.random
        self.ticks = 0
        self.messages: dict[bytes, Message] = {}
        #: By payload: the clients that are owed it, for each time that a router accepted it.
        self.taken: dict[bytes, list[set[str]]] = {}
        self.perhaps_taken: set[bytes] = set()
        #: Writes of retained messages by stamp and origin, and the acknowledged ones.
        self.written: dict[tuple[int, bytes], tuple[bytes, bytes]] = {}
        self.acknowledged: set[tuple[int, bytes]] = set()
        self._loss = self.random.choice((0.0, 0.05, 0.3))
        self._slowest = self.random.choice((1, 5, 15))
        self._cut: set[frozenset[int]] = set()
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._numbers: Counter[tuple[str, str]] = Counter()
        self.routers = [
            ClusterRouter(self, number) for number in range(self.random.choice((2, 2, 3)))
        ]
        self.clients: list[SimulatedClient] = []
        self._connecting: dict[str, int] = {}

    @property
    def seconds(self) -> float:
        """The virtual time in seconds."""
        return self.cluster.now

    def note(self, *what: object) -> None:
        """Write down what happens."""
        self.cluster.trace.note(self.cluster.now, "life", self.ticks, *what)

    def run(self) -> None:
        """Live the life of this seed."""
        for number in range(self.random.randint(2, 4)):
            chance = random.Random(f"{self.cluster.seed} {number}")
            version = self.random.choice((V4, V5))
            client = self._make_client(f"c{number}", version, chance)
            self.clients.append(client)
            for topic_filter in self.random.sample(FILTERS, self.random.randint(1, 3)):
                self._subscribe(client, topic_filter)
        begun = self.random
        for _, chance in self.cluster.steps(begun.randint(60, 200), within=0.0):
            self.random = chance
            self._act()
            for _ in range(self.random.choice((1, 3, 10))):
                self._round()
        self.random = begun
        self._rest()
        self._check_end()

    def _make_client(self, name: str, version: int, chance: random.Random) -> SimulatedClient:
        return SimulatedClient(name, version, chance, lambda: self.ticks)

    # --- what happens ---

    def _act(self) -> None:
        actions: dict[Callable[[], None], int] = {
            self._publish: 10,
            self._move: 10,
            self._lose: 3,
            self._dawdle: 2,
            self._change_filters: 2,
            self._cut_off: 2,
            self._crash: 2,
            self._retain: 6,
        }
        self.random.choices(list(actions), list(actions.values()))[0]()

    def _publish(self) -> None:
        client = self.random.choice(self.clients)
        topic = self.random.choice(TOPICS)
        qos = 1 + sum(map(ord, client.name + topic)) % 2
        for _ in range(self.random.choice((1, 4, 20))):
            self._numbers[client.name, topic] += 1
            number = self._numbers[client.name, topic]
            message = Message(client.name, topic, number, qos, retain=False)
            self.messages[message.payload] = message
            client.waiting.append(message)

    def _move(self) -> None:
        client = self.random.choice(self.clients)
        self._connect(client, self.random.choice(self.routers))

    def _lose(self) -> None:
        client = self.random.choice(self.clients)
        client.lose(tells=self.random.random() < 0.7)

    def _dawdle(self) -> None:
        client = self.random.choice(self.clients)
        client.is_slow = not client.is_slow

    def _change_filters(self) -> None:
        client = self.random.choice(self.clients)
        current = wishes_of(client)
        if len(current) > 1 and self.random.random() < 0.4:
            client.unsubscribe(self.random.choice(current))
        else:
            self._subscribe(client, self.random.choice(FILTERS))

    def _subscribe(self, client: SimulatedClient, topic_filter: str) -> None:
        """Request a filter, which replaces the earlier one."""
        for wish in wishes_of(client):
            if wish.topic_filter == topic_filter:
                wish.ended_at = self.ticks
        client.subscribe([topic_filter], self.random.choice((0, 1, 2, 2, 2)))

    def _cut_off(self) -> None:
        pair = frozenset(each.number for each in self.random.sample(self.routers, 2))
        self._cut ^= {pair}
        self.note("cut off are", *map(sorted, self._cut))

    def _crash(self) -> None:
        router = self.random.choice(self.routers)
        if router.is_up and router.is_durable:
            router.crashes_at = self.random.randrange(4)

    # --- retained messages ---

    def _retain(self) -> None:
        router = self.random.choice(self.routers)
        if router.is_up:
            topic = b"$r/%d" % self.random.randrange(4)
            payload = b"" if self.random.random() < 0.3 else b"%d" % len(self.written)
            self._guarded(router, router.retain, topic, payload)

    def tell_news(self, router: ClusterRouter) -> None:
        """Send the writes of a router to the others."""
        for piece in router.exchange.news():
            for each in self._others(router):
                self._send(router, each, lambda o=each, p=piece: o.take_piece(p))

    def _compare(self, router: ClusterRouter) -> None:
        """Make a router send its digests to the others."""
        for each in self._others(router):
            said = router.exchange.digests(None, is_answer=False)
            self._send(router, each, lambda o=each, s=said: self._compared(o, router, s))

    def _compared(
        self, router: ClusterRouter, other: ClusterRouter, said: RetainedDigests
    ) -> None:
        """Make a router request writes that it lacks from another one."""
        if not said.is_answer:
            answer = router.exchange.digests(None, is_answer=True)
            self._send(router, other, lambda: self._compared(other, router, answer))
        for bucket in router.exchange.differing(said.digests):
            asked = router.exchange.question(bucket)
            self._send(router, other, lambda q=asked: self._asked(other, router, q))

    def _asked(
        self, router: ClusterRouter, asker: ClusterRouter, question: RetainedQuestion
    ) -> None:
        router.settle()
        piece = router.exchange.answer(question)
        self._send(router, asker, lambda: asker.take_piece(piece))

    def _send(
        self, source: ClusterRouter, target: ClusterRouter, arrive: Callable[[], None]
    ) -> None:
        """Deliver a message to another router, if the network carries it."""
        if self._goes_through(source, target):
            delay = self.random.randint(0, self._slowest)
            self._later(delay, lambda: target.is_up and self._guarded(target, arrive))

    # --- clients at routers ---

    def _connect(self, client: SimulatedClient, router: ClusterRouter) -> None:
        """Connect a client to a router, whatever happened to its earlier connection."""
        client.lose(tells=self.random.random() < 0.5)
        attempt = self._connecting[client.name] = next(self._count)
        self.note(client.name, "comes to", router.number)
        if not router.is_up:
            return

        def ruled(ruling: Admission) -> None:
            self.note(client.name, "at", router.number, "gets", ruling.reason_code.name)
            if ruling.reason_code not in {ReasonCode.SUCCESS, ReasonCode.SERVER_BUSY}:
                raise Violation(f"{client.name} was refused with {ruling.reason_code!r}")
            if not ruling.reason_code and self._connecting.get(client.name) == attempt:
                reachable("a session moves")
                client.connect(router)

        steps = router.claims.claim(client.name, is_clean=False)
        self._guarded(router, self._advance, router, router.life_number, steps, None, ruled)

    def _advance(
        self,
        router: ClusterRouter,
        life: int,
        steps: Steps,
        answers: list[Answer] | None,
        done: Callable[[Admission], None],
    ) -> None:
        if router.life_number != life:
            return
        try:
            order = steps.send(answers)  # type: ignore[arg-type]
        except StopIteration as end:
            router.settle()
            done(end.value)
            return
        router.settle()
        others = self._others(router)
        if isinstance(order, SettleSession):
            for each in others:
                self._carry(router, each, order, lambda _: None)
            self._advance(router, life, steps, [], done)
            return
        found: dict[int, Answer] = {}
        is_over = False

        def finish() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                told = [found.get(each.number) for each in others]
                self._guarded(router, self._advance, router, life, steps, told, done)

        def answered(number: int, answer: Answer) -> None:
            found[number] = answer
            if len(found) == len(others):
                finish()

        for each in others:
            self._carry(router, each, order, lambda a, n=each.number: answered(n, a))
        self._later(ANSWER_ROUNDS if others else 0, finish)

    def _others(self, router: ClusterRouter) -> list[ClusterRouter]:
        """Return the routers that one counts on."""
        return [each for each in self.routers if each is not router]

    def _carry(
        self,
        source: ClusterRouter,
        target: ClusterRouter,
        order: Order,
        back: Callable[[Answer], None],
    ) -> None:
        """Take an order to another router and its answer back, if the network does."""

        def arrive() -> None:
            if not target.is_up:
                return
            answer = self._guarded(target, target.take, order)
            if answer is not None and self._goes_through(source, target):
                self._later(self.random.randint(0, self._slowest), lambda: back(answer))

        if self._goes_through(source, target):
            self._later(self.random.randint(0, self._slowest), arrive)

    def _goes_through(self, source: ClusterRouter, target: ClusterRouter) -> bool:
        pair = frozenset((source.number, target.number))
        return pair not in self._cut and self.random.random() >= self._loss

    def _guarded(self, router: ClusterRouter, call: Callable[..., Any], *args: Any) -> Any:
        """Call something of a router, which may crash in it."""
        try:
            return call(*args)
        except Crash:
            self.note("router", router.number, "crashes")
            reachable("a router crashes")
            router.crash()
            self._later(self.random.choice((1, 10, 60)), router.start)
            return None

    def _later(self, rounds: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.ticks + 1 + rounds, next(self._count), call))

    # --- time ---

    def _round(self) -> None:
        """Make every party act once."""
        self.ticks += 1
        self.cluster.advance(ROUND)
        while self._queue and self._queue[0][0] <= self.ticks:
            heapq.heappop(self._queue)[2]()
        for client in self.clients:
            if not client.is_slow:
                client.publish()
                client.read()
        for router in self.routers:
            if router.is_up:
                self._guarded(router, router.settle)
            if router.is_up and self.ticks % 20 == router.number:
                self._compare(router)
                for client_id in list(router.machine.sessions.adopted):
                    steps = router.claims.resolve(client_id)
                    life = router.life_number
                    self._guarded(
                        router, self._advance, router, life, steps, None, lambda _: None
                    )
        self._check_always()

    def _rest(self) -> None:
        self.note("rest")
        self._loss, self._cut, self._slowest = 0.0, set(), 1
        for client in self.clients:
            client.is_slow = False
        for router in self.routers:
            router.crashes_at = None
        for _ in range(PATIENCE):
            for client in self.clients:
                if client.link is None and self.random.random() < 0.05:
                    self._connect(client, self.random.choice(self.routers))
                client.answer(all_of_them=True)
            self._round()
            if self._is_at_rest():
                return
        raise Violation(f"not everything is delivered after {PATIENCE} rounds")

    def _is_at_rest(self) -> bool:
        if not all(router.is_up and router.machine.is_idle for router in self.routers):
            return False
        digests = [router.machine.logs.retained.heads.digests for router in self.routers]
        are_same = all(each == digests[0] for each in digests)
        return are_same and all(client.is_at_rest for client in self.clients)

    # --- rules ---

    def _check_always(self) -> None:
        for client in self.clients:
            if client.problems:
                raise Violation(client.problems[0])
            owners = [
                router.number
                for router in self.routers
                if router.is_up and router.owns(client.name)
            ]
            if len(owners) > 1:
                raise Violation(f"the session of {client.name} is at routers {owners}")

    def _check_end(self) -> None:
        lost = sum(router.machine.meters.lost for router in self.routers)
        if lost:
            raise Violation(f"{lost} messages were lost to retention")
        self._check_retained()
        for client in self.clients:
            self._check_client(client)
        for payload, message in self.messages.items():
            count = len(self.taken.get(payload, ()))
            least = payload not in self.perhaps_taken
            if message.qos == 2 and not least <= count <= 1:
                raise Violation(f"{message} was taken {count} times")

    def _check_retained(self) -> None:
        last: dict[bytes, tuple[int, bytes]] = {}
        for order in self.acknowledged:
            key, _ = self.written[order]
            last[key] = max(last.get(key, order), order)
        for router in self.routers:
            kept, heads = router.kept(), router.machine.logs.retained.heads
            for key, acknowledged in last.items():
                head = heads.get(key)
                if head is None or head[:2] < acknowledged:
                    raise Violation(f"router {router.number} has {head}, not {acknowledged}")
                of, payload = self.written[head[:2]]
                if of != key or kept.pop(key, b"") != payload:
                    raise Violation(f"router {router.number} does not retain {payload!r}")
            for key, payload in kept.items():
                head = heads.get(key)
                if head is None or self.written[head[:2]] != (key, payload):
                    raise Violation(f"router {router.number} retains {payload!r} from nowhere")

    def _check_client(self, client: SimulatedClient) -> None:
        owners = [each for each in self.routers if each.owns(client.name)]
        if len(owners) != 1:
            raise Violation(f"{len(owners)} routers have the session of {client.name}")
        session = owners[0].machine.sessions.get(client.name)
        assert session is not None
        wanted = {wish.topic_filter for wish in wishes_of(client)}
        if set(session.subscriptions) != wanted:
            raise Violation(f"{client.name} has {list(session.subscriptions)}, not {wanted}")
        counts = Counter(payload for _, _, payload, _ in client.taken)
        for payload, message in self.messages.items():
            owed = any(client.name in names for names in self.taken.get(payload, ()))
            count = counts[payload]
            wishes = [
                wish
                for wish in client.session.wishes
                if matches(message.topic, wish.topic_filter)
            ]
            if owed and not count and any(held_for(wish, message) for wish in wishes):
                raise Violation(f"{client.name} did not get {message}")
            if message.qos == 2 and count > 1 and all(wish.qos != 1 for wish in wishes):
                raise Violation(f"{client.name} got {message} {count} times")
            if count and not wishes:
                raise Violation(f"{client.name} got {message}, which it never wanted")


def wishes_of(client: SimulatedClient) -> list[Wish]:
    """Return what a client wants at the moment."""
    return [wish for wish in client.session.wishes if wish.ended_at is None]


def held_for(wish: Wish, message: Message) -> bool:
    """Whether a filter with QoS 1 or 2 held from before a message until the end."""
    confirmed = wish.confirmed_at
    is_held = wish.ended_at is None and confirmed is not None
    return is_held and wish.qos > 0 and confirmed < message.sent_at  # type: ignore[operator]


@cluster_test
def live_mqtt_cluster(cluster: Cluster) -> None:
    """Live a life of a cluster of MQTT routers."""
    MqttClusterLife(cluster).run()
