"""Routers of one cluster: what `claims` decides, carried between the nodes' actors.

All routers on nodes that reach one another are a group. Before a client is let in, all others
are asked for its id; see `claims` for what they answer.

Retained messages are the same at all of them. What a client writes at one is told to the others
when it is durable there. That may be lost; so each router tells the others, when one comes and
every few seconds, what it has, by a digest for each of 256 parts of the topics. Where two
differ, each asks the other for what is newer there, one part after the other, and no more than
a piece at a time. See `retained` for which write is the last.
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
from callboard.mqtt.router.message import Run, passed_on
from callboard.mqtt.router.record import KEY_BYTES, key_of
from callboard.mqtt.router.retained import BUCKETS, GRAVE, Head
from callboard.mqtt.service.claims import Answer, Claims, Order, SettleSession, Stamps, Steps
from callboard.mqtt.wire.errors import RemoteMqttError
from callboard.mqtt.wire.field import Reader, write_variable
from callboard.mqtt.wire.packet import Connect
from callboard.mqtt.wire.properties import Place, read_properties
from callboard.mqtt.wire.topic import is_valid_topic
from callboard.support.dataclass import dataclass
from callboard.support.text import shown

_log: Final = logging.getLogger("callboard.mqtt")

#: The group that all routers join.
ROUTERS: Final = "callboard.mqtt.routers"

#: Seconds that the others have to answer.
CLAIM_LIMIT: Final = 2.0

#: Seconds between two questions about an unconfirmed copy.
RESOLVE_INTERVAL: Final = 1.0

_ANSWERS: Final = get_args(Answer)


#: Seconds between two looks whether retained messages are the same.
COMPARE_INTERVAL: Final = 10.0

#: Looks after which a router asks again for what it had no room for.
RETRY_LOOKS: Final = 60

#: Bytes, and writes, of one piece; a larger message is a piece alone.
PIECE_BYTES: Final = 1 << 20
PIECE: Final = 1_000

#: Topics that one line of the log names.
NAMED: Final = 20

#: Bytes of a message that is still carried: a message between nodes holds 16 MiB.
LARGEST: Final = 15 << 20

#: Nanoseconds by which the clock of another router may be ahead. What is written further in the
#: future could never be replaced.
AHEAD: Final = 86_400 * 10**9


@frozen_message("callboard.mqtt.RetainedWrite")
class RetainedWrite:
    """The last write of one topic; without a topic it removed the message.

    Attributes:
        key: of the topic.
        stamp: with `origin`, says which write is the last.
        origin: of the router that took it.
        topic: as it stands in packets.
        payload: of the message.
        qos: that it was published with.
        publisher: the client id.
        properties: as they go to readers, without length.
        expiry: seconds that it has left; None is for ever.
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


#: The types of its fields.
_KINDS: Final = get_type_hints(RetainedWrite)


@frozen_message("callboard.mqtt.RetainedPiece")
class RetainedPiece:
    """Writes of another router, as it made them or as they were asked for; perhaps not all."""

    writes: tuple[RetainedWrite, ...]
    is_all: bool = True


@frozen_message("callboard.mqtt.RetainedDigests")
class RetainedDigests:
    """What a router has, in short; the other one says the same of itself, unless it asked."""

    router: ActorRef[Any] | None
    digests: tuple[int, ...]
    is_answer: bool = False


@frozen_message("callboard.mqtt.RetainedQuestion")
class RetainedQuestion:
    """A router has these writes of a part (key, stamp, origin), and asks for what is newer."""

    bucket: int
    heads: tuple[tuple[bytes, int, bytes], ...]


@dataclass(eq=False)
class RetainedExchange:
    """What a router says and takes of retained messages; pure.

    Attributes:
        logs: of its machine.
        stamps: order writes in the whole cluster.
    """

    logs: Logs
    stamps: Stamps

    def __post_init__(self) -> None:
        self._heads = self.logs.retained.heads
        self.stamps.see(self._heads.latest)
        self._looks = 0
        #: Since when removals are known here; a journal knows them from before.
        self._since = 0 if self._heads.latest else self.stamps.now()

    def look(self) -> None:
        """Forget what was removed long ago; every few seconds."""
        self._looks += 1
        horizon = self.stamps.now() - GRAVE
        self._heads.forget(horizon, retries=not self._looks % RETRY_LOOKS)

    def digests(self, router: ActorRef[Any] | None, *, is_answer: bool) -> RetainedDigests:
        """Return what another router may compare."""
        return RetainedDigests(router, tuple(self._heads.digests), is_answer)

    def differing(self, digests: Iterable[int]) -> list[int]:
        """Return the parts in which another router has something else."""
        said = digests if isinstance(digests, tuple | list) else ()
        pairs = zip(said, self._heads.digests, strict=False)
        return [bucket for bucket, (theirs, ours) in enumerate(pairs) if theirs != ours]

    def question(self, bucket: int) -> RetainedQuestion:
        """Return what to ask another router for."""
        heads = self._heads.of_bucket(bucket)
        return RetainedQuestion(bucket, tuple([(key, *head[:2]) for key, head in heads]))

    def answer(self, question: RetainedQuestion) -> RetainedPiece:
        """Return what is newer here."""
        try:
            known = {key: (stamp, origin) for key, stamp, origin in question.heads}
            newer = [
                (key, head)
                for key, head in self._heads.of_bucket(question.bucket % BUCKETS)
                if head[:2] > known.get(key, (0, b""))
            ]
        except (TypeError, ValueError):  # no router of ours asks so
            newer = []
        return next(self._pieces(newer), RetainedPiece(()))

    def news(self) -> Iterator[RetainedPiece]:
        """Return what was written here since the last call, for the others."""
        changed, self._heads.changed = self._heads.changed, {}
        found = ((key, self._heads.get(key)) for key in changed)
        return self._pieces([(key, head) for key, head in found if head is not None])

    def _pieces(self, heads: list[tuple[bytes, Head]]) -> Iterator[RetainedPiece]:
        """Return writes in pieces."""
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
        """Return a write as it travels; None if it does not."""
        if head.topic is None:
            return None  # there was no room for it here
        now = self.logs.effects.now
        run = self.logs.retained.get(head.topic.decode()) if head.topic else None
        if run is None or (run.expires_at is not None and run.expires_at <= now):
            is_young = head.stamp >= self.stamps.now() - GRAVE
            return RetainedWrite(key, head.stamp, head.origin) if is_young else None
        if run.weight > LARGEST:
            return None
        left = None if run.expires_at is None else run.expires_at - now
        about = run.topic, run.payloads[0], run.qos, run.publisher, run.properties, left
        return RetainedWrite(key, head.stamp, head.origin, *about)

    def _is_forgotten(self, write: RetainedWrite) -> bool:
        """Return whether an unknown write may have been removed, and nobody remembers it."""
        horizon = self.stamps.now() - GRAVE
        is_old = max(write.stamp, self._since) < horizon
        return is_old and self._heads.get(write.key) is None

    def take(self, piece: RetainedPiece) -> bool:
        """Take writes of another router; returns whether there was anything to take."""
        refused, before = 0, self._heads.digests[:]
        old: list[str] = []
        writes: Any = piece.writes
        for write in writes if isinstance(writes, tuple | list) else ():
            if not _is_sound(write) or not 0 < write.stamp < self.stamps.now() + AHEAD:
                _log.warning("a retained message of another router is unsound, and not taken")
                continue
            if write.topic and self._is_forgotten(write):
                old.append(shown(write.topic.decode()))
            self.stamps.see(write.stamp)
            head, run = Head(write.stamp, write.origin, write.topic), None
            if write.topic:
                left = write.expiry
                expires_at = None if left is None else self.logs.effects.now + left
                about = write.qos, write.publisher, write.properties, expires_at
                run = Run.of_payloads(write.topic, [write.payload], *about, retain=True)
            refused += not self.logs.take_retained(write.key, head, run)
        if refused:
            _log.warning("there is no room for %d retained messages of other routers", refused)
        if old:
            _log.warning(
                "%d retained messages of another router are older than seven days and were not "
                "here: if it was away for so long, what was removed meanwhile is back: %s",
                len(old),
                ", ".join(old[:NAMED]),
            )
        return before != self._heads.digests


def _is_sound(write: Any) -> bool:
    """Return whether a write has the form that routers give it, and a client could make it."""
    is_formed = isinstance(write, RetainedWrite) and all(
        isinstance(getattr(write, name), kind) for name, kind in _KINDS.items()
    )
    if not is_formed or len(write.key) != KEY_BYTES or len(write.origin) > KEY_BYTES:
        return False
    if not write.topic:
        return True
    try:
        topic = write.topic.decode()
        said = Reader(write_variable(len(write.properties)) + write.properties)
        properties = passed_on(read_properties(said, Place.PUBLISH)).properties
    except (UnicodeDecodeError, RemoteMqttError):
        return False
    is_right = is_valid_topic(topic) and not topic.startswith("$SYS/") and bool(write.payload)
    is_same = key_of(write.topic) == write.key and properties == write.properties
    return is_right and is_same and write.qos in {0, 1, 2} and write.expiry == write.expiry


@dataclass(eq=False)
class ClusterGate:
    """Lets clients in as the gate behind it does, unless the session is on another router.

    Attributes:
        gate: decides first.
        claims: of this router.
        group: all routers.
        me: this one.
        loop: what everything happens on.
        settle: makes what the machine has done so far durable.
        exchange: of retained messages.
    """

    gate: Admitter
    claims: Claims
    group: Group[Any]
    me: ActorRef[Any]
    loop: asyncio.AbstractEventLoop
    settle: Callable[[], None]
    exchange: RetainedExchange
    _tasks: set[asyncio.Task[object]] = field(default_factory=set)
    _compared: dict[ActorRef[Any], float] = field(default_factory=dict)
    _pulled: dict[ActorRef[Any], dict[int, None]] = field(default_factory=dict)

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
        """Ask the others about a client that the gate lets in; None while they think."""
        client_id = admission.client_id or connect.client_id
        if admission.reason_code or not client_id:
            return admission
        # Nearly always there is no other: lists of this very ref are equal at once.
        is_alone = self.group.members() == [self.me] or not self._others()
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
        """Ask about unconfirmed copies, compare what is retained, and again in a while."""
        for client_id in list(self.claims.machine.sessions.adopted):
            self._later(self._decide(self.claims.resolve(client_id)))
        self._compare()
        self.loop.call_later(RESOLVE_INTERVAL, self.resolve_all)

    # --- retained messages ---

    def tell_news(self) -> None:
        """Tell the others what was written here."""
        news = self.exchange.news()
        others = self._others()
        for piece in news if others else ():
            for ref in others:
                self._tell(ref, piece)

    def _tell(self, ref: ActorRef[Any], said: object) -> None:
        """Tell a router something; what does not reach it is found by the next comparison."""
        try:
            ref.tell(said)
        except CallboardError as error:
            _log.debug("retained messages do not reach %s: %s", ref, error)

    def _compare(self) -> None:
        """Say what is here to those that came, and to all every few seconds."""
        now, others = self.loop.time(), self._others()
        self._compared = {ref: self._compared.get(ref, 0.0) for ref in others}
        due = [ref for ref, when in self._compared.items() if now - when >= COMPARE_INTERVAL]
        if due:
            self.exchange.look()
        for ref in due:
            self._compared[ref] = now
            self._tell(ref, self.exchange.digests(self.me, is_answer=False))

    def take_digests(self, said: RetainedDigests) -> None:
        """Ask another router for what it has and this one has not."""
        ref = said.router
        if ref is None or ref not in self._others():
            return
        if not said.is_answer:
            self._tell(ref, self.exchange.digests(self.me, is_answer=True))
        differing = self.exchange.differing(said.digests)
        if (waiting := self._pulled.get(ref)) is not None:
            waiting.update(dict.fromkeys(differing))
        elif differing:
            self._pulled[ref] = dict.fromkeys(differing)
            self._later(self._pull(ref))

    async def _pull(self, ref: ActorRef[Any]) -> None:
        """Ask for what is newer at another router, part after part, piece after piece."""
        waiting = self._pulled[ref]
        try:
            while waiting:
                question = self.exchange.question(next(iter(waiting)))
                piece = await ref.ask(question, timeout=CLAIM_LIMIT)
                if not isinstance(piece, RetainedPiece):
                    return
                self.settle()  # which also tells the time
                is_news = self.exchange.take(piece)
                self.settle()
                if piece.is_all or not is_news:
                    waiting.pop(question.bucket, None)
        except CallboardError as error:
            _log.debug("retained messages of %s are not compared: %s", ref, error)
        finally:
            del self._pulled[ref]

    # --- clients ---

    def _later(self, work: Coroutine[Any, Any, object]) -> None:
        """Run something on the loop, and keep it until it is done."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _others(self) -> list[ActorRef[Any]]:
        """Return the other routers of the group."""
        return [ref for ref in self.group if ref != self.me]

    async def _decide(self, steps: Steps) -> Admission:
        """Take a decision to its end, with the answers that it waits for."""
        answers: list[Answer] | None = None  # which begins
        while True:
            try:
                order = steps.send(answers)  # type: ignore[arg-type]
            except StopIteration as end:
                self.settle()
                return end.value  # type: ignore[no-any-return]
            self.settle()
            if isinstance(order, SettleSession):
                for ref in self._others():
                    ref.tell(order)
                answers = []
            else:
                answers = await self._ask_all(order)

    async def _ask_all(self, order: Order) -> list[Answer]:
        """Ask all others.

        Those that did not answer in time are None; those that are down have no say.
        """
        asked = [ref.ask(order, timeout=CLAIM_LIMIT) for ref in self._others()]
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [
            each if isinstance(each, _ANSWERS) else None
            for each in found
            if not isinstance(each, ActorDown)
        ]
