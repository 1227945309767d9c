"""Publishing on a hub, from any thread.

Messages are serialized by the publishing thread and wait in the input queue for a turn of the
core. If the core is idle, a thread outside of the node does the core's work itself instead of
waking the node's thread. For this, it needs the core's lock, which it only tries to acquire.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import cbor2

from callboard import locks
from callboard.kernel.context import SystemActor
from callboard.kernel.errors import ResultTimeout
from callboard.kernel.reply import Future
from callboard.topics.input_queue import INPUT_LIMIT, InputQueue
from callboard.topics.machine.core import Core
from callboard.topics.machine.effect import (
    CommandPairs,
    CoreEffect,
    Ingested,
    OwnPair,
    Pair,
)
from callboard.topics.machine.run import PackedType, encode_pair, pair_of
from callboard.topics.machine.topic import checked_topic
from callboard.topics.run_transmitter import RunTransmitter

#: Seconds without a published message after which the next one is sent at once.
BURST_GAP: Final = 20e-6

#: Seconds between checks whether the node was closed, while `offer` waits.
OFFER_CHECK: Final = 5.0


class Listeners:
    """The receivers on a node whose subscriptions belong to publishers.

    Attributes:
        publishers: the publishers that have such a subscription. If a message's publisher is
            the only one, the faster method `publish` can be used. Read without the lock.
    """

    def __init__(self) -> None:
        self.publishers: frozenset[object] = frozenset()
        self._by_receiver: dict[object, object] = {}
        self._lock = locks.lock("listeners of a hub", 424)

    def add(self, receiver: object, publisher: object) -> None:
        """Record the publisher, if any, of a receiver. Can be called from any thread."""
        if publisher is not None:
            with self._lock:
                self._by_receiver[receiver] = publisher
                self.publishers = frozenset(self._by_receiver.values())

    def remove(self, receiver: object) -> None:
        """Remove a receiver. Can be called from any thread."""
        if self._by_receiver:
            with self._lock:
                self._by_receiver.pop(receiver, None)
                self.publishers = frozenset(self._by_receiver.values())


class TopicPublishing:
    """The publishing methods of a hub. Messages enter the core in the order of publishing."""

    #: Slots, because each publish reads several of these; see `Runtime`.
    __slots__ = (
        "_context", "_core", "_inputs", "_lock", "_now", "_runtime", "_transmitter",
        "idle_since", "listeners",
    )  # fmt: skip

    def __init__(
        self,
        actor: SystemActor,
        core: Core,
        core_lock: locks.Lock,
        inputs: InputQueue,
        transmitter: RunTransmitter,
    ) -> None:
        """Create the publishing methods of a hub."""
        self._core, self._lock = core, core_lock
        self._inputs, self._transmitter = inputs, transmitter
        self._runtime, self._context = actor.runtime, actor.context
        self._now = self._runtime.now
        self.listeners = Listeners()
        #: The time from which a message is sent at once. Before, shortly after other messages,
        #: it waits for a turn.
        self.idle_since = self._now()

    # --- to all receivers ---

    def publish(self, topic: str, value: Any) -> None:
        """Publish a value, which is serialized before this returns.

        A thread outside of the node waits while too many messages wait for the core.

        Raises:
            InvalidTopic: the topic is not text, or too long.
            EndpointError: the value does not belong to the data model.
            WouldBlock: the call would have to wait, on the thread of a running event loop.
        """
        if type(topic) is not str:
            topic = checked_topic(topic)
        pair = (topic, encode_pair(topic, value))
        inputs = self._inputs
        entries = inputs.entries
        if inputs.is_congested or len(entries) >= INPUT_LIMIT:
            inputs.wait_for_room()
        if not inputs.wake_pending and self._sent_at_once((pair,)):
            return
        entries.append(pair)
        if not inputs.wake_pending:
            inputs.wake()

    def publish_batch(self, *batch: tuple[str, Any]) -> None:
        """Publish pairs of topic and value in this order, all or none of them."""
        pairs = self._encoded(batch)
        if not self._inputs.wake_pending and self._sent_at_once(pairs):
            return
        self._inputs.entries.extend(pairs)
        self._inputs.wake()

    def publish_as(self, origins: frozenset[object], *batch: tuple[str, Any]) -> None:
        """Publish pairs of topic and value in this order, all or none of them.

        Subscriptions on this node get them as well, except those that belong to one of the
        origins: the publisher, and the adapters through which the messages arrived.
        """
        pairs = self._encoded(batch)
        self._inputs.entries.extend(OwnPair(pair, origins) for pair in pairs)
        self._inputs.wake()

    def offer(
        self,
        messages: Sequence[tuple[str, Any]],
        *,
        whole: bool = False,
        origins: frozenset[object] = frozenset(),
    ) -> list[int]:
        """Publish the messages that have a receiver; return the indexes of the others.

        Receivers are checked in the turn in which the messages are sent, so that the result is
        exact. Blocks until this turn.

        Args:
            messages: pairs of topic and value; their order is kept.
            whole: whether to publish nothing unless all messages have a receiver.
            origins: see `publish_as`.

        Raises:
            EndpointError: a value does not belong to the data model; nothing was published.
            ResultTimeout: the node was closed.
        """
        pairs, done = self._encoded(messages), Future[list[int]]()

        def send() -> Sequence[CoreEffect]:
            is_wanted = {topic: self._core.is_wanted(topic, origins) for topic, _ in pairs}
            rest = [index for index, (topic, _) in enumerate(pairs) if not is_wanted[topic]]
            run = [] if rest and whole else [pair for pair in pairs if is_wanted[pair[0]]]
            done.set_result(rest)
            return self._core.publish_as(run, origins) if run else ()

        self._inputs.order(send)
        while True:
            try:
                return done.result(OFFER_CHECK)
            except ResultTimeout:
                if self._runtime.is_closed:
                    raise

    def _encoded(self, messages: Sequence[tuple[str, Any]]) -> list[Pair]:
        """Encode messages, all or none of them, and wait for room."""
        checked = [(t if type(t) is str else checked_topic(t), value) for t, value in messages]
        pairs = [(topic, encode_pair(topic, value)) for topic, value in checked]
        if self._inputs.is_congested or len(self._inputs.entries) >= INPUT_LIMIT:
            self._inputs.wait_for_room()
        return pairs

    def _sent_at_once(self, pairs: Sequence[Pair]) -> bool:
        """Send data on this thread, unless it is the node's, or follows others closely.

        A single round trip between two programs takes half the time if no other thread has to
        be woken. For many messages in a row, waking the node's thread once is cheaper than
        writing each of them to the socket.
        """
        now, is_sent = self._now(), False
        if now >= self.idle_since:
            lock = self._lock
            if not self._runtime.is_runner_thread() and locks.take_if_free(lock):
                self._core.now = now
                try:
                    is_sent = self._try_to_send(pairs)
                finally:
                    lock.release()
            now = self._now()
        self.idle_since = now + BURST_GAP
        return is_sent

    def _try_to_send(self, pairs: Sequence[Pair]) -> bool:
        """Send data if all its receivers are known, are on other nodes, and have room."""
        context = self._context
        # Earlier calls of this thread, such as `add_receiver`, may still wait in the mailbox,
        # and must take effect before the message.
        if context.scheduled or context.depth or self._inputs.entries:
            return False
        nodes_by_topic, is_free = self._core.known_receivers(), self._transmitter.is_free
        last: tuple[bytes, ...] | None = ()
        for topic, _ in pairs:
            nodes = nodes_by_topic.get(topic)
            if nodes is not last and (nodes is None or not all(map(is_free, nodes))):
                return False
            last = nodes
        self._transmitter.send_at_once(self._core.data_for_others(pairs))
        return True

    # --- to some receivers ---

    def command(
        self, topic: str, contents: Sequence[bytes], endpoint: bytes | None = None
    ) -> None:
        """Publish commands of stores, which are plain CBOR; never waits.

        Args:
            topic: topic of a store's master or clones.
            contents: the commands.
            endpoint: the only endpoint that gets them, if its node is known here.
        """
        pairs = _plain_pairs(topic, contents)
        if endpoint is None:
            self._inputs.order(CommandPairs(pairs))
        else:
            self._inputs.order(partial(self._core.commands_for, endpoint, pairs))

    def command_node(self, node_id: bytes, topic: str, contents: Sequence[bytes]) -> None:
        """Send commands, which are plain CBOR, to the receivers on one node; never waits."""
        pairs = _plain_pairs(topic, contents)
        self._inputs.order(partial(self._core.send_to, node_id, PackedType.COMMAND, pairs))

    def send_to(
        self,
        node_id: bytes,
        messages: Sequence[tuple[str, Any]],
        kind: PackedType = PackedType.DATA,
    ) -> None:
        """Send values only to the receivers on one node, in order with all other messages."""
        pairs = self._encoded(messages)
        if node_id == self._runtime.node_id:
            self._inputs.order(partial(self._core.deliver_here, kind, pairs))
        else:
            self._inputs.order(partial(self._core.send_to, node_id, kind, pairs))

    def deliver_here(self, topic: str, value: Any) -> None:
        """Deliver a value to the receivers of this endpoint only."""
        pair = (topic, encode_pair(topic, value))
        self._inputs.order(partial(self._core.deliver_here, PackedType.DATA, (pair,)))

    # --- from adapters ---

    def ingest(self, messages: Sequence[tuple[str, Any]], origin: object) -> None:
        """Publish messages from outside, in this order; see `publish_batch`.

        Receivers of this node get them as well, except `origin`.
        """
        self._inputs.order(Ingested(self._encoded(messages), origin))

    def ingest_encoded(
        self, messages: Sequence[tuple[str, bytes]], origin: object, ttl: int | None = None
    ) -> None:
        """Publish messages from outside whose values are already CBOR of the data model.

        It may be called from any thread and never waits for room: see `InputQueue.has_room`
        and `InputQueue.room_listeners`.

        Args:
            messages: topics, and values as returned by `data_to_cbor` or a transcoder.
            origin: the adapter's receiver, which does not get them.
            ttl: maximum number of links that they still cross, if their protocol has one.

        Raises:
            InvalidTopic: a topic is too long, or cannot be encoded in UTF-8; nothing was
                published.
        """
        pairs = [pair_of(topic, content) for topic, content in messages]
        self._inputs.order(Ingested(pairs, origin, ttl))


def _plain_pairs(topic: str, contents: Sequence[bytes]) -> list[Pair]:
    """Return contents, which are plain CBOR, as pairs of one topic."""
    start = cbor2.dumps(topic)
    return [(topic, start + content) for content in contents]
