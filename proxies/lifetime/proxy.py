"""A proxy: a remote actor as a local one.

It takes what a local actor takes (messages, stop, monitors, links) and hands it to what leads
to the actor's node. It remembers that its actor ended, so that later asks fail at once.
"""

from collections import deque
from dataclasses import replace
from typing import Any, Final, Protocol

from callboard import locks
from callboard.actors.envelope import Envelope
from callboard.actors.errors import ActorDown, NodeUnreachable
from callboard.actors.exit_reason import ExitReason
from callboard.actors.mailbox import BackPressure, Mailbox, SendTurn
from callboard.actors.reference import ActorRef, AnySender, Down, Sender, Watcher
from callboard.actors.runtime import Runtime
from callboard.basp.header import NODE_ACTOR
from callboard.proxies.address import Endpoint
from callboard.proxies.ledger.credit import Credit
from callboard.proxies.ledger.ref_counts import RefCount
from callboard.proxies.messages import LinkActors, StopActor

#: A message that waits for a path or for credit, its sender, and the message serialized, which
#: is empty for the order to stop.
Waiting = tuple[Any, Sender | None, bytes]

#: Guards the tables of watchers; held for a few operations.
_MONITORS_LOCK = locks.lock("watchers of remote actors", 710)


#: Messages and bytes to one actor that wait for credit before their threads wait as well; a
#: handler may go to twice as much.
CREDIT_QUEUE: Final = Mailbox(limit=16, bytes=256 * 1024)


#: Bytes that a message in a queue takes beside its own.
ENTRY_SIZE: Final = 256


class Queue(deque[Waiting]):
    """What waits for a path or for credit to one actor, in order."""

    def __init__(self) -> None:
        super().__init__()
        #: Its bytes, its bounds, and everyone who waits for room in it.
        self.pressure = BackPressure(CREDIT_QUEUE)
        #: Whether credit is looked for at intervals.
        self.is_tended = False

    def put(self, message: Any, sender: Sender | None, payload: bytes) -> None:
        """Append a message; one with high priority goes before those without."""
        self.pressure.held += len(payload)
        at = len(self)
        if _is_urgent(message):
            at = next((index for index, one in enumerate(self) if not _is_urgent(one[0])), at)
        self.insert(at, (message, sender, payload))

    def take(self) -> Waiting:
        """Take the first one out."""
        first = self.popleft()
        self.pressure.held -= len(first[2])
        return first

    @property
    def weight(self) -> int:
        """Bytes of memory that it takes, as estimated."""
        return self.pressure.held + ENTRY_SIZE * len(self)

    @property
    def message_count(self) -> int:
        """How many messages wait; orders to stop are none."""
        return sum(bool(payload) for _, _, payload in self)


def _is_urgent(message: Any) -> bool:
    """Return whether a message has high priority."""
    return message.__class__ is Envelope and bool(message.is_urgent)


class Outbound(Protocol):
    """What leads from proxies to other nodes."""

    def dispatch(
        self,
        proxy: "Proxy",
        message: Any,
        sender: Sender | None,
        payload: bytes | None = None,
        *,
        at_once: bool = False,
        has_waited: bool = False,
    ) -> None:
        """Send a message to a proxy's actor, or let it wait for a path or for credit."""

    def encode(self, message: Any) -> bytes:
        """Serialize a message."""

    def offer(
        self,
        proxy: "Proxy",
        message: Any,
        sender: Sender | None,
        payload: bytes,
        turn: SendTurn,
    ) -> bool:
        """Send a message if there is room for it; else its sender waits for its turn."""

    def enqueue_after_pending(self, proxy: "Proxy", command: object) -> bool:
        """Let a command wait behind the messages that wait; False if there are none."""

    def ensure_watched(self, proxy: "Proxy") -> None:
        """See to it that a monitor of a proxy's actor is told of its end."""

    def can(self, node: bytes, ability: str) -> bool:
        """Return whether a node has said that it has an ability."""

    def give_up(self, proxy: "Proxy", asker: AnySender) -> None:
        """Tell a proxy's node that nobody waits for an answer any more."""


class Proxy(RefCount):
    """The stand-in for one actor of another node."""

    __slots__ = (
        "_runtime",
        "credit",
        "endpoint",
        "node",
        "number",
        "outbound",
        "waiting",
    )

    def __init__(
        self, outbound: Outbound, runtime: Runtime, node: bytes, number: int, sightings: int
    ) -> None:
        super().__init__(sightings)
        #: Where its messages go.
        self.outbound = outbound
        self._runtime = runtime
        self.node = node
        self.number = number
        #: Where the node listens, if the ref's text said so: used when no path leads there.
        self.endpoint: Endpoint | None = None
        #: Messages that wait for a dial that is under way, or for credit.
        self.waiting: Queue | None = None
        #: How much the actor takes; None for any number.
        self.credit: Credit | None = None

    # --- messages ---

    def post(self, message: Any, sender: Sender | None) -> None:
        """Send a message to the actor; an ask to one that is known dead fails at once."""
        if self.down is None:
            self.outbound.dispatch(self, message, sender)
        else:
            self.refuse(message, sender, self.gone())

    def post_at_once(self, message: Any, sender: Sender | None) -> None:
        """Send a message without waiting for the end of a turn, from a thread outside."""
        if self.down is None:
            self.outbound.dispatch(self, message, sender, at_once=True)
        else:
            self.refuse(message, sender, self.gone())

    def post_urgent(self, message: Any, sender: Sender | None) -> None:
        """Send a message that goes before those without priority at the actor."""
        if isinstance(message, Envelope):
            self.post(replace(message, is_urgent=True), sender)
        else:
            self.post(Envelope(message, is_urgent=True), sender)

    async def apost(
        self, message: Any, sender: Sender | None, *, is_urgent: bool = False
    ) -> None:
        """Send a message as soon as there is room for it, here and at the actor."""
        if is_urgent:
            is_packed = isinstance(message, Envelope)
            message = (
                replace(message, is_urgent=True)
                if is_packed
                else Envelope(message, is_urgent=True)
            )
        payload = self.outbound.encode(message)

        def offer(turn: SendTurn) -> bool:
            if self.down is not None:
                self.refuse(message, sender, self.gone())
                return True
            return self.outbound.offer(self, message, sender, payload, turn)

        await SendTurn(self.ref).send(offer)

    def post_waited(self, message: Any, sender: Sender | None, payload: bytes) -> None:
        """Send a message that waited, in front of those that still wait."""
        if payload:
            self.outbound.dispatch(self, message, sender, payload, has_waited=True)
        else:
            self.command(message)

    def refuse(self, message: Any, sender: Sender | None, error: Exception) -> None:
        """Fail an ask, or count a tell that leads nowhere."""
        if sender is not None and sender.expects:
            sender.set_exception(error)
        self._runtime.dead_letter(self.ref, message, sender)

    def keeps_answers(self) -> bool:
        """Return whether its node answers an ask that comes again as before."""
        return self.outbound.can(self.node, "keys")

    def give_up(self, asker: AnySender) -> None:
        """Let a coroutine handler stop whose asker has gone."""
        if self.down is None:
            self.outbound.give_up(self, asker)

    def stop(self) -> None:
        """End the actor behind earlier messages: where some of them wait, it does as well."""
        order = StopActor(self.number)
        if not self.outbound.enqueue_after_pending(self, order):
            self.command(order)

    def kill(self) -> None:
        """End the actor before its next message."""
        self.command(StopActor(self.number, kill=True))

    def command(self, command: object) -> None:
        """Send a message to the actor's node itself."""
        if self.down is None:
            node_ref = self._runtime.ref_of(self.node, NODE_ACTOR)  # held until it is under way
            node_proxy = node_ref.target
            if isinstance(node_proxy, Proxy):
                node_proxy.endpoint = self.endpoint
                self.outbound.dispatch(node_proxy, command, None)

    def waits_for(self, _: object) -> bool:
        """Return that it does not: whom an actor elsewhere waits for is not known here."""
        return False

    # --- monitors and links ---

    def monitor(self, key: object, watcher: Watcher) -> None:
        """Call `watcher` once when the actor ends or its node is lost; at once if it has."""
        with _MONITORS_LOCK:
            ending = self.watch(key, watcher)
        if ending is not None:
            watcher(Down(self.ref, *ending))
        else:
            self.outbound.ensure_watched(self)

    def demonitor(self, key: object) -> None:
        """Forget a watcher."""
        with _MONITORS_LOCK:
            self.watchers.pop(key, None)

    def link(self, other: ActorRef[Any]) -> None:
        """Let the remote actor be told when `other` ends."""
        self.command(LinkActors(self.number, other))

    def unlink(self, other: ActorRef[Any]) -> None:
        """Undo `link`."""
        self.command(LinkActors(self.number, other, undo=True))

    # --- what other nodes tell ---

    def actor_ended(self, reason: ExitReason, detail: str) -> None:
        """Tell everybody who watches the actor that it ended, once."""
        with _MONITORS_LOCK:
            watchers = self.ended(reason, detail)
        self._tell(watchers, reason, detail)

    def out_of_reach(self, detail: str) -> None:
        """No path leads to the node any more; the actor may live on and be reached later."""
        with _MONITORS_LOCK:
            watchers = self.unreachable()
        self._tell(watchers, ExitReason.UNREACHABLE, detail)

    def refuse_monitors(self, text: str) -> None:
        """Tell who watches, now and later, that this node may not know when the actor ends."""
        with _MONITORS_LOCK:
            self.unwatched = text
            watchers = self.unreachable()
        self._tell(watchers, ExitReason.UNREACHABLE, text)

    def _tell(self, watchers: list[Watcher], reason: ExitReason, detail: str) -> None:
        """Call watchers that were taken out of the table."""
        if watchers:
            down = Down(self.ref, reason, detail)
            for watcher in watchers:
                watcher(down)

    def gone(self) -> ActorDown:
        """Return the error of an ask to an actor that ended."""
        assert self.down is not None
        reason, detail = self.down
        return ActorDown(f"{self.ref} ended ({reason})", reason, detail)

    def no_path(self) -> NodeUnreachable:
        """Return the error of a message that has no way to go."""
        return NodeUnreachable(
            f"no path leads to node {self.node.hex()}; connect to it or a neighbor"
        )

    @property
    def ref(self) -> ActorRef[Any]:
        """The ref of the actor."""
        return self._runtime.ref_of(self.node, self.number)
