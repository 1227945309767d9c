"""A router of a simulated cluster: machine, claims and journal, which may crash at any step."""

import itertools
import random
from typing import TYPE_CHECKING, Any

from callboard.mqtt.journal.journal import RouterJournal
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.router.logs import TopicRoute
from callboard.mqtt.router.machine import RouterMachine
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.router.record import key_of
from callboard.mqtt.router.session import Session
from callboard.mqtt.service.claims import (
    Answer,
    Claims,
    Order,
    SessionPolicy,
    Stamps,
)
from callboard.mqtt.service.cluster import RetainedExchange, RetainedPiece
from callboard.simulation.disk import SimulatedDisk
from tests.callboard.mqtt.stage import deliver
from tests.simulation.rules import Violation

if TYPE_CHECKING:
    from tests.simulation.mqtt_cluster_life import MqttClusterLife


class Crash(Exception):
    """The router has crashed."""


class WatchedMachine(RouterMachine):
    """Records the messages that it accepted, and the clients that are owed them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.watched: list[tuple[bytes, set[str]]] = []
        self._append = self.logs.append
        self.logs.append = self.append  # type: ignore[method-assign]

    def append(
        self,
        run: MessageRun,
        route: TopicRoute,
        session: Session | None = None,
        received: tuple[int, ...] = (),
    ) -> None:
        """Append messages, and note whose sessions here have a filter for them."""
        self._append(run, route, session, received)
        owed = {
            each.client_id
            for each in self.sessions
            if each.client_id not in self.sessions.adopted
            and any(name in each.subscriptions for name in run.filters)
        }
        self.watched += [(payload, owed) for payload in run.payloads]


class ClusterRouter:
    """One router; `crashes_at` is the step at which it crashes when it reaches it next.

    Steps: 0 before it writes its journal, 1 before the sync, 2 after it, 3 after a part of its
    """

    def __init__(self, life: "MqttClusterLife", number: int) -> None:
        self.life = life
        self.number = number
        self.is_up = False
        self.life_number = 0
        self.crashes_at: int | None = None
        self.disk = SimulatedDisk(life.cluster.seed + number)
        chance = self.random = random.Random(f"{life.cluster.seed} router {number}")
        self.is_durable = chance.random() < 0.7
        #: The error of its clock in seconds.
        self.skew = chance.choice((0.0, 0.0, -30.0, 500.0))
        self.limits = Limits(
            inflight=chance.choice((1, 3, 20, 100)),
            delivery_quota=chance.choice((2, 10, 1_000)),
        )
        self._names = itertools.count()
        self.start()

    def start(self) -> None:
        """Start with the contents of the journal."""
        stamps = Stamps(lambda: int((1e9 + self.life.seconds + self.skew) * 1e9))
        self.machine = WatchedMachine(
            self.limits,
            is_durable=self.is_durable,
            make_client_id=lambda: f"auto-{next(self._names)}",
            chance=self.random,
            now=self.life.seconds,
            make_stamp=stamps.make,
            origin=b"%d %d" % (self.number, self.life_number),
        )
        self._journal: RouterJournal | None = None
        if self.is_durable:
            self._journal = RouterJournal(
                "/mqtt",
                now=lambda: self.life.seconds,
                disk=self.disk,
                wall_clock=lambda: int((1e9 + self.life.seconds) * 1e9),
                least_growth=self.random.choice((3_000, 100_000)),
                segment_bytes=2_000,
            )
            self._journal.restore(self.machine)
        self.claims = Claims(
            self.machine,
            policy=SessionPolicy.TAKE_OVER,
            stamps=stamps,
            address=lambda: f"router-{self.number}",
            make_name=lambda: f"{self.number}-{next(self._names)}",
        )
        self.exchange = RetainedExchange(self.machine.logs, stamps)
        self.is_up = True

    def retain(self, topic: bytes, payload: bytes) -> None:
        """Take a retained message of a client, which has its answer when this returns."""
        logs, key = self.machine.logs, key_of(topic)
        before = logs.retained.heads.get(key)
        run = MessageRun.of_payloads(topic, [payload], 1, "c", retain=True)
        logs.append(run, logs.route(topic))
        head = logs.retained.heads.get(key)
        assert head is not None
        if before is not None and before[:2] >= head[:2]:
            raise Violation(f"router {self.number} wrote {head} behind {before}")
        self.life.written[head[:2]] = (key, payload)
        self.settle()
        self.life.acknowledged.add(head[:2])

    def kept(self) -> dict[bytes, bytes]:
        """Return the retained messages of this router, by key."""
        return {key_of(run.topic): run.payloads[0] for run in self.machine.logs.retained}

    def take_piece(self, piece: RetainedPiece) -> None:
        """Take retained messages of another router."""
        self.settle()
        self.exchange.take(piece)
        self.settle()

    def owns(self, client_id: str) -> bool:
        """Whether the session of a client is here, and no copy."""
        sessions = self.machine.sessions
        return client_id not in sessions.adopted and sessions.get(client_id) is not None

    def crash(self) -> None:
        """Crash, and lose everything that was not synced."""
        self.is_up = False
        self.life_number += 1
        self.crashes_at = None
        self.disk.crash()
        for client in self.life.clients:
            link = client.link
            if link is not None and link._mailbox is self:
                client.lose(tells=False)

    def post(self, event: Any) -> None:
        """Take an event of a link."""
        if self.is_up:
            self.machine.events.append(event)

    def take(self, order: Order) -> Answer:
        """Take an order of another router; the answer is durable."""
        self.settle()
        answer = self.claims.answer(order)
        self.settle()
        return answer

    def settle(self) -> None:
        """Take turns until the events are taken.

        Raises:
            Crash: the router's time has come.
        """
        while True:
            self._turn()
            if self.machine.is_idle:
                return

    def _turn(self) -> None:
        turn = self.machine.run_turn(self.life.seconds)
        step = self.crashes_at
        if step == 0 and turn.records:
            raise Crash
        if turn.records and self._journal is not None:
            if step == 1:  # the disk may keep it all the same
                self.life.perhaps_taken |= {payload for payload, _ in self.machine.watched}
                self._journal._log.flush = self._die  # type: ignore[method-assign]
            self._journal.write(turn.records, self.machine)
        for payload, owed in self.machine.watched:
            self.life.taken.setdefault(payload, []).append(owed)
        self.machine.watched.clear()
        if step == 2 and turn.records:
            raise Crash
        transmits = turn.transmits
        is_last = step == 3 and bool(turn.records)
        if is_last:
            transmits = transmits[: self.random.randint(0, len(transmits))]
        for link, notifications in transmits:
            deliver(link, notifications)
        if is_last:
            raise Crash
        self.life.tell_news(self)
        if self._journal is not None:
            self._journal.fetch(turn.fetches, self.machine)

    @staticmethod
    def _die() -> None:
        raise Crash
