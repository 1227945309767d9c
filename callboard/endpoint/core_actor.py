"""The core actor: runs a `Core` on a node.

It has the number 1 on its node. Runs of other cores arrive as byte strings, what happens on
the node as events, what is published here waits in the hub's inputs until its turn. Runs for a
node go to that node's core actor, as ordinary dispatches.

A thread outside of the node that publishes while the core is idle need not wait for a turn: it
does the core's work itself (`publish_at_once`). So the core has a lock. Handlers hold it for
their whole turn; such a thread only tries to get it, and leaves the message to the next turn if
it cannot. What a thread publishes stays in order: it goes at once only when nothing waits.
"""

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
from callboard.endpoint.core_inputs import merged
from callboard.endpoint.core_order import (
    CoreFound,
    Drain,
    FindReceivers,
    Flush,
    NoAnswer,
    ReceiverAdded,
    ReceiverRelaxed,
    ReceiverRemoved,
    Tick,
)
from callboard.endpoint.errors import MalformedMessage
from callboard.endpoint.peer_buffer import OverflowPolicy
from callboard.endpoint.peering import Peering, PeeringOrder
from callboard.endpoint.transmitter import Transmitter
from proxies.arrival import RemoteTeller
from proxies.events import LinkDown, LinkUp, NodeUp, PathMoved
from proxies.messages import Lookup

if TYPE_CHECKING:
    from callboard.endpoint.hub import Hub

log = logging.getLogger("callboard.endpoint")

M = TypeVar("M")
R = TypeVar("R")

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


def alone(
    function: Callable[["CoreActor", M], R],
) -> Callable[["CoreActor", M], R]:
    """Let a handler work with the core while no thread publishes at once."""

    @functools.wraps(function)
    def guarded(self: "CoreActor", message: M) -> R:
        with self.lock:
            return function(self, message)

    return guarded


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
        #: Held by whoever works with the core.
        self.lock = threading.Lock()
        self._transmitter = Transmitter(
            self._cell,
            self._network,
            self.core.counters,
            limit=options.peer_buffer_size,
            policy=OverflowPolicy(options.overflow_policy),
            drain_later=lambda: self.after(DRAIN_INTERVAL, Drain()),
            congested=hub.set_congested,
        )
        self._cores = self._transmitter.cores
        self._peering = Peering(self._cell, self.core, self._network)
        #: Nodes whose directory did not answer.
        self._unanswered: set[bytes] = set()
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

    def publish_at_once(self, pairs: Sequence[Pair]) -> bool:
        """Send data from the thread that publishes it; False when it has to wait for a turn.

        A round trip between two programs takes half the time when no thread has to be woken.
        """
        lock = self.lock
        if not lock.acquire(blocking=False):
            return False
        try:
            # What this thread asked for before, such as a receiver, comes before the message.
            if self._cell.scheduled or self._cell.depth or self.hub.inputs:
                return False
            if not self._may_go_at_once(pairs):
                return False
            for run in self.core.data_for_others(pairs):
                self._transmitter.transmit_at_once(run)
        finally:
            lock.release()
        return True

    def _may_go_at_once(self, pairs: Sequence[Pair]) -> bool:
        """Return whether it is known who takes messages, all elsewhere and ready for more."""
        known, is_free = self.core.known_receivers, self._transmitter.is_free
        last: tuple[bytes, ...] | None = ()
        for topic, _ in pairs:
            nodes = known(topic)
            if nodes is not last and (nodes is None or not all(map(is_free, nodes))):
                return False
            last = nodes
        return True

    @handler
    @alone
    def flush(self, _: Flush) -> None:
        """Take what waits."""
        self._take_inputs()

    def _take_inputs(self) -> None:
        """Take what waits, as runs of one kind."""
        hub = self.hub
        hub.is_poked = False
        inputs = hub.inputs
        count = min(len(inputs), TURN_LENGTH)
        was_full = count == TURN_LENGTH
        take = inputs.popleft
        taken = [take() for _ in range(count)]
        for effects in merged(self.core, taken, self._cell.runtime.node_id):
            self._carry_out(effects)
        if inputs:
            hub.poke()
        elif self._peering.is_awaited:
            self._peering.look()
        if was_full and hub.has_room():
            hub.tell_room()

    @handler
    @alone
    def find_receivers(self, question: FindReceivers) -> tuple[bytes, ...]:
        """Return the nodes that want a topic, when nothing waits before the question."""
        while self.hub.inputs:
            self._take_inputs()
        return self.core.receivers_of(question.topic)

    # --- local receivers ---

    @handler
    @alone
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
    @alone
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
    @alone
    def receiver_relaxed(self, order: ReceiverRelaxed) -> None:
        """Let threads that publish go on, unless something else slows them."""
        self.hub.set_congested(is_congested=False, by=order.receiver)

    # --- other cores ---

    @handler
    def receive(self, run: bytes) -> None:
        """Take a run of another core; what cannot be read is counted and dropped."""
        teller = self._cell.sender
        if not isinstance(teller, RemoteTeller):
            return
        node = teller.node
        with self.lock:
            if node not in self._cores:
                self._know(self._cell.runtime.ref_to(node, CORE_ACTOR))
            try:
                effects = self.core.receive(node, run, self._now())
            except MalformedMessage as error:
                log.warning("node %s sent what is no message: %s", node.hex(), error)
                return
            self._carry_out(effects)
            if self._peering.is_awaited:  # a confirmation of our filter has no own effect
                self._peering.look()

    @handler
    @alone
    def core_found(self, found: CoreFound) -> None:
        """Another node has a core."""
        if found.ref.node_id not in self._cores:
            self._know(found.ref)

    @handler
    @alone
    def core_lost(self, down: Down) -> None:
        """Another core ended, or no path leads to it."""
        node = down.ref.node_id
        if self._cores.pop(node, None) is not None:
            text = down.detail or str(down.reason)
            self._carry_out(self.core.endpoint_lost(node, text))

    @handler
    @alone
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
                self._transmitter.link_lost(event.peer)
                self._carry_out(self.core.link_lost(event.peer, event.reason, by_user=by_user))
            case PathMoved():
                self.core.path_moved()
                # It may have had no path when this core began, and is not told to be up again.
                self._look_for_core(event.node_id)

    @handler
    @alone
    def peering(self, order: PeeringOrder) -> None:
        """The user wants something of the peers."""
        self._carry_out(self._peering.carry_out(order))

    @handler
    @alone
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

    @handler
    @alone
    def drain(self, _: Drain) -> None:
        """Send on what waited, as far as there is room."""
        self._transmitter.drain()

    @property
    def waiting_for_peers(self) -> int:
        """Messages that wait because a peer reads too slowly."""
        return self._transmitter.waiting

    # --- effects ---

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        is_changed = False
        for effect in effects:
            if isinstance(effect, Deliver):
                subscriber = effect.subscriber
                if isinstance(subscriber, RunReceiver):
                    sender = effect.sender or self._cell.runtime.node_id
                    subscriber.take_from(sender, effect.items, effect.size)
                else:
                    subscriber.take(effect.items)  # type: ignore[attr-defined]
            elif isinstance(effect, Transmit):
                self._transmitter.transmit(effect)
            else:
                is_changed = True
                if isinstance(effect, PeerEvent):
                    for told in self.listeners:
                        told(effect)
        if is_changed:
            self._peering.look()
