"""A node: local actors, links to other nodes, and the interface for both."""

import asyncio
import contextlib
import inspect
import socket
import ssl
import threading
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any, ClassVar, Final, ParamSpec, Self, TypeVar, overload

from callboard.actors import errors
from callboard.actors.actor import Actor
from callboard.actors.cell import Cell
from callboard.actors.future import Future
from callboard.actors.mailbox import options_of
from callboard.actors.reference import ActorRef, Down, checked_ref, current_cell
from callboard.actors.runner.runner import Runner
from callboard.actors.runtime import Runtime
from callboard.actors.supervision.child import Child, check_children
from callboard.actors.supervision.rules import BACKOFF
from callboard.actors.supervision.supervisor import Supervisor
from callboard.actors.system_actor import NodeContext
from callboard.actors.thespian import PlainActors
from callboard.actors.values import Answer, Event
from callboard.actors.waits.feed import Feed, Source
from callboard.actors.waits.shutdown import (
    SHUTDOWN_TIMEOUT,
    STEP_SECONDS,
    CloseStep,
    Deadline,
    Phase,
)
from callboard.arguments import require
from callboard.arguments import seconds as checked
from callboard.basp.accounting import Account
from callboard.basp.handshake import LinkConfig
from callboard.basp.header import DIRECTORY, FIRST_ACTOR, INSPECTOR, SPAWN_SERVER
from callboard.basp.node_id import NodeId
from callboard.closing import Closing, blocking_twin, refuse_loop
from callboard.proxies.actor_sampler import ActorSampler
from callboard.proxies.address import (
    Endpoint,
    NodeSource,
    check_name,
    check_node_id,
    endpoint_text,
    parse_address,
    parse_seed,
)
from callboard.proxies.broker import Broker
from callboard.proxies.draining import Drain
from callboard.proxies.environment import NodeEnvironment, real_surroundings
from callboard.proxies.event_history import EventHistory
from callboard.proxies.events import NodeDown
from callboard.proxies.inspection import QUESTIONS, Inspector, ReadPart
from callboard.proxies.lifetime.proxy import Proxy
from callboard.proxies.link.connector import LinkOptions
from callboard.proxies.link.discovery import Discovery, KnownSource
from callboard.proxies.link.limits import Limits
from callboard.proxies.link.ports import Ports
from callboard.proxies.link.secret_tls import Encryption, SecretTls
from callboard.proxies.link.wire import Wire
from callboard.proxies.messages import DRAIN_TIMEOUT, Drained, Spawn
from callboard.proxies.names.directory import Directory, Names
from callboard.proxies.names.group import Group, Members
from callboard.proxies.names.search import CONNECT_TIMEOUT, Reach
from callboard.proxies.names.watch import NameChange, watch_name
from callboard.proxies.node_monitor import NodeMonitor
from callboard.proxies.rights.permissions import LinkAccess, Secrets
from callboard.proxies.rights.rights import Rights
from callboard.proxies.spawn_server import SpawnServer
from callboard.proxies.stats import (
    AccountInfo,
    ForwardedAsk,
    LinkInfo,
    NodeStats,
    ReachableNode,
)
from callboard.proxies.topology import Topology
from callboard.proxies.traffic.paths import describe_node
from callboard.proxies.workers.class_source import refuse_while_loading, source_of
from callboard.proxies.workers.pool import Worker, WorkerPool
from callboard.support.calls import Action, AnyCoroutine, Arguments, Keywords
from callboard.support.platform.release import RELEASE, build_id
from callboard.support.platform.system import processors
from callboard.support.text import safe_repr
from callboard.tls.certificates import Certificates, TlsSource

A = TypeVar("A", bound=Actor)
P = ParamSpec("P")
T = TypeVar("T")

#: Place to spawn an actor: an address, a node id, a worker, a pool of workers.
Place = str | bytes | Worker | WorkerPool


class Node(Closing):
    """A container for actors that can be linked to others.

    It runs in the background as soon as it is created; no port is open until `listen`. Use it
    as a context manager, or call `close`. All methods may be called from any thread. Blocking
    methods have an awaitable twin with an `a` in front.
    """

    #: The class of the nodes in worker processes, as `module:name`.
    worker_class: ClassVar[str] = "callboard.proxies.node:Node"

    def __init__(
        self,
        name: str = "",
        *,
        spawnable: Mapping[str, type[Actor]] | None = None,
        join: Sequence[str] = (),
        secret: Secrets | None = None,
        secrets: Mapping[str, Secrets] | None = None,
        permissions: Mapping[str, Rights] | None = None,
        allow_unsealed: bool = False,
        tls: TlsSource | ssl.SSLContext | None = None,
        encrypt: bool = False,
        limits: Limits | None = None,
        is_tool: bool = False,
        serve_logs: Mapping[str, Any] | None = None,
        surroundings: NodeEnvironment | None = None,
    ) -> None:
        """Create a node.

        Args:
            name: a name for people: logs, displays, errors.
            spawnable: the classes that other nodes may spawn here, by name.
            join: addresses to link with; dialed until they answer, and again after a loss. A
                source of addresses is looked up repeatedly: `dns://NAME:PORT`, `srv://NAME`
                (needs dnspython) or `file:PATH`, with one address per line.
            secret: shared secret of the cluster, proved on every link before anything else.
                While secrets are changed (see `change_secrets`), a list of secrets: the node
                accepts all of them, and proves the first one first.
            secrets: secrets with names. A peer is identified by the name of the secret that it
                proves. When this node dials, it tries the secrets one after the other.
            permissions: rights of peers, by patterns of their names. A name comes from
                `secrets`, or else from a certificate. The first matching pattern applies, and a
                peer without a match is refused. Without permissions, all peers have all rights.
            allow_unsealed: also link with nodes of release 0.1 during an upgrade. Those nodes
                prove a secret, but do not seal the link with it.
            tls: encrypts the links that this node makes, and the links of its ports unless
                `listen` sets another one; peers must use TLS as well.
            encrypt: encrypts the same links without certificates: the secret is the key of TLS.
                Peers must set `encrypt` as well. Needs Python 3.13.
            limits: limits of the node for its peers.
            is_tool: whether this node only inspects and asks, like a command. Other nodes do
                not count a tool as a member, and do not report its links.
            serve_logs: logs that other nodes may read, by the names in their addresses, such as
                `basp://HOST:PORT/cpu`: folders, which may be made later, or a `CommitLog`.
            surroundings: runner, network and other dependencies of the node; simulations pass
                their own.

        Raises:
            InvalidAddress: an address in `join` has another form than `basp://HOST:PORT`.
            TlsError: a file of `tls` is missing or unusable, or this Python cannot `encrypt`.
            TypeError: `join` is a string, or `secrets` or `permissions` are not such maps.
            ValueError: a secret is empty or repeated, or the name has unprintable characters;
                or `encrypt` is used without a secret, or together with `tls`.
        """
        _check_arguments(name, join, spawnable or {}, limits)
        seeds = [parse_seed(address) for address in join]
        access = LinkAccess.of(secret, secrets, permissions, allow_unsealed=allow_unsealed)
        self._encryption = encryption = self._encryption_of(tls, access, encrypt=encrypt)
        around = surroundings or real_surroundings()
        node_id = around.make_node_id()
        name = name or f"node-{node_id.hex()[:6]}"
        self.name = name
        #: Runs the node's threads, sockets and timers; a simulation replaces it.
        self.runner = around.make_runner(name)
        self.runtime = Runtime(name, node_id, self.runner)
        self.runtime.plain = PlainActors({})
        #: The runtime as packages above see it.
        self.context: NodeContext = self.runtime
        options = replace(
            _link_options(name, node_id, is_tool=is_tool),
            access=access,
            tls=encryption,
            limits=limits or Limits(),
        )
        self._closed = False
        #: Whether `close` was called.
        self._is_closing = False
        #: Coroutines that `_start` runs for callers, with their wrappers, by future.
        self._started: dict[Future, tuple[AnyCoroutine, ...]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()  # asyncio itself has only weak references
        self._broker = broker = Broker(self.runtime, self.runner, around, options)
        self.runtime.connect(self, broker.lifetimes, self._spawn_elsewhere)
        #: Serializes messages for the wire; `encode` raises `NotSerializable` or
        #: `MessageTooLarge` for a message that cannot be sent.
        self.codec, self.encode = broker.outgoing.codec, broker.outgoing.encode
        self._routes, self._connector = broker.routes, broker.connector
        #: Links and paths, for packages above.
        self.overlay = Topology(self.runtime, self._routes, self._connector, broker.foreign)
        self._ports = Ports(
            self.runner, around.network, self._connector, self._routes.listens_at
        )
        #: Names registered on this node, and members of groups that joined here.
        self._names, self._groups = Names(), Names()
        #: Groups that this node has used.
        self._members: dict[str, Members] = {}
        self._reach = Reach(
            self.runtime, self._routes, self._names, self._connector.dialer, self._ports
        )
        self._pools: list[WorkerPool] = []
        self._drain = Drain(self.runtime, broker, (self._names, self._groups), self._pools)
        #: Classes that other nodes may spawn here, by name.
        self._offered = dict(spawnable or {})
        self._start_parts(limits or Limits(), serve_logs)
        self._discovery = self._discover(around, seeds)
        self._register_end()

    def _encryption_of(
        self, tls: TlsSource | ssl.SSLContext | None, access: LinkAccess, *, encrypt: bool
    ) -> Encryption | None:
        """Return the encryption of links that this node makes, and the default of its ports."""
        if not encrypt:
            return Certificates.of_dials(tls)
        return self._secret_tls(tls, access)

    def _secret_tls(
        self, tls: TlsSource | ssl.SSLContext | None, access: LinkAccess
    ) -> SecretTls:
        """Return an encryption by TLS, whose keys are the secrets of this node or of a port."""
        if tls is not None:
            msg = "tls=… and encrypt=True are two ways to encrypt a link; choose one"
            raise errors.WrongValue(msg)
        if not access.keys:
            msg = "encrypt=True needs a secret, which is the key of TLS; pass secret=… as well"
            raise errors.WrongValue(msg)
        if access.has_own_keys:
            return SecretTls(lambda: access.keys)
        return SecretTls(lambda: self._connector.options.access.keys)

    def _discover(
        self, around: NodeEnvironment, seeds: Sequence[Endpoint | NodeSource]
    ) -> Discovery:
        """Dial the addresses in `join`, and look up the addresses of the sources in it."""
        parts = self.runner, around.network, self._connector.dialer
        discovery = Discovery(*parts, self._ports.is_own, self.runtime.report)
        for seed in seeds:
            if isinstance(seed, NodeSource):
                self.runtime.post(discovery.add, seed, Future())
            else:
                self._reach.dial(seed, keep=True).cancel()
        return discovery

    def _start_parts(self, limits: Limits, logs: Mapping[str, Any] | None) -> None:
        """Start the system actors of the node.

        The public class `Node` overrides this method to add the server of logs.
        """
        start_actor, names = self.runtime.start_actor, self._names
        start_actor(SpawnServer, (self._offered,), number=SPAWN_SERVER)
        start_actor(Directory, (names, self._groups, self.name), number=DIRECTORY)
        history = EventHistory(self.runtime, self._routes.names, names.names_of)
        self._monitor = self._make_monitor()
        parts = (self._broker, names, self._drain, history, self._monitor)
        start_actor(Inspector, parts, number=INSPECTOR)
        self._broker.on_upkeep = self._monitor.tick
        authorizer = self._broker.authorizer
        authorizer.registered, authorizer.offered = names.names_of, self._offered
        authorizer.inspections = QUESTIONS

    def _make_monitor(self) -> NodeMonitor:
        """Return the measurements of this node, with their inspection tables."""
        runtime = self.runtime

        def ask(neighbor: bytes, timeout: float) -> Future[Answer]:
            return runtime.ref_of(neighbor, INSPECTOR).ask(ReadPart(""), timeout)

        def sample(cells: Collection[Cell], now: float) -> None:
            sampler.pass_by(cells, now, self.runner.sampler)

        sampler = ActorSampler()
        monitor = NodeMonitor(runtime, sampler, sample, ask, self.links, self.accounts)
        for name, source in monitor.tables().items():
            self.overlay.add_table(name, source)
        self.overlay.measure_links = monitor.measure_links
        return monitor

    # --- identity and address ---

    @property
    def node_id(self) -> bytes:
        """The 18 bytes that identify this node: a 120-bit hash and the process id."""
        return self.runtime.node_id

    @property
    def address(self) -> str:
        """Address of this node, as `basp://HOST:PORT`; `+ "/NAME"` addresses an actor.

        A Unix socket has the address `basp+unix:/PATH:`; a TCP port, if there is one, takes
        precedence.

        Raises:
            InvalidAddress: the node does not listen.
        """
        if self._routes.endpoint is None:
            msg = f"{self.name} does not listen; call node.listen(address, port) first"
            raise errors.InvalidAddress(msg)
        return endpoint_text(self._routes.endpoint)

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.node_id.hex()}>"

    def __enter__(self) -> Self:
        self._refuse_closed()
        return super().__enter__()

    # --- actors ---

    def ref(self, text: str) -> ActorRef:
        """Return the ref for its text. Never blocks or dials.

        Raises:
            InvalidAddress: the text is not `basp://HOST:PORT/ID@NODE` or `basp:///ID@NODE`.
        """
        address = parse_address(text)
        if address.number is None or address.node is None:
            msg = (
                f"{text!r} is not the text of a ref; use remote_actor() for "
                "basp://HOST:PORT/NAME"
            )
            raise errors.InvalidAddress(msg)
        ref = self.runtime.ref_of(address.node, address.number)
        if isinstance(ref.target, Proxy) and address.endpoint is not None:
            ref.target.endpoint = address.endpoint
        return ref

    def monitor(self, ref: ActorRef) -> Future[Down]:
        """Return a future that is done when the actor ends, is lost, or has ended already."""
        return self.runtime.monitor(ref)

    @overload
    def spawn(
        self, actor_class: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> ActorRef[A]: ...
    @overload
    def spawn(
        self, actor_class: type[A], *args: Any, on: Place | None, **kwargs: Any
    ) -> ActorRef[A]: ...
    def spawn(self, actor_class: Any, *args: Any, on: Any = None, **kwargs: Any) -> Any:
        """Spawn an actor here, or on another node that offers its class.

        Args:
            actor_class: a subclass of `Actor`, or of Thespian's.
            args: arguments for the actor's `__init__`.
            on: the node on which to spawn: the address or id of a node that offers the class, a
                worker, or a pool of workers.
            kwargs: keyword arguments for the actor's `__init__`.

        Raises:
            NotSpawnable: the other node does not offer the class, or the class has options of
                `with_options`, which are not sent to another node.
            NodeUnreachable: no node answers there.
            RemoteError: the actor's `__init__` raised an exception on the other node.
        """
        if on is not None:
            return self._wait(self.aspawn(actor_class, *args, on=on, **kwargs))
        return self.runtime.start_actor(actor_class, args, kwargs)

    @overload
    async def aspawn(
        self, actor_class: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> ActorRef[A]: ...
    @overload
    async def aspawn(
        self, actor_class: type[A], *args: Any, on: Place | None, **kwargs: Any
    ) -> ActorRef[A]: ...
    async def aspawn(self, actor_class: Any, *args: Any, on: Any = None, **kwargs: Any) -> Any:
        """Awaitable twin of `spawn`."""
        if on is None:
            return self.runtime.start_actor(actor_class, args, kwargs)
        plain_class, _ = options_of(actor_class)
        name = plain_class.__qualname__
        if plain_class is not actor_class:
            msg = (
                f"options of with_options() do not travel to another node; set them as class "
                f"attributes of {name}, or offer a subclass of it there that has them"
            )
            raise errors.NotSpawnable(msg)
        request = Spawn(name, args, kwargs or None, by_class=True)
        with self.runtime.shutdown.ending():
            if isinstance(on, Worker | WorkerPool):
                return await on.aspawn(actor_class, *args, **kwargs)
            return await self._spawn_on(on, request)

    async def _spawn_on(self, on: str | bytes, request: Spawn) -> ActorRef[Actor]:
        """Spawn an actor on another node."""
        return await self._reach.spawn(on, request)

    async def aremote_spawn(
        self, on: str | bytes, name: str, *args: Any, **kwargs: Any
    ) -> ActorRef:
        """Spawn an actor on another node, by the name under which that node offers its class.

        Args:
            on: address (`basp://HOST:PORT`) or id of the node.
            name: one of the keys of that node's `spawnable`.
            args: arguments for the actor's `__init__`; they are serialized like a message.
            kwargs: keyword arguments for the actor's `__init__`.

        Raises:
            NotSpawnable: the node offers no class of that name.
            NodeUnreachable: no node answers there.
            RemoteError: the actor's `__init__` raised.
        """
        needed = "takes the name of an offered class; spawn(Till, on=…) the class"
        require(isinstance(name, str), f"remote_spawn() {needed}", name)
        with self.runtime.shutdown.ending():
            return await self._spawn_on(on, Spawn(name, args, kwargs or None))

    remote_spawn = blocking_twin(aremote_spawn)

    def offer(self, name: str, actor_class: type[Actor]) -> None:
        """Offer a class to other nodes from now on, as `spawnable` does."""
        self._refuse_closed()
        _check_offer(name, actor_class)
        self._offered[name] = actor_class

    def workers(self, count: int | None = None) -> WorkerPool:
        """Start child processes, each with a node, so that actors can use more cores.

        They are linked to this node over socket pairs and offer the same classes; other classes
        that are spawned on them are loaded from their modules or files.

        Args:
            count: how many; by default one for each core that this process may use.

        Raises:
            NotSpawnable: a class that this node offers cannot be loaded in another process.
            ValueError: the count is less than one, or the node is simulated.
            WorkerFailed: a process ended, or was not linked in time; or a worker reads this
                program's file, which lacks `if __name__ == "__main__":`.
        """
        refuse_while_loading()
        return self._wait(self._start_workers(count))

    async def aworkers(self, count: int | None = None) -> WorkerPool:
        """Awaitable twin of `workers`."""
        refuse_while_loading()
        with self.runtime.shutdown.ending():
            return await self._start_workers(count)

    async def _start_workers(self, count: int | None) -> WorkerPool:
        """Start workers and wait until they are linked."""
        self._refuse_closed()
        is_number = count is None or type(count) is int
        require(is_number, "workers() takes a number of processes", count)
        if type(self.runner) is not Runner:
            msg = f"{self.name} is simulated and cannot start processes; simulate more nodes"
            raise ValueError(msg)
        offers = {name: source_of(offered) for name, offered in self._offered.items()}
        process_count = processors() if count is None else count
        pool = WorkerPool(self._broker, self.worker_class, process_count, offers, self._wait)
        self._pools.append(pool)
        try:
            await pool.started()
        except BaseException:
            await pool.aclose()
            raise
        return pool

    def supervise(
        self,
        children: Sequence[Child],
        *,
        strategy: str = "one_for_one",
        intensity: tuple[int, float] = (3, 5.0),
        backoff: tuple[float, float] = BACKOFF,
    ) -> ActorRef[Supervisor]:
        """Start children under a supervisor, which restarts them when they end.

        Args:
            children: the children, in order of their start.
            strategy: children to restart when one ends: `one_for_one` only that child,
                `one_for_all` all, `rest_for_one` that child and those started after it.
            intensity: a number of restarts and a number of seconds. More restarts within that
                time end the supervisor.
            backoff: shortest and longest pause, in seconds, before a restart that soon follows
                another one of the same child.

        Raises:
            ValueError: the strategy is unknown, or a number is negative.
            Exception: any error from the `__init__` of a child.
        """
        check_children(children)
        return self.runtime.start_actor(
            Supervisor, (list(children), strategy, intensity, backoff)
        )

    # --- names ---

    def register(self, name: str, ref: ActorRef) -> None:
        """Register an actor under a name for other nodes, until it ends or `unregister`.

        Raises:
            InvalidAddress: the name is not valid in an address.
        """
        self._refuse_closed()
        self._names.register(name, ref)
        cell = self.runtime.contexts.get(ref.actor_id)
        if ref.is_local and cell is None:
            text = f"register({name!r}, …): the actor has ended, so the name was not registered"
            self.runtime.warn_once(("register", name), text)

    def unregister(self, name: str) -> bool:
        """Remove a name; returns False if no actor had it."""
        return self._names.withdraw(check_name(name))

    def find(self, name: str, timeout: float = CONNECT_TIMEOUT) -> Future[ActorRef]:
        """Look up a name on this node and on all reachable nodes.

        The future fails with `NotRegistered` if no actor has the name.
        """
        return self._start(self._reach.first(check_name(name), checked(timeout)))

    def find_all(self, name: str, timeout: float = CONNECT_TIMEOUT) -> Future[list[ActorRef]]:
        """Return all reachable actors of that name, those of this node first."""
        return self._start(self._reach.all(check_name(name), checked(timeout)))

    def watch(self, name: str) -> Feed[NameChange]:
        """Iterate over the reachable holders of a name: the present ones, then each change.

        `NameAdded` and `NameRemoved` are in the order in which this node learns of them; a
        holder whose node is lost is removed with reason `unreachable`. The iteration ends when
        the node is closed, or with `aclose`. If a wait for the next change is cancelled, no
        change is lost.

        Raises:
            InvalidAddress: the name is not valid for an actor.
        """
        check_name(name)
        return Feed(partial(self._begin_watching, name))

    def _begin_watching(self, name: str, source: Source[NameChange]) -> Action:
        """Put the changes of a name into a feed; return the function that ends it."""
        watcher = watch_name(self.runtime, name, is_group=False, on_change=source.put)
        self.runtime.monitor(watcher).on_done(lambda _: source.end())
        return watcher.kill

    def group(
        self,
        name: str,
        *,
        routing: str = "round_robin",
        key: Callable[[Any], Any] | str | None = None,
    ) -> Group[Any]:
        """Return the group of that name: actors of all nodes in reach that joined it.

        Args:
            name: as for `register`; names of groups and names of actors are separate.
            routing: choice of the member for a message: `round_robin`, `random`, `least_busy`
                (by the asks of this node that are outstanding) or `hash` (by a key,
                consistently).
            key: for `hash`: an attribute of the message, or a function of it.

        Raises:
            InvalidAddress: the name is not valid in an address.
            ValueError: the routing is unknown, or `key` does not fit it.
        """
        members = self._members.get(check_name(name))
        if members is None:
            new_members = Members(self.runtime, name)
            members = self._members.setdefault(name, new_members)
            if members is not new_members:
                new_members.close()
        return Group(self.runtime, self._groups, members, name, routing, key)

    # --- other nodes ---

    def listen(
        self,
        address: str = "127.0.0.1",
        port: int = 0,
        *,
        publish: ActorRef | None = None,
        tls: TlsSource | ssl.SSLContext | None = None,
        secret: Secrets | None = None,
        secrets: Mapping[str, Secrets] | None = None,
        permissions: Mapping[str, Rights] | None = None,
        allow_unsealed: bool | None = None,
        encrypt: bool | None = None,
        insecure: bool = False,
    ) -> int:
        """Accept links on a port; return the port (0 picks a free one).

        Args:
            address: local address; a public one needs `tls`, a secret, or `insecure=True`.
                `unix:/PATH` is a Unix socket, which only its owner can use.
            port: TCP port; none for a Unix socket.
            publish: the actor that `remote_actor("basp://HOST:PORT")` returns.
            tls: encrypts the links of this port; default is the node's. Unix sockets have none.
            secret: shared secret that every peer must prove; default is the node's.
            secrets: secrets with names; each peer must prove one of them. The default, if
                `secret` is not given either, is the node's.
            permissions: rights of the peers of this port; default is the node's.
            allow_unsealed: accept nodes of release 0.1, whose links are not sealed; default is
                the node's.
            encrypt: encrypts the links of this port with the secret as the key of TLS; default
                is the node's, unless `tls` is given.
            insecure: allow a public address without TLS and without a secret.

        Raises:
            PublicAddress: other machines can reach the port, and it has neither TLS nor a
                secret.
            TlsError: a file of `tls` is missing or unusable, or this Python cannot `encrypt`.
            ValueError: the port number is invalid; or `encrypt` is used without a secret, or
                together with `tls`.
            PortUnavailable: the address is not on this machine, or the port is taken.
        """
        self._refuse_closed()
        if publish is not None:
            checked_ref(publish, "listen(publish=…)")
        access = self._connector.options.access
        own_access = LinkAccess.of(secret, secrets, permissions)
        if own_access.keys:
            access = replace(access, keys=own_access.keys, has_own_keys=True)
        if own_access.permissions is not None:
            access = replace(access, permissions=own_access.permissions)
        if allow_unsealed is not None:
            access = replace(access, allow_unsealed=allow_unsealed)
        chosen = self._port_encryption(tls, access, encrypt=encrypt)
        return self._ports.open(
            address, port, published=publish, access=access, tls=chosen, insecure=insecure
        )

    def _port_encryption(
        self,
        tls: TlsSource | ssl.SSLContext | None,
        access: LinkAccess,
        *,
        encrypt: bool | None,
    ) -> Encryption | None:
        """Return the encryption of a port's links."""
        of_node = self._encryption
        is_by_secret = isinstance(of_node, SecretTls) and tls is None
        if is_by_secret if encrypt is None else encrypt:
            return self._secret_tls(tls, access)
        if tls is not None:
            return Certificates(tls, self.runtime.report)
        return of_node if isinstance(of_node, Certificates) else None

    async def achange_secrets(
        self, secret: Secrets | None = None, secrets: Mapping[str, Secrets] | None = None
    ) -> int:
        """Replace the secrets of the running node; return the number of links that end.

        A link ends if its secret is no longer accepted. The side that dialed it dials again,
        and proves another secret. Ports that were opened with other secrets keep these. To
        replace a secret without a gap, call this three times on each node: with `[old, new]`,
        then with `[new, old]`, and then with `new`. Make each of these calls on all nodes
        before the next one.

        Args:
            secret: as in the constructor of the node.
            secrets: as in the constructor of the node. `permissions` refer to the names of
                these secrets.

        Raises:
            TypeError: `secrets` is not such a map.
            ValueError: no secret is given, one is empty or repeated.
        """
        self._refuse_closed()
        access = LinkAccess.of(secret, secrets, None)
        if not access.keys:
            msg = "change_secrets() needs a secret; to do without one, create the node without"
            raise ValueError(msg)
        changed: Future[int] = Future()
        change = self._connector.change_keys
        self.runtime.post(lambda: changed.set_result(change(access.keys)))
        return await self.runtime.shutdown.guard(changed)

    change_secrets = blocking_twin(achange_secrets)

    async def aconnect(self, address: str, timeout: float = CONNECT_TIMEOUT) -> bytes:
        """Link with the node at an address and stay linked; return its id.

        This side restores a lost link until the node is closed. If the address is a source
        (`dns://NAME:PORT`, `srv://NAME`, `file:PATH`), this node dials all addresses in it,
        including addresses that are added later. The result is the id of the first node that
        answers.

        Raises:
            NodeUnreachable: no node answers there; the address is not dialed again.
        """
        self._refuse_closed()
        target, limit = parse_seed(address), checked(timeout)
        with self.runtime.shutdown.ending():
            if isinstance(target, NodeSource):
                return await self._connect_source(target, limit)
            peer, _ = await self._reach.linked(target, limit, keep=True)
        return peer

    connect = blocking_twin(aconnect)

    async def _connect_source(self, source: NodeSource, timeout: float) -> bytes:
        """Dial all addresses of a source, and return the id of the first node that answers."""
        first: Future[bytes] = Future()
        followed: Future[KnownSource] = Future()
        discovery = self._discovery
        self.runtime.post(lambda: followed.set_result(discovery.add(source, first)))
        watched = await followed
        try:
            return await self.runtime.in_time(first, timeout, TimeoutError())
        except BaseException as error:
            refusal = discovery.error_of(watched, timeout)
            self.runtime.post(discovery.remove, watched)
            if isinstance(error, TimeoutError):
                raise refusal from None
            raise

    @property
    def is_alone(self) -> bool:
        """Whether the node has sources of addresses, and these name no other node."""
        return self._discovery.is_alone

    async def aremote_actor(self, address: str, timeout: float = CONNECT_TIMEOUT) -> ActorRef:
        """Return the ref of an actor of another node, by `basp://HOST:PORT/NAME`.

        Without a name it is the actor published at the port.

        Raises:
            NodeUnreachable: no node answers there.
            NotRegistered: the name is not registered there.
        """
        self._refuse_closed()
        if parse_address(address).number is not None:
            return self.ref(address)
        with self.runtime.shutdown.ending():
            return await self._reach.actor_at(address, checked(timeout))

    remote_actor = blocking_twin(aremote_actor)

    def monitor_node(self, node_id: bytes) -> Future[NodeDown]:
        """Return a future that is done when a node is no longer reachable."""
        self._refuse_closed()
        check_node_id(node_id, "monitor_node()")
        future: Future[NodeDown] = Future()
        self.runtime.post(self._broker.paths.monitor_node, node_id, future)
        return self.runtime.shutdown.guard(future)

    def adopt(self, sock: socket.socket, *, dialer: bool) -> None:
        """Link over an existing connection, such as one end of a socket pair.

        Args:
            sock: a connected stream socket; the node owns it from now on.
            dialer: True on exactly one of its two ends.
        """
        self._refuse_closed()
        self.runtime.post(partial(self._connector.adopt, sock, dialer=dialer))

    def disconnect(self, node_id: bytes, seconds: float = 3.0) -> None:
        """Cut the link with a neighbor and refuse it for some seconds, to test failures."""
        self._refuse_closed()
        check_node_id(node_id, "disconnect()")
        self.runtime.post(self._connector.bar, node_id, checked(seconds, "seconds"))

    # --- figures and events ---

    def nodes(self) -> list[ReachableNode]:
        """List the reachable nodes, nearest first, without tools such as commands."""
        tools = self._routes.tools
        return [node for node in self._routes.nodes() if node.node_id not in tools]

    def links(self) -> list[LinkInfo]:
        """List the links to neighbors."""
        return [
            LinkInfo(
                peer,
                wire.peer_name,
                "" if wire.endpoint is None else endpoint_text(wire.endpoint),
                wire.frames_sent,
                wire.frames_received,
                wire.bytes_sent,
                wire.bytes_received,
                wire.waiting,
                wire.pauses,
                peer in self._routes.tools,
                *_description_of(wire),
                round_trip=self._monitor.round_trips.get(peer, 0.0),
            )
            for peer, wire in list(self._routes.wires.items())
        ]

    def accounts(self) -> dict[bytes, AccountInfo]:
        """Return the numbers of messages sent to each other node, and their outcome."""
        accounts = dict(self._routes.accounts.accounts)
        waiting = self._broker.unrouted.waiting_by_node()
        names = self._routes.names
        return {
            node: _account_info(
                accounts.get(node) or Account(), waiting.get(node, 0), names.get(node, "")
            )
            for node in {**accounts, **waiting}
        }

    def report_now(self) -> None:
        """Confirm received messages to the other nodes at once, instead of within a second."""
        self.runtime.post(self._broker.report)

    def passages(self) -> list[ForwardedAsk]:
        """Return the latest asks that this node forwarded for others, oldest first."""
        return list(self._broker.forwarding.passages)

    def stats(self) -> NodeStats:
        """Return the node's counters."""
        runtime, broker = self.runtime, self._broker
        counters = asdict(runtime.counters)  # NodeStats takes some of them by name
        counted = {name: counters[name] for name in counters.keys() & _FIGURES}
        depths = [
            cell.depth for cell in list(runtime.contexts.values()) if cell.number >= FIRST_ACTOR
        ]
        return NodeStats(
            name=self.name,
            node_id=self.node_id,
            actors=len(depths),
            handled=runtime.handled,
            forwarded=broker.forwarding.forwarded,
            undeliverable=broker.routes.undeliverable,
            waiting_asks=len(broker.outgoing.asks.by_id),
            proxies=broker.lifetimes.count,
            refused_connections=broker.connector.gate.refused,
            pauses=broker.connector.pauses,
            dropped_fields=broker.outgoing.codec.dropped_fields,
            handler_seconds=runtime.handler_seconds,
            mailbox_messages=sum(depths),
            mailbox_depth_max=max(depths, default=0),
            refused_frames=broker.routes.refused,
            not_permitted=broker.authorizer.audit.count,
            ask_seconds=self.runner.sampler.asks,
            waiting_seconds=self.runner.sampler.waits,
            **counted,
        )

    def subscribed(self, subscriber: Callable[[object], None]) -> AbstractContextManager[None]:
        """Call `subscriber(event)` for each event while the block runs; it must be quick.

        Events about links and paths of tools, such as commands, are skipped.
        """
        needed = "subscribed() takes a function of one event"
        require(callable(subscriber), needed, subscriber)

        def tell(event: Event) -> None:
            if not getattr(event, "is_tool", False):
                subscriber(event)

        return self.runtime.subscribed(tell)

    def events(self) -> Feed[object]:
        """Iterate over the node's events, dataclasses: dead letters, downs, links, restarts.

        The iteration ends when the node is closed, or with `aclose`. If a wait for the next
        event is cancelled, no event is lost.
        """
        return Feed(self._begin_reporting)

    def _begin_reporting(self, source: Source[object]) -> Action:
        """Put the events of this node into a feed; return the function that ends it."""
        parts = contextlib.ExitStack()
        parts.enter_context(self.subscribed(source.put))
        parts.callback(self.runtime.shutdown.on(Phase.ENDED, source.end))
        return parts.close

    # --- draining and closing ---

    @property
    def is_draining(self) -> bool:
        """Whether a drain has begun."""
        return self._names.are_withdrawn

    def drain(self, timeout: float = DRAIN_TIMEOUT) -> Drained:
        """Finish the work in progress, accept no new work, then close; return the report.

        At once, the node stops offering its names, refuses spawns and ends its consumers of
        jobs. Then entities move to other nodes, unfinished asks are answered, and the messages
        in all mailboxes are handled, including those of the node's workers. The report is also
        an event.

        Args:
            timeout: seconds after which the node is closed even if work is left. Closing then
                takes at most half a second.

        Raises:
            NodeClosed: the node is closed already.
        """
        report = self._wait(self._drain.adrain(checked(timeout)))
        self.close()
        return report

    async def adrain(self, timeout: float = DRAIN_TIMEOUT) -> Drained:
        """Awaitable twin of `drain`."""
        self._refuse_closed()
        report = await self._drain.adrain(checked(timeout))
        await self.aclose()
        return report

    def close(self) -> None:
        """End all actors, notify the neighbors, close all links and stop. Idempotent.

        In a handler of this node it returns at once; the node ends when the handler has ended.
        Any call that still waits for this node fails with `NodeClosed`.

        Raises:
            WouldBlock: called on the thread of a running event loop; nothing was closed.
        """
        if self._is_closing:
            return
        if self.runtime.is_runner_thread():
            threading.Thread(target=self.close, name="callboard-close", daemon=True).start()
            return
        refuse_loop("close()", "node.aclose()")
        self._is_closing = True
        self.runtime.shutdown.close()

    def _register_end(self) -> None:
        """Register the steps of closing this node."""
        add = self.runtime.shutdown.add_close_step
        add(CloseStep.ACTORS, self._end_actors)
        add(CloseStep.LINKS, self._close_links)
        add(CloseStep.RUNNER, self._stop_runner)
        add(CloseStep.PROCESSES, self._join_workers)

    def _end_actors(self, deadline: Deadline) -> None:
        """End all actors, without waiting beyond the deadline for a handler that blocks."""
        self._closed = True
        self.runtime.post(self._discovery.close)
        for pool in self._pools:
            pool.begin_close()
        self.runtime.end_actors(deadline.left(STEP_SECONDS, SHUTDOWN_TIMEOUT))

    def _close_links(self, deadline: Deadline) -> None:
        """Close all links and ports."""
        done: Future[None] = Future()
        self.runtime.post(self._shut, done)
        # A blocked handler may hold up the runner; closing continues after the deadline.
        with contextlib.suppress(errors.ResultTimeout):
            done.result(deadline.left(STEP_SECONDS))

    def _stop_runner(self, deadline: Deadline) -> None:
        """Fail all calls that wait for this node, and stop its threads."""
        self.runtime.close(deadline.left(STEP_SECONDS, SHUTDOWN_TIMEOUT))
        self._connector.linger()
        for future, coroutines in list(self._started.items()):
            future.set_exception(errors.NodeClosed(f"{self.name} was closed"))
            for coroutine in coroutines:  # the loop ended before their first step
                if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                    coroutine.close()

    def _join_workers(self, deadline: Deadline) -> None:
        """Wait for the worker processes; kill the ones that take too long."""
        for pool in self._pools:
            pool.join(deadline.left(STEP_SECONDS))

    def _shut(self, done: Future[None]) -> None:
        """Close all links. Must be called on the runner's thread."""
        try:
            self._broker.close()
        finally:
            done.set_result(None)

    # --- blocking calls ---

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a twin to its end for a thread that may block; the twin has a time limit."""
        twin = getattr(coroutine, "__name__", "")
        cell = current_cell.get()
        try:
            if cell is not None and self.runtime.is_runner_thread():
                msg = f"this call would hold up {cell.ref}; await node.{twin}(…) instead"
                raise errors.WouldDeadlock(msg)
            # A detached actor may block its thread.
            if cell is None or not cell.may_block_here():
                refuse_loop("this call", f"node.{twin}(…)")
        except errors.CallboardError:
            coroutine.close()
            raise
        return self._start(coroutine).result()

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the runner's loop; return a future of its outcome."""
        future: Future[T] = Future()

        async def run() -> None:
            try:
                future.set_result(await coroutine)
            except asyncio.CancelledError:
                if self._closed:
                    future.set_exception(errors.NodeClosed(f"{self.name} was closed meanwhile"))
                future.cancel()
                raise
            except BaseException as error:
                future.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            finally:
                self._started.pop(future, None)

        around = run()
        self._started[future] = (coroutine, around)
        if self._closed:
            coroutine.close()
            around.close()
            self._started.pop(future, None)
            self._refuse_closed()
        loop = self.runtime.loop
        loop.call_soon_threadsafe(self._keep_task, loop, around)
        return future

    def _keep_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]
    ) -> None:
        """Start a task, and store it so that the garbage collector does not remove it."""
        task = loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refuse_closed(self) -> None:
        """Raise `NodeClosed` once the node is closed."""
        if self._closed:
            msg = f"{self.name} is closed; create another node"
            raise errors.NodeClosed(msg)

    def _spawn_elsewhere(
        self, actor_class: type[A], args: Arguments, kwargs: Keywords, on: Any
    ) -> Future[ActorRef[A]]:
        """Start spawning a supervisor's child on another node."""
        return self._start(self.aspawn(actor_class, *args, on=on, **kwargs))


_FIGURES: Final = {figure.name for figure in fields(NodeStats)}


def _check_arguments(name: str, join: object, spawnable: Any, limits: object) -> None:
    """Check the arguments of a node.

    Raises:
        WrongArgument: an argument has a wrong type.
        WrongValue: the name is not printable.
    """
    require(isinstance(name, str), "the name of a node must be a text", name)
    if not name.isprintable():
        msg = f"{name!a} cannot be the name of a node: use printable characters"
        raise errors.WrongValue(msg)
    if isinstance(join, str):
        msg = f"join takes a list of addresses: join=[{join!r}]"
        raise errors.WrongArgument(msg)
    require(isinstance(limits, Limits | None), "limits takes Limits(…)", limits)
    needed = 'spawnable takes classes by their names: {"till": Till}'
    require(isinstance(spawnable, Mapping), needed, spawnable)
    for offered, actor_class in spawnable.items():
        _check_offer(offered, actor_class)


def _check_offer(name: object, actor_class: object) -> None:
    """Check that a class can be spawned by other nodes under a name.

    Raises:
        WrongArgument: the class cannot be spawned by other nodes.
    """
    needed = (
        f"a class is offered by its name, as in offer('till', Till), not {safe_repr(name):.80}"
    )
    is_named = isinstance(name, str) and isinstance(actor_class, type)
    require(is_named, f"{needed} with a class", actor_class)


def _link_options(name: str, node_id: NodeId, *, is_tool: bool) -> LinkOptions:
    """Return the description of a node for its links, without authentication."""
    return LinkOptions(
        node_id,
        state=describe_node(name, is_tool=is_tool),
        limited_state=describe_node(name, is_tool=is_tool, is_limited=True),
        greeting=LinkConfig(node_id, release=(RELEASE, build_id())),
    )


def _description_of(wire: Wire) -> tuple[str, str, str]:
    """Return release and build of a link's peer, and the guard of the link."""
    peer = wire.link.peer
    assert peer is not None, "a link that is not established is not listed"
    return peer.release, peer.build, peer.guard.value


def _account_info(account: Account, waiting: int, name: str) -> AccountInfo:
    """Return the figures of an account."""
    # `sent` is read last: other threads send at the same time, and in_flight must not be
    # negative.
    confirmed, dead_letters, lost = account.confirmed, account.dead_letters, account.lost
    sent_count = account.sent
    in_flight = sent_count - confirmed - lost
    return AccountInfo(sent_count, confirmed, dead_letters, lost, in_flight, waiting, name)
