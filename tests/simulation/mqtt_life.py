"""One random life of an MQTT router, by seed: clients that drop, dawdle, lie, and restarts.

Publishers and subscribers of both versions with lasting sessions; connections that are lost
with packets in flight, clients that do not read, acknowledge in another order, start anew or
some that send rubbish; and a router that crashes at any point of a turn, with a disk that loses
unsynced data. Some have wills; in some lives logs are small, and readers that acknowledge
one message at a time have more before them than a log holds. Then all faults end, and every
client is served. The rules are in `mqtt_rules`.
"""

import contextlib
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from callboard.mqtt.journal.journal import RouterJournal
from callboard.mqtt.router.datalog import CursorJump
from callboard.mqtt.router.limits import Limits, ShareStrategy
from callboard.mqtt.router.link import RouterLink
from callboard.mqtt.router.machine import RouterMachine
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.packet import V4, V5, Connect, Publish, Subscribe, Subscription
from callboard.mqtt.wire.properties import Properties
from callboard.simulation import Cluster, SimulatedDisk, cluster_test, reachable
from tests.callboard.mqtt.stage import deliver
from tests.simulation.mqtt_client import Message, SimulatedClient
from tests.simulation.mqtt_rules import check_always, check_at_the_end
from tests.simulation.mqtt_wills import Wills
from tests.simulation.rules import Violation

TOPICS = ("a", "a/b", "a/c", "b/b", "b/x/y")
FILTERS = ("a", "a/b", "a/#", "+/b", "#", "b/x/y", "c/#")
GROUP = "$share/g/a/+"

PATIENCE = 10_000
"""Rounds within which all is delivered when nothing disturbs it."""


class _Crash(Exception):
    """The router has crashed."""


class MqttLife:
    """Lives in the time of a cluster; `run` raises `Violation` for what must not be."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.random = cluster.random
        self.disk = SimulatedDisk(cluster.seed)
        self.disk.faults.short_writes = self.random.choice((0.0, 0.0, 0.1))
        self.is_durable = self.random.random() < 0.7
        self.limits = Limits(
            inflight=self.random.choice((1, 3, 20, 100)),
            delivery_quota=self.random.choice((2, 10, 1_000)),
            delivery_bytes=self.random.choice((200, 1 << 20)),
            receive_maximum=self.random.choice((10, 65_535)),
            share_strategy=self.random.choice(list(ShareStrategy)),
        )
        self.has_small_logs = self.random.random() < 0.4
        if self.has_small_logs:
            has_shelves = self.is_durable and self.random.random() < 0.7
            self.limits = replace(
                self.limits,
                inflight=self.random.choice((1, 3, 20)),
                segment_bytes=self.random.choice(
                    (1_500, 3_000) if has_shelves else (8_000, 20_000)
                ),
                segment_count=self.random.choice((2, 4, 10)),
                acknowledge_patience=self.random.choice((5.0, 1e9, 1e9)),
                journal_bytes=has_shelves << 30,
            )
        self.wills = Wills()
        self.watcher = SimulatedClient("watcher", V5, self.random, lambda: self.ticks)
        #: Messages that are lost only with the router, in a life with small logs.
        self.steady: list[SimulatedClient] = []
        self.alerts: list[CursorJump] = []
        self.ticks = 0
        self.clients: list[SimulatedClient] = []
        self.members: list[SimulatedClient] = []
        self.hostile: list[RouterLink] = []
        self.messages: list[Message] = []
        self.qos_of: dict[str, int] = {}
        self._names = itertools.count()
        self._numbers: dict[tuple[str, str], int] = {}
        self._journal: RouterJournal | None = None
        self._start()

    @property
    def seconds(self) -> float:
        """The virtual time in seconds."""
        return self.cluster.now

    def note(self, *what: object) -> None:
        """Write down what happens."""
        self.ticks += 1
        self.cluster.trace.note(self.cluster.now, "life", self.ticks, *what)

    def run(self) -> None:
        """Live the life of this seed."""
        self._begin()
        begun = self.random
        for _, chance in self.cluster.steps(begun.randint(40, 150), within=0.0):
            self.random = chance
            self._act()
            for _ in range(self.random.choice((0, 1, 3))):
                self._round()
            self.cluster.advance(self.random.choice((0.0, 0.01, 1.0, 10.0)))
            self.wills.look(self.everybody, self.seconds)
            check_always(self)
        self.random = begun
        self._rest()
        check_at_the_end(self)

    @property
    def everybody(self) -> list[SimulatedClient]:
        """All honest clients."""
        return [*self.clients, self.watcher]

    # --- the router ---

    def post(self, event: Any) -> None:
        """Take an event of a link."""
        self.machine.events.append(event)

    def _start(self) -> None:
        self.machine = RouterMachine(
            self.limits,
            is_durable=self.is_durable,
            make_client_id=lambda: f"auto-{next(self._names)}",
            chance=self.random,
            now=self.seconds,
        )
        if self.is_durable:
            self._journal = RouterJournal(
                "/mqtt",
                now=lambda: self.seconds,
                disk=self.disk,
                wall_clock=lambda: int((1e9 + self.seconds) * 1e9),
                least_growth=self.random.choice((3_000, 100_000)),
                segment_bytes=2_000,
            )
            self._journal.restore(self.machine)

    def _turn(self, crash_at: int = 9) -> None:
        """Run a turn of the router, up to step `crash_at` at most."""
        turn = self.machine.run_turn(self.seconds)
        if crash_at == 0:
            return
        if turn.records and self._journal is not None:
            if crash_at == 1:
                self._write_without_sync(turn.records)
                return
            self._journal.write(turn.records, self.machine)
        transmits = turn.transmits
        if crash_at == 2:
            transmits = transmits[: self.random.randint(0, len(transmits))]
        for link, notifications in transmits:
            deliver(link, notifications)
        self.alerts += turn.alerts
        if self._journal is not None:
            self._journal.fetch(turn.fetches, self.machine)
        if not self.machine.events:
            self.wills.turned(self.seconds)

    def _write_without_sync(self, records: list[Any]) -> None:
        """Crash between the write and the sync of the journal."""
        assert self._journal is not None

        def crash() -> None:
            raise _Crash

        self._journal._log.flush = crash  # type: ignore[method-assign]
        with contextlib.suppress(_Crash):
            self._journal.write(records, self.machine)

    def _restart(self) -> None:
        """Crash in the middle of a turn, and start again."""
        if not self.is_durable:
            return
        step = self.random.randrange(4)
        self.note("the router crashes at", step)
        reachable("the router crashes")
        self._turn(step)
        self.disk.crash()
        for client in self.everybody:
            is_steady = not client.was_away
            if client is not self.watcher and step == 2 and self.random.random() < 0.5:
                client.read()
            client.lose(tells=False)
            client.was_away = not is_steady
        self.wills.look(self.everybody, self.seconds)
        self.wills.restarted()
        self.alerts += self.machine.effects.alerts
        self.hostile.clear()
        self._start()
        for client in (*self.steady, self.watcher):
            self._connect(client)

    # --- clients ---

    def _begin(self) -> None:
        for number in range(self.random.randint(2, 6)):
            version = self.random.choice((V4, V5))
            chance = random.Random(f"{self.cluster.seed} {number}")
            client = SimulatedClient(f"c{number}", version, chance, lambda: self.ticks)
            client.shuffles = self.random.random() < 0.3
            client.drips = self.random.random() < (0.5 if self.has_small_logs else 0.1)
            if self.has_small_logs and self.random.random() < 0.5:
                self.steady.append(client)
            self.qos_of[client.name] = self.random.choice((0, 1, 2, 2))
            self.clients.append(client)
            self._connect(client)
            self._subscribe(client)
        self._connect(self.watcher)
        self.watcher.subscribe(["will/#"], 2)
        if self.random.random() < 0.5:
            self.members = self.random.sample(self.clients, 2)
            for member in self.members:
                member.subscribe([GROUP], 2)
        kind = "durable" if self.is_durable else "in memory"
        self.note(len(self.clients), "clients", kind, self.limits)

    def _act(self) -> None:
        actions: dict[Callable[[], None], int] = {
            self._publish: 14,
            self._lose: 5,
            self._reconnect: 8,
            self._dawdle: 3,
            self._change_filters: 3,
            self._begin_anew: 1,
            self._take_over: 2,
            self._send_rubbish: 4,
            self._restart: 2,
        }
        self.random.choices(list(actions), list(actions.values()))[0]()
        if self.has_small_logs and self.random.random() < 0.15:
            self._publish_much()
        if self.random.random() < 0.1:
            self._leave()

    def _connect(self, client: SimulatedClient, *, clean: bool = False) -> None:
        """Connect a client, perhaps with a will."""
        delay = None
        if client is not self.watcher and self.random.random() < 0.5:
            delay = self.random.choice((0, 5, 60)) if client.version == V5 else 0
        self.wills.connect(client, self, delay, self.seconds, clean=clean)

    def _publish_much(self) -> None:
        """Publish more at once than a log holds."""
        client, topic = self.random.choice(self.clients), self.random.choice(TOPICS)
        qos = self._qos_on(client, topic)
        self.note(client.name, "publishes much on", topic, "QoS", qos)
        for _ in range(self.random.choice((40, 120))):
            self._let_wait(client, topic, qos, retain=False)

    def _leave(self) -> None:
        client = self.random.choice(self.clients)
        if client.is_connected and client not in self.steady:
            self.note(client.name, "leaves")
            self.wills.leave(client)

    def _publish(self) -> None:
        client = self.random.choice(self.clients)
        topic = self.random.choice(TOPICS)
        retain = self.random.random() < 0.2
        if retain:
            topic = f"kept/{client.name}"
        qos = max(self._qos_on(client, topic), retain)
        count = self.random.choice((1, 4, 30))
        self.note(client.name, "publishes", count, "on", topic, "QoS", qos)
        for _ in range(count):
            self._let_wait(client, topic, qos, retain=retain)

    @staticmethod
    def _qos_on(client: SimulatedClient, topic: str) -> int:
        """Return the one QoS of each topic: messages with different QoS may overtake each
        other."""
        return sum(map(ord, client.name + topic)) % 3

    def _let_wait(self, client: SimulatedClient, topic: str, qos: int, *, retain: bool) -> None:
        """Give a client a message to publish."""
        key = (client.name, topic)
        number = self._numbers[key] = self._numbers.get(key, 0) + 1
        message = Message(client.name, topic, number, qos, retain)
        self.messages.append(message)
        client.waiting.append(message)

    def _lose(self) -> None:
        client = self.random.choice(self.clients)
        if client.link is not None and client not in self.steady:
            self.note(client.name, "is lost")
            client.lose()

    def _reconnect(self) -> None:
        for client in self.clients:
            if client.link is None and self.random.random() < 0.7:
                self.note(client.name, "connects")
                self._connect(client)

    def _take_over(self) -> None:
        """Connect while the connection before is there: it is half open."""
        client = self.random.choice(self.clients)
        if client not in self.steady:
            self.note(client.name, "connects once more")
            client.was_away = True
            self._connect(client)

    def _dawdle(self) -> None:
        client = self.random.choice(self.clients)
        if client in self.steady:
            return
        client.is_slow, client.was_away = not client.is_slow, True
        self.note(client.name, "is slow" if client.is_slow else "is quick")

    def _subscribe(self, client: SimulatedClient) -> None:
        filters = self.random.sample(FILTERS, self.random.randint(1, 3))
        self.note(client.name, "subscribes", *filters)
        client.subscribe(filters, self.qos_of[client.name])

    def _change_filters(self) -> None:
        client = self.random.choice(self.clients)
        current = [
            wish
            for wish in client.session.wishes
            if wish.ended_at is None and not wish.topic_filter.startswith("$share")
        ]
        if current and self.random.random() < 0.5:
            wish = self.random.choice(current)
            self.note(client.name, "unsubscribes", wish.topic_filter)
            client.unsubscribe(wish)
        else:
            self._subscribe(client)

    def _begin_anew(self) -> None:
        others = [
            client
            for client in self.clients
            if client not in (*self.members, *self.steady)
            and client.version == V5  # 3.1.1 ends it after that
        ]
        if others:
            client = self.random.choice(others)
            self.note(client.name, "begins anew")
            client.lose(tells=self.random.random() < 0.5)
            for message, _ in client.session.outgoing.values():
                message.sent_at = -1  # it is not sent again, so it may or may not arrive
            self._connect(client, clean=True)
            self._subscribe(client)

    # --- who means harm ---

    def _send_rubbish(self) -> None:
        number = next(self._names)
        self.note("rubbish from", number)
        packet = Connect(f"rubbish-{number % 5}", version=self.random.choice((V4, V5)))
        link = RouterLink(self, packet, lambda: None)
        link.begin()
        for _ in range(self.random.randint(1, 20)):
            link.push(self._rubbish(packet.version))
        self.hostile.append(link)
        if len(self.hostile) > 5:
            self.hostile.pop(0).disconnect()

    def _rubbish(self, version: int) -> bytes:
        chance = self.random
        properties = Properties() if version == V5 else None
        kind = chance.randrange(5)
        if kind == 0:
            body = chance.randbytes(chance.choice((0, 2, 3, 20)))
            return bytes((chance.randrange(256), len(body))) + body
        if kind == 1:
            first = chance.choice((0x40, 0x50, 0x62, 0x70))
            return bytes((first, 2, 0, chance.randrange(256))) * chance.choice((1, 50))
        if kind == 2:
            asked = tuple(Subscription(each, 2) for each in chance.sample((*FILTERS, GROUP), 2))
            del asked  # a member that never reads would keep messages that others wait for
            plain = (Subscription("#", 2), Subscription("bad/#/x", 1))
            return encode(Subscribe(chance.randint(1, 99), plain, properties), version)
        if kind == 3:
            return b"\xc0\x00" * chance.choice((1, 100))
        number = chance.randint(1, 9)
        message = Publish("other/x", b"?", 2, packet_id=number, properties=properties)
        data = bytearray(encode(message, version))
        if chance.random() < 0.5:
            data[chance.randrange(2, len(data))] ^= 1 << chance.randrange(8)
        return bytes(data) * chance.choice((1, 3))

    # --- time ---

    def _round(self) -> None:
        """Make every party act once."""
        self.ticks += 1
        for client in self.everybody:
            if not client.is_slow:
                client.publish()
                client.read()
        self.wills.look(self.everybody, self.seconds)
        if not self.machine.is_idle or self.machine.next_deadline is not None:
            self._turn()

    def _rest(self) -> None:
        self.note("rest")
        for link in self.hostile:
            link.disconnect()
        for client in self.clients:
            client.is_slow = False
        for _ in range(PATIENCE):
            self.ticks += 1
            for client in self.everybody:
                if client.link is None:
                    self._connect(client)
                client.publish()
                client.read()
                client.answer(all_of_them=True)
            self.wills.look(self.everybody, self.seconds)
            self._turn()
            if self._is_at_rest():
                return
        raise Violation(f"not everything is delivered after {PATIENCE} rounds")

    def _is_at_rest(self) -> bool:
        return self.machine.is_idle and all(client.is_at_rest for client in self.everybody)


@cluster_test
def live_mqtt(cluster: Cluster) -> None:
    """Live a life of an MQTT router."""
    MqttLife(cluster).run()
