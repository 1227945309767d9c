"""The hub of a node: what threads and other rooms call to publish and to receive.

    hub.publish ──> inputs ──> core actor ──> cores of other nodes    (serialized by the caller)
    core actor ──> receivers: queues of subscribers, actors, stores   (decoded once)

Every node has at most one core actor; `Hub.of(node)` makes it on first use. Whatever concerns
the core is done in the actor's turn; what is published meanwhile waits and goes as one run.
"""

import asyncio
import itertools
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import cbor2

from actors.errors import ResultTimeout, WouldBlock
from actors.future import Future
from basp.header import CORE_ACTOR
from callboard.endpoint.core import Core
from callboard.endpoint.core_actor import CoreActor
from callboard.endpoint.core_effect import CoreCounters, Pair, Receiver, RunReceiver
from callboard.endpoint.core_order import (
    FLUSH,
    BringIn,
    FindReceivers,
    Order,
    ReceiverAdded,
    ReceiverRelaxed,
    ReceiverRemoved,
    SendCommands,
    SendDirectly,
)
from callboard.endpoint.hub_options import HubOptions
from callboard.endpoint.message import MessageType
from callboard.endpoint.peering import AddPeer, RemovePeer, Until
from callboard.endpoint.run_cbor import encode_pair
from callboard.endpoint.topic import checked_topic
from callboard.exposition import Metric

if TYPE_CHECKING:
    from proxies.node import Node

__all__ = ["Hub", "HubOptions", "Receiver"]

INPUT_LIMIT: Final = 16_384
"""Messages that wait for the core's turn: a thread that publishes more waits."""

WAIT_FOR_TURN: Final = 5.0
"""Seconds that such a thread waits at most; a node stuck that long has other problems."""


CALM: Final = 20e-6
"""Seconds without a message after which one goes at once."""


class Hub:
    """A node's way into topics."""

    def __init__(self, node: "Node", options: HubOptions) -> None:
        """Use `Hub.of`."""
        self.node = node
        self.options = options
        self.endpoint_id = options.endpoint_id or uuid.uuid4().bytes
        #: What metrics and the status call it.
        self.name = node.name
        #: Subscribers and publishers of this node that are not closed, to be counted.
        self.subscribers: WeakSet[Any] = WeakSet()
        self.publishers: WeakSet[Any] = WeakSet()
        #: What else uses this hub and has metrics, as stores do; called from any thread.
        self.meters: list[Callable[[], list[Metric]]] = []
        #: What gives metrics of others, to be shown with those of this node.
        self.metric_sources: list[Callable[[], list[Metric]]] = []
        #: What was published and waits for the core: data as plain pairs.
        self.inputs: deque[Pair | Order] = deque()
        self._objects = itertools.count(1)
        #: What is being made on this node just now, by name: there may be one of each.
        self.claims: set[str] = set()
        self.lock = threading.Lock()
        self._runner = node.runtime.runner
        self.is_poked = False
        self.is_congested = False
        #: What slows publishers: slow peers (None), receivers that are behind.
        self._congested_by: set[object] = set()
        #: Called with whether there is room, when that changes; on the node's thread.
        self.room_listeners: list[Callable[[bool], None]] = []
        self._room_awaited: deque[Future[None]] = deque()
        self.ref = node.runtime.spawn(CoreActor, (self,), number=CORE_ACTOR)
        self._cell = node.runtime.cells[CORE_ACTOR]
        self._actor: CoreActor = self._cell.actor
        self._now = self._runner.now
        #: When a message that is published goes at once: not soon after others.
        self.calm_from = self._now()

    @classmethod
    def of(cls, node: "Node", options: HubOptions | None = None) -> "Hub":
        """Return the hub of a node; the first call makes it, with these options."""
        with _MAKING:
            return cls._made(node) or cls(node, options or HubOptions())

    @classmethod
    def found(cls, node: "Node") -> "Hub | None":
        """Return the hub of a node if it has one: nothing is made."""
        with _MAKING:
            return cls._made(node)

    @staticmethod
    def _made(node: "Node") -> "Hub | None":
        cell = node.runtime.cells.get(CORE_ACTOR)
        actor: CoreActor | None = None if cell is None else cell.actor
        return None if actor is None else actor.hub

    # --- out ---

    def publish(self, topic: str, value: Any) -> None:
        """Publish a value; from any thread. It is serialized before this returns.

        A thread outside of the node waits while too much waits for the core.

        Raises:
            InvalidTopic: the topic is no text, or too long.
            EndpointError: the data model has no such value.
            WouldBlock: it had to wait for room, on the thread of a running event loop.
        """
        if type(topic) is not str:
            topic = checked_topic(topic)
        pair = (topic, encode_pair(topic, value))
        if self.is_congested or len(self.inputs) >= INPUT_LIMIT:
            self._wait_for_room()
        if not self.is_poked and self._sent_at_once((pair,)):
            return
        self.inputs.append(pair)
        if not self.is_poked:
            self.poke()

    def publish_all(self, messages: Sequence[tuple[str, Any]]) -> None:
        """Publish several values in this order, all or none."""
        pairs = self._entering(messages)
        if not self.is_poked and self._sent_at_once(pairs):
            return
        self.inputs.extend(pairs)
        self.poke()

    def _entering(self, messages: Sequence[tuple[str, Any]]) -> list[Pair]:
        """Encode messages, all or none of them, and wait for room."""
        pairs = [(checked_topic(topic), encode_pair(topic, value)) for topic, value in messages]
        if self.is_congested or len(self.inputs) >= INPUT_LIMIT:
            self._wait_for_room()
        return pairs

    def _sent_at_once(self, pairs: Sequence[Pair]) -> bool:
        """Send data on this thread; not on the node's, and not many messages in a row.

        Writing each of these to the socket costs more than a change of threads for all.
        """
        now, is_calm = self._now(), False
        if now >= self.calm_from:
            is_calm = not self._runner.is_runner_thread() and self._actor.publish_at_once(pairs)
            now = self._now()
        self.calm_from = now + CALM
        return is_calm

    def command(
        self, topic: str, contents: Sequence[bytes], endpoint: bytes | None = None
    ) -> None:
        """Publish commands of stores, which are plain CBOR; never waits.

        Args:
            topic: of a store's masters or clones.
            contents: the commands.
            endpoint: the only endpoint that they are for, if its node is known here.
        """
        head = cbor2.dumps(topic)
        pairs = tuple([(topic, head + content) for content in contents])
        self.inputs.append(SendCommands(endpoint, pairs))
        self.poke()

    def send_to(
        self,
        node_id: bytes,
        messages: Sequence[tuple[str, Any]],
        kind: MessageType = MessageType.DATA,
    ) -> None:
        """Send values to the receivers of one node, and no other; in order with all others."""
        pairs = self._entering(messages)
        self.inputs.append(SendDirectly(node_id, kind, tuple(pairs)))
        self.poke()

    def deliver_here(self, topic: str, value: Any) -> None:
        """Hand a value to the receivers of this endpoint, and to nobody else."""
        pair = (topic, encode_pair(topic, value))
        self.inputs.append(SendDirectly(self.node.node_id, MessageType.DATA, (pair,)))
        self.poke()

    def bring_in(self, messages: Sequence[tuple[str, Any]], bringer: object) -> None:
        """Publish what a door brings from outside, in this order; see `publish_all`.

        Receivers of this node get it as well, as they get what other nodes publish: all but
        `bringer`.
        """
        pairs = self._entering(messages)
        self.inputs.append(BringIn(bringer, tuple(pairs)))
        self.poke()

    def wants(self, topic: str) -> bool:
        """Return whether a local receiver takes data of a topic; on the node's thread."""
        return self._actor.core.is_taken(topic)

    def make_object(self) -> int:
        """Return a number that no other object of this endpoint has."""
        return next(self._objects)

    def poke(self) -> None:
        """Let the core take what waits, in its next turn."""
        if not self.is_poked:
            self.is_poked = True
            self._cell.post(FLUSH, None)

    def _wait_for_room(self) -> None:
        if self._runner.is_runner_thread() or self.node.runtime.closed:
            return  # a handler never waits; its node goes on when it returns
        if asyncio._get_running_loop() is not None:  # noqa: SLF001
            msg = (
                f"{len(self.inputs):,} messages wait to be sent, and publish() would block "
                "the event loop; await apublish(…) instead"
            )
            raise WouldBlock(msg)
        with suppress(ResultTimeout):
            self.room().result(WAIT_FOR_TURN)

    def has_room(self) -> bool:
        """Return whether a message that is published goes on without waiting."""
        return not self.is_congested and len(self.inputs) < INPUT_LIMIT

    def room(self) -> Future[None]:
        """Return a future that is done when there is room; at once, if there is."""
        future: Future[None] = Future()
        self._room_awaited.append(future)
        if self.has_room():
            self.tell_room()
        return future

    def tell_room(self) -> None:
        """Let those go on who wait for room."""
        with suppress(IndexError):  # another thread may tell them at the same time
            while True:
                self._room_awaited.popleft().set_result(None)

    def set_congested(self, is_congested: bool, by: object = None) -> None:  # noqa: FBT001
        """Let threads that publish wait, or go on; on the node's thread.

        Args:
            is_congested: whether they have to wait.
            by: for whom: a receiver that is behind, or (None) peers that read more slowly
                than threads here write.
        """
        (self._congested_by.add if is_congested else self._congested_by.discard)(by)
        is_congested = bool(self._congested_by)
        if self.is_congested != is_congested:
            self.is_congested = is_congested
            if not is_congested:
                self.tell_room()
            for told in self.room_listeners:
                told(not is_congested)

    def flushed(self, timeout: float) -> None:
        """Wait until the core has taken everything that was published before."""
        self.until(lambda _: not self.inputs, timeout).result()

    # --- in ---

    def add_receiver(
        self,
        receiver: Receiver | RunReceiver,
        topics: Sequence[str],
        *,
        kind: MessageType = MessageType.DATA,
        sees_own: bool = False,
    ) -> Future[None]:
        """Let a receiver take messages of these topics (more of them, when it is there).

        The future is done when the core knows; other nodes are told in the same moment.
        `sees_own`: also what this node itself publishes.
        """
        checked = tuple(checked_topic(topic) for topic in topics)
        return self.ref.ask(ReceiverAdded(receiver, checked, kind, sees_own))

    def hold(self, receiver: object, sender: bytes, seconds: float) -> None:
        """Slow those who publish: a receiver is behind. On the node's thread.

        Threads of this node that publish wait until `relax`. From other nodes nothing is
        read for a while on the link towards the sender, so what comes waits in TCP, and then
        makes the threads that publish there wait.

        Args:
            receiver: who is behind.
            sender: the node that sent what came last.
            seconds: below half a second, so that heartbeats are heard in time.
        """
        self.set_congested(is_congested=True, by=receiver)
        self.node.overlay.put_off(sender, seconds)

    def relax(self, receiver: object) -> None:
        """Let threads that publish go on: a receiver caught up. From any thread."""
        self._cell.post(ReceiverRelaxed(receiver), None)

    def remove_receiver(
        self,
        receiver: Receiver | RunReceiver,
        topics: Sequence[str] | None = None,
        *,
        kind: MessageType = MessageType.DATA,
    ) -> Future[None]:
        """Take topics from a receiver, or (None) all of them."""
        checked = None if topics is None else tuple(map(checked_topic, topics))
        return self.ref.ask(ReceiverRemoved(receiver, checked, kind))

    # --- peers ---

    def peer(self, address: tuple[str, int], retry: float) -> Future[bool]:
        """Peer with who listens at an address.

        The future gets True when both endpoints have the filter of the other; False when the
        one attempt failed (`retry` 0) or the peer was removed meanwhile.

        Args:
            address: host and port.
            retry: seconds between attempts at most; 0 tries once, and not again when lost.
        """
        done: Future[bool] = Future()
        self._cell.post(AddPeer(address, retry, done), None)
        return done

    def unpeer(self, address: tuple[str, int]) -> Future[bool]:
        """Dial an address no more and end its link; done when peer events told of it."""
        done: Future[bool] = Future()
        self._cell.post(RemovePeer(address, done), None)
        return done

    def until(self, condition: Callable[[Core], bool], timeout: float) -> Future[bool]:
        """Return a future that is True when a condition is, False after `timeout` seconds.

        The condition is looked at on the node's thread, whenever peers or filters change.
        """
        done: Future[bool] = Future()
        self._cell.post(Until(condition, done, timeout), None)
        return done

    # --- seeing ---

    def receivers_of(self, topic: str) -> Future[tuple[bytes, ...]]:
        """Return the nodes to which a message with this topic would be sent.

        Their filters are known here. The answer comes behind all that was published before.
        """
        return self.ref.ask(FindReceivers(checked_topic(topic)))

    @property
    def core(self) -> Core:
        """The machine, to look at: its lists are copies, its changes are the actor's."""
        return self._actor.core

    @property
    def counters(self) -> CoreCounters:
        """What flowed through the core."""
        return self._actor.core.counters

    @property
    def buffered(self) -> int:
        """Messages of users that wait for the core's turn, or for a peer that reads slowly."""
        return len(self.inputs) + self._actor.waiting_for_peers

    def on_peer_event(self, told: Any) -> None:
        """Call `told(event)` for each `PeerEvent`, on the node's thread."""
        self._actor.listeners.append(told)

    def off_peer_event(self, told: Any) -> None:
        """Stop calling it."""
        with suppress(ValueError):
            self._actor.listeners.remove(told)


_MAKING: Final = threading.Lock()
