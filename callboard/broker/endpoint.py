"""The endpoint: publish and subscribe over peers, with the interface of Zeek Broker's package.

An endpoint uses a node: an existing one (`Endpoint(node=…)`), or its own. The node's links
carry topics besides all other traffic. All endpoints of a node share one core actor.
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

from callboard.arguments import require, seconds, wrong_argument
from callboard.bounded_queue import SubscriptionPolicy
from callboard.broker.adapters import NATIVE, Adapters, web_socket
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
from callboard.closing import Closing, refuse_loop, twin
from callboard.commitlog import Archive, CommitLog, Retention
from callboard.commitlog.log import Sync
from callboard.kernel import errors
from callboard.kernel.access import Rights, Secrets
from callboard.kernel.actors import ActorRef
from callboard.kernel.ports import refuse_unguarded
from callboard.kernel.reply import Future
from callboard.kernel.topology import checked_endpoint
from callboard.kernel.wire import ForeignPeer
from callboard.model.errors import InvalidData
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
from callboard.support.aliases import alias
from callboard.support.redaction import redacted
from callboard.tls.contexts import Tls
from callboard.topics.actor_subscription import ActorSubscription, TopicMessage
from callboard.topics.hub import Hub, HubOptions
from callboard.topics.machine.core import Core
from callboard.topics.machine.effect import Item
from callboard.topics.machine.status import (
    EndpointInfo,
    PeerFlags,
    PeerInfo,
    PeerStatus,
    foreign_id,
)
from callboard.topics.machine.topic import Topic, Topics, topic_text, topic_texts
from callboard.topics.message_queue import QUEUE_LIMIT
from callboard.topics.monitoring import serve_topics

if TYPE_CHECKING:
    from callboard.entity.journal.journal import Journal
    from callboard.zeek.doors.web_socket_peer import WebSocketPeer
    from callboard.zeek.doors.web_socket_server import WebSocketLimits

log = logging.getLogger("callboard.broker")

#: Longest pause between attempts to reach a peer, in seconds.
RETRY: Final = 10.0

#: Default timeout of `await_peer` in seconds.
AWAIT_PEER_LIMIT: Final = 10.0

Seconds = float | datetime.timedelta


#: Timeout for sending published messages at the end, in seconds.
FLUSH_LIMIT: Final = 5.0

#: Default of an argument for which None is a value.
ABSENT: Final = object()

M = TypeVar("M")


class Nothing:
    """A receiver that ignores messages; `forward` subscribes with it."""

    def take(self, items: list[Item]) -> None:
        """Ignore a run."""


class Endpoint(Closing):
    """An endpoint, which publishes and subscribes. All methods are thread-safe.

    Blocking methods have an awaitable twin with the prefix `a`. Use it as a context manager, or
    call `shutdown`.
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
        """Create an endpoint.

        Args:
            configuration: options and TLS files.
            node: an existing node; by default the endpoint has its own. TLS, secrets and
                permissions are then those of the node.
            secret: shared secret that all peers must prove; this and those below are only
                for an endpoint with its own node.
            secrets: named secrets; the name identifies the peer.
            permissions: rights of peers, by patterns of their names; see `Node`.
            allow_unsealed: also link with nodes of release 0.1, which do not seal; see `Node`.
            encrypt: encrypt links with the secret as the key of TLS; see `Node`. The files of
                the configuration are then not used for links.

        Raises:
            TypeError: secrets or permissions have a wrong type.
            ValueError: a secret is empty or a duplicate.
            TlsError: a file is missing or unusable.
            InvalidOption: `broker.conf` or an environment variable is invalid.
            OSError: `broker.conf` cannot be read, or the log cannot be written.
        """
        #: The effective configuration, after the file and the environment.
        argument: object = configuration
        if argument is not None and not isinstance(argument, Configuration):
            msg = (
                "Endpoint() takes a Configuration; its name is an option, metrics_endpoint_name"
            )
            raise wrong_argument(msg, argument)
        self.configuration = copy.copy(configuration or Configuration())
        options = effective_options(self.configuration.options, os.environ, Path.cwd())
        self.configuration.options = options
        set_up_logging(options)
        monitored_at = options.metrics_address, options.metrics_port
        self._owns_node = node is None
        self._has_secret = secret is not None or bool(secrets)
        self._own_tls = None
        require(isinstance(node, Node | None), "Endpoint(node=…) takes a Node", node)
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
        #: The publisher: this endpoint; its subscribers do not hear it.
        self._origins: frozenset[object] = frozenset((self._forwarded,))
        self._listeners = self.hub.publishing.listeners
        self.hub.name = options.metrics_endpoint_name or self.hub.name
        self._members: weakref.WeakSet[Any] = weakref.WeakSet()
        self._monitoring = None
        if monitored_at[1] >= 0:
            self._monitoring = serve_topics(node, monitored_at, options.metrics_hosts)
        self._metric_topics = [*export_and_import(self.hub, options)]
        self._adapters = Adapters(self.hub, self.configuration)
        #: Attached stores; they are closed with the endpoint.
        self.stores: list[Store] = []

    def node_id(self) -> str:
        """Return the id of this endpoint: a random UUID."""
        return str(uuid.UUID(bytes=self.hub.endpoint_id))

    @property
    def name(self) -> str:
        """Name of this endpoint in metrics and the status."""
        return self.hub.name

    @property
    def metrics_url(self) -> str:
        """URL of metrics and the status, without a path; "" if they are not served."""
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
        """Accept peers on a port; return the port, or 0 (and log why) if that fails.

        Args:
            address: local address. Empty: all interfaces if peers must present certificates,
                else only this machine.
            port: TCP port; 0 picks a free one.
            insecure: allow a public address although peers are not authenticated.
            wire: protocol of the peers: `native` for endpoints of nodes; `zeek-2` for Zeek's
                Broker 2.x, `zeek-1.4` for Broker 1.4. A port has one. By default that of the
                options.

        Raises:
            InvalidOption: the protocol is unknown.
        """
        wire = wire or self.configuration.options.wire
        if wire != NATIVE:
            self._refuse_shut()
            return self._adapters.listen(address, port, wire, insecure=insecure)
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
        """Accept clients of Zeek's WebSocket JSON on a port; return the port.

        Zeeks that dial out, zeek-client, zeekpy and browsers receive the messages that match
        their filter, and publish. The path is `/v1/messages/json`.

        Args:
            address: local address; a public one needs `tokens`, or `tls` with client
                certificates.
            port: TCP port; 0 picks a free one.
            tls: certificates for `wss://`; without, connections are plain.
            tokens: tokens by the names of their clients, sent in `Authorization: Bearer …` or,
                by browsers, in `?token=…`.
            permissions: rights of clients, by patterns of the names of their tokens or
                certificates; by default all.
            origins: web sites whose pages may connect; by default those of this machine, or all
                if a token is required.
            hosts: host names for the port, besides addresses, `localhost` and the name of the
                machine; `*` for all. Over TLS, where the certificate has proven the name, empty
                means all.
            limits: connections, sizes and times.
            insecure: allow a public address although clients are not authenticated.

        Raises:
            PublicAddress: other machines can reach the address, and clients are not
                authenticated.
            PortUnavailable: the address is not local, or the port is in use.
            TlsError: a TLS file is unusable.
            InvalidOption: a token is empty or a duplicate, or a package is not installed.
        """
        self._refuse_shut()
        server = web_socket("server")(
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
        number: int = self._adapters.hold(server).port
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
        """Peer with a Zeek over its WebSocket JSON; lost connections are restored.

        It subscribes in Zeek to the topics of this node and of all reachable nodes, and sends
        this endpoint's messages. It returns after Zeek's acknowledgment.

        Args:
            url: `ws://HOST:PORT/v1/messages/json`, or `wss://…`; the path is optional.
            subscribe: the only topics to subscribe to in Zeek; by default the current
                subscriptions.
            publish: prefixes of the topics that are sent to Zeek; by default all.
            name: name of this application in Zeek: letters, digits, `/_-.=:*@`.
            token: sent as `Authorization: Bearer …`.
            tls: for `wss://`: the accepted certificates, and our own; by default the system's
                authorities.
            retry: longest pause between two attempts, in seconds.
            timeout: seconds to wait for the acknowledgment; None returns at once and keeps
                trying.

        Returns:
            The peer: its counters, `await_subscribed()` and `close()`.

        Raises:
            NodeUnreachable: no acknowledgment in time; the text has the reason.
            InvalidOption: the address or name is invalid, or a package is not installed.
            TlsError: a TLS file is unusable.
            WouldBlock: called on the thread of a running event loop.
        """
        limit = None if timeout is None else _seconds(timeout)
        if limit is not None:
            refuse_loop("connect_web_socket()", "endpoint.aconnect_web_socket(…)")
        self._refuse_shut()
        peer: WebSocketPeer = web_socket("client")(
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
            msg = peer.reason or f"{redacted(url)} sent no acknowledgment within {limit:g} s"
            raise errors.NodeUnreachable(msg)
        return self._adapters.hold(peer)

    aconnect_web_socket = twin(connect_web_socket)

    def hold_door(self, door: Closing) -> None:
        """Close an adapter, such as `callboard.zeek.ZeroMq`, together with this endpoint.

        Raises:
            NodeClosed: this endpoint was shut down.
        """
        self._refuse_shut()
        self._adapters.hold(door)

    # --- publishing ---

    def publish(self, *args: Any, topic: Any = None, data: Any = ABSENT) -> None:
        """Publish: `publish(topic, value)`, `publish(to, topic, value)`, or `publish(batch)`.

        There is no confirmation. Subscribers of this endpoint itself do not receive it, those
        of other endpoints of its node do. If too many messages wait, the call blocks.

        Args:
            args: a topic and a value; or in front of these the `EndpointInfo` of the only
                receiver; or a list of pairs of topic and value, which are delivered in order.
            topic: a topic by keyword.
            data: a value by keyword.

        Raises:
            EndpointError: the topic or the value is not valid.
            WouldBlock: there is no room, on the thread of a running event loop.
        """
        if len(args) == 2:
            name, value = args
            publishers = self._listeners.publishers
            if not publishers or publishers <= self._origins:
                publish = self.hub.publish  # read first: an attribute that is called is slower
                publish(name if type(name) is str else topic_text(name), value)
            else:
                self.publish_batch((name, value))
            return
        if data is not ABSENT:
            args = (*args, data) if topic is None else (*args, topic, data)
        match args:
            case (EndpointInfo() as receiver, name, value):
                self._publish_to(receiver, topic_text(name), value)
            case (name, value):
                self.publish_batch((name, value))
            case (list() | tuple() as batch,):
                self.publish_batch(*batch)
            case _:
                msg = "publish takes (topic, value), (endpoint_info, topic, value) or (batch)"
                raise TypeError(msg)

    def publish_batch(self, *batch: tuple[str | Topic, Any]) -> None:
        """Publish pairs of topic and value; they are delivered in order.

        Raises:
            EndpointError: a topic or a value is not valid; nothing was sent.
            WouldBlock: there is no room, on the thread of a running event loop.
        """
        pairs = [(topic_text(topic), value) for topic, value in batch]
        publishing = self.hub.publishing
        if publishing.listeners.publishers <= self._origins:
            publishing.publish_batch(*pairs)
        else:
            publishing.publish_as(self._origins, *pairs)

    async def _room(self) -> None:
        """Wait until the hub has room for another message."""
        while not self.hub.has_room():
            await self.hub.inputs.room()

    apublish = twin(publish, after=_room)
    apublish_batch = twin(publish_batch, after=_room)

    def publish_journal(self, journal: "Journal", topic: str | Topic) -> int:
        """Publish the events of entities in commit order, until their journal ends.

        An event of the entity with the key `u-17` is published on `TOPIC/u-17`, as a dict of
        `position`, `key`, `number`, `time`, `epoch`, `kind`, `version` and `fields`. If the
        journal has a reader, its position is stored after the delivery: each event is published
        at least once, even after a crash.

        Args:
            journal: `node.journal(Cart, follow=True, reader="topics")`; closing it, from
                another thread, ends this call.
            topic: prefix of the topics; a key follows, with `/` as `%2F`.

        Returns:
            The number of published events.

        Raises:
            Fenced: another journal with this reader was opened.
            StateUnavailable: the database is unavailable, and the journal is not followed.
            WouldBlock: called on the thread of a running event loop.
        """
        self._refuse_shut()
        refuse_loop("publish_journal()", "endpoint.apublish_journal(…)")
        from callboard.broker.journal_topics import publish_journal  # few programs need it

        return publish_journal(self.hub, journal, topic_text(topic))

    apublish_journal = twin(publish_journal)

    def make_publisher(self, topic: str | Topic) -> Publisher:
        """Return a publisher for one topic."""
        return self._member(Publisher(self.hub, topic_text(topic), self._forget, self._origins))

    # --- subscribing ---

    def make_subscriber(
        self, topics: Topics, qsize: int = 20, subscriber_class: type[Subscriber] = Subscriber
    ) -> Subscriber:
        """Return a subscriber to all topics with one of the prefixes.

        Args:
            topics: one prefix or several.
            qsize: accepted for Broker's programs, without effect: 262,144 messages may wait;
                above that the oldest are dropped and counted.
            subscriber_class: a subclass of `Subscriber`; it is called with one argument, for
                its base class.
        """
        _check_size(qsize)
        argument: Any = subscriber_class
        is_subclass = isinstance(argument, type) and issubclass(argument, Subscriber)
        msg = "subscriber_class must be Subscriber, SafeSubscriber, or a subclass"
        require(is_subclass, msg, argument)
        return self._member(subscriber_class(self._place(topics)))

    def make_safe_subscriber(self, topics: Topics, qsize: int = 20) -> SafeSubscriber:
        """Return a subscriber with immutable values, which is faster."""
        _check_size(qsize)
        return self._member(SafeSubscriber(self._place(topics)))

    def make_status_subscriber(
        self,
        receive_statuses: bool = False,  # noqa: FBT001, FBT002
        qsize: int = 20,
    ) -> StatusSubscriber:
        """Return a subscriber for errors and, if selected, changes of the peers."""
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
        ref: ActorRef,
        topics: Topics,
        *,
        message: Callable[[str, Any], Any] = TopicMessage,
        limit: int = QUEUE_LIMIT,
        on_full: SubscriptionPolicy = "drop_oldest",
    ) -> ActorSubscription:
        """Send an actor all messages on topics with one of the prefixes, until it ends.

        Each value becomes a message, also those that this node itself publishes. If the actor's
        bounded mailbox is full, messages wait here. An actor stays subscribed when its
        supervisor restarts it. In a class, `@topic` on a handler does the same.

        Args:
            ref: the actor, on this node or another one.
            topics: one prefix or several.
            message: makes the message from a topic and a value; by default `TopicMessage`.
            limit: messages that may wait for the actor (and at most 64 MiB).
            on_full: the action above that: `drop_oldest` or `drop_newest`, which are counted
                and reported by `SubscriptionOverflow` events; `wait` first slows down
                publishers on this node, and reads their links less often.

        Raises:
            WrongArgument: the ref, the limit or the policy is invalid.
            ActorDown: the actor has ended.
            InvalidTopic: a topic is invalid.
        """
        self._refuse_shut()
        texts = topic_texts(topics)
        subscription = ActorSubscription(
            self.hub,
            ref,
            texts,
            make=message,
            limit=limit,
            on_full=on_full,
            closed=self._forget,
        )
        return self._member(subscription)

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
        """Record all messages on topics with one of the prefixes in a log, until it is closed.

        Messages of this endpoint are recorded as well. An existing log is continued. Publishers
        that are faster than the disk are slowed down.

        Args:
            topics: one prefix or several.
            folder: directory of the log, created if necessary.
            sync: durability; see `CommitLog`.
            retain: how long records are kept; by default for ever.
            columns: whether sealed segments are also kept as Parquet.
            archive: target for copies of the segments, such as `s3://bucket/cpu`; see
                `CommitLog`.

        Raises:
            LogLocked: another process writes this log.
            LogFailed: the disk fails.
            ExtraMissing: `columns` without pyarrow, or `archive` without fsspec.
            WouldBlock: called on the thread of a running event loop.
        """
        self._refuse_shut()
        refuse_loop("record()", "endpoint.arecord(…)")
        make_log = partial(
            CommitLog, folder, sync=sync, retain=retain, columns=columns, archive=archive
        )
        return self._member(Recording(self.hub, topic_texts(topics), make_log, self._forget))

    arecord = twin(record)

    def forward(self, topics: Topics) -> None:
        """Receive messages on these topics although no subscriber wants them.

        Broker needs this at intermediate nodes. Here messages find their way through all nodes,
        so its only effect is that `peer_subscriptions()` of other endpoints contains the
        topics.
        """
        self.hub.add_receiver(self._forwarded, topic_texts(topics))

    # --- peers ---

    @alias(addr="address")
    def peer(self, address: str, port: int, retry: Seconds = RETRY, *, wire: str = "") -> bool:
        """Peer with the endpoint at an address; True once both know each other's topics.

        Args:
            address: host name or address.
            port: TCP port.
            retry: longest pause between two attempts in seconds (the first ones are shorter).
                With 0 there is one attempt, and none when the peer is lost; otherwise this call
                waits until the peer answers or is removed.
            wire: protocol of the peer: `native` for an endpoint of a node; `zeek-2` for Zeek's
                Broker 2.x, `zeek-1.4` for Broker 1.4. By default that of the options.

        Raises:
            WouldBlock: called on the thread of a running event loop.
            InvalidOption: the protocol is unknown.
        """
        return self._wait(lambda: self._peer(address, port, retry, wire), "peer")

    @alias(addr="address")
    async def apeer(
        self, address: str, port: int, retry: Seconds = RETRY, *, wire: str = ""
    ) -> bool:
        """Awaitable twin of `peer`."""
        return await self._peer(address, port, retry, wire)

    @alias(addr="address")
    def peer_nosync(
        self, address: str, port: int, retry: Seconds = RETRY, *, wire: str = ""
    ) -> None:
        """Peer without waiting; status subscribers receive the result."""
        self._peer(address, port, retry, wire)

    @alias(addr="address")
    def unpeer(self, address: str, port: int) -> bool:
        """End the peering with an address; return True once it has ended.

        Status subscribers here receive `PeerRemoved`, those of the peer `PeerLost`; for an
        address without a peer they receive an error with the code `PeerInvalid`.

        Raises:
            WouldBlock: called on the thread of a running event loop.
        """
        return self._wait(lambda: self._unpeer(address, port), "unpeer")

    async def aunpeer(self, address: str, port: int) -> bool:
        """Awaitable twin of `unpeer`."""
        return await self._unpeer(address, port)

    @alias(addr="address")
    def unpeer_nosync(self, address: str, port: int) -> None:
        """End a peering without waiting."""
        self._unpeer(address, port)

    def peers(self) -> list[PeerInfo]:
        """Return the peers, and the addresses that are being dialed."""
        network = self.node.overlay
        peers = self.hub.core.peers()
        retries = {dial.address: dial.retry for dial in network.dials()}
        infos = []
        for node, endpoint, address, is_introduced in peers:
            retry = 0.0 if address is None else retries.pop(address, 0.0)
            direction = (
                PeerFlags.Outbound if network.is_dialed_here(node) else PeerFlags.Inbound
            )
            status = PeerStatus.Peered if is_introduced else PeerStatus.Connected
            peer = EndpointInfo.of(endpoint, address, retry)
            infos.append(PeerInfo(peer, PeerFlags.Remote | direction, status))
        linked = {node for node, _, _, _ in peers}
        for dial in network.dials():
            if dial.peer not in linked:
                status = PeerStatus.Connecting if dial.peer is None else PeerStatus.Reconnecting
                peer = EndpointInfo.of(None, dial.address, dial.retry)
                infos.append(PeerInfo(peer, PeerFlags.Remote | PeerFlags.Outbound, status))
        return infos + [_foreign_info(peer) for peer in network.foreign.peers()]

    def peer_subscriptions(self) -> list[Topic]:
        """Return the subscribed topics of reachable endpoints, sorted and unique."""
        return [Topic(topic) for topic in self.hub.core.peer_topics()]

    @overload
    def await_peer(self, whom: str, timeout: Seconds | None = None) -> bool: ...
    @overload
    def await_peer(
        self, whom: str, callback: Callable[[bool], object], timeout: Seconds | None = None
    ) -> None: ...
    def await_peer(self, whom: str, *args: Any, **kwargs: Any) -> bool | None:
        """Wait until an endpoint is reachable and its subscriptions have arrived here.

        It does not cover the other direction: call it at the other endpoint as well.

        Args:
            whom: the id of the endpoint, as `node_id()` returns it.
            args: a callback, for a call that does not block, and a timeout in seconds, 10 by
                default.
            kwargs: the same by keyword: `callback`, `timeout`.

        Returns:
            True once the endpoint is reachable, False after the timeout. With a callback,
            None; the callback is then called with that value, on the node's thread.

        Raises:
            WouldBlock: called on the thread of a running event loop without a callback.
            ValueError: `whom` is not the id of an endpoint.
        """
        callback, timeout = _callback_and_timeout(*args, **kwargs)
        if callback is None:
            return self._wait(lambda: self._until_known(whom, timeout), "await_peer")
        on_result = callback
        self._until_known(whom, timeout).add_done_callback(
            lambda done: on_result(done.result())
        )
        return None

    async def aawait_peer(self, whom: str, timeout: Seconds | None = None) -> bool:
        """Awaitable twin of `await_peer`."""
        return await self._until_known(whom, timeout)

    def await_filter_entry(self, topic: str | Topic, timeout: Seconds | None = None) -> bool:
        """Wait until a reachable endpoint subscribes to exactly this prefix.

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

    @alias(type="backend", opts="options")
    def attach_master(
        self,
        name: str,
        backend: Backend = Backend.Memory,
        options: Mapping[str, Any] | None = None,
        *,
        store_options: StoreOptions | None = None,
    ) -> Store:
        """Create the master of a store; a name has one master in the whole network.

        Args:
            name: the name of the store.
            backend: storage of the values.
            options: the options of the backend; SQLite needs `{"path": …}`.
            store_options: times.

        Raises:
            MasterExists: a reachable node has a master of this name.
            BackendFailure: the file cannot be opened.
            InvalidData: the backend is unknown, or has no such option.
            WouldBlock: the caller is on the thread of a running event loop; await
                `aattach_master`.
        """
        self._refuse_shut()
        kind = _kind(backend)
        store = attach_master(self.hub, name, kind, options, store_options=store_options)
        return self._hold(store)

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
        store = await aattach_master(self.hub, name, kind, options, store_options=store_options)
        return self._hold(store)

    def attach_clone(self, name: str, *, store_options: CloneOptions | None = None) -> Store:
        """Create a clone of a store, whose master may appear later; return at once."""
        self._refuse_shut()
        return self._hold(attach_clone(self.hub, name, store_options=store_options))

    # --- the end ---

    @after_fork.nothing_in_copies
    def shutdown(self) -> None:
        """Send waiting messages, close subscribers and publishers, and end. Idempotent.

        A node that was passed to the endpoint stays open.

        Raises:
            WouldBlock: called on the thread of a running event loop; nothing was closed.
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
        self._adapters.close()
        for metric_topic in self._metric_topics:
            metric_topic.close()
        if self._monitoring is not None:
            self._monitoring.close()
        if self._owns_node:
            self.node.close()

    ashutdown = twin(shutdown)

    def close(self) -> None:
        """Shut down, under the usual name."""
        self.shutdown()

    # --- internal ---

    def _wait(self, begin: Callable[[], Future[bool]], name: str) -> bool:
        refuse_loop(f"{name}()", f"endpoint.a{name}(…)")
        return begin().result()

    def _peer(self, address: str, port: int, retry: Seconds, wire: str) -> Future[bool]:
        self._refuse_shut()
        remote, limit = checked_endpoint(address, port), _seconds(retry)
        wire = wire or self.configuration.options.wire
        if wire == NATIVE:
            return self.hub.peerings.peer(remote, limit)
        done: Future[bool] = self._adapters.peering(wire).peer(remote, limit)
        return self.node.context.shutdown.guard(done)

    def _unpeer(self, address: str, port: int) -> Future[bool]:
        remote = checked_endpoint(address, port)
        done = self._adapters.unpeer(remote)
        if done is not None:
            return done
        return self.hub.peerings.unpeer(remote)

    def _until_known(self, whom: str, timeout: Seconds | None) -> Future[bool]:
        self._refuse_shut()
        try:
            endpoint = uuid.UUID(str(whom)).bytes
        except ValueError:
            msg = f"{str(whom)[:80]!r} is not an endpoint's id; pass the value of its node_id()"
            raise errors.WrongValue(msg) from None
        limit = _seconds(timeout, AWAIT_PEER_LIMIT)
        foreign = self.node.overlay.foreign

        def is_known(core: Core) -> bool:
            is_peer = any(peer.endpoint == endpoint for peer in foreign.peers())
            return is_peer or core.node_of(endpoint) is not None

        return self.hub.waits.until(is_known, limit)

    def _until_taken(self, topic: str | Topic, timeout: Seconds | None) -> Future[bool]:
        self._refuse_shut()
        text = topic_text(topic)

        limit = _seconds(timeout, AWAIT_PEER_LIMIT)
        return self.hub.waits.until(lambda core: text in core.peer_topics(), limit)

    def _hold(self, store: Store) -> Store:
        self.stores = [attached for attached in self.stores if not attached.is_closed]
        self.stores.append(store)
        return store

    def _publish_to(self, receiver: EndpointInfo, topic: str, value: Any) -> None:
        is_own = receiver.node_id() == self.node_id()
        endpoint = uuid.UUID(receiver.node_id()).bytes
        node = self.node.node_id if is_own else self.hub.core.node_of(endpoint)
        if node is None and self._adapters.publish_to(endpoint, topic, value):
            return
        if node is None:
            log.info("endpoint %s is not reachable; a message to it was dropped", receiver)
        else:
            self.hub.publishing.send_to(node, [(topic, value)])

    def _member(self, member: M) -> M:
        self._refuse_shut()
        self._members.add(member)
        if isinstance(member, Subscriber):
            self.hub.subscribers.add(member)
        elif isinstance(member, Publisher):
            self.hub.publishers.add(member)
        return member

    def _place(self, topics: Topics) -> SubscriberPlace:
        return SubscriberPlace(self.hub, topic_texts(topics), self._forget, self._forwarded)

    def _forget(self, member: Any) -> None:
        for members in (self._members, self.hub.subscribers, self.hub.publishers):
            members.discard(member)

    def _publish_nowhere(self, *_: Any, **_named: Any) -> None:
        """Log that published messages are dropped."""
        text = f"endpoint {self.node_id()} was shut down: its messages are dropped"
        self.hub.runtime.warn_once(self, f"{text}; create a new one")

    def _refuse_shut(self) -> None:
        if self._is_shut:
            msg = f"endpoint {self.node_id()} was shut down; create a new one"
            raise errors.NodeClosed(msg)


def _foreign_info(foreign: ForeignPeer) -> PeerInfo:
    """Return a peer of another protocol in the form of `peers()`."""
    endpoint = foreign.endpoint
    if endpoint is None and foreign.is_linked:
        endpoint = foreign_id(foreign.wire, foreign.address)
    peer = EndpointInfo.of(endpoint, foreign.address, foreign.retry, foreign.wire)
    direction = PeerFlags.Outbound if foreign.is_dialed else PeerFlags.Inbound
    status = PeerStatus.Peered if foreign.is_linked else PeerStatus.Connecting
    return PeerInfo(peer, PeerFlags.Remote | direction, status)


def _check_size(qsize: int) -> None:
    if type(qsize) is not int or qsize < 0:
        msg = f"qsize must be a number of messages, not {qsize!r}"
        raise errors.WrongArgument(msg)


def _seconds(value: Seconds | None, default: float = 0.0) -> float:
    if value is None:
        return default
    number: Any = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    number = float(number) if isinstance(number, str) else number
    time = 0.0 if number != number else seconds(number)  # only NaN differs from itself
    if not number >= 0.0:
        msg = f"a time of {value!r} s is negative, or not a number"
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
        msg = f"there is no backend {name!r:.80}; use Backend.Memory or Backend.SQLite"
        raise InvalidData(msg)
    return StoreBackend[str(name)]
