"""The endpoint: publish and subscribe over peers, under the names of Zeek Broker's package.

An endpoint stands on a node: one that exists (`Endpoint(node=…)`), or one of its own. Its
links carry topics beside everything else, and its core actor is one for all endpoints of that
node.
"""

import asyncio
import copy
import logging
import os
import uuid
import weakref
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from actors.current import current_cell
from actors.errors import CallboardError, NodeClosed, WouldBlock
from callboard.broker.metric_topics import export_and_import
from callboard.broker.monitoring import serve, serving_address
from callboard.broker.options import Configuration, set_up_logging
from callboard.broker.peers import PeerHolder
from callboard.broker.publisher import Publisher
from callboard.broker.recording import Recording
from callboard.broker.settings import effective_options
from callboard.broker.status_subscriber import StatusSubscriber
from callboard.broker.stores import StoreHolder
from callboard.broker.subscriber import SafeSubscriber, Subscriber
from callboard.broker.tls import dialing_context, listening_context
from callboard.broker.topics import Topics, topic_text, topic_texts
from callboard.commitlog import CommitLog, Retention
from callboard.commitlog.log import Sync
from callboard.endpoint import (
    EndpointInfo,
    Topic,
)
from callboard.endpoint.core_effect import Item
from callboard.endpoint.hub import Hub, HubOptions
from proxies.node import Node
from proxies.ports import refuse_unguarded

__all__ = ["Endpoint"]

log = logging.getLogger("callboard.broker")

FLUSH_LIMIT: Final = 5.0
"""Seconds that an endpoint takes at its end to send what was published."""

M = TypeVar("M")


class Nothing:
    """Takes messages and forgets them: what `forward` subscribes with."""

    def take(self, items: list[Item]) -> None:
        """Forget a run."""


class Endpoint(PeerHolder, StoreHolder):
    """A place to publish and to subscribe. All methods may be called from any thread.

    Blocking methods have an awaitable twin with an `a` in front. Use it as a context manager,
    or call `shutdown`.
    """

    def __init__(
        self,
        configuration: Configuration | None = None,
        *,
        node: Node | None = None,
        secret: str | bytes | None = None,
    ) -> None:
        """Make an endpoint.

        Args:
            configuration: options and files of TLS.
            node: an existing node to put topics on; by default the endpoint has its own.
                TLS and the secret are then those of the node.
            secret: shared secret that all peers prove; only for an endpoint with its own node.

        Raises:
            TlsError: a file is missing or of no use.
            InvalidOption: `broker.conf` or a variable of the environment means nothing.
            OSError: `broker.conf` cannot be read, or the log cannot be written.
        """
        #: What holds, where file and environment have had their say.
        self.configuration = copy.copy(configuration or Configuration())
        options = effective_options(self.configuration.options, os.environ, Path.cwd())
        self.configuration.options = options
        set_up_logging(options)
        monitored_at = serving_address(options)
        self._owns_node = node is None
        self._has_secret = secret is not None
        self._listening_tls = None
        if node is None:
            self._listening_tls = listening_context(self.configuration)
            node = Node(tls=dialing_context(self.configuration), secret=secret)
        self.node = node
        self.hub = Hub.of(
            node,
            HubOptions(
                ttl=options.ttl,
                forwards=options.forward,
                peer_buffer_size=options.peer_buffer_size,
                overflow_policy=options.peer_overflow_policy,
            ),
        )
        self._is_shut = False
        self._forwarded: Nothing | None = None
        self.hub.name = options.metrics_endpoint_name or self.hub.name
        self._members: weakref.WeakSet[Any] = weakref.WeakSet()
        self._monitoring = None if monitored_at is None else serve(node, monitored_at)
        self._metric_topics = [*export_and_import(self.hub, options)]
        self.stores = []

    def node_id(self) -> str:
        """Return the id of this endpoint: a random UUID."""
        return str(uuid.UUID(bytes=self.hub.endpoint_id))

    @property
    def name(self) -> str:
        """What metrics and the status call this endpoint."""
        return self.hub.name

    @property
    def metrics_url(self) -> str:
        """Where metrics and the status are served, without a path; "" if they are not."""
        return "" if self._monitoring is None else self._monitoring.url

    def __repr__(self) -> str:
        return self.node_id()

    def listen(self, address: str = "", port: int = 0, *, insecure: bool = False) -> int:
        """Accept peers on a port; returns the port, or 0 (and logs why) if that is impossible.

        Args:
            address: local address. The empty one is all interfaces when peers have to show
                certificates, and otherwise only this machine.
            port: TCP port; 0 picks a free one.
            insecure: allow an address that other machines reach though peers prove nothing.
        """
        is_guarded = self._owns_node and (
            self.configuration.has_certificates and not self.configuration.options.disable_ssl
        )
        host = address or ("0.0.0.0" if is_guarded else "127.0.0.1")  # noqa: S104
        try:
            if self._listening_tls is not None and not insecure:
                refuse_unguarded(host, is_guarded=is_guarded or self._has_secret)
            return self.node.listen(host, port, tls=self._listening_tls, insecure=insecure)
        except (OSError, CallboardError, ValueError) as error:
            log.error("cannot listen at %s:%s: %s", host, port, error)  # noqa: TRY400
            return 0

    # --- out ---

    def publish(self, *args: Any) -> None:
        """Publish: `publish(topic, value)`, `publish(to, topic, value)`, or `publish(batch)`.

        Fire and forget. Subscribers of this endpoint itself do not see it. When too much
        waits to be sent, the calling thread is slowed down.

        Args:
            args: a topic and a value; or before these the `EndpointInfo` of the only
                endpoint that shall have it; or a list of pairs of topic and value, which
                arrive in this order.

        Raises:
            EndpointError: no topic, or the data model has no such value.
            WouldBlock: there is no room, on the thread of a running event loop.
        """
        if len(args) == 2:
            topic, value = args
            self.hub.publish(topic if type(topic) is str else topic_text(topic), value)
            return
        match args:
            case (EndpointInfo() as to, topic, value):
                self._publish_to(to, topic_text(topic), value)
            case (list() | tuple() as batch,):
                self.publish_batch(*batch)
            case _:
                msg = "publish takes (topic, value), (endpoint_info, topic, value) or (batch)"
                raise TypeError(msg)

    async def apublish(self, *args: Any) -> None:
        """Awaitable twin of `publish`: waits for room."""
        while not self.hub.has_room():
            await self.hub.room()
        self.publish(*args)

    def publish_batch(self, *batch: tuple[str | Topic, Any]) -> None:
        """Publish pairs of topic and value; they arrive in this order.

        Raises:
            EndpointError: no topic, or the data model has no such value; nothing was sent.
            WouldBlock: there is no room, on the thread of a running event loop.
        """
        self.hub.publish_all([(topic_text(topic), value) for topic, value in batch])

    async def apublish_batch(self, *batch: tuple[str | Topic, Any]) -> None:
        """Awaitable twin of `publish_batch`: waits for room."""
        while not self.hub.has_room():
            await self.hub.room()
        self.publish_batch(*batch)

    def make_publisher(self, topic: str | Topic) -> Publisher:
        """Return a publisher of one topic."""
        return self._member(Publisher(self.hub, topic_text(topic), self._forget))

    # --- in ---

    def make_subscriber(self, topics: Topics, qsize: int = 20) -> Subscriber:
        """Return a subscriber; it takes every topic that begins with one of these.

        Args:
            topics: one topic or several.
            qsize: taken as Broker does, without effect: 262,144 messages may wait, then the
                oldest are dropped and counted.
        """
        _check_size(qsize)
        return self._member(Subscriber(self.hub, topic_texts(topics), self._forget))

    def make_safe_subscriber(self, topics: Topics, qsize: int = 20) -> SafeSubscriber:
        """Return a subscriber whose values cannot be changed, which is quicker."""
        _check_size(qsize)
        return self._member(SafeSubscriber(self.hub, topic_texts(topics), self._forget))

    def make_status_subscriber(
        self,
        receive_statuses: bool = False,  # noqa: FBT001, FBT002
        qsize: int = 20,
    ) -> StatusSubscriber:
        """Return a subscriber for errors, and where wanted for changes among the peers."""
        _check_size(qsize)
        return self._member(
            StatusSubscriber(self.hub, self._forget, receive_statuses=receive_statuses)
        )

    def record(
        self,
        topics: Topics,
        folder: str | Path,
        *,
        sync: Sync = "group",
        retain: Retention | None = None,
        columns: bool = False,
    ) -> Recording:
        """Record every topic that begins with one of these into a log, until it is closed.

        What this endpoint publishes itself is recorded as well. A log that exists is gone on
        with. Publishers are slowed when they are quicker than the disk.

        Args:
            topics: one topic or several.
            folder: directory of the log, made if needed.
            sync: what is durable when; see `CommitLog`.
            retain: how long records are kept; for ever by default.
            columns: whether sealed segments are kept as Parquet as well.

        Raises:
            LogLocked: something else writes this log.
            LogFailed: the disk refuses.
            ExtraMissing: `columns` without pyarrow.
            WouldBlock: called on the thread of a running event loop.
        """
        self._refuse_shut()
        if asyncio._get_running_loop() is not None:  # noqa: SLF001
            msg = "record() would block the event loop; await endpoint.arecord(…) instead"
            raise WouldBlock(msg)
        make_log = partial(CommitLog, folder, sync=sync, retain=retain, columns=columns)
        return self._member(Recording(self.hub, topic_texts(topics), make_log, self._forget))

    async def arecord(
        self,
        topics: Topics,
        folder: str | Path,
        *,
        sync: Sync = "group",
        retain: Retention | None = None,
        columns: bool = False,
    ) -> Recording:
        """Awaitable twin of `record`."""
        made = partial(self.record, topics, folder, sync=sync, retain=retain, columns=columns)
        return await asyncio.get_running_loop().run_in_executor(None, made)

    def forward(self, topics: Topics) -> None:
        """Let messages of these topics come here though no subscriber wants them.

        Broker needs this at nodes between others. Here messages find their way through all
        nodes, so what it adds is that `peer_subscriptions()` of others has the topics.
        """
        if self._forwarded is None:
            self._forwarded = Nothing()
        self.hub.add_receiver(self._forwarded, topic_texts(topics))

    # --- the end ---

    def shutdown(self) -> None:
        """Send what was published, close subscribers and publishers, and end. Idempotent.

        A node that was given to the endpoint goes on.

        Raises:
            WouldBlock: called on the thread of a running event loop; nothing was ended.
        """
        if self._is_shut:
            return
        if asyncio._get_running_loop() is not None:  # noqa: SLF001
            msg = "shutdown() would block the event loop; await endpoint.ashutdown() instead"
            raise WouldBlock(msg)
        self._is_shut = True
        for store in self.stores:
            store.close()
        if current_cell.get() is None and not self.node.runtime.closed:
            self.hub.flushed(FLUSH_LIMIT)
        for member in list(self._members):
            member.close()
        if self._forwarded is not None:
            self.hub.remove_receiver(self._forwarded)
        for metric_topic in self._metric_topics:
            metric_topic.close()
        if self._monitoring is not None:
            self._monitoring.close()
        if self._owns_node:
            self.node.close()

    async def ashutdown(self) -> None:
        """Awaitable twin of `shutdown`."""
        await asyncio.get_running_loop().run_in_executor(None, self.shutdown)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ashutdown()

    # --- inside ---

    def _publish_to(self, to: EndpointInfo, topic: str, value: Any) -> None:
        if to.node_id() == self.node_id():
            self.hub.send_to(self.node.node_id, [(topic, value)])
            return
        node = self.hub.core.node_of(uuid.UUID(to.node_id()).bytes)
        if node is None:
            log.info("endpoint %s is not in reach: a message for it was dropped", to)
            return
        self.hub.send_to(node, [(topic, value)])

    def _member(self, member: M) -> M:
        self._refuse_shut()
        self._members.add(member)
        if isinstance(member, Subscriber):
            self.hub.subscribers.add(member)
        elif isinstance(member, Publisher):
            self.hub.publishers.add(member)
        return member

    def _forget(self, member: Any) -> None:
        for known in (self._members, self.hub.subscribers, self.hub.publishers):
            known.discard(member)

    def _refuse_shut(self) -> None:
        if self._is_shut:
            msg = f"endpoint {self.node_id()} was shut down; make another one"
            raise NodeClosed(msg)


def _check_size(qsize: int) -> None:
    if type(qsize) is not int or qsize < 0:
        msg = f"qsize is a number of messages, not {qsize!r}"
        raise TypeError(msg)
