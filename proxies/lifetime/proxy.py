"""The proxy: stands for a remote actor, with the interface of a local one.

A proxy accepts messages, stops, monitors and links like the cell of a local actor, and passes
them to the part of the node that sends messages. It remembers the end of its actor, so that
later asks fail at once.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import replace
from typing import Any, Final, Protocol

from callboard import locks
from callboard.actors.envelope import Envelope
from callboard.actors.errors import ActorDown, NodeUnreachable
from callboard.actors.exit_reason import ExitReason
from callboard.actors.mailbox import BackPressure, Mailbox, SendTurn
from callboard.actors.reference import ActorRef, AnySender, Asker, Down, Sender, Watcher
from callboard.actors.runtime import Runtime
from callboard.actors.values import Message
from callboard.basp.header import NODE_ACTOR
from callboard.proxies.address import Endpoint
from callboard.proxies.ledger.credit import Credit
from callboard.proxies.ledger.ref_counts import RefCount
from callboard.proxies.messages import LinkActors, StopActor

#: A message that waits for a path or for credit, its sender, and the serialized message; empty
#: for the command to stop.
Waiting = tuple[Any, Sender | None, bytes]

#: Guards the tables of watchers; held for a few operations.
_MONITORS_LOCK = locks.lock("watchers of remote actors", 710)


#: Messages and bytes that wait for the credit of one actor before their threads must wait too;
#: a handler may go to twice as much.
CREDIT_QUEUE: Final = Mailbox(limit=16, bytes=256 * 1024)


#: Bytes of memory for a queued message, besides its own.
ENTRY_SIZE: Final = 256


class Queue(deque[Waiting]):
    """The messages that wait for a path or for credit to one actor, in order."""

    def __init__(self) -> None:
        super().__init__()
        #: The bytes and the bounds of the queue, and the senders that wait for room in it.
        self.pressure = BackPressure(CREDIT_QUEUE)
        #: Whether a timer requests credit.
        self.is_tended = False

    def put(self, message: Message, sender: Sender | None, payload: bytes) -> None:
        """Append a message, or insert an urgent one before all messages that are not urgent."""
        self.pressure.held += len(payload)
        place = len(self)
        if _is_urgent(message):
            place = next((i for i, entry in enumerate(self) if not _is_urgent(entry[0])), place)
        self.insert(place, (message, sender, payload))

    def take(self) -> Waiting:
        """Remove and return the first message."""
        first = self.popleft()
        self.pressure.held -= len(first[2])
        return first

    @property
    def weight(self) -> int:
        """Estimated bytes of memory."""
        return self.pressure.held + ENTRY_SIZE * len(self)

    @property
    def message_count(self) -> int:
        """Number of messages; commands to stop do not count."""
        return sum(bool(payload) for _, _, payload in self)


def _is_urgent(message: Message) -> bool:
    """Return whether a message has high priority."""
    return message.__class__ is Envelope and bool(message.is_urgent)


class Outbound(Protocol):
    """The part of a node that sends messages, as proxies use it."""

    @property
    def batches(self) -> object:
        """The open batches of this turn; None for messages that are sent alone."""

    def dispatch(
        self,
        proxy: "Proxy",
        message: Message,
        sender: Sender | None,
        payload: bytes | None = None,
        *,
        at_once: bool = False,
        has_waited: bool = False,
    ) -> None:
        """Send a message to a proxy's actor, or queue it for a path or for credit."""

    def encode(self, message: Message) -> bytes:
        """Serialize a message."""

    def offer(
        self,
        proxy: "Proxy",
        message: Message,
        sender: Sender | None,
        payload: bytes,
        turn: SendTurn,
    ) -> bool:
        """Send a message if there is room; otherwise record its sender and return False."""

    def enqueue_after_pending(self, proxy: "Proxy", command: object) -> bool:
        """Queue a command after the waiting messages of a proxy; False if there are none."""

    def ensure_watched(self, proxy: "Proxy") -> None:
        """Ensure that a monitor of a proxy's actor is notified of its end."""

    def can(self, node: bytes, ability: str) -> bool:
        """Return whether a node has stated an ability."""

    def give_up(self, proxy: "Proxy", asker: AnySender) -> None:
        """Cancel an ask at a proxy's node."""


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
        #: Receives its messages.
        self.outbound = outbound
        self._runtime = runtime
        self.node = node
        self.number = number
        #: Address of the node from the ref's text; it is dialed if there is no path to the
        #: node.
        self.endpoint: Endpoint | None = None
        #: Messages that wait for a dial in progress, or for credit.
        self.waiting: Queue | None = None
        #: Credit for the actor's mailbox; None for an unbounded one.
        self.credit: Credit | None = None

    # --- messages ---

    def post(self, message: Message, sender: Sender | None) -> None:
        """Send a message to the actor; an ask to an actor known to be dead fails at once."""
        if self.down is None:
            self.outbound.dispatch(self, message, sender)
        else:
            self.refuse(message, sender, self.ended_error())

    def post_at_once(self, message: Message, sender: Sender | None) -> None:
        """Send a message of a thread outside of actors, without waiting for the turn's end."""
        if self.down is None:
            self.outbound.dispatch(self, message, sender, at_once=True)
        else:
            self.refuse(message, sender, self.ended_error())

    def post_urgent(self, message: Message, sender: Sender | None) -> None:
        """Send a message that the actor handles before all normal messages."""
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
                self.refuse(message, sender, self.ended_error())
                return True
            return self.outbound.offer(self, message, sender, payload, turn)

        await SendTurn(self.ref).send(offer)

    def post_waited(self, message: Message, sender: Sender | None, payload: bytes) -> None:
        """Send a message that waited, before the messages that still wait."""
        if payload:
            self.outbound.dispatch(self, message, sender, payload, has_waited=True)
        else:
            self.command(message)

    def refuse(self, message: Message, sender: Sender | None, error: Exception) -> None:
        """Fail an ask, or count an undeliverable message."""
        if sender is not None and sender.expects:
            sender.set_exception(error)
        self._runtime.dead_letter(self.ref, message, sender)

    def error_of_unsent(self, _: Asker) -> None:
        """Return None: `AskTimeout` says enough of a message that waited for a path."""

    def keeps_answers(self) -> bool:
        """Return whether its node repeats the answer of a repeated ask."""
        return self.outbound.can(self.node, "keys")

    def give_up(self, asker: AnySender) -> None:
        """Cancel an ask, so that its coroutine handler stops."""
        if self.down is None:
            self.outbound.give_up(self, asker)

    def stop(self) -> None:
        """End the actor after earlier messages; the command is queued after waiting ones."""
        order = StopActor(self.number)
        if not self.outbound.enqueue_after_pending(self, order):
            self.command(order)

    def kill(self) -> None:
        """End the actor before its next message."""
        self.command(StopActor(self.number, kill=True))

    def command(self, command: object) -> None:
        """Send a command to the actor's node itself."""
        if self.down is None:
            # Hold this reference until the command is sent, so that the proxy is not released.
            node_ref = self._runtime.ref_of(self.node, NODE_ACTOR)
            node_proxy = node_ref.target
            if isinstance(node_proxy, Proxy):
                node_proxy.endpoint = self.endpoint
                self.outbound.dispatch(node_proxy, command, None)

    def waits_for(self, _: object) -> bool:
        """Return False: the asks of remote actors are not known here."""
        return False

    # --- monitors and links ---

    def monitor(self, key: Hashable, watcher: Watcher) -> None:
        """Call `watcher` once when the actor ends or its node is lost.

        If the actor has ended already, the call is immediate.
        """
        with _MONITORS_LOCK:
            ending = self.watch(key, watcher)
        if ending is not None:
            watcher(Down(self.ref, *ending))
        else:
            self.outbound.ensure_watched(self)

    def demonitor(self, key: Hashable) -> None:
        """Remove a watcher."""
        with _MONITORS_LOCK:
            self.watchers.pop(key, None)

    def link(self, other: ActorRef) -> None:
        """Link the remote actor to `other`, so that it is notified of its end."""
        self.command(LinkActors(self.number, other))

    def unlink(self, other: ActorRef) -> None:
        """Undo `link`."""
        self.command(LinkActors(self.number, other, undo=True))

    # --- reports of other nodes ---

    def actor_ended(self, reason: ExitReason, detail: str) -> None:
        """Notify all watchers that the actor ended, once."""
        with _MONITORS_LOCK:
            watchers = self.ended(reason, detail)
        self._notify(watchers, reason, detail)

    def report_unreachable(self, detail: str) -> None:
        """Notify all watchers that no path leads to the node; the actor may still be alive."""
        with _MONITORS_LOCK:
            watchers = self.unreachable()
        self._notify(watchers, ExitReason.UNREACHABLE, detail)

    def refuse_monitors(self, text: str) -> None:
        """Notify present and future watchers that this node may not monitor the actor."""
        with _MONITORS_LOCK:
            self.unwatched = text
            watchers = self.unreachable()
        self._notify(watchers, ExitReason.UNREACHABLE, text)

    def _notify(self, watchers: list[Watcher], reason: ExitReason, detail: str) -> None:
        """Call watchers that were removed from the table."""
        if watchers:
            down = Down(self.ref, reason, detail)
            for watcher in watchers:
                watcher(down)

    def ended_error(self) -> ActorDown:
        """Return the error of an ask to an actor that ended."""
        assert self.down is not None
        reason, detail = self.down
        return ActorDown(f"{self.ref} ended ({reason})", reason, detail)

    def no_path(self) -> NodeUnreachable:
        """Return the error of a message without a path."""
        return NodeUnreachable(
            f"no path leads to node {self.node.hex()}; connect to it or a neighbor"
        )

    @property
    def ref(self) -> ActorRef:
        """The ref of the actor."""
        return self._runtime.ref_of(self.node, self.number)
