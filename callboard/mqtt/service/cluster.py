"""Routers of one cluster: carries out the decisions of `claims` between the nodes' actors.

All routers on nodes that reach one another form a group. Before a client is admitted, its
router asks all others for its client id; `claims` describes their answers.

Retained messages are the same on all routers. When a write of a client is durable on its
router, that router sends it to the others. The message may be lost, so each router also sends a
digest of each of 256 parts of the topics: to a router that joins, and to all every few seconds.
Where two digests differ, each router asks the other for newer writes, one part after the other,
in pieces of bounded size. `retained` describes which write is the last.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import field
from typing import Any, Final, get_args, get_type_hints

from callboard.kernel.actors import ActorRef, Group, frozen_message
from callboard.kernel.errors import ActorDown, CallboardError
from callboard.mqtt.access.admission import Admission, Admitter, OnAdmission, Peer
from callboard.mqtt.router.logs import Logs
from callboard.mqtt.router.message import MessageRun, passed_on
from callboard.mqtt.router.record import KEY_BYTES, key_of
from callboard.mqtt.router.retained import BUCKETS, GRAVE, Head
from callboard.mqtt.service.claims import Answer, Claims, Order, SettleSession, Stamps, Steps
from callboard.mqtt.wire.errors import RemoteMqttError
from callboard.mqtt.wire.field import Reader, write_variable
from callboard.mqtt.wire.packet import Connect
from callboard.mqtt.wire.properties import Place, read_properties
from callboard.mqtt.wire.topic import is_valid_topic
from callboard.support.dataclass import dataclass
from callboard.support.text import safe_repr

_log: Final = logging.getLogger("callboard.mqtt")

#: The group that all routers join.
ROUTERS: Final = "callboard.mqtt.routers"

#: Seconds within which the other routers must answer.
CLAIM_LIMIT: Final = 2.0

#: Seconds between two attempts to confirm a copied session.
RESOLVE_INTERVAL: Final = 1.0

_ANSWERS: Final = get_args(Answer)


#: Seconds between two comparisons of the retained messages.
COMPARE_INTERVAL: Final = 10.0

#: Comparisons after which a router asks again for messages that it had no room for.
RETRY_COMPARISONS: Final = 60

#: Bytes, and writes, of one piece; a larger message is sent as a piece of one write.
PIECE_BYTES: Final = 1 << 20
PIECE: Final = 1_000

#: Topics that are named in one line of the log.
NAMED: Final = 20

#: Bytes of the largest message that is sent: frames between nodes hold up to 16 MiB.
LARGEST: Final = 15 << 20

#: Nanoseconds that the clock of another router may be ahead. No later write could replace one
#: with a time further in the future.
AHEAD: Final = 86_400 * 10**9


@frozen_message("callboard.mqtt.RetainedWrite")
class RetainedWrite:
    """The last write of one topic; without a topic it removed the message.

    Attributes:
        key: the key of the topic.
        stamp: the stamp; with `origin`, it orders the writes of the topic.
        origin: the router that received the write.
        topic: as it is encoded in packets.
        payload: the payload of the message.
        qos: the QoS of the publish.
        publisher: the client id.
        properties: encoded for subscribers, without the length.
        expiry: seconds until the message expires; None is never.
    """

    key: bytes
    stamp: int
    origin: bytes
    topic: bytes = b""
    payload: bytes = b""
    qos: int = 0
    publisher: str = ""
    properties: bytes = b""
    expiry: float | None = None


#: The types of the fields of `RetainedWrite`.
_KINDS: Final = get_type_hints(RetainedWrite)


@frozen_message("callboard.mqtt.RetainedPiece")
class RetainedPiece:
    """Writes of another router, new or requested ones; `is_all` is False if more follow."""

    writes: tuple[RetainedWrite, ...]
    is_all: bool = True


@frozen_message("callboard.mqtt.RetainedDigests")
class RetainedDigests:
    """Digests of a router's retained messages; the receiver answers once with its own."""

    router: ActorRef | None
    digests: tuple[int, ...]
    is_answer: bool = False


@frozen_message("callboard.mqtt.RetainedQuestion")
class RetainedQuestion:
    """Asks for newer writes of a part: the sender has these (key, stamp, origin)."""

    bucket: int
    heads: tuple[tuple[bytes, int, bytes], ...]


@dataclass(eq=False)
class RetainedExchange:
    """The exchange of retained messages between routers; pure.

    Attributes:
        logs: the logs of the router's machine.
        stamps: order the writes of all routers.
    """

    logs: Logs
    stamps: Stamps

    def __post_init__(self) -> None:
        self._heads = self.logs.retained.heads
        self.stamps.see(self._heads.latest)
        self._comparisons = 0
        #: Removals are known since then; with a journal, since ever.
        self._since = 0 if self._heads.latest else self.stamps.now()

    def forget_old(self) -> None:
        """Forget old removals; called with every comparison."""
        self._comparisons += 1
        horizon = self.stamps.now() - GRAVE
        self._heads.forget(horizon, retries=not self._comparisons % RETRY_COMPARISONS)

    def digests(self, router: ActorRef | None, *, is_answer: bool) -> RetainedDigests:
        """Return the digests for another router to compare."""
        return RetainedDigests(router, tuple(self._heads.digests), is_answer)

    def differing(self, digests: Iterable[int]) -> list[int]:
        """Return the parts whose digests differ between this router and another one."""
        received = digests if isinstance(digests, tuple | list) else ()
        pairs = zip(received, self._heads.digests, strict=False)
        return [bucket for bucket, (theirs, ours) in enumerate(pairs) if theirs != ours]

    def question(self, bucket: int) -> RetainedQuestion:
        """Return the question for newer writes of a part."""
        heads = self._heads.of_bucket(bucket)
        return RetainedQuestion(bucket, tuple([(key, *head[:2]) for key, head in heads]))

    def answer(self, question: RetainedQuestion) -> RetainedPiece:
        """Return the writes that are newer on this router."""
        try:
            stamps = {key: (stamp, origin) for key, stamp, origin in question.heads}
            newer = [
                (key, head)
                for key, head in self._heads.of_bucket(question.bucket % BUCKETS)
                if head[:2] > stamps.get(key, (0, b""))
            ]
        except (TypeError, ValueError):  # malformed: not from one of our routers
            newer = []
        return next(self._pieces(newer), RetainedPiece(()))

    def news(self) -> Iterator[RetainedPiece]:
        """Return the writes made on this router since the last call, for the other routers."""
        changed, self._heads.changed = self._heads.changed, {}
        heads = ((key, self._heads.get(key)) for key in changed)
        return self._pieces([(key, head) for key, head in heads if head is not None])

    def _pieces(self, heads: list[tuple[bytes, Head]]) -> Iterator[RetainedPiece]:
        """Split writes into pieces."""
        writes: list[RetainedWrite] = []
        weight = 0
        for key, head in heads:
            if (write := self._write(key, head)) is None:
                continue
            size = len(write.topic) + len(write.payload) + len(write.properties)
            if writes and (weight + size > PIECE_BYTES or len(writes) >= PIECE):
                yield RetainedPiece(tuple(writes), is_all=False)
                writes, weight = [], 0
            writes.append(write)
            weight += size
        if writes:
            yield RetainedPiece(tuple(writes))

    def _write(self, key: bytes, head: Head) -> RetainedWrite | None:
        """Return a write in the form for other routers; None if it is not sent."""
        if head.topic is None:
            return None  # this router had no room for the message
        now = self.logs.effects.now
        run = self.logs.retained.get(head.topic.decode()) if head.topic else None
        if run is None or (run.expires_at is not None and run.expires_at <= now):
            is_young = head.stamp >= self.stamps.now() - GRAVE
            return RetainedWrite(key, head.stamp, head.origin) if is_young else None
        if run.weight > LARGEST:
            return None
        seconds_left = None if run.expires_at is None else run.expires_at - now
        rest = run.topic, run.payloads[0], run.qos, run.publisher, run.properties, seconds_left
        return RetainedWrite(key, head.stamp, head.origin, *rest)

    def _is_forgotten(self, write: RetainedWrite) -> bool:
        """Return whether an unknown write may be of a message whose removal was forgotten."""
        horizon = self.stamps.now() - GRAVE
        is_old = max(write.stamp, self._since) < horizon
        return is_old and self._heads.get(write.key) is None

    def take(self, piece: RetainedPiece) -> bool:
        """Apply writes of another router; return whether any of them was new."""
        refused, digests = 0, self._heads.digests[:]
        returned: list[str] = []
        writes: Any = piece.writes
        for write in writes if isinstance(writes, tuple | list) else ():
            if not _is_sound(write) or not 0 < write.stamp < self.stamps.now() + AHEAD:
                _log.warning("a malformed retained message of another router is ignored")
                continue
            if write.topic and self._is_forgotten(write):
                returned.append(safe_repr(write.topic.decode()))
            self.stamps.see(write.stamp)
            head, run = Head(write.stamp, write.origin, write.topic), None
            if write.topic:
                expiry = write.expiry
                expires_at = None if expiry is None else self.logs.effects.now + expiry
                rest = write.qos, write.publisher, write.properties, expires_at
                run = MessageRun.of_payloads(write.topic, [write.payload], *rest, retain=True)
            refused += not self.logs.take_retained(write.key, head, run)
        if refused:
            _log.warning("%d retained messages of other routers exceed the limits", refused)
        if returned:
            _log.warning(
                "%d retained messages of another router are older than seven days and were "
                "unknown here; if it was disconnected that long, removed messages are back: %s",
                len(returned),
                ", ".join(returned[:NAMED]),
            )
        return digests != self._heads.digests


def _is_sound(write: Any) -> bool:
    """Return whether a write is well-formed, and a client could have published it."""
    is_formed = isinstance(write, RetainedWrite) and all(
        isinstance(getattr(write, name), kind) for name, kind in _KINDS.items()
    )
    if not is_formed or len(write.key) != KEY_BYTES or len(write.origin) > KEY_BYTES:
        return False
    if not write.topic:
        return True
    try:
        topic = write.topic.decode()
        reader = Reader(write_variable(len(write.properties)) + write.properties)
        properties = passed_on(read_properties(reader, Place.PUBLISH)).properties
    except (UnicodeDecodeError, RemoteMqttError):
        return False
    is_right = is_valid_topic(topic) and not topic.startswith("$SYS/") and bool(write.payload)
    is_same = key_of(write.topic) == write.key and properties == write.properties
    return is_right and is_same and write.qos in {0, 1, 2} and write.expiry == write.expiry


@dataclass(eq=False)
class ClusterGate:
    """Admits clients after its inner gate, and after the other routers gave up their sessions.

    Attributes:
        gate: decides first.
        claims: the claims of this router.
        group: all routers.
        me: this router.
        loop: the event loop that everything runs on.
        settle: makes the changes of the machine durable, up to now.
        exchange: the exchange of retained messages.
    """

    gate: Admitter
    claims: Claims
    group: Group[Any]
    me: ActorRef
    loop: asyncio.AbstractEventLoop
    settle: Callable[[], None]
    exchange: RetainedExchange
    _tasks: set[asyncio.Task[object]] = field(default_factory=set)
    _compared: dict[ActorRef, float] = field(default_factory=dict)
    _pulled: dict[ActorRef, dict[int, None]] = field(default_factory=dict)

    def admit(self, connect: Connect, peer: Peer, answer: OnAdmission) -> Admission | None:
        """Decide about a client."""

        def judged_later(admission: Admission) -> None:
            if (ruled := self._rule(connect, admission, answer)) is not None:
                answer(ruled)

        admission = self.gate.admit(connect, peer, judged_later)
        return None if admission is None else self._rule(connect, admission, answer)

    def _rule(
        self, connect: Connect, admission: Admission, answer: OnAdmission
    ) -> Admission | None:
        """Ask the other routers about a client that the gate admits; None while they answer."""
        client_id = admission.client_id or connect.client_id
        if admission.reason_code or not client_id:
            return admission
        # The usual case, a router alone: both lists hold the same ref, so the comparison is
        # cheap.
        is_alone = self.group.members() == [self.me] or not self._other_routers()
        if is_alone and client_id not in self.claims.machine.sessions.adopted:
            return admission

        async def claim() -> None:
            is_clean, user = connect.clean_start, admission.user
            steps = self.claims.claim(client_id, is_clean=is_clean, user=user)
            ruling = await self._decide(steps)
            answer(ruling if ruling.reason_code else admission)

        self._later(claim())
        return None

    def resolve_all(self) -> None:
        """Confirm copied sessions and compare retained messages; repeats itself."""
        for client_id in list(self.claims.machine.sessions.adopted):
            self._later(self._decide(self.claims.resolve(client_id)))
        self._compare()
        self.loop.call_later(RESOLVE_INTERVAL, self.resolve_all)

    # --- retained messages ---

    def send_news(self) -> None:
        """Send the writes made on this router to all other routers."""
        news = self.exchange.news()
        routers = self._other_routers()
        for piece in news if routers else ():
            for ref in routers:
                self._send(ref, piece)

    def _send(self, ref: ActorRef, message: object) -> None:
        """Send a message to a router; the next comparison repairs a loss."""
        try:
            ref.tell(message)
        except CallboardError as error:
            _log.debug("retained messages cannot be sent to %s: %s", ref, error)

    def _compare(self) -> None:
        """Send digests to routers that have joined, and to all every few seconds."""
        now, routers = self.loop.time(), self._other_routers()
        self._compared = {ref: self._compared.get(ref, 0.0) for ref in routers}
        due = [ref for ref, when in self._compared.items() if now - when >= COMPARE_INTERVAL]
        if due:
            self.exchange.forget_old()
        for ref in due:
            self._compared[ref] = now
            self._send(ref, self.exchange.digests(self.me, is_answer=False))

    def take_digests(self, digests: RetainedDigests) -> None:
        """Ask another router for the parts that differ."""
        ref = digests.router
        if ref is None or ref not in self._other_routers():
            return
        if not digests.is_answer:
            self._send(ref, self.exchange.digests(self.me, is_answer=True))
        differing = self.exchange.differing(digests.digests)
        if (parts := self._pulled.get(ref)) is not None:
            parts.update(dict.fromkeys(differing))
        elif differing:
            self._pulled[ref] = dict.fromkeys(differing)
            self._later(self._pull(ref))

    async def _pull(self, ref: ActorRef) -> None:
        """Ask another router for its newer writes, part by part, piece by piece."""
        parts = self._pulled[ref]
        try:
            while parts:
                question = self.exchange.question(next(iter(parts)))
                piece = await ref.ask(question, timeout=CLAIM_LIMIT)
                if not isinstance(piece, RetainedPiece):
                    return
                self.settle()  # which also updates the machine's clock
                is_news = self.exchange.take(piece)
                self.settle()
                if piece.is_all or not is_news:
                    parts.pop(question.bucket, None)
        except CallboardError as error:
            _log.debug("retained messages of %s cannot be compared: %s", ref, error)
        finally:
            del self._pulled[ref]

    # --- clients ---

    def _later(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine on the loop, and keep a reference until it is done."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _other_routers(self) -> list[ActorRef]:
        """Return the other routers of the group."""
        return [ref for ref in self.group if ref != self.me]

    async def _decide(self, steps: Steps) -> Admission:
        """Carry out the steps of a decision, and return it."""
        answers: list[Answer] | None = None  # None starts the generator
        while True:
            try:
                order = steps.send(answers)  # type: ignore[arg-type]
            except StopIteration as end:
                self.settle()
                return end.value  # type: ignore[no-any-return]
            self.settle()
            if isinstance(order, SettleSession):
                for ref in self._other_routers():
                    ref.tell(order)
                answers = []
            else:
                answers = await self._ask_all(order)

    async def _ask_all(self, order: Order) -> list[Answer]:
        """Ask all other routers.

        A router that does not answer in time counts as None; one that is down is left out.
        """
        requests = [ref.ask(order, timeout=CLAIM_LIMIT) for ref in self._other_routers()]
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        return [
            outcome if isinstance(outcome, _ANSWERS) else None
            for outcome in outcomes
            if not isinstance(outcome, ActorDown)
        ]
