"""The endpoint: publish and subscribe over peers, under the names of Zeek Broker's package.

An endpoint stands on a node: one that exists (`Endpoint(node=…)`), or one of its own. Its
links carry topics beside everything else, and its core actor is one for all endpoints of that
node.
"""

import copy
import datetime
import logging
import os
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from callboard.broker.constants import Backend
from callboard.broker.metric_topics import export_and_import
from callboard.broker.options import Configuration, effective_options, set_up_logging
from callboard.broker.publisher import Publisher
from callboard.broker.recording import Recording
from callboard.broker.subscriber import (
    SafeSubscriber,
    StatusSubscriber,
    Subscriber,
    SubscriberPlace,
)
from callboard.broker.tls import BrokerTls
from callboard.commitlog import Archive, CommitLog, Retention
from callboard.commitlog.log import Sync
from callboard.endpoint.actor_subscription import ActorSubscription, OnFull, TopicMessage
from callboard.endpoint.hub import Hub, HubOptions
from callboard.endpoint.machine.core import Core
from callboard.endpoint.machine.effect import Item
from callboard.endpoint.machine.status import (
    EndpointInfo,
    PeerFlags,
    PeerInfo,
    PeerStatus,
    foreign_id,
)
from callboard.endpoint.machine.topic import Topic, Topics, topic_text, topic_texts
from callboard.endpoint.message_queue import QUEUE_LIMIT
from callboard.endpoint.monitoring import serve_topics
from callboard.kernel import errors
from callboard.kernel.access import Rights, Secrets
from callboard.kernel.actors import ActorRef
from callboard.kernel.checks import seconds
from callboard.kernel.reply import Future
from callboard.kernel.tls import Tls, refuse_unguarded
from callboard.kernel.topology import checked_endpoint
from callboard.kernel.twins import Closing, on_a_thread, refuse_loop
from callboard.kernel.wire import ForeignPeer
from callboard.model.errors import InvalidData, InvalidOption
from callboard.node import Node
from callboard.store import Backend as StoreBackend
from callboard.store import (
    CloneOptions,
    Store,
    StoreOptions,
    aattach_master,
    attach_clone,
    attach_master,
)
from callboard.support import after_fork
from callboard.support.keywords import also_named
from callboard.support.redaction import redacted
from callboard.support.slots import DOORS, WIRES

if TYPE_CHECKING:
    from callboard.entity.journal.journal import Journal
    from callboard.zeek.doors.web_socket_peer import WebSocketPeer
    from callboard.zeek.doors.web_socket_server import WebSocketLimits

log = logging.getLogger("callboard.broker")

#: What endpoints of nodes speak with each other.
NATIVE: Final = "native"

#: Seconds between attempts to reach a peer, at most.
RETRY: Final = 10.0

#: Seconds that `await_peer` waits by default.
AWAIT_PEER_LIMIT: Final = 10.0

Seconds = float | datetime.timedelta


#: Seconds that an endpoint takes at its end to send what was published.
FLUSH_LIMIT: Final = 5.0

#: Stands for an argument that was not given, where None is a value.
ABSENT: Final = object()

M = TypeVar("M")


class Nothing:
    """Takes messages and forgets them: what `forward` subscribes with."""

    def take(self, items: list[Item]) -> None:
        """Forget a run."""


class Endpoint(Closing):
    """A place to publish and to subscribe. All methods may be called from any thread.

    Blocking methods have an awaitable twin with an `a` in front. Use it as a context manager,
    or call `shutdown`.
    """

    def __init__(
        self,
        configuration: Configuration | None = None,
        *,
        node: Node | None = None,
        secret: Secrets | None = None,
        secrets: Mapping[str, Secrets] | None = None,
        permissions: Mapping[str, Rights] | None = None,
        allow_unsealed: bool = False,
        encrypt: bool = False,
    ) -> None:
        """Make an endpoint.

        Args:
            configuration: options and files of TLS.
            node: an existing node to put topics on; by default the endpoint has its own.
                TLS, secrets and permissions are then those of the node.
            secret: shared secret that all peers prove; this one and those below are only for an
                endpoint with its own node.
            secrets: secrets by the names of those who prove them.
            permissions: what peers may do, by patterns of their names; see `Node`.
            allow_unsealed: link also with nodes of release 0.1, which do not seal; see `Node`.
            encrypt: encrypt links with the secret as the key of TLS, see `Node`; then the files
                of the configuration are not used for links.

        Raises:
            TypeError: secrets or permissions are no such maps.
            ValueError: a secret is empty or there twice.
            TlsError: a file is missing or unusable.
            InvalidOption: `broker.conf` or a variable of the environment means nothing.
            OSError: `broker.conf` cannot be read, or the log cannot be written.
        """
        #: What holds, where file and environment have had their say.
        given: object = configuration
        if given is not None and not isinstance(given, Configuration):
            msg = (
                "Endpoint() takes a Configuration; its name is an option, metrics_endpoint_name"
            )
            raise errors.wrong_argument(msg, given)
        self.configuration = copy.copy(configuration or Configuration())
        options = effective_options(self.configuration.options, os.environ, Path.cwd())
        self.configuration.options = options
        set_up_logging(options)
        monitored_at = options.metrics_address, options.metrics_port
        self._owns_node = node is None
        self._has_secret = secret is not None or bool(secrets)
        self._own_tls = None
        errors.require(isinstance(node, Node | None), "Endpoint(node=…) takes a Node", node)
        if node is None:
            self._own_tls = None if encrypt else BrokerTls.of(self.configuration)
            node = Node(
                tls=self._own_tls,
                secret=secret,
                secrets=secrets,
                permissions=permissions,
                allow_unsealed=allow_unsealed,
                encrypt=encrypt,
            )
        self.node = node
        hub_options = HubOptions(
            ttl=options.ttl,
            forwards=options.forward,
            peer_buffer_size=options.peer_buffer_size,
            overflow_policy=options.peer_overflow_policy,
        )
        self.hub = Hub.of(node, hub_options)
        self._is_shut = False
        self._forwarded = Nothing()
        self.hub.name = options.metrics_endpoint_name or self.hub.name
        self._members: weakref.WeakSet[Any] = weakref.WeakSet()
        self._monitoring = None
        if monitored_at[1] >= 0:
            self._monitoring = serve_topics(node, monitored_at, options.metrics_hosts)
        self._metric_topics = [*export_and_import(self.hub, options)]
        #: Foreign wires by which others come, or which lead to them.
        self._doors: list[Closing] = []
        #: Peerings on wires of foreign software, by the names of these.
        self._peerings: dict[str, Any] = {}
        #: Stores that were attached; they are closed with the endpoint.
        self.stores: list[Store] = []

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

    def listen(
        self,
        address: str = "",
        port: int = 0,
        *,
        insecure: bool = False,
        wire: str = "",
    ) -> int:
        """Accept peers on a port; returns the port, or 0 (and logs why) if that is impossible.

        Args:
            address: local address. The empty one is all interfaces when peers have to show
                certificates, and otherwise only this machine.
            port: TCP port; 0 picks a free one.
            insecure: allow an address that other machines reach though peers prove nothing.
            wire: what peers speak: `native` for endpoints of nodes; `zeek-2` for Zeek's Broker
                2.x, `zeek-1.4` for Broker 1.4. A port has one. By default that of the
                options.

        Raises:
            InvalidOption: there is no such wire.
        """
        wire = wire or self.configuration.options.wire
        if wire != NATIVE:
            return self._listen_foreign(address, port, wire, insecure=insecure)
        is_guarded = self._owns_node and (
            self.configuration.has_certificates and not self.configuration.options.disable_ssl
        )
        host = address or ("0.0.0.0" if is_guarded else "127.0.0.1")  # noqa: S104
        try:
            if self._own_tls is not None and not insecure:
                refuse_unguarded(host, is_guarded=is_guarded or self._has_secret)
            return self.node.listen(host, port, insecure=insecure)
        except (OSError, errors.CallboardError, ValueError) as error:
            log.error("cannot listen at %s:%s: %s", host, port, error)
            return 0

    def _listen_foreign(self, address: str, port: int, wire: str, *, insecure: bool) -> int:
        """Accept peers that speak another wire."""
        options = self.configuration.options
        is_guarded = self.configuration.has_certificates and not options.disable_ssl
        host = address or ("0.0.0.0" if is_guarded else "127.0.0.1")  # noqa: S104
        peering = self._peering(wire)
        try:
            number: int = peering.listen(host, port, is_guarded=is_guarded, insecure=insecure)
        except (OSError, errors.CallboardError, ValueError) as error:
            log.error("cannot listen at %s:%s: %s", host, port, error)
            return 0
        return number

    def _peering(self, wire: str) -> Any:
        """Return what speaks a foreign wire; made when it is first asked for.

        Raises:
            InvalidOption: there is no such wire.
            TlsError: a file for TLS is unusable.
        """
        self._refuse_shut()
        if wire not in self._peerings:
            errors.require(isinstance(wire, str), "wire takes the name of a wire", wire)
            try:
                peering = WIRES.load(wire)
            except LookupError:
                known = ", ".join((NATIVE, *WIRES.names()))
                msg = f"there is no wire {wire[:80]!r}; take one of {known}"
                raise InvalidOption(msg) from None
            self._peerings[wire] = peering(self.hub, BrokerTls.of(self.configuration))
            self._doors.append(self._peerings[wire])
        return self._peerings[wire]

    def listen_web_socket(
        self,
        address: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: Tls | None = None,
        tokens: Mapping[str, str] | None = None,
        permissions: Mapping[str, Rights] | None = None,
        origins: Sequence[str] = (),
        hosts: Sequence[str] = (),
        limits: "WebSocketLimits | None" = None,
        insecure: bool = False,
    ) -> int:
        """Accept clients of Zeek's WebSocket JSON on a port; returns the port.

        Zeeks that dial out, zeek-client, zeekpy and browsers get what begins as their filter
        says, and publish. The path is `/v1/messages/json`.

        Args:
            address: local address; one that other machines reach needs `tokens`, or `tls`
                that asks for certificates.
            port: TCP port; 0 picks a free one.
            tls: certificates for `wss://`; plain without.
            tokens: tokens by the names of those who show them, in `Authorization: Bearer …`
                or, as browsers have to, in `?token=…`.
            permissions: what clients may publish and subscribe to, by patterns of the names
                of their tokens or certificates; everything by default.
            origins: web sites whose pages may connect; by default those of this machine, or
                all where a token is needed.
            hosts: names by which clients reach the port, beside addresses, `localhost` and the
                name of the machine; `*` for all. Over TLS, where the certificate has shown the
                name already, empty stands for all.
            limits: connections, sizes and times.
            insecure: allow an address that other machines reach though clients prove nothing.

        Raises:
            PublicAddress: other machines reach the address, and nothing guards it.
            PortUnavailable: the address is not ours or the port is taken.
            TlsError: a file for TLS is unusable.
            InvalidOption: a token is empty, or there twice; or a package is not installed.
        """
        self._refuse_shut()
        server = _web_socket("server")(
            self.hub,
            address,
            port,
            tls=tls,
            tokens=tokens,
            permissions=permissions,
            origins=tuple(origins),
            hosts=tuple(hosts),
            limits=limits,
            insecure=insecure,
        )
        self._doors.append(server)
        number: int = server.port
        return number

    def connect_web_socket(
        self,
        url: str,
        *,
        subscribe: Topics | None = None,
        publish: Topics = "",
        name: str = "",
        token: str = "",
        tls: Tls | None = None,
        retry: Seconds = 0.5,
        timeout: Seconds | None = 10.0,
    ) -> "WebSocketPeer":
        """Peer with a Zeek over its WebSocket JSON, now and whenever the connection is lost.

        What is subscribed to on this node and those in reach is asked for there; what this
        endpoint publishes goes there. Returns when Zeek has acknowledged.

        Args:
            url: `ws://HOST:PORT/v1/messages/json`, or `wss://…`; the path may be left out.
            subscribe: the only topics that Zeek is asked for; by default those that are
                subscribed to, as they change.
            publish: beginnings of the topics that go to Zeek; by default all.
            name: what this application is called there: letters, digits, `/_-.=:*@`.
            token: is sent as `Authorization: Bearer …`.
            tls: for `wss://`: whose certificates are taken, and our own; by default the
                system's authorities.
            retry: seconds between two attempts, at most.
            timeout: seconds to wait for the acknowledgment; None returns at once and goes on
                trying.

        Returns:
            The peer: its counters, `await_subscribed()` and `close()`.

        Raises:
            NodeUnreachable: no acknowledgment came in time; the text says why.
            InvalidOption: that is no such address or name, or a package is not installed.
            TlsError: a file for TLS is unusable.
            WouldBlock: called on the thread of a running event loop.
        """
        limit = None if timeout is None else _seconds(timeout)
        if limit is not None:
            refuse_loop("connect_web_socket()", "endpoint.aconnect_web_socket(…)")
        self._refuse_shut()
        peer: WebSocketPeer = _web_socket("client")(
            self.hub,
            url,
            subscribe=None if subscribe is None else topic_texts(subscribe),
            publish=topic_texts(publish),
            name=name,
            token=token,
            tls=tls,
            retry=_seconds(retry),
        )
        if limit is not None and not peer.await_subscribed(limit):
            peer.close()
            msg = (
                peer.reason or f"no acknowledgment came from {redacted(url)} within {limit:g} s"
            )
            raise errors.NodeUnreachable(msg)
        self._doors.append(peer)
        return peer

    async def aconnect_web_socket(
        self,
        url: str,
        *,
        subscribe: Topics | None = None,
        publish: Topics = "",
        name: str = "",
        token: str = "",
        tls: Tls | None = None,
        retry: Seconds = 0.5,
        timeout: Seconds | None = 10.0,
    ) -> "WebSocketPeer":
        """Awaitable twin of `connect_web_socket`."""
        how: dict[str, Any] = {"subscribe": subscribe, "publish": publish, "name": name}
        how |= {"token": token, "tls": tls, "retry": retry, "timeout": timeout}
        return await on_a_thread(self.connect_web_socket, url, **how)

    def hold_door(self, door: Closing) -> None:
        """Close a door, as `callboard.zeek.ZeroMq`, when this endpoint is shut down.

        Raises:
            NodeClosed: it was shut down.
        """
        self._refuse_shut()
        self._doors.append(door)

    # --- out ---

    def publish(self, *args: Any, topic: Any = None, data: Any = ABSENT) -> None:
        """Publish: `publish(topic, value)`, `publish(to, topic, value)`, or `publish(batch)`.

        Fire and forget. Subscribers of this endpoint itself do not see it. When too much
        waits to be sent, the calling thread is slowed down.

        Args:
            args: a topic and a value; or before these the `EndpointInfo` of the only
                endpoint that shall have it; or a list of pairs of topic and value, which
                arrive in this order.
            topic: a topic by name.
            data: a value by name.

        Raises:
            EndpointError: no topic, or the data model has no such value.
            WouldBlock: there is no room, on the thread of a running event loop.
        """
        if len(args) == 2:
            about, value = args
            self.hub.publish(about if type(about) is str else topic_text(about), value)
            return
        if data is not ABSENT:
            args = (*args, data) if topic is None else (*args, topic, data)
        match args:
            case (EndpointInfo() as to, about, value):
                self._publish_to(to, topic_text(about), value)
            case (about, value):
                self.hub.publish(topic_text(about), value)
            case (list() | tuple() as batch,):
                self.publish_batch(*batch)
            case _:
                msg = "publish takes (topic, value), (endpoint_info, topic, value) or (batch)"
                raise TypeError(msg)

    async def apublish(self, *args: Any, topic: Any = None, data: Any = ABSENT) -> None:
        """Awaitable twin of `publish`: waits for room."""
        while not self.hub.has_room():
            await self.hub.room()
        self.publish(*args, topic=topic, data=data)

    def publish_batch(self, *batch: tuple[str | Topic, Any]) -> None:
        """Publish pairs of topic and value; they arrive in this order.

        Raises:
            EndpointError: no topic, or the data model has no such value; nothing was sent.
            WouldBlock: there is no room, on the thread of a running event loop.
        """
        self.hub.publish_batch(*[(topic_text(topic), value) for topic, value in batch])

    async def apublish_batch(self, *batch: tuple[str | Topic, Any]) -> None:
        """Awaitable twin of `publish_batch`: waits for room."""
        while not self.hub.has_room():
            await self.hub.room()
        self.publish_batch(*batch)

    def publish_journal(self, journal: "Journal", topic: str | Topic) -> int:
        """Publish the events of entities in the order of commits, until their journal ends.

        An event of the entity with the key `u-17` goes to `TOPIC/u-17`, as a dict of
        `position`, `key`, `number`, `time`, `epoch`, `kind`, `version` and `fields`. If the
        journal has a reader, its position is stored when the events were delivered: each event
        is published at least once, whatever ends this program.

        Args:
            journal: `node.journal(Cart, follow=True, reader="topics")`; closing it, from
                another thread, ends this call.
            topic: what the keys are written behind; a `/` in one is `%2F`.

        Returns:
            How many events were published.

        Raises:
            Fenced: another journal with this reader was begun.
            StateUnavailable: the database is away, and the journal is not followed.
            WouldBlock: called on the thread of a running event loop.
        """
        self._refuse_shut()
        refuse_loop("publish_journal()", "endpoint.apublish_journal(…)")
        from callboard.broker.journal_topics import publish_journal  # few need entities

        return publish_journal(self.hub, journal, topic_text(topic))

    async def apublish_journal(self, journal: "Journal", topic: str | Topic) -> int:
        """Awaitable twin of `publish_journal`."""
        return await on_a_thread(self.publish_journal, journal, topic)

    def make_publisher(self, topic: str | Topic) -> Publisher:
        """Return a publisher of one topic."""
        return self._member(Publisher(self.hub, topic_text(topic), self._forget))

    # --- in ---

    def make_subscriber(
        self, topics: Topics, qsize: int = 20, subscriber_class: type[Subscriber] = Subscriber
    ) -> Subscriber:
        """Return a subscriber; it takes every topic that begins with one of these.

        Args:
            topics: one topic or several.
            qsize: taken as Broker does, without effect: 262,144 messages may wait, then the
                oldest are dropped and counted.
            subscriber_class: a class that derives from `Subscriber`; it is made with one
                argument, for its base class.
        """
        _check_size(qsize)
        given: Any = subscriber_class
        is_one = isinstance(given, type) and issubclass(given, Subscriber)
        msg = "subscriber_class is Subscriber, SafeSubscriber, or a class derived from them"
        errors.require(is_one, msg, given)
        return self._member(subscriber_class(self._place(topics)))

    def make_safe_subscriber(self, topics: Topics, qsize: int = 20) -> SafeSubscriber:
        """Return a subscriber whose values cannot be changed, which is quicker."""
        _check_size(qsize)
        return self._member(SafeSubscriber(self._place(topics)))

    def make_status_subscriber(
        self,
        receive_statuses: bool = False,  # noqa: FBT001, FBT002
        qsize: int = 20,
    ) -> StatusSubscriber:
        """Return a subscriber for errors, and where wanted for changes among the peers."""
        _check_size(qsize)
        discovered_first = self.configuration.options.discovered_first
        return self._member(
            StatusSubscriber(
                self.hub,
                self._forget,
                receive_statuses=receive_statuses,
                discovered_first=discovered_first,
            )
        )

    def subscribe(
        self,
        ref: ActorRef[Any],
        topics: Topics,
        *,
        message: Callable[[str, Any], Any] = TopicMessage,
        limit: int = QUEUE_LIMIT,
        on_full: OnFull = "drop_oldest",
    ) -> ActorSubscription:
        """Let an actor take every topic that begins with one of these, until it ends.

        Each value comes as a message, also what this node itself publishes. A bounded mailbox
        that is full lets messages wait here. An actor that its supervisor starts again stays
        subscribed. In a class, `@topic` on a handler does the same.

        Args:
            ref: the actor, on this node or another one.
            topics: one topic or several.
            message: makes the message of a topic and a value; `TopicMessage` by default.
            limit: messages that may wait while the actor has no room (and 64 MiB).
            on_full: what happens beyond that: `drop_oldest` or `drop_newest`, which are
                counted and told by `SubscriptionOverflow` events; `wait` also slows those
                who publish on this node, and reads their links less often, before.

        Raises:
            WrongArgument: that is no ref, no limit, or no policy.
            ActorDown: the actor has ended.
            InvalidTopic: one is no topic.
        """
        self._refuse_shut()
        texts = topic_texts(topics)
        made = ActorSubscription(
            self.hub,
            ref,
            texts,
            make=message,
            limit=limit,
            on_full=on_full,
            closed=self._forget,
        )
        return self._member(made)

    def record(
        self,
        topics: Topics,
        folder: str | Path,
        *,
        sync: Sync = "group",
        retain: Retention | None = None,
        columns: bool = False,
        archive: str | Archive | None = None,
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
            archive: where they are copied to, such as `s3://bucket/cpu`; see `CommitLog`.

        Raises:
            LogLocked: something else writes this log.
            LogFailed: the disk refuses.
            ExtraMissing: `columns` without pyarrow, or `archive` without fsspec.
            WouldBlock: called on the thread of a running event loop.
        """
        self._refuse_shut()
        refuse_loop("record()", "endpoint.arecord(…)")
        make_log = partial(
            CommitLog, folder, sync=sync, retain=retain, columns=columns, archive=archive
        )
        return self._member(Recording(self.hub, topic_texts(topics), make_log, self._forget))

    async def arecord(
        self,
        topics: Topics,
        folder: str | Path,
        *,
        sync: Sync = "group",
        retain: Retention | None = None,
        columns: bool = False,
        archive: str | Archive | None = None,
    ) -> Recording:
        """Awaitable twin of `record`."""
        options: dict[str, Any] = {"retain": retain, "columns": columns, "archive": archive}
        return await on_a_thread(self.record, topics, folder, sync=sync, **options)

    def forward(self, topics: Topics) -> None:
        """Let messages of these topics come here though no subscriber wants them.

        Broker needs this at nodes between others. Here messages find their way through all
        nodes, so what it adds is that `peer_subscriptions()` of others has the topics.
        """
        self.hub.add_receiver(self._forwarded, topic_texts(topics))

    # --- peers ---

    @also_named(addr="address")
    def peer(self, address: str, port: int, retry: Seconds = RETRY, *, wire: str = "") -> bool:
        """Peer with the endpoint at an address; True when both know each other's topics.

        Args:
            address: host name or address.
            port: TCP port.
            retry: how many seconds may lie between two attempts (the first follow sooner).
                With 0 there is one attempt, and no other when the peer is lost; otherwise
                this call waits until somebody answers, or the peer is removed.
            wire: what the peer speaks: `native` for an endpoint of a node; `zeek-2` for Zeek's
                Broker 2.x, `zeek-1.4` for Broker 1.4. By default that of the
                options.

        Raises:
            WouldBlock: called on the thread of a running event loop.
            InvalidOption: there is no such wire.
        """
        return self._wait(lambda: self._peer(address, port, retry, wire), "peer")

    @also_named(addr="address")
    async def apeer(
        self, address: str, port: int, retry: Seconds = RETRY, *, wire: str = ""
    ) -> bool:
        """Awaitable twin of `peer`."""
        return await self._peer(address, port, retry, wire)

    @also_named(addr="address")
    def peer_nosync(
        self, address: str, port: int, retry: Seconds = RETRY, *, wire: str = ""
    ) -> None:
        """Peer without waiting; status subscribers tell what becomes of it."""
        self._peer(address, port, retry, wire)

    @also_named(addr="address")
    def unpeer(self, address: str, port: int) -> bool:
        """End the peering with an address; True when there is none any more.

        Status subscribers here are told `PeerRemoved`, those of the peer `PeerLost`; an
        address that is no peer's gives an error with the code `PeerInvalid`.

        Raises:
            WouldBlock: called on the thread of a running event loop.
        """
        return self._wait(lambda: self._unpeer(address, port), "unpeer")

    async def aunpeer(self, address: str, port: int) -> bool:
        """Awaitable twin of `unpeer`."""
        return await self._unpeer(address, port)

    @also_named(addr="address")
    def unpeer_nosync(self, address: str, port: int) -> None:
        """End a peering without waiting."""
        self._unpeer(address, port)

    def peers(self) -> list[PeerInfo]:
        """Return the peers, and the addresses where one is still looked for."""
        network = self.node.overlay
        peers = self.hub.core.peers()
        retries = {dial.address: dial.retry for dial in network.dials()}
        found = []
        for node, endpoint, address, is_introduced in peers:
            retry = 0.0 if address is None else retries.pop(address, 0.0)
            way = PeerFlags.Outbound if network.is_dialed_here(node) else PeerFlags.Inbound
            status = PeerStatus.Peered if is_introduced else PeerStatus.Connected
            peer = EndpointInfo.of(endpoint, address, retry)
            found.append(PeerInfo(peer, PeerFlags.Remote | way, status))
        linked = {node for node, _, _, _ in peers}
        for dial in network.dials():
            if dial.peer not in linked:
                status = PeerStatus.Connecting if dial.peer is None else PeerStatus.Reconnecting
                peer = EndpointInfo.of(None, dial.address, dial.retry)
                found.append(PeerInfo(peer, PeerFlags.Remote | PeerFlags.Outbound, status))
        return found + [_foreign_info(each) for each in network.foreign.peers()]

    def peer_subscriptions(self) -> list[Topic]:
        """Return the topics that endpoints in reach take, sorted, each once."""
        return [Topic(topic) for topic in self.hub.core.peer_topics()]

    @overload
    def await_peer(self, whom: str, timeout: Seconds | None = None) -> bool: ...
    @overload
    def await_peer(
        self, whom: str, callback: Callable[[bool], object], timeout: Seconds | None = None
    ) -> None: ...
    def await_peer(self, whom: str, *args: Any, **kwargs: Any) -> bool | None:
        """Wait until an endpoint is in reach and its subscriptions have arrived here.

        It says nothing of the other direction: for that, ask the other endpoint too.

        Args:
            whom: the id of the endpoint, as `node_id()` returns it.
            args: a callback, if the call shall not block, and seconds to wait, 10 by default.
            kwargs: the same by name: `callback`, `timeout`.

        Returns:
            True when the endpoint is there, False when the time is over; with a callback
            None, and the callback is called with the one or the other, on the node's thread.

        Raises:
            WouldBlock: called on the thread of a running event loop without a callback.
            ValueError: `whom` is no id of an endpoint.
        """
        callback, timeout = _callback_and_timeout(*args, **kwargs)
        if callback is None:
            return self._wait(lambda: self._until_known(whom, timeout), "await_peer")
        told = callback
        self._until_known(whom, timeout).add_done_callback(lambda done: told(done.result()))
        return None

    async def aawait_peer(self, whom: str, timeout: Seconds | None = None) -> bool:
        """Awaitable twin of `await_peer`."""
        return await self._until_known(whom, timeout)

    def await_filter_entry(self, topic: str | Topic, timeout: Seconds | None = None) -> bool:
        """Wait until some endpoint in reach takes a topic, by exactly this prefix.

        Raises:
            WouldBlock: called on the thread of a running event loop.
        """
        return self._wait(lambda: self._until_taken(topic, timeout), "await_filter_entry")

    async def aawait_filter_entry(
        self, topic: str | Topic, timeout: Seconds | None = None
    ) -> bool:
        """Awaitable twin of `await_filter_entry`."""
        return await self._until_taken(topic, timeout)

    # --- stores ---

    @also_named(type="backend", opts="options")
    def attach_master(
        self,
        name: str,
        backend: Backend = Backend.Memory,
        options: Mapping[str, Any] | None = None,
        *,
        store_options: StoreOptions | None = None,
    ) -> Store:
        """Make the master of a store; there is one for each name in the whole network.

        Args:
            name: of the store.
            backend: where its values are kept.
            options: of the backend; SQLite needs `{"path": …}`.
            store_options: times.

        Raises:
            MasterExists: a node in reach has a master of this name.
            BackendFailure: the file cannot be opened.
            InvalidData: there is no such backend, or it has no such option.
            WouldBlock: on the thread of a running event loop; await `aattach_master`.
        """
        self._refuse_shut()
        kind = _kind(backend)
        made = attach_master(self.hub, name, kind, options, store_options=store_options)
        return self._hold(made)

    async def aattach_master(
        self,
        name: str,
        backend: Backend = Backend.Memory,
        options: Mapping[str, Any] | None = None,
        *,
        store_options: StoreOptions | None = None,
    ) -> Store:
        """Awaitable twin of `attach_master`."""
        self._refuse_shut()
        kind = _kind(backend)
        made = await aattach_master(self.hub, name, kind, options, store_options=store_options)
        return self._hold(made)

    def attach_clone(self, name: str, *, store_options: CloneOptions | None = None) -> Store:
        """Make a clone of a store, whose master may come later; returns at once."""
        self._refuse_shut()
        return self._hold(attach_clone(self.hub, name, store_options=store_options))

    # --- the end ---

    @after_fork.nothing_in_copies
    def shutdown(self) -> None:
        """Send waiting messages, close subscribers and publishers, and end. Idempotent.

        A node that was given to the endpoint goes on.

        Raises:
            WouldBlock: called on the thread of a running event loop; nothing was ended.
        """
        if self._is_shut:
            return
        refuse_loop("shutdown()", "endpoint.ashutdown()")
        self._is_shut = True
        self.publish = self._publish_nowhere  # type: ignore[method-assign]
        for store in self.stores:
            store.close()
        self.hub.flushed(FLUSH_LIMIT)
        for member in list(self._members):
            member.close()
        self.hub.remove_receiver(self._forwarded)
        for door in self._doors:
            door.close()
        for metric_topic in self._metric_topics:
            metric_topic.close()
        if self._monitoring is not None:
            self._monitoring.close()
        if self._owns_node:
            self.node.close()

    async def ashutdown(self) -> None:
        """Awaitable twin of `shutdown`."""
        await on_a_thread(self.shutdown)

    def close(self) -> None:
        """Shut down: the name that all else which is closed has for it."""
        self.shutdown()

    # --- inside ---

    def _wait(self, begin: Callable[[], Future[bool]], name: str) -> bool:
        refuse_loop(f"{name}()", f"endpoint.a{name}(…)")
        return begin().result()

    def _peer(self, address: str, port: int, retry: Seconds, wire: str) -> Future[bool]:
        self._refuse_shut()
        where, limit = checked_endpoint(address, port), _seconds(retry)
        wire = wire or self.configuration.options.wire
        if wire == NATIVE:
            return self.hub.peer(where, limit)
        done: Future[bool] = self._peering(wire).peer(where, limit)
        return self.node.context.shutdown.guard(done)

    def _unpeer(self, address: str, port: int) -> Future[bool]:
        where = checked_endpoint(address, port)
        for peering in self._peerings.values():
            done: Future[bool] | None = peering.unpeer(where)
            if done is not None:
                return self.node.context.shutdown.guard(done)
        return self.hub.unpeer(where)

    def _until_known(self, whom: str, timeout: Seconds | None) -> Future[bool]:
        self._refuse_shut()
        try:
            endpoint = uuid.UUID(str(whom)).bytes
        except ValueError:
            msg = f"{str(whom)[:80]!r} is no id of an endpoint, as its node_id() returns it"
            raise errors.WrongValue(msg) from None
        limit = _seconds(timeout, AWAIT_PEER_LIMIT)
        foreign = self.node.overlay.foreign

        def is_known(core: Core) -> bool:
            is_peer = any(each.endpoint == endpoint for each in foreign.peers())
            return is_peer or core.node_of(endpoint) is not None

        return self.hub.until(is_known, limit)

    def _until_taken(self, topic: str | Topic, timeout: Seconds | None) -> Future[bool]:
        self._refuse_shut()
        text = topic_text(topic)

        limit = _seconds(timeout, AWAIT_PEER_LIMIT)
        return self.hub.until(lambda core: text in core.peer_topics(), limit)

    def _hold(self, store: Store) -> Store:
        self.stores = [one for one in self.stores if not one.is_closed]
        self.stores.append(store)
        return store

    def _publish_to(self, to: EndpointInfo, topic: str, value: Any) -> None:
        is_own = to.node_id() == self.node_id()
        endpoint = uuid.UUID(to.node_id()).bytes
        node = self.node.node_id if is_own else self.hub.core.node_of(endpoint)
        foreign = self._peerings.values() if node is None else ()
        if any(each.publish_to(endpoint, topic, value) for each in foreign):
            return
        if node is None:
            log.info("endpoint %s is not in reach: a message for it was dropped", to)
        else:
            self.hub.send_to(node, [(topic, value)])

    def _member(self, member: M) -> M:
        self._refuse_shut()
        self._members.add(member)
        if isinstance(member, Subscriber):
            self.hub.subscribers.add(member)
        elif isinstance(member, Publisher):
            self.hub.publishers.add(member)
        return member

    def _place(self, topics: Topics) -> SubscriberPlace:
        return SubscriberPlace(self.hub, topic_texts(topics), self._forget)

    def _forget(self, member: Any) -> None:
        for known in (self._members, self.hub.subscribers, self.hub.publishers):
            known.discard(member)

    def _publish_nowhere(self, *_: Any, **_named: Any) -> None:
        """Tell in the log that nobody gets what is published."""
        text = f"endpoint {self.node_id()} was shut down: nobody gets what it publishes"
        self.hub.runtime.warn_once(self, f"{text}; make another one")

    def _refuse_shut(self) -> None:
        if self._is_shut:
            msg = f"endpoint {self.node_id()} was shut down; make another one"
            raise errors.NodeClosed(msg)


def _web_socket(name: str) -> Any:
    """Return one side of Zeek's WebSocket.

    Raises:
        InvalidOption: its package is not installed.
    """
    try:
        return DOORS.load(f"websocket {name}")
    except ImportError as cause:
        msg = f"WebSocket needs a package ({cause.name}): pip install 'callboard[websocket]'"
        raise InvalidOption(msg) from cause


def _foreign_info(found: ForeignPeer) -> PeerInfo:
    """Return a peer on a foreign wire as `peers()` shows it."""
    endpoint = found.endpoint
    if endpoint is None and found.is_linked:
        endpoint = foreign_id(found.wire, found.address)
    peer = EndpointInfo.of(endpoint, found.address, found.retry, found.wire)
    way = PeerFlags.Outbound if found.is_dialed else PeerFlags.Inbound
    status = PeerStatus.Peered if found.is_linked else PeerStatus.Connecting
    return PeerInfo(peer, PeerFlags.Remote | way, status)


def _check_size(qsize: int) -> None:
    if type(qsize) is not int or qsize < 0:
        msg = f"qsize is a number of messages, not {qsize!r}"
        raise errors.WrongArgument(msg)


def _seconds(value: Seconds | None, default: float = 0.0) -> float:
    if value is None:
        return default
    given: Any = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    given = float(given) if isinstance(given, str) else given
    time = 0.0 if given != given else seconds(given)  # as NaN alone is
    if not given >= 0.0:
        msg = f"a time of {value!r} s is negative, or no number"
        raise errors.InvalidSeconds(msg)
    return time


def _callback_and_timeout(
    *args: Any,
    callback: Callable[[bool], object] | None = None,
    timeout: Seconds | None = None,
) -> tuple[Callable[[bool], object] | None, Seconds | None]:
    for arg in args:
        callback, timeout = (arg, timeout) if callable(arg) else (callback, arg)
    return callback, timeout


def _kind(backend: Backend) -> StoreBackend:
    try:
        name: object = Backend(backend).name
    except ValueError:
        name = getattr(backend, "name", backend)
    if name not in StoreBackend.__members__:
        msg = f"there is no backend {name!r:.80}; take Backend.Memory or Backend.SQLite"
        raise InvalidData(msg)
    return StoreBackend[str(name)]
