"""The core actor: runs a `Core` on a node.

It has the number 1 on its node. Runs of other cores arrive as byte strings, what happens on
the node as events, what is published here waits in the hub's inputs until its turn. Runs for a
node go to that node's core actor, as ordinary dispatches.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from actors.actor import Actor
from actors.dispatch import handler
from actors.future import Future
from actors.reference import ActorRef
from actors.signals import Down
from basp.header import CORE_ACTOR, DIRECTORY
from callboard.endpoint.core import Core
from callboard.endpoint.core_effect import (
    Deliver,
    Effect,
    Pair,
    PeerEvent,
    RunReceiver,
    Transmit,
)
from callboard.endpoint.errors import MalformedMessage
from callboard.endpoint.filter_exchange import FilterChange
from callboard.endpoint.message import MessageType
from callboard.endpoint.peer_buffer import LINK_ROOM, OverflowPolicy, PeerBuffer
from callboard.endpoint.peering import Peering, PeeringOrder
from proxies.events import LinkDown, LinkUp, NodeUp, PathMoved
from proxies.messages import Lookup

if TYPE_CHECKING:
    from callboard.endpoint.hub import Hub, Receiver

log = logging.getLogger("callboard.endpoint")

CORE_NAME: Final = "callboard.core"
"""The name under which a node's directory has its core actor."""

TICK: Final = 1.0
"""Seconds between looks for filters that were not confirmed."""

ANSWER_LIMIT: Final = 5.0
"""Seconds that a directory may take to say whether its node has a core."""

DRAIN_INTERVAL: Final = 0.005
"""Seconds between looks at a link that is full."""

TURN_LENGTH: Final = 8192
"""Published messages that one turn takes: the node's other actors have their turns too."""


class Flush:
    """Take what was published."""


FLUSH: Final = Flush()


class Tick:
    """A second is over."""


class Drain:
    """Look whether full links have room."""


@dataclass(frozen=True, slots=True)
class ReceiverAdded:
    """Let a local receiver take messages."""

    receiver: "Receiver | RunReceiver"
    topics: tuple[str, ...]
    kind: MessageType
    sees_own: bool


@dataclass(frozen=True, slots=True)
class ReceiverRemoved:
    """Take topics, or all (None), from a receiver."""

    receiver: "Receiver | RunReceiver"
    topics: tuple[str, ...] | None
    kind: MessageType


@dataclass(frozen=True, slots=True)
class ReceiverRelaxed:
    """A receiver that was behind has caught up."""

    receiver: object


@dataclass(frozen=True, slots=True)
class SendCommands:
    """Send commands of stores to one endpoint, or to all if its node is not known."""

    endpoint: bytes
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class SendDirectly:
    """Send messages to one node only."""

    node: bytes
    kind: MessageType
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class FindReceivers:
    """Tell which nodes want a topic; answered behind all that was published before."""

    topic: str


@dataclass(frozen=True, slots=True)
class CoreFound:
    """A node's directory says that it has a core."""

    ref: ActorRef[Any]


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A node's directory did not answer."""

    node: bytes


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Event: messages of topics were dropped, because a peer does not read.

    Attributes:
        peer: the neighbour's node id.
        count: messages.
        policy: what decided.
    """

    peer: bytes
    count: int
    policy: str


class CoreActor(Actor):
    """One node's core."""

    remote_methods = frozenset()

    def __init__(self, hub: "Hub") -> None:
        self.hub = hub
        options = hub.options
        self._network = hub.node.overlay
        self.core = Core(
            hub.endpoint_id,
            path_of=self._network.path,
            ttl=options.ttl,
            forwards=options.forwards,
        )
        self.listeners: list[Any] = []
        self._limit = options.peer_buffer_size
        self._policy = OverflowPolicy(options.overflow_policy)
        self._buffers: dict[bytes, PeerBuffer] = {}
        self._cores: dict[bytes, ActorRef[Any]] = {}
        self._peering = Peering(self._cell, self.core, self._network)
        #: Nodes whose directory did not answer.
        self._unanswered: set[bytes] = set()
        self._is_draining = False
        self._now = self._cell.runner.now
        self._stop_listening = self._network.listen(self._cell_event)
        hub.node.register(CORE_NAME, self.me)
        for node in hub.node.nodes():
            self._look_for_core(node.node_id)
        for link in hub.node.links():
            address = self._network.address(link.peer)
            self._carry_out(self.core.link_established(link.peer, address))
        self.after(TICK, Tick())

    # --- what is published here ---

    @handler
    def flush(self, _: Flush) -> None:
        """Take what waits, as runs of one kind."""
        hub = self.hub
        hub.is_poked = False
        inputs = hub.inputs
        count = min(len(inputs), TURN_LENGTH)
        was_full = count == TURN_LENGTH
        take = inputs.popleft
        data: list[Pair] = []
        commands: list[Pair] = []
        for _index in range(count):
            entry = take()
            if isinstance(entry, tuple):
                kind, pair = entry
                (data if kind is MessageType.DATA else commands).append(pair)
                continue
            self._merge(data, commands)  # ordered behind what was published before
            data, commands = [], []
            if isinstance(entry, SendDirectly):
                self._send_directly(entry)
            else:
                self._carry_out(self.core.commands_for(entry.endpoint, entry.pairs))
        self._merge(data, commands)
        if inputs:
            hub.poke()
        elif self._peering.is_awaited:
            self._peering.look()
        if was_full and hub.has_room():
            hub.tell_room()

    def _merge(self, data: list[Pair], commands: list[Pair]) -> None:
        if data:
            self._carry_out(self.core.data_inputs(data))
        if commands:
            self._carry_out(self.core.command_inputs(commands))

    def _send_directly(self, order: SendDirectly) -> None:
        """Send to one endpoint, which may be this one."""
        if order.node == self._cell.runtime.node_id:
            self._carry_out(self.core.deliver_here(order.kind, order.pairs))
        else:
            self._carry_out(self.core.send_to(order.node, order.kind, order.pairs))

    @handler
    def find_receivers(self, question: FindReceivers) -> tuple[bytes, ...]:
        """Return the nodes that want a topic, when nothing waits before the question."""
        while self.hub.inputs:
            self.flush(FLUSH)
        return self.core.receivers_of(question.topic)

    # --- local receivers ---

    @handler
    def add_receiver(self, order: ReceiverAdded) -> None:
        """Subscribe; done when the effects are under way."""
        self._carry_out(
            self.core.subscribe(
                order.receiver,
                order.topics,
                self._now(),
                kind=order.kind,
                sees_own=order.sees_own,
            )
        )

    @handler
    def remove_receiver(self, order: ReceiverRemoved) -> None:
        """Unsubscribe."""
        topics = order.topics
        if topics is None:
            topics = self.core.topics_of(order.receiver, order.kind)
        self._carry_out(
            self.core.unsubscribe(order.receiver, topics, self._now(), kind=order.kind)
        )
        if order.topics is None:
            self.core.retire(order.receiver, kind=order.kind)

    @handler
    def receiver_relaxed(self, order: ReceiverRelaxed) -> None:
        """Let threads that publish go on, unless something else slows them."""
        self.hub.set_congested(is_congested=False, by=order.receiver)

    # --- other cores ---

    @handler
    def receive(self, run: bytes) -> None:
        """Take a run of another core; what cannot be read is counted and dropped."""
        sender = self.sender
        if sender is None or sender.is_local:
            return
        node = sender.node_id
        if node not in self._cores:
            self._know(sender)
        try:
            effects = self.core.receive(node, run, self._now())
        except MalformedMessage as error:
            log.warning("node %s sent what is no message: %s", node.hex(), error)
            return
        self._carry_out(effects)
        if self._peering.is_awaited:  # a confirmation of our filter has no effect of its own
            self._peering.look()

    @handler
    def core_found(self, found: CoreFound) -> None:
        """Another node has a core."""
        if found.ref.node_id not in self._cores:
            self._know(found.ref)

    @handler
    def core_lost(self, down: Down) -> None:
        """Another core ended, or no path leads to it."""
        node = down.ref.node_id
        if self._cores.pop(node, None) is not None:
            text = down.detail or str(down.reason)
            self._carry_out(self.core.endpoint_lost(node, text))

    @handler
    def node_event(self, event: NodeUp | LinkUp | LinkDown | PathMoved) -> None:
        """Something changed about links or nodes."""
        match event:
            case NodeUp():
                self._look_for_core(event.node_id)
            case LinkUp():
                address = self._network.address(event.peer)
                self._carry_out(self.core.link_established(event.peer, address))
            case LinkDown():
                by_user = event.peer in self._peering.removed
                self._peering.removed.discard(event.peer)
                buffer = self._buffers.pop(event.peer, None)
                if buffer is not None:
                    self._note_dropped(event.peer, buffer.drop_all())
                self._carry_out(self.core.link_lost(event.peer, event.reason, by_user=by_user))
            case PathMoved():
                self.core.path_moved()
                # It may have had no path when this core began, and is not told to be up again.
                self._look_for_core(event.node_id)

    @handler
    def peering(self, order: PeeringOrder) -> None:
        """The user wants something of the peers."""
        self._carry_out(self._peering.carry_out(order))

    @handler
    def tick(self, _: Tick) -> None:
        """Repeat what was not confirmed."""
        self._carry_out(self.core.tick(self._now()))
        unanswered, self._unanswered = self._unanswered, set()
        for node in sorted(unanswered):
            self._look_for_core(node)
        self.after(TICK, _)

    def _cell_event(self, event: object) -> None:
        if isinstance(event, NodeUp | LinkUp | LinkDown | PathMoved):
            self._cell.post(event, None)

    def _look_for_core(self, node: bytes) -> None:
        """Ask a node's directory whether it has a core: most nodes need not have one."""
        if node in self._cores or not self._network.path(node):
            return
        directory = self._cell.runtime.ref_to(node, DIRECTORY)
        question = directory.ask(Lookup(CORE_NAME), timeout=ANSWER_LIMIT)

        def answered(future: Future[Any]) -> None:
            if future.exception() is not None:  # lost with a path that broke
                self._cell.post(NoAnswer(node), None)
            elif isinstance(future.result(), ActorRef):
                self._cell.post(CoreFound(future.result()), None)

        question.add_done_callback(answered)

    @handler
    def look_again(self, failed: NoAnswer) -> None:
        """Ask once more at the next tick."""
        self._unanswered.add(failed.node)

    def _know(self, ref: ActorRef[Any]) -> None:
        node = ref.node_id
        core = self._cores[node] = self._cell.runtime.ref_to(node, CORE_ACTOR)
        self.monitor(core)
        self._carry_out(self.core.endpoint_found(node, self._now()))

    @property
    def waiting_for_peers(self) -> int:
        """Messages that wait because a peer reads too slowly."""
        return sum(buffer.waiting for buffer in list(self._buffers.values()))

    # --- effects ---

    def _carry_out(self, effects: list[Effect]) -> None:
        is_changed = False
        for effect in effects:
            match effect:
                case Transmit():
                    self._transmit(effect)
                case Deliver(RunReceiver() as receiver, items, sender, size):
                    receiver.take_from(sender or self._cell.runtime.node_id, items, size)
                case Deliver():
                    effect.subscriber.take(effect.items)  # type: ignore[attr-defined]
                case PeerEvent():
                    is_changed = True
                    for told in self.listeners:
                        told(effect)
                case FilterChange():
                    is_changed = True
        if is_changed:
            self._peering.look()

    def _transmit(self, run: Transmit) -> None:
        core = self._cores.get(run.node)
        if core is None:
            return
        link = self._network.link_towards(run.node)
        if link is not None and (link.waiting >= LINK_ROOM or link.peer in self._buffers):
            self._keep(link.peer, run)
        else:
            core.target.post(run.payload, self._cell)

    def _keep(self, peer: bytes, run: Transmit) -> None:
        """Let a run wait until its link has room."""
        buffer = self._buffers.get(peer)
        if buffer is None:
            buffer = self._buffers[peer] = PeerBuffer(self._limit, self._policy)
        dropped = buffer.dropped
        if not buffer.offer(run, self._now()):
            self._network.cut(peer, "too much waits for it, and it does not read")
        self._note_dropped(peer, buffer.dropped - dropped)
        if not buffer.is_stuck(self._now()):
            self.hub.set_congested(is_congested=True)
        if not self._is_draining:
            self._is_draining = True
            self.after(DRAIN_INTERVAL, Drain())

    @handler
    def drain(self, again: Drain) -> None:
        """Send on what waited, as far as there is room."""
        now = self._now()
        links = {link.peer: link for link in self._network.links()}
        is_congested = False
        for peer, buffer in list(self._buffers.items()):
            link = links.get(peer)
            if link is None:
                self._note_dropped(peer, buffer.drop_all())
                del self._buffers[peer]
                continue
            for run in buffer.take(link.waiting, link.bytes_sent, now):
                core = self._cores.get(run.node)
                if core is not None:
                    core.target.post(run.payload, self._cell)
            if not len(buffer):
                del self._buffers[peer]
            elif not buffer.is_stuck(now):
                is_congested = True
        self._is_draining = bool(self._buffers)
        if self._is_draining:
            self.after(DRAIN_INTERVAL, again)
        self.hub.set_congested(is_congested=is_congested)

    def _note_dropped(self, peer: bytes, count: int) -> None:
        if count:
            self.core.counters.dropped += count
            self._cell.runtime.emit(Undelivered(peer, count, str(self._policy)))
